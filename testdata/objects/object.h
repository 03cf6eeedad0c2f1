/* What the objects share. They are written as for the kernel, with libbpf's headers. TARGET is the path of
 * the program orders, as a string. */
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

typedef __u8 u8;
typedef __u32 u32;
typedef __u64 u64;
typedef __s32 s32;
typedef __s64 s64;

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Adds to a value of a hash, from 0 on. */
#define ADD(map, key, n) \
	do { \
		u64 zero = 0, *v = bpf_map_lookup_elem(map, key); \
		if (!v) { \
			bpf_map_update_elem(map, key, &zero, BPF_NOEXIST); \
			v = bpf_map_lookup_elem(map, key); \
		} \
		if (v) \
			__sync_fetch_and_add(v, n); \
	} while (0)
