/* Text that is made by bpf_snprintf, as keys: of numbers in all forms, strings of the program and of the
 * process, and addresses of the internet. */
#include "object.h"

struct line {
	char text[64];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 512);
	__type(key, struct line);
	__type(value, u64);
} lines SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, s64);
	__type(value, u64);
} lengths SEC(".maps");

static void note(struct line *l, s64 length)
{
	ADD(&lengths, &length, 1);
	ADD(&lines, l, 1);
}

SEC("uprobe/" TARGET ":try_it")
int BPF_KPROBE(tried, int n)
{
	struct line l = {};
	s64 small = (n & 15) - 8;

	note(&l, BPF_SNPRINTF(l.text, sizeof l.text, "[%d] [%5d] [%-5d] [%05d] [%+d] [% d]", small, small, small, small, small, small));
	__builtin_memset(&l, 0, sizeof l);
	note(&l, BPF_SNPRINTF(l.text, sizeof l.text, "[%+ 06ld] [%u] [%-8lx] [%08X] [%llu] 100%%", small, small, small, small, small));
	__builtin_memset(&l, 0, sizeof l);
	note(&l, BPF_SNPRINTF(l.text, 20, "%c|%3c|%-3c|%px %px", 'a' + (n & 7), 'b', 'c', small, 4096));
	return 0;
}

SEC("uprobe/" TARGET ":greet")
int BPF_KPROBE(greeted, const char *user, int times)
{
	struct line l = {}, name = {};
	unsigned char address[16] = {192, 168, times & 3, 1, 0xab, [15] = 9};

	bpf_probe_read_user_str(name.text, 24, user);
	note(&l, BPF_SNPRINTF(l.text, sizeof l.text, "%s: %30s|%-12s|", name.text, name.text, name.text));
	__builtin_memset(&l, 0, sizeof l);
	note(&l, BPF_SNPRINTF(l.text, sizeof l.text, "%pus, %pks and %s", user, name.text, 8));
	__builtin_memset(&l, 0, sizeof l);
	note(&l, BPF_SNPRINTF(l.text, sizeof l.text, "%pI4 %pi4 %pI6", address, address, address));
	__builtin_memset(&l, 0, sizeof l);
	note(&l, BPF_SNPRINTF(l.text, sizeof l.text, "%pi6", address));
	note(&l, BPF_SNPRINTF(0, 0, "%s", name.text));
	return 0;
}
