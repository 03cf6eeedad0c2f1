/* A histogram by powers of two, as a map and as one value. */
#include "object.h"

struct summary {
	u64 count, total;
	u32 slots[64];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, u64);
} buckets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8);
	__type(key, u32);
	__type(value, struct summary);
} summaries SEC(".maps");

static struct summary empty;

static __always_inline u32 log2l(u64 v)
{
	u32 r = 0, i;

#pragma unroll
	for (i = 32; i > 0; i /= 2)
		if (v >> i) {
			v >>= i;
			r += i;
		}
	return r;
}

SEC("uprobe/" TARGET ":spread")
int BPF_KPROBE(histogram, u64 value)
{
	u32 slot = log2l(value), which = value & 3;
	u64 *v = bpf_map_lookup_elem(&buckets, &slot);
	struct summary *s;

	if (v)
		__sync_fetch_and_add(v, 1);
	s = bpf_map_lookup_elem(&summaries, &which);
	if (!s) {
		bpf_map_update_elem(&summaries, &which, &empty, BPF_NOEXIST);
		s = bpf_map_lookup_elem(&summaries, &which);
		if (!s)
			return 0;
	}
	__sync_fetch_and_add(&s->count, 1);
	__sync_fetch_and_add(&s->total, value);
	__sync_fetch_and_add(&s->slots[slot & 63], 1);
	return 0;
}
