/* What a program can say, by every way there is. */
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

struct call {
	long key;
	char tag[4];
	unsigned char bytes[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
	__type(value, struct call);
} calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8);
	__type(key, struct call);
	__type(value, int);
} seen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} sums SEC(".maps");

long total, last[2];
const volatile int step = 1;
char LICENSE[] SEC("license") = "MIT";

SEC("uprobe")
int BPF_KPROBE(say, long key, long size)
{
	struct call c = {.key = key, .tag = "ab", .bytes = {1, 2}};
	int value = -5;
	__u32 index = key & 3;
	__u64 *sum = bpf_map_lookup_elem(&sums, &index);

	total += step;
	last[1] = key;
	if (sum)
		*sum += size;
	bpf_map_update_elem(&seen, &c, &value, 0);
	if (key > 2)
		bpf_ringbuf_output(&calls, &c, sizeof c, 0);
	if (key == 4)
		bpf_printk("key %ld", key);
	return 0;
}
