#include "probe.h"

struct key {
	u32 pid, kind;
	u64 address;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct key);
	__type(value, u64);
} seen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, 128);
	__uint(key_size, 4);
	__uint(value_size, 8 * 127);
} stacks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} events SEC(".maps");

const volatile u32 only_pid = 0;
const volatile u32 kinds[4] = {1, 2, 3, 5};
u64 total;
u64 by_kind[8];

static __noinline int fill(struct key *k, struct pt_regs *ctx, u32 kind)
{
	k->pid = get_current_pid_tgid() >> 32;
	k->kind = kind;
	k->address = PARM1(ctx);
	return k->pid == only_pid || !only_pid;
}

static __noinline u64 bump(struct key *k, u64 by)
{
	u64 *v = map_lookup(&seen, k);
	if (!v) {
		map_update(&seen, k, &by, 0);
		return by;
	}
	*v += by;
	return *v;
}

/* functions of the program, and global variables */
SEC("uprobe/globals") int globals(struct pt_regs *ctx)
{
	struct key k = {};
	u32 kind = kinds[PARM2(ctx) & 3];
	if (!fill(&k, ctx, kind))
		return 0;
	total += bump(&k, 1);
	if (kind < 8)
		__sync_fetch_and_add(&by_kind[kind], 1);
	return 0;
}

struct walk {
	struct pt_regs *ctx;
	u64 from;
	u64 sum;
	u32 found;
};

static long step(u32 i, struct walk *w)
{
	u64 word;
	if (probe_read_user(&word, sizeof word, (void *)(w->from + 8 * i)))
		return 1;
	if (word == 42)
		w->found = i + 1;
	w->sum += word;
	return 0;
}

/* bpf_loop, with a structure on the stack */
SEC("uprobe/loop") int looped(struct pt_regs *ctx)
{
	struct walk w = {.ctx = ctx, .from = PARM1(ctx)};
	bpf_loop(PARM2(ctx), step, &w, 0);
	if (w.found)
		total += w.sum;
	return 0;
}

struct most {
	u64 value;
	struct key key;
};

static long largest(void *map, struct key *k, u64 *v, struct most *m)
{
	if (*v > m->value) {
		m->value = *v;
		m->key = *k;
	}
	return 0;
}

/* for_each_map_elem */
SEC("uprobe/each") int each(struct pt_regs *ctx)
{
	struct most m = {};
	for_each_map_elem(&seen, largest, &m, 0);
	ringbuf_output(&events, &m, sizeof m, 0);
	return 0;
}

/* a stack as a key */
SEC("uprobe/stack") int stack(struct pt_regs *ctx)
{
	struct key k = {.pid = get_current_pid_tgid() >> 32};
	long id = get_stackid(ctx, &stacks, 256);
	if (id < 0)
		return 0;
	k.kind = id;
	bump(&k, 1);
	return 0;
}

/* a stack as an event */
SEC("uprobe/stackevent") int stackevent(struct pt_regs *ctx)
{
	u64 *e = ringbuf_reserve(&events, 8 * 64, 0);
	if (!e)
		return 0;
	long n = get_stack(ctx, e, 8 * 63, 256);
	e[63] = n;
	if (n > 0)
		ringbuf_submit(e, 0);
	else
		ringbuf_discard(e, 0);
	return 0;
}

/* a string constant and a format */
SEC("uprobe/strings") int strings(struct pt_regs *ctx)
{
	char path[64], line[64];
	static const char fmt[] = "path %s of %d";
	if (probe_read_user_str(path, sizeof path, (void *)PARM1(ctx)) < 0)
		return 0;
	if (bpf_strncmp(path, 5, "/etc/") == 0)
		total++;
	u64 args[] = {(u64)path, PARM2(ctx)};
	long n = snprintf(line, sizeof line, fmt, args, sizeof args);
	if (n > 0)
		ringbuf_output(&events, line, sizeof line, 0);
	return 0;
}

/* a choice of six */
SEC("uprobe/choice") int choice(struct pt_regs *ctx)
{
	u64 v;
	switch (PARM1(ctx)) {
	case 0: v = PARM2(ctx); break;
	case 1: v = PARM3(ctx) / 3; break;
	case 2: v = PARM2(ctx) % 100; break;
	case 7: v = (s32)PARM2(ctx) >> 3; break;
	case 9: v = get_prandom_u32() & 0xff; break;
	default: v = get_smp_processor_id(); break;
	}
	by_kind[v & 7]++;
	return 0;
}
