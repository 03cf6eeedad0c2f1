#include "probe.h"

/* Lengths and indexes of 32 bits. clang compares them without the upper half
 * only from -mcpu=v3 on. */

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, char[4096]);
} scratch SEC(".maps");

SEC("uprobe/bytes") int bytes(struct pt_regs *ctx)
{
	u32 zero = 0, len = PARM2(ctx);
	char *buf = map_lookup(&scratch, &zero);
	if (!buf)
		return 0;
	if (len > 4096)
		len = 4096;
	if (probe_read_user(buf, len, (void *)PARM1(ctx)) == 0)
		ringbuf_output(&events, buf, len, 0);
	return 0;
}

SEC("uprobe/signed_length") int signed_length(struct pt_regs *ctx)
{
	u32 zero = 0;
	s32 len = PARM2(ctx);
	char *buf = map_lookup(&scratch, &zero);
	if (!buf || len < 0 || len > 100)
		return 0;
	probe_read_user(buf + len, 100 - len, (void *)PARM1(ctx));
	ringbuf_output(&events, buf, len, 0);
	return 0;
}

SEC("uprobe/some") int some(struct pt_regs *ctx)
{
	u32 a[32] = {}, n = PARM2(ctx), zero = 0;
	u64 total = 0;
	if (n > 32)
		n = 32;
	if (probe_read_user(a, n * sizeof a[0], (void *)PARM1(ctx)))
		return 0;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < n; i++)
		total += a[i];
	ringbuf_output(&events, &total, sizeof total, 0);
	return 0;
}

SEC("uprobe/backwards") int backwards(struct pt_regs *ctx)
{
	u8 a[40], b[40] = {};
	if (probe_read_user(a, sizeof a, (void *)PARM1(ctx)))
		return 0;
#pragma clang loop unroll(disable)
	for (s32 i = sizeof a - 1; i >= 0; i--)
		b[sizeof a - 1 - i] = a[i];
	ringbuf_output(&events, b, sizeof b, 0);
	return 0;
}

SEC("uprobe/bits") int bits(struct pt_regs *ctx)
{
	u8 n[64] = {};
	u16 x = PARM1(ctx);
	u8 y = PARM2(ctx);
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < 16; i++) {
		n[(x >> i & 1) + y % 32]++;
		n[x & 63] = y;
	}
	ringbuf_output(&events, n, sizeof n, 0);
	return 0;
}
