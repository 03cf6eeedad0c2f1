#include "probe.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 16);
	__type(key, u32);
	__type(value, u64[32]);
} sums SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u64);
	__type(value, u64);
} table SEC(".maps");

/* the sum of an array of the process */
SEC("uprobe/sum") int sum(struct pt_regs *ctx)
{
	u32 a[32], zero = 0;
	u64 total = 0;
	if (probe_read_user(a, sizeof a, (void *)PARM1(ctx)))
		return 0;
#pragma clang loop unroll(disable)
	for (int i = 0; i < 32; i++)
		total += a[i];
	u64 *v = map_lookup(&sums, &zero);
	if (v)
		v[total & 31] += total;
	return 0;
}

/* the same with a number of elements that the process gives */
SEC("uprobe/some") int some(struct pt_regs *ctx)
{
	u32 a[32] = {}, zero = 0;
	u64 total = 0, n = PARM2(ctx);
	if (n > 32)
		n = 32;
	if (probe_read_user(a, n * sizeof a[0], (void *)PARM1(ctx)))
		return 0;
#pragma clang loop unroll(disable)
	for (u64 i = 0; i < n; i++)
		total += a[i];
	u64 *v = map_lookup(&sums, &zero);
	if (v)
		v[3] += total;
	return 0;
}

/* a hash of a string, byte by byte */
SEC("uprobe/hash") int hash(struct pt_regs *ctx)
{
	char s[64];
	u64 h = 5381;
	long n = probe_read_user_str(s, sizeof s, (void *)PARM1(ctx));
	if (n < 1)
		return 0;
#pragma clang loop unroll(disable)
	for (int i = 0; i < 64; i++) {
		if (!s[i])
			break;
		h = h * 33 + s[i];
	}
	u64 one = 1, *v = map_lookup(&table, &h);
	if (v)
		__sync_fetch_and_add(v, 1);
	else
		map_update(&table, &h, &one, 0);
	return 0;
}

/* insertion sort of eight numbers */
SEC("uprobe/sort") int sort(struct pt_regs *ctx)
{
	u64 a[8];
	u32 zero = 0;
	if (probe_read_user(a, sizeof a, (void *)PARM1(ctx)))
		return 0;
#pragma clang loop unroll(disable)
	for (int i = 1; i < 8; i++) {
		u64 x = a[i];
		int j = i;
#pragma clang loop unroll(disable)
		while (j > 0 && j < 8 && a[j - 1] > x) {
			a[j] = a[j - 1];
			j--;
		}
		if (j >= 0 && j < 8)
			a[j] = x;
	}
	u64 *v = map_lookup(&sums, &zero);
	if (v)
		v[0] = a[0];
	return 0;
}

/* a list of the process, followed for some steps */
struct node {
	struct node *next;
	u64 value;
};

SEC("uprobe/list") int list(struct pt_regs *ctx)
{
	struct node n, *p = (struct node *)PARM1(ctx);
	u64 total = 0;
	u32 zero = 0;
#pragma clang loop unroll(disable)
	for (int i = 0; i < 1000 && p; i++) {
		if (probe_read_user(&n, sizeof n, p))
			break;
		total += n.value;
		p = n.next;
	}
	u64 *v = map_lookup(&sums, &zero);
	if (v)
		v[1] = total;
	return 0;
}

/* two loops, one in the other, over a value of a map */
SEC("uprobe/matrix") int matrix(struct pt_regs *ctx)
{
	u32 zero = 0;
	u64 *v = map_lookup(&sums, &zero), total = 0;
	if (!v)
		return 0;
#pragma clang loop unroll(disable)
	for (int i = 0; i < 4; i++)
#pragma clang loop unroll(disable)
		for (int j = 0; j < 8; j++)
			total += v[8 * i + j];
	v[31] = total;
	return 0;
}

/* the place of a byte */
SEC("uprobe/find") int find(struct pt_regs *ctx)
{
	char s[100];
	u32 zero = 0;
	int at = -1;
	if (probe_read_user(s, sizeof s, (void *)PARM1(ctx)))
		return 0;
#pragma clang loop unroll(disable)
	for (int i = 0; i < sizeof s; i++)
		if (s[i] == '/')
			at = i;
	u64 *v = map_lookup(&sums, &zero);
	if (v && at >= 0 && at < sizeof s)
		v[4] = s[at];
	return 0;
}
