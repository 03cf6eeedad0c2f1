/*
 * threads [COUNT]: 100 threads, of which some spin, some sleep, some yield, and some keep starting and
 * joining short-lived threads. All call probed() and check what it returns.
 */
#include "target.h"
#include <sched.h>

PROBED unsigned long probed(long key, unsigned long sum)
{
	return sum * 31 + key;
}

static atomic_ulong calls;

static void call_probed(int key, unsigned times)
{
	unsigned long got = 1, want = 1;

	for (unsigned i = 0; i < times; i++) {
		got = probed(key, got);
		want = want * 31 + key;
	}
	CHECK(got == want, "probed: got %lu, want %lu", got, want);
	atomic_fetch_add(&calls, times);
}

static void *short_lived(void *arg)
{
	call_probed((int)(intptr_t)arg, 100);
	return arg;
}

static void start_and_join(int key)
{
	pthread_t t;
	void *result;

	CHECKED(0, pthread_create(&t, NULL, short_lived, (void *)(intptr_t)key));
	CHECKED(0, pthread_join(t, &result));
	CHECK((intptr_t)result == key, "a thread returned %ld, want %d", (long)(intptr_t)result, key);
}

static void *thread_loop(void *arg)
{
	int index = (int)(intptr_t)arg;
	uint32_t random = index;

	while (!target_stopping) {
		call_probed(index, 200);
		switch (index % 5) {
		case 0:
			break; /* spin */
		case 1:
			sched_yield();
			break;
		case 2:
			start_and_join(index);
			pause_ms(1);
			break;
		default:
			pause_ms(1 + next_random(&random) % 10);
		}
	}
	return arg;
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 100;
	pthread_t *threads = calloc(count, sizeof *threads);
	pthread_attr_t attr;

	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 128 << 10);
	for (long i = 0; i < count; i++)
		CHECKED(0, pthread_create(&threads[i], &attr, thread_loop, (void *)i));
	target_ready();
	target_wait();
	for (long i = 0; i < count; i++)
		CHECKED(0, pthread_join(threads[i], NULL));
	target_counts("probed", calls);
	return target_ok();
}
