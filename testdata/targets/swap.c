/*
 * swap LIBRARY: loads a library and does what stdin says. "call" calls its function library_work 100 times and
 * prints "called"; "map FILE" maps the text of another file over that of the library, which nobody tells the
 * dynamic loader, and prints "mapped". "share FILE" does so by a shared mapping, "write FILE" by one that may
 * be written to, "memory FILE" copies the text to a memfd and maps that.
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

static int in_memory(int fd)
{
	int copy = memfd_create("text", MFD_CLOEXEC);
	char block[4096];
	ssize_t n;

	CHECK(copy >= 0, "memfd_create: %s", strerror(errno));
	while ((n = read(fd, block, sizeof block)) > 0)
		CHECK(write(copy, block, n) == n, "write: %s", strerror(errno));
	close(fd);
	return copy;
}

static void map(work *f, const char *how, const char *path)
{
	int shared = strcmp(how, "share") == 0, writable = strcmp(how, "write") == 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long start, end, offset;
	char line[512];
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	CHECK(maps && fd >= 0, "opening %s: %s", path, strerror(errno));
	if (strcmp(how, "memory") == 0)
		fd = in_memory(fd);
	while (fgets(line, sizeof line, maps)) {
		CHECK(sscanf(line, "%lx-%lx %*s %lx", &start, &end, &offset) == 3, "%s", line);
		if ((uintptr_t)f >= start && (uintptr_t)f < end) {
			CHECK(mmap((void *)start, end - start, PROT_READ | PROT_EXEC | (writable ? PROT_WRITE : 0),
				   (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_FIXED, fd, offset) == (void *)start,
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
	char line[512], *file;
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
		else if ((file = strchr(line, ' '))) {
			*file++ = 0;
			map(f, line, file);
		}
	}
	return target_ok();
}
