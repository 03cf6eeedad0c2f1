#include "objects/probe.h"

/* Programs that must be refused, at the line that says so and for the reason
 * that it names. */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u64);
	__type(value, u64);
} counts SEC(".maps");

struct pair {
	u32 kind;
	u64 address;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct pair);
	__type(value, u64);
} pairs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} events SEC(".maps");

SEC("uprobe/null") int null(struct pt_regs *ctx)
{
	u64 key = PARM1(ctx), *v = map_lookup(&counts, &key);
	*v += 1; /* want maybe-null */
	return 0;
}

SEC("uprobe/gap") int gap(struct pt_regs *ctx)
{
	struct pair p;
	p.kind = 1;
	p.address = PARM1(ctx);
	u64 *v = map_lookup(&pairs, &p); /* want uninitialised-stack */
	return v ? *v : 0;
}

SEC("uprobe/last") int last(struct pt_regs *ctx)
{
	u8 a[32] = {};
	u64 i = PARM1(ctx);
	if (i <= sizeof a)
		a[i] = 1; /* want outside */
	ringbuf_output(&events, a, sizeof a, 0);
	return 0;
}

SEC("uprobe/length") int length(struct pt_regs *ctx)
{
	u8 a[32];
	u64 n = PARM2(ctx);
	if (n > 32)
		return probe_read_user(a, n, (void *)PARM1(ctx)); /* want size */
	return 0;
}

SEC("uprobe/kept") int kept(struct pt_regs *ctx)
{
	u64 *e = ringbuf_reserve(&events, 16, 0);
	if (!e)
		return 0;
	e[0] = PARM1(ctx);
	if (PARM2(ctx))
		ringbuf_submit(e, 0);
	return 0;
} /* want reference */

SEC("uprobe/after") int after(struct pt_regs *ctx)
{
	u64 *e = ringbuf_reserve(&events, 16, 0);
	if (!e)
		return 0;
	e[1] = PARM1(ctx);
	ringbuf_submit(e, 0);
	return e[1]; /* want released */
}

SEC("uprobe/write") int write(struct pt_regs *ctx)
{
	ctx->ax = 0; /* want read-only */
	return 0;
}

SEC("uprobe/deref") int deref(struct pt_regs *ctx)
{
	return *(int *)PARM1(ctx); /* want not-a-pointer */
}

static __noinline u64 third(u64 *a)
{
	return a[3]; /* want outside */
}

SEC("uprobe/called") int called(struct pt_regs *ctx)
{
	u64 a[2] = {PARM1(ctx), PARM2(ctx)};
	return third(a);
}
