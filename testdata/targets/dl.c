/*
 * dl LIBRARY [keep | MS [GAP]]: loads a library, calls its function library_work for MS milliseconds (1),
 * unloads it and, GAP milliseconds later (0), loads it again, again and again, at other addresses as things
 * come. With "keep" it stays loaded.
 * Prints "loaded ADDRESS" each time the address changes, at most 100 times.
 */
#include "target.h"
#include <dlfcn.h>
#include <sys/mman.h>

typedef unsigned long work(long key, unsigned long sum);

static uint64_t calls;

static work *load(const char *path, void **handle)
{
	static work *last;
	static int printed;
	work *f;

	*handle = dlopen(path, RTLD_NOW);
	CHECK(*handle, "%s", dlerror());
	f = (work *)dlsym(*handle, "library_work");
	CHECK(f, "%s", dlerror());
	if (f != last && printed++ < 100)
		printf("loaded %p\n", (void *)f);
	last = f;
	return f;
}

static void call(work *f)
{
	unsigned long got = 1, want = 1;

	for (int i = 0; i < 1000; i++) {
		got = f(i, got);
		want = want * 31 + i;
	}
	calls += 1000;
	CHECK(got == want, "library_work: got %lu, want %lu", got, want);
}

static void *wait_for_stop(void *arg)
{
	target_wait();
	return arg;
}

int main(int argc, char **argv)
{
	int keep = argc > 2 && strcmp(argv[2], "keep") == 0;
	int ms = argc > 2 && !keep ? atoi(argv[2]) : 1;
	int gap = argc > 3 ? atoi(argv[3]) : 0;
	pthread_t waiter;
	void *handle;
	work *f;

	CHECK(argc > 1, "usage: dl LIBRARY [keep | MS [GAP]]");
	setvbuf(stdout, NULL, _IOLBF, 0);
	f = load(argv[1], &handle);
	call(f);
	target_ready();
	CHECKED(0, pthread_create(&waiter, NULL, wait_for_stop, NULL));
	for (uint32_t random = 1; !target_stopping;) {
		void *hole = MAP_FAILED;

		for (int i = 0; i < ms; i++) {
			call(f);
			pause_ms(1);
		}
		if (keep)
			continue;
		CHECKED(0, dlclose(handle));
		if (next_random(&random) % 2) /* something else takes the place */
			hole = mmap((void *)((uintptr_t)f & ~4095ul), 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (gap)
			pause_ms(gap);
		f = load(argv[1], &handle);
		if (hole != MAP_FAILED)
			CHECKED(0, munmap(hole, 4096));
	}
	CHECKED(0, pthread_join(waiter, NULL));
	target_counts("library_work", calls);
	return target_ok();
}
