/*
 * limits: a program that has set a limit for itself, and goes on.
 *
 *	limits fsize N      no file may have more than N bytes (RLIMIT_FSIZE)
 *	limits nofile N     no more than N descriptors (RLIMIT_NOFILE)
 *	limits as N         no more than N MB beyond its address space (RLIMIT_AS)
 *	limits maps N       it maps memory until only N more mappings are allowed (vm.max_map_count)
 *
 * "calls N" calls work() N times and answers "called=N".
 */
#include "target.h"
#include <sys/mman.h>
#include <sys/resource.h>

PROBED long work(long value)
{
	return value * 3 + 1;
}

static long pages(void)
{
	long n = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	CHECK(f && fscanf(f, "%ld", &n) == 1, "statm");
	fclose(f);
	return n;
}

/* fill maps memory until only n more mappings are possible. */
static void fill(long n)
{
	size_t page = sysconf(_SC_PAGESIZE), size = (size_t)1 << 33, i;
	char *all = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(all != MAP_FAILED, "mmap");
	for (i = page; i + page < size && mprotect(all + i, page, PROT_READ) == 0; i += 2 * page)
		;
	CHECK(i + page < size, "more than %zu mappings are allowed", i / page);
	for (i -= 2 * page; n > 0; n -= 2, i -= 2 * page)
		CHECKED(0, mprotect(all + i, page, PROT_NONE));
}

int main(int argc, char **argv)
{
	char line[64];
	long n;
	struct rlimit limit;
	int what;

	CHECK(argc == 3, "two arguments");
	limit.rlim_cur = limit.rlim_max = atol(argv[2]);
	what = strcmp(argv[1], "fsize") == 0 ? RLIMIT_FSIZE : strcmp(argv[1], "nofile") == 0 ? RLIMIT_NOFILE : RLIMIT_AS;
	target_ready();
	if (what == RLIMIT_AS)
		limit.rlim_cur = limit.rlim_max = pages() * 4096 + (atol(argv[2]) << 20);
	if (strcmp(argv[1], "maps") == 0)
		fill(atol(argv[2]));
	else
		CHECKED(0, setrlimit(what, &limit));
	while (fgets(line, sizeof line, stdin)) {
		if (sscanf(line, "calls %ld", &n) != 1)
			continue;
		for (long i = 0; i < n; i++)
			CHECK(work(i) == i * 3 + 1, "call %ld", i);
		printf("called=%ld\n", n);
	}
	return target_ok();
}
