/* Functions that are called for each entry of a map: sums, entries that are changed or deleted meanwhile, an
 * early end, and a walk within a walk. And the values of all CPUs, added up. */
#include "object.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, u64);
} amounts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 10);
	__type(key, u32);
	__type(value, u64);
} digits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 5);
	__type(key, u32);
	__type(value, u64);
} visits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 16);
	__type(key, u64);
	__type(value, u64);
} lanes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 10);
	__type(key, u32);
	__type(value, u64);
} results SEC(".maps");

struct sum {
	u64 keys, values, most;
};

static long add(void *map, u32 *key, u64 *value, struct sum *s)
{
	s->keys += *key;
	s->values += *value;
	if (*value > s->most)
		s->most = *value;
	return 0;
}

static long give_up_large(void *map, u32 *key, u64 *value, u64 *limit)
{
	if (*value > *limit)
		bpf_map_delete_elem(map, key);
	return 0;
}

static long first(void *map, u32 *key, u64 *value, u64 *wanted)
{
	(*wanted)++;
	return *value >= 5;
}

static long visit(void *map, const void *key, u64 *value, void *unused)
{
	__sync_fetch_and_add(value, 1);
	return 0;
}

static long product(void *map, u32 *key, u64 *value, struct sum *s)
{
	struct sum inner = {};

	bpf_for_each_map_elem(&digits, add, &inner, 0);
	s->values += inner.keys * *key + inner.values;
	return 0;
}

/* Adds up the values of all CPUs. */
static u64 all(void *map, const void *key)
{
	u64 sum = 0;

	for (u32 cpu = 0; cpu < 256; cpu++) {
		u64 *v = bpf_map_lookup_percpu_elem(map, key, cpu);

		if (!v)
			break;
		sum += *v;
	}
	return sum;
}

static void note(u32 i, u64 n)
{
	u64 *v = bpf_map_lookup_elem(&results, &i);

	if (v)
		__sync_fetch_and_add(v, n);
}

SEC("uprobe/" TARGET ":count")
int BPF_KPROBE(counted, u64 key, u64 size)
{
	u32 id = key & 31, digit = size % 10;
	u64 lane = key & 7, zero = 0, limit = 2000;
	struct sum s = {}, squares = {};
	u64 *v;

	ADD(&amounts, &id, size);
	v = bpf_map_lookup_elem(&digits, &digit);
	if (v)
		__sync_fetch_and_add(v, 1);
	note(0, bpf_for_each_map_elem(&amounts, add, &s, 0));
	note(1, s.keys);
	note(2, s.values ^ s.most);
	note(3, bpf_for_each_map_elem(&amounts, give_up_large, &limit, 0));
	bpf_for_each_map_elem(&digits, product, &squares, 0);
	note(4, squares.values);
	bpf_map_update_elem(&lanes, &lane, &zero, BPF_NOEXIST);
	return 0;
}

SEC("uprobe/" TARGET ":spread")
int BPF_KPROBE(spreads)
{
	u64 wanted = 0, lane = 5;
	u32 third = 3;

	note(5, bpf_for_each_map_elem(&digits, first, &wanted, 0));
	note(6, wanted);
	note(7, bpf_for_each_map_elem(&visits, visit, 0, 0));
	note(8, all(&visits, &third));
	note(9, all(&lanes, &lane) + 1);
	return 0;
}
