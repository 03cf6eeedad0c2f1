/*
 * storm: 32 threads call probed() while each gets a signal every millisecond or so, in turn SIGPROF, SIGALRM,
 * SIGUSR1 on an alternate stack, and SIGUSR2, whose handler leaves by siglongjmp. All handlers call
 * in_handler(), and those that do not ask for the alternate stack check that they are not on it. Every now and
 * then the handler of SIGSEGV changes, and a second later it handles a fault.
 */
#include "target.h"
#include <setjmp.h>
#include <ucontext.h>

#define THREADS 32

PROBED unsigned long probed(long key, unsigned long sum)
{
	return sum * 31 + key;
}

PROBED unsigned long in_handler(long key, unsigned long sum)
{
	return sum * 33 + key;
}

PROBED long load(volatile long *pointer)
{
	return *pointer + 1;
}

static atomic_ulong calls, handled, faulted;
static _Thread_local sigjmp_buf back;
static _Thread_local volatile sig_atomic_t may_jump;
static _Thread_local int number;
static _Thread_local stack_t alternate;

static void handle(int sig)
{
	int saved = errno;
	unsigned long got = in_handler(sig, number);

	CHECK(got == 33ul * number + sig, "in_handler: got %lu", got);
	CHECK(sig == SIGUSR1 || (uintptr_t)&saved - (uintptr_t)alternate.ss_sp >= alternate.ss_size,
	      "signal %d is handled on the alternate stack", sig);
	handled++;
	errno = saved;
}

static void leave(int sig)
{
	handle(sig);
	if (may_jump)
		siglongjmp(back, 1);
}

static void fault(int sig)
{
	(void)sig;
	faulted++;
	siglongjmp(back, 2);
}

static void fault_info(int sig, siginfo_t *info, void *context)
{
	uintptr_t pc = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];

	CHECK(info->si_addr == (void *)8, "fault at %p", info->si_addr);
	CHECK(pc - (uintptr_t)load < 64, "fault reported at %#lx, load is at %p", pc, (void *)load);
	fault(sig);
}

/* A tracer whose moved instructions may fault takes a moment to notice a handler. */
static void change_handler(int turn)
{
	struct sigaction act = { .sa_flags = SA_NODEFER };

	if (turn % 4 == 1) {
		act.sa_handler = fault;
	} else {
		act.sa_sigaction = fault_info;
		act.sa_flags |= SA_SIGINFO;
	}
	CHECKED(0, sigaction(SIGSEGV, &act, NULL));
}

static void burst(void)
{
	unsigned long got = number, want = number;

	for (int i = 0; i < 200; i++) {
		got = probed(i, got);
		want = want * 31 + i;
	}
	CHECK(got == want, "probed: got %lu, want %lu", got, want);
	calls += 200;
}

static void *work(void *arg)
{
	static const int signals[] = { SIGPROF, SIGALRM, SIGUSR1, SIGUSR2 };
	struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID };
	struct itimerspec every = { .it_interval.tv_nsec = 1000000, .it_value.tv_nsec = 1000000 };
	timer_t timer;
	volatile uint64_t next = now_ns();
	volatile int turns = 0;

	number = (intptr_t)arg;
	event.sigev_signo = signals[number % 4];
	alternate.ss_sp = malloc(65536); /* a breakpoint has a frame there, too */
	alternate.ss_size = 65536;
	CHECK(alternate.ss_sp, "malloc");
	CHECKED(0, sigaltstack(&alternate, NULL));
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif
	event.sigev_notify_thread_id = gettid();
	every.it_interval.tv_nsec += number * 7000;
	CHECKED(0, timer_create(CLOCK_MONOTONIC, &event, &timer));
	CHECKED(0, timer_settime(timer, 0, &every, NULL));
	while (!target_stopping) {
		if (sigsetjmp(back, 1) == 0)
			may_jump = 1;
		for (int i = 0; i < 10 && !target_stopping; i++)
			burst();
		may_jump = 0;
		if (number == 0 && now_ns() > next) {
			next = now_ns() + 1000000000;
			if (++turns % 2) {
				change_handler(turns);
			} else if (sigsetjmp(back, 1) == 0) {
				load((long *)8);
				CHECK(0, "a load from 8");
			}
		}
		pause_ms(1);
	}
	CHECKED(0, timer_delete(timer));
	return arg;
}

int main(void)
{
	static const struct { int sig, flags; void (*handler)(int); } actions[] = {
		{ SIGPROF, SA_RESTART, handle }, { SIGALRM, SA_RESTART, handle },
		{ SIGUSR1, SA_RESTART | SA_ONSTACK, handle }, { SIGUSR2, SA_RESTART, leave },
	};
	pthread_t threads[THREADS];
	sigset_t set;

	target_ready();
	alarm(0);
	for (int i = 0; i < 4; i++) {
		struct sigaction act = { .sa_handler = actions[i].handler, .sa_flags = actions[i].flags };

		CHECKED(0, sigaction(actions[i].sig, &act, NULL));
	}
	for (intptr_t i = 0; i < THREADS; i++)
		CHECKED(0, pthread_create(&threads[i], NULL, work, (void *)i));
	sigemptyset(&set);
	for (int i = 0; i < 4; i++)
		sigaddset(&set, actions[i].sig);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	target_wait();
	for (int i = 0; i < THREADS; i++)
		CHECKED(0, pthread_join(threads[i], NULL));
	target_counts("probed", calls);
	target_counts("in_handler", handled);
	target_counts("load", faulted);
	return target_ok();
}
