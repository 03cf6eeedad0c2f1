/* Variables, constants, functions that are not inlined, and loops. */
#include "object.h"

const volatile u64 threshold = 40;
static const volatile u32 weights[16] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};

u64 over, under, weighed = 1000;
s64 least = 1 << 30;
u64 table[32];
static volatile u32 rounds;

struct walk {
	u64 value, ones;
};

static __noinline u64 weight(u64 key)
{
	return key < 16 ? weights[key] : 0;
}

static long one_bit(u32 i, struct walk *w)
{
	w->ones += w->value >> (i & 63) & 1;
	return w->value >> (i & 63) == 0;
}

SEC("uprobe/" TARGET ":count")
int BPF_KPROBE(weigh, u64 key, u64 size)
{
	struct walk w = {.value = size};

	if (size > threshold)
		__sync_fetch_and_add(&over, 1);
	else
		__sync_fetch_and_add(&under, 1);
	__sync_fetch_and_add(&weighed, weight(key));
	bpf_loop(64, one_bit, &w, 0);
	__sync_fetch_and_add(&table[w.ones & 31], 1);
	rounds++;
	return 0;
}

SEC("uprobe/" TARGET ":place+0")
int BPF_KPROBE(smallest, u32 *user)
{
	u32 amount = 0;

	bpf_probe_read_user(&amount, sizeof amount, user + 1);
	if (amount < least)
		least = amount;
	return 0;
}
