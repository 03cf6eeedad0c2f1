/* What functions return, at all instructions by which they do, also in a recursion. */
#include "object.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, s32);
	__type(value, u64);
} results SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, u64);
	__type(value, u64);
} depths SEC(".maps");

SEC("uretprobe/" TARGET ":try_it")
int BPF_KRETPROBE(tried, int result)
{
	result >>= 4;
	ADD(&results, &result, 1);
	return 0;
}

SEC("uretprobe/" TARGET ":nest")
int BPF_KRETPROBE(nested, u64 result)
{
	ADD(&depths, &result, 1);
	return 0;
}
