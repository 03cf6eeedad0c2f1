/* Strings of the target as keys, compared, and counted by their lengths. */
#include "object.h"

struct name {
	char text[32];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct name);
	__type(value, u64);
} names SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, s64);
	__type(value, u64);
} lengths SEC(".maps");

u64 graces, unreadable;

SEC("uprobe/" TARGET ":greet")
int BPF_KPROBE(greeted, const char *user, int times)
{
	struct name n = {};
	s64 length = bpf_probe_read_user_str(n.text, sizeof n.text, user);

	ADD(&lengths, &length, times);
	ADD(&names, &n, 1);
	if (bpf_strncmp(n.text, 6, "grace ") == 0)
		__sync_fetch_and_add(&graces, 1);
	if (bpf_probe_read_user(n.text, sizeof n.text, (void *)8) < 0)
		__sync_fetch_and_add(&unreadable, 1);
	return 0;
}
