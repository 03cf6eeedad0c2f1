/* Counts by a key, in a hash, an array, and one for each CPU. */
#include "object.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, u64);
	__type(value, u64);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 256);
	__type(key, u32);
	__type(value, u64);
} sizes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} calls SEC(".maps");

SEC("uprobe/" TARGET ":count")
int BPF_KPROBE(count_calls, long key, long size)
{
	u32 index = size, zero = 0;
	u64 *v;

	ADD(&counts, &key, 1);
	v = bpf_map_lookup_elem(&sizes, &index);
	if (v)
		__sync_fetch_and_add(v, size);
	v = bpf_map_lookup_elem(&calls, &zero);
	if (v)
		*v += 1;
	return 0;
}
