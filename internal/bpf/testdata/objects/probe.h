/* What the test programs need of libbpf's headers, written down again: map
 * definitions, helpers by their numbers (include/uapi/linux/bpf.h), and the
 * registers that hold arguments on x86-64. */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int s32;
typedef long long s64;

#define SEC(name) __attribute__((section(name), used))
#define __always_inline inline __attribute__((always_inline))
#define __noinline __attribute__((noinline))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERF_EVENT_ARRAY = 4,
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_STACK_TRACE = 7,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_RINGBUF = 27,
};

struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di;
	unsigned long orig_ax, ip, cs, flags, sp, ss;
};
#define PARM1(c) ((c)->di)
#define PARM2(c) ((c)->si)
#define PARM3(c) ((c)->dx)
#define RC(c) ((c)->ax)

static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*map_update)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static long (*map_delete)(void *map, const void *key) = (void *)3;
static u64 (*ktime_get_ns)(void) = (void *)5;
static long (*trace_printk)(const char *fmt, u32 size, ...) = (void *)6;
static u32 (*get_prandom_u32)(void) = (void *)7;
static u32 (*get_smp_processor_id)(void) = (void *)8;
static u64 (*get_current_pid_tgid)(void) = (void *)14;
static long (*get_current_comm)(void *buf, u32 size) = (void *)16;
static long (*perf_event_output)(void *ctx, void *map, u64 flags, void *data, u64 size) = (void *)25;
static long (*get_stackid)(void *ctx, void *map, u64 flags) = (void *)27;
static long (*get_stack)(void *ctx, void *buf, u32 size, u64 flags) = (void *)67;
static long (*probe_read_user)(void *dst, u32 size, const void *from) = (void *)112;
static long (*probe_read_user_str)(void *dst, u32 size, const void *from) = (void *)114;
static long (*ringbuf_output)(void *map, void *data, u64 size, u64 flags) = (void *)130;
static void *(*ringbuf_reserve)(void *map, u64 size, u64 flags) = (void *)131;
static void (*ringbuf_submit)(void *data, u64 flags) = (void *)132;
static void (*ringbuf_discard)(void *data, u64 flags) = (void *)133;
static long (*for_each_map_elem)(void *map, void *fn, void *ctx, u64 flags) = (void *)164;
static long (*snprintf)(char *out, u32 size, const char *fmt, u64 *data, u32 len) = (void *)165;
static u64 (*get_attach_cookie)(void *ctx) = (void *)174;
static long (*bpf_loop)(u32 n, void *fn, void *ctx, u64 flags) = (void *)181;
static long (*bpf_strncmp)(const char *a, u32 size, const char *b) = (void *)182;

char LICENSE[] SEC("license") = "Dual MIT/GPL";
