/* One program at several functions, by a pattern. */
#include "object.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 64);
	__type(key, u64);
	__type(value, u64);
} entries SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, u64);
	__type(value, u64);
} returns SEC(".maps");

SEC("uprobe.multi/" TARGET ":s*")
int entered(struct pt_regs *ctx)
{
	u64 key = PT_REGS_PARM1(ctx) & 7, one = 1, *v = bpf_map_lookup_elem(&entries, &key);

	if (v)
		*v += 1;
	else
		bpf_map_update_elem(&entries, &key, &one, BPF_ANY);
	return 0;
}

SEC("uretprobe.multi/" TARGET ":s*")
int left(struct pt_regs *ctx)
{
	u64 key = PT_REGS_RC(ctx) & 15;

	ADD(&returns, &key, 1);
	return 0;
}
