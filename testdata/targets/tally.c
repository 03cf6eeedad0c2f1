/*
 * tally FILE: eight threads call probed() and count what they have called in a file that is mapped, which is there
 * when the process has been killed. It prints nothing but "ready".
 */
#include "target.h"
#include <fcntl.h>
#include <sys/mman.h>

#define THREADS 8

PROBED unsigned long probed(long key, unsigned long sum)
{
	return sum * 31 + key;
}

static volatile uint64_t *calls;

static void *work(void *arg)
{
	volatile uint64_t *mine = calls + 8 * (intptr_t)arg;

	while (!target_stopping) {
		CHECK(probed(*mine, 7) == 7 * 31 + *mine, "probed");
		++*mine;
		if (*mine % 4096 == 0)
			pause_ms(1);
	}
	return arg;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	int fd;

	CHECK(argc > 1, "usage: tally FILE");
	fd = open(argv[1], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	CHECK(fd >= 0, "open: %s", strerror(errno));
	CHECKED(0, ftruncate(fd, 4096));
	calls = (uint64_t *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(calls != MAP_FAILED, "mmap: %s", strerror(errno));
	for (intptr_t i = 0; i < THREADS; i++)
		CHECKED(0, pthread_create(&threads[i], NULL, work, (void *)i));
	target_ready();
	target_wait();
	for (int i = 0; i < THREADS; i++)
		CHECKED(0, pthread_join(threads[i], NULL));
	return target_ok();
}
