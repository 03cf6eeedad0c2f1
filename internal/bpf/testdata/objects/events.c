#include "probe.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 4);
} perf SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, char[4096]);
} scratch SEC(".maps");

struct event {
	u64 ts;
	u32 pid, tid;
	s64 ret;
	char comm[16];
	char name[128];
};

/* a record, filled in place */
SEC("uprobe/reserve") int reserve(struct pt_regs *ctx)
{
	struct event *e = ringbuf_reserve(&events, sizeof *e, 0);
	if (!e)
		return 0;
	u64 id = get_current_pid_tgid();
	e->ts = ktime_get_ns();
	e->pid = id >> 32;
	e->tid = id;
	e->ret = RC(ctx);
	get_current_comm(e->comm, sizeof e->comm);
	if (probe_read_user_str(e->name, sizeof e->name, (void *)PARM1(ctx)) < 0) {
		ringbuf_discard(e, 0);
		return 0;
	}
	ringbuf_submit(e, 0);
	return 0;
}

/* a structure on the stack */
SEC("uprobe/perf") int output(struct pt_regs *ctx)
{
	struct event e = {};
	e.pid = get_current_pid_tgid() >> 32;
	get_current_comm(&e.comm, sizeof e.comm);
	probe_read_user(&e.name, sizeof e.name, (void *)PARM2(ctx));
	perf_event_output(ctx, &perf, 0xffffffffULL, &e, sizeof e);
	return 0;
}

/* a string of any length */
SEC("uprobe/string") int string(struct pt_regs *ctx)
{
	char buf[256];
	long n = probe_read_user_str(buf, sizeof buf, (void *)PARM1(ctx));
	if (n > 0)
		ringbuf_output(&events, buf, n, 0);
	return 0;
}

/* bytes of any length, cut off */
SEC("uprobe/bytes") int bytes(struct pt_regs *ctx)
{
	u32 zero = 0;
	u64 len = PARM2(ctx);
	char *buf = map_lookup(&scratch, &zero);
	if (!buf)
		return 0;
	if (len > 4096)
		len = 4096;
	if (probe_read_user(buf, len, (void *)PARM1(ctx)) == 0)
		ringbuf_output(&events, buf, len, 0);
	return 0;
}

/* two strings, one behind the other */
SEC("uprobe/pack") int pack(struct pt_regs *ctx)
{
	u32 zero = 0, off = 0;
	char *buf = map_lookup(&scratch, &zero);
	if (!buf)
		return 0;
	long n = probe_read_user_str(buf, 256, (void *)PARM1(ctx));
	if (n <= 0)
		return 0;
	off = n & 511;
	n = probe_read_user_str(buf + off, 256, (void *)PARM2(ctx));
	if (n <= 0)
		return 0;
	off += n & 511;
	ringbuf_output(&events, buf, off & 4095, 0);
	return 0;
}

/* several strings, in a loop that is not unrolled */
SEC("uprobe/argv") int argv(struct pt_regs *ctx)
{
	const char **args = (const char **)PARM1(ctx);
	u32 zero = 0, off = 0;
	char *buf = map_lookup(&scratch, &zero);
	if (!buf)
		return 0;
#pragma clang loop unroll(disable)
	for (int i = 1; i < 20; i++) {
		const char *arg = 0;
		probe_read_user(&arg, sizeof arg, &args[i]);
		if (!arg || off > 4096 - 128)
			break;
		long n = probe_read_user_str(buf + off, 128, arg);
		if (n < 0 || n > 128)
			break;
		off += n;
	}
	if (off < 4096)
		ringbuf_output(&events, buf, off, 0);
	return 0;
}
