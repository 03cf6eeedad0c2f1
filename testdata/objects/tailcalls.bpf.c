/* Tail calls: along a chain, in a circle until the limit ends it, to entries that are empty or out of range,
 * from a function, and to a program that has labels and functions of its own. */
#include "object.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16);
	__type(key, u32);
	__type(value, u64);
} seen SEC(".maps");

int second(struct pt_regs *ctx);
int third(struct pt_regs *ctx);
int circle(struct pt_regs *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 8);
	__uint(key_size, sizeof(u32));
	__array(values, int(void *));
} chain SEC(".maps") = {.values = {[1] = (void *)&second, [2] = (void *)&third, [5] = (void *)&circle}};

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 2);
	__uint(key_size, sizeof(u32));
	__array(values, int(void *));
} others SEC(".maps") = {.values = {[0] = (void *)&third}};

static void note(u32 i, u64 n)
{
	u64 *v = bpf_map_lookup_elem(&seen, &i);

	if (v)
		__sync_fetch_and_add(v, n);
}

static __attribute__((noinline)) u64 folded(u64 n)
{
	u64 sum = 0;

	for (int i = 0; i < 5; i++)
		sum += n >> i & 3;
	return sum;
}

SEC("uprobe")
int third(struct pt_regs *ctx)
{
	u64 n = PT_REGS_PARM2(ctx);

	note(3, 1);
	note(4, folded(n));
	if (n & 1)
		return 0;
	bpf_tail_call(ctx, &chain, n & 7);
	note(5, 1);
	return 0;
}

SEC("uprobe")
int second(struct pt_regs *ctx)
{
	note(2, 1);
	if (PT_REGS_PARM1(ctx) & 1)
		bpf_tail_call(ctx, &chain, 2);
	else
		bpf_tail_call(ctx, &others, 0);
	note(6, 1);
	return 0;
}

/* 33 times after the first. */
SEC("uprobe")
int circle(struct pt_regs *ctx)
{
	note(7, 1);
	bpf_tail_call(ctx, &chain, 5);
	note(8, 1);
	return 0;
}

SEC("uprobe/" TARGET ":count")
int BPF_KPROBE(counted, u64 key, u64 size)
{
	note(0, 1);
	bpf_tail_call(ctx, &chain, key % 10);
	note(1, 1);
	bpf_tail_call(ctx, &others, 1);
	note(1, 1);
	return 0;
}

SEC("uprobe/" TARGET ":spread")
int BPF_KPROBE(spreads, u64 value)
{
	bpf_tail_call(ctx, &chain, value & 1 ? 5 : 4);
	note(9, 1);
	return 0;
}

/* The program that is called returns to whoever has called the function. */
static __attribute__((noinline)) int jump(struct pt_regs *ctx)
{
	note(10, 1);
	if (ctx->r9 & 1)
		bpf_tail_call(ctx, &others, 0);
	note(11, 1);
	return 1;
}

SEC("uprobe/" TARGET ":six")
int sixes(struct pt_regs *ctx)
{
	int left = jump(ctx);

	note(12, left);
	note(13, 1);
	return 0;
}
