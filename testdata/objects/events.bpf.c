/* Records in a ring, and in the kernel's older form of one. */
#include "object.h"

struct order {
	u32 id;
	u32 amount;
	char customer[24];
};

struct event {
	u32 pid, tid;
	u64 order;
	char comm[16];
	char customer[24];
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
	__type(value, struct event);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 4);
} perf SEC(".maps");

SEC("uprobe/" TARGET ":place")
int BPF_KPROBE(placed, struct order *user)
{
	struct order o = {};
	struct event *e;
	u64 id = bpf_get_current_pid_tgid();

	if (bpf_probe_read_user(&o, sizeof o, user) < 0)
		return 0;
	e = bpf_ringbuf_reserve(&events, sizeof *e, 0);
	if (!e)
		return 0;
	if (o.id == 3) {
		bpf_ringbuf_discard(e, 0);
		return 0;
	}
	e->pid = id >> 32;
	e->tid = id;
	e->order = (u64)o.id << 32 | o.amount;
	bpf_get_current_comm(e->comm, sizeof e->comm);
	__builtin_memcpy(e->customer, o.customer, sizeof e->customer);
	bpf_ringbuf_submit(e, 0);
	return 0;
}

SEC("uprobe/" TARGET ":six")
int BPF_KPROBE(six_words, u64 a, u64 b, u64 c, u64 d, u64 e)
{
	u64 words[] = {a, b, c, d, e};

	bpf_perf_event_output(ctx, &perf, BPF_F_CURRENT_CPU, words, sizeof words);
	if (a % 3 == 0)
		bpf_ringbuf_output(&events, words, 8 + a % 4, 0);
	return 0;
}
