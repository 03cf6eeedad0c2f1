/*
 * signals: probed functions meet signals in every way: interrupted anywhere by a handler that calls a
 * probed function itself, left by siglongjmp, called on an alternate stack of the smallest size, called
 * with all signals blocked, called with handlers reset to their defaults.
 *
 * A call that siglongjmp left may have been counted or not: "attempts" are calls begun, "calls" are those
 * that returned.
 */
#include "target.h"
#include <setjmp.h>
#include <sys/auxv.h>
#include <sys/time.h>

PROBED unsigned long probed(long key, unsigned long sum)
{
	return sum * 31 + key;
}

/* Called by handlers alone. */
PROBED unsigned long in_handler(long key, unsigned long sum)
{
	return sum * 33 + key;
}

/* Called where a trap would kill: with signals blocked. */
PROBED unsigned long while_blocked(long key, unsigned long sum)
{
	return sum * 35 + key;
}

static atomic_ulong calls, attempts, handler_calls, blocked_calls;
static _Thread_local sigjmp_buf back;
static _Thread_local volatile sig_atomic_t may_jump, alarms;

static void on_alarm(int sig)
{
	int saved = errno;
	unsigned long got = in_handler(sig, 1);

	CHECK(got == 33ul + sig, "in_handler: got %lu", got);
	handler_calls++;
	alarms++;
	errno = saved;
	if (may_jump && alarms % 2 == 0)
		siglongjmp(back, 1);
}

/* The signal of each thread: a timer of its own, at a period that wanders over the code. */
static timer_t start_timer(int us)
{
	struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGALRM };
	struct itimerspec every = { .it_interval.tv_nsec = us * 1000, .it_value.tv_nsec = us * 1000 };
	timer_t timer;

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif
	event.sigev_notify_thread_id = gettid();
	CHECKED(0, timer_create(CLOCK_MONOTONIC, &event, &timer));
	CHECKED(0, timer_settime(timer, 0, &every, NULL));
	return timer;
}

static void *interrupted(void *arg)
{
	timer_t timer = start_timer(211);

	while (!target_stopping) {
		unsigned long got = 1, want = 1;

		for (int i = 0; i < 1000; i++) {
			attempts++;
			got = probed(i, got);
			want = want * 31 + i;
			calls++;
		}
		CHECK(got == want, "probed: got %lu, want %lu", got, want);
	}
	CHECKED(0, timer_delete(timer));
	return arg;
}

static void *jumping(void *arg)
{
	timer_t timer = start_timer(307);

	while (!target_stopping) {
		if (sigsetjmp(back, 1) == 0)
			may_jump = 1;
		for (int i = 0; i < 1000; i++) {
			unsigned long got;

			attempts++;
			got = probed(i, 1);
			CHECK(got == 31ul + i, "probed: got %lu, want %lu", got, 31ul + i);
			calls++;
		}
		may_jump = 0;
	}
	CHECKED(0, timer_delete(timer));
	return arg;
}

static void on_usr1(int sig)
{
	unsigned long got = in_handler(sig, 1);

	CHECK(got == 33ul + sig, "in_handler on an alternate stack: got %lu", got);
	handler_calls++;
}

static void *on_small_stack(void *arg)
{
	size_t least = getauxval(AT_MINSIGSTKSZ), size = least > 2048 ? least : 2048;
	stack_t stack = { .ss_sp = malloc(size), .ss_size = size };
	struct sigaction act = { .sa_handler = on_usr1, .sa_flags = SA_ONSTACK };

	CHECK(stack.ss_sp != NULL, "malloc");
	CHECKED(0, sigaltstack(&stack, NULL));
	CHECKED(0, sigaction(SIGUSR1, &act, NULL));
	while (!target_stopping) {
		CHECKED(0, pthread_kill(pthread_self(), SIGUSR1));
		pause_ms(1);
	}
	return arg;
}

static void *blocked(void *arg)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	while (!target_stopping) {
		for (int i = 0; i < 100; i++) {
			unsigned long got = while_blocked(i, 1);

			CHECK(got == 35ul + i, "while_blocked: got %lu", got);
			blocked_calls++;
		}
		pause_ms(1);
	}
	return arg;
}

/* The dispositions that a tracer may have changed come and go: SIGTRAP and SIGILL are the program's own. */
static void *redisposing(void *arg)
{
	struct sigaction act = { .sa_handler = SIG_DFL }, old;

	while (!target_stopping) {
		CHECKED(0, sigaction(SIGUSR2, &act, &old));
		CHECKED(0, sigaction(SIGUSR2, &old, NULL));
		pause_ms(2);
	}
	return arg;
}

int main(void)
{
	static void *(*const loops[])(void *) = { interrupted, interrupted, jumping, on_small_stack, blocked, redisposing };
	enum { THREADS = sizeof loops / sizeof loops[0] };
	struct sigaction act = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	pthread_t threads[THREADS];
	sigset_t alarm_only;

	target_ready();
	alarm(0); /* SIGALRM is for the timers */
	CHECKED(0, sigaction(SIGALRM, &act, NULL));
	for (int i = 0; i < THREADS; i++)
		CHECKED(0, pthread_create(&threads[i], NULL, loops[i], NULL));
	sigemptyset(&alarm_only);
	sigaddset(&alarm_only, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &alarm_only, NULL);
	target_wait();
	for (int i = 0; i < THREADS; i++)
		CHECKED(0, pthread_join(threads[i], NULL));
	printf("counts function=probed calls=%lu attempts=%lu\n", calls, attempts);
	target_counts("in_handler", handler_calls);
	target_counts("while_blocked", blocked_calls);
	return target_ok();
}
