/*
 * coroutines: one thread runs many stacks (makecontext, swapcontext) that switch inside probed functions,
 * on small stacks, and abandons some of them half way, as coroutine libraries do.
 */
#include "target.h"
#include <ucontext.h>

#define COROUTINES 64
#define STACK      (16 << 10)

static __thread ucontext_t scheduler, contexts[COROUTINES];
static __thread unsigned long progress[COROUTINES];
static __thread int current;
static atomic_ulong calls;

static void yield_now(void) { CHECKED(0, swapcontext(&contexts[current], &scheduler)); }

/* Switches to another stack and comes back later, perhaps much later, or never. */
PROBED unsigned long yielding(long key, unsigned long sum)
{
	sum = sum * 31 + key;
	yield_now();
	return sum + 1;
}

PROBED unsigned long plain(long key, unsigned long sum)
{
	return sum * 33 + key;
}

static void coroutine(int index)
{
	unsigned long got = 1, want = 1;

	for (long i = 0;; i++) {
		atomic_fetch_add(&calls, 1);
		got = plain(i, yielding(i, got));
		want = (want * 31 + i + 1) * 33 + i;
		CHECK(got == want, "coroutine %d: got %lu, want %lu", index, got, want);
		progress[index]++;
	}
}

static void start(int i, char *stack)
{
	CHECKED(0, getcontext(&contexts[i]));
	contexts[i].uc_stack.ss_sp = stack;
	contexts[i].uc_stack.ss_size = STACK;
	contexts[i].uc_link = NULL;
	makecontext(&contexts[i], (void (*)(void))coroutine, 1, i);
}

static void *schedule(void *arg)
{
	uint32_t random = (uint32_t)(intptr_t)arg;
	char *stacks = malloc(COROUTINES * STACK);

	CHECK(stacks, "malloc");
	for (int i = 0; i < COROUTINES; i++)
		start(i, stacks + i * STACK);
	while (!target_stopping) {
		unsigned r = next_random(&random);

		current = r % COROUTINES;
		if (r / COROUTINES % 256 == 0)
			start(current, stacks + current * STACK); /* abandon it, reuse the stack */
		CHECKED(0, swapcontext(&scheduler, &contexts[current]));
	}
	free(stacks);
	return NULL;
}

int main(void)
{
	pthread_t threads[2];

	target_ready();
	for (long i = 0; i < 2; i++)
		CHECKED(0, pthread_create(&threads[i], NULL, schedule, (void *)(i + 1)));
	target_wait();
	for (int i = 0; i < 2; i++)
		CHECKED(0, pthread_join(threads[i], NULL));
	target_counts("yielding", calls);
	return target_ok();
}
