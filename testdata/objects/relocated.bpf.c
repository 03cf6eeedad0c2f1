/* CO-RE relocations: struct pt_regs is declared in part and in another order, and asked for what it does not
 * have. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

struct pt_regs {
	unsigned long si, dx, di, missing;
	struct {
		int no;
	} neither;
} __attribute__((preserve_access_index));

struct pt_regs___other {
	unsigned long cx, ax;
} __attribute__((preserve_access_index));

struct no_such_struct {
	int x;
} __attribute__((preserve_access_index));

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, __u64);
} sums SEC(".maps");

__u64 missing, exists, structs, offset, size;
char LICENSE[] SEC("license") = "MIT";

SEC("uprobe/" TARGET ":count")
int relocated(struct pt_regs *ctx)
{
	__u64 key = ctx->di, value = ctx->si, *v = bpf_map_lookup_elem(&sums, &key);

	if (v)
		__sync_fetch_and_add(v, value);
	else
		bpf_map_update_elem(&sums, &key, &value, BPF_ANY);
	if (bpf_core_field_exists(ctx->missing))
		missing += ctx->missing;
	if (bpf_core_field_exists(ctx->dx))
		exists += 1;
	if (bpf_core_type_exists(struct no_such_struct))
		structs += 1;
	offset = bpf_core_field_offset(struct pt_regs, di);
	size = bpf_core_field_size(ctx->di);
	return 0;
}

SEC("uretprobe/" TARGET ":try_it")
int returned(struct pt_regs *ctx)
{
	__u64 key = ((struct pt_regs___other *)ctx)->ax & 1023, one = 1;

	bpf_map_update_elem(&sums, &key, &one, BPF_ANY);
	return 0;
}
