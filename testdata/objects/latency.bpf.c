/* How long calls take: entry and return meet in a map. */
#include "object.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u64);
} start SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, u64);
} latency SEC(".maps"); /* by the logarithm of its nanoseconds */

SEC("uprobe/" TARGET ":six")
int BPF_KPROBE(enter)
{
	u32 tid = bpf_get_current_pid_tgid();
	u64 now = bpf_ktime_get_ns();

	bpf_map_update_elem(&start, &tid, &now, BPF_ANY);
	return 0;
}

SEC("uretprobe/" TARGET ":six")
int BPF_KRETPROBE(leave)
{
	u32 tid = bpf_get_current_pid_tgid(), slot = 0;
	u64 *begin = bpf_map_lookup_elem(&start, &tid), *v;
	s64 took;

	if (!begin)
		return 0;
	took = bpf_ktime_get_ns() - *begin;
	bpf_map_delete_elem(&start, &tid);
	if (took < 0)
		return 0;
#pragma unroll
	for (int i = 0; i < 63; i++)
		slot += took >> i > 1;
	v = bpf_map_lookup_elem(&latency, &slot);
	if (v)
		__sync_fetch_and_add(v, 1);
	return 0;
}
