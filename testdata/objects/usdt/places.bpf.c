/* The arguments of USDT probes, by libbpf's header. */
#include <stdbool.h>
#include "../object.h"
#include <bpf/usdt.bpf.h>

struct four {
	s64 a, b, c, d;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, struct four);
	__type(value, u64);
} registers SEC(".maps"), memory SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, s64);
	__type(value, u64);
} twice SEC(".maps");

SEC("usdt/" TARGET ":test:registers")
int BPF_USDT(on_registers, long a, int b, unsigned c, short d)
{
	struct four key = {a, b, c, d};

	ADD(&registers, &key, 1);
	return 0;
}

SEC("usdt/" TARGET ":test:memory")
int on_memory(struct pt_regs *ctx)
{
	struct four key = {};
	long value = 7;

	bpf_usdt_arg(ctx, 0, &value);
	key.a = value;
	bpf_usdt_arg(ctx, 4, &value);
	key.b = value;
	bpf_usdt_arg(ctx, 7, &value);
	key.c = value;
	key.d = bpf_usdt_cookie(ctx);
	ADD(&memory, &key, 1);
	return 0;
}

SEC("usdt")
int BPF_USDT(on_twice, long v)
{
	s64 key = v;

	ADD(&twice, &key, 1);
	return 0;
}
