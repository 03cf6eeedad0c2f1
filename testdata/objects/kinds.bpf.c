/* More kinds of maps, structures as values of them, and all flags of an update. */
#include "object.h"

struct stats {
	u64 calls;
	u32 small, large;
	s64 total;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, struct stats);
} recent SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 8);
	__type(key, u32);
	__type(value, struct stats);
} lanes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, s64);
	__type(value, u64);
} outcomes SEC(".maps");

static void note(struct stats *s, s64 n)
{
	s->calls++;
	if (n < 100)
		s->small++;
	else
		s->large++;
	s->total += n;
}

SEC("uprobe/" TARGET ":try_it")
int BPF_KPROBE(tried, int n)
{
	u32 key = n & 31, lane = n & 7;
	struct stats *s = bpf_map_lookup_elem(&recent, &key), fresh = {};

	if (!s) {
		bpf_map_update_elem(&recent, &key, &fresh, BPF_ANY);
		s = bpf_map_lookup_elem(&recent, &key);
	}
	if (s)
		note(s, n);
	s = bpf_map_lookup_elem(&lanes, &lane);
	if (s)
		note(s, n);
	return 0;
}

/* What an update returns: the flags decide. */
SEC("uprobe/" TARGET ":count")
int BPF_KPROBE(flags, s64 key)
{
	u64 one = 1;
	s64 result = bpf_map_update_elem(&outcomes, &key, &one, key & 1 ? BPF_NOEXIST : BPF_EXIST) - 1000;

	ADD(&outcomes, &result, 1);
	result = bpf_map_delete_elem(&outcomes, &key) - 2000;
	ADD(&outcomes, &result, 1);
	return 0;
}
