/*
 * swap LIBRARY: loads a library and does what stdin says. "call" calls its function library_work 100 times and
 * prints "called"; "map FILE" maps the text of another file over that of the library, which nobody tells the
 * dynamic loader, and prints "mapped".
 */
#include "target.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>

typedef unsigned long work(long key, unsigned long sum);

static void call(work *f)
{
	for (long i = 0; i < 100; i++)
		CHECK(f(i, 7) == 7 * 31ul + i, "library_work(%ld)", i);
	printf("called\n");
}

static void map(work *f, const char *path)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long start, end, offset;
	char line[512];
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	CHECK(maps && fd >= 0, "opening %s: %s", path, strerror(errno));
	while (fgets(line, sizeof line, maps)) {
		CHECK(sscanf(line, "%lx-%lx %*s %lx", &start, &end, &offset) == 3, "%s", line);
		if ((uintptr_t)f >= start && (uintptr_t)f < end) {
			CHECK(mmap((void *)start, end - start, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED, fd, offset) == (void *)start,
			      "mmap: %s", strerror(errno));
			printf("mapped\n");
			break;
		}
	}
	fclose(maps);
	close(fd);
}

int main(int argc, char **argv)
{
	char line[512];
	void *handle;
	work *f;

	CHECK(argc > 1, "usage: swap LIBRARY");
	handle = dlopen(argv[1], RTLD_NOW);
	CHECK(handle, "%s", dlerror());
	f = (work *)dlsym(handle, "library_work");
	CHECK(f, "%s", dlerror());
	target_ready();
	while (fgets(line, sizeof line, stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (strcmp(line, "call") == 0)
			call(f);
		else if (strncmp(line, "map ", 4) == 0)
			map(f, line + 4);
	}
	return target_ok();
}
