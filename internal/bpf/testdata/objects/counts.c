#include "probe.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u64);
	__type(value, u64);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 64);
	__type(key, u32);
	__type(value, u64);
} hist SEC(".maps");

struct lat {
	u64 count, total;
	u32 slots[27];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u64);
} start SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct lat);
} latency SEC(".maps");

/* count by the first argument */
SEC("uprobe/count") int count(struct pt_regs *ctx)
{
	u64 key = PARM1(ctx), one = 1, *v = map_lookup(&counts, &key);
	if (v)
		__sync_fetch_and_add(v, 1);
	else
		map_update(&counts, &key, &one, 1);
	return 0;
}

static __always_inline u32 log2u32(u32 v)
{
	u32 shift, r = (v > 0xffff) << 4;
	v >>= r;
	shift = (v > 0xff) << 3; v >>= shift; r |= shift;
	shift = (v > 0xf) << 2; v >>= shift; r |= shift;
	shift = (v > 0x3) << 1; v >>= shift; r |= shift;
	return r | (v >> 1);
}

static __always_inline u32 log2u64(u64 v)
{
	u32 high = v >> 32;
	return high ? log2u32(high) + 32 : log2u32(v);
}

/* a histogram by powers of two, in a map */
SEC("uprobe/hist") int histogram(struct pt_regs *ctx)
{
	u32 slot = log2u64(PARM1(ctx));
	if (slot >= 64)
		slot = 63;
	u64 *v = map_lookup(&hist, &slot);
	if (v)
		*v += 1;
	return 0;
}

/* the time between entry and return, in a histogram that is one value */
SEC("uprobe/entry") int entry(struct pt_regs *ctx)
{
	u32 tid = get_current_pid_tgid();
	u64 now = ktime_get_ns();
	map_update(&start, &tid, &now, 0);
	return 0;
}

SEC("uretprobe/exit") int leave(struct pt_regs *ctx)
{
	u32 tid = get_current_pid_tgid(), zero = 0;
	u64 *t = map_lookup(&start, &tid);
	if (!t)
		return 0;
	s64 delta = ktime_get_ns() - *t;
	if (delta < 0)
		goto cleanup;
	struct lat *l = map_lookup(&latency, &zero);
	if (!l)
		goto cleanup;
	u64 slot = log2u64(delta / 1000U);
	if (slot >= 27)
		slot = 26;
	__sync_fetch_and_add(&l->slots[slot], 1);
	__sync_fetch_and_add(&l->total, delta);
	__sync_fetch_and_add(&l->count, 1);
cleanup:
	map_delete(&start, &tid);
	return 0;
}
