/*
 * handlers: one thread changes what happens at eight signals all the time: handlers of two kinds, on the alternate
 * stack or not, for once or for good, SIG_IGN and SIG_DFL. After each change it sends itself the signal, and what it
 * has asked for has to happen, once. The other threads call probed functions and get some of the signals, too.
 * Every other second the handlers stay as they are, and then a fault is handled.
 */
#include "target.h"
#include <setjmp.h>
#include <ucontext.h>

#define WORKERS 4

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

enum { PLAIN, INFO, IGNORE, DEFAULT, KINDS };

static const int signals[] = { SIGSEGV, SIGBUS, SIGFPE, SIGTRAP, SIGILL, SIGUSR1, SIGUSR2, SIGURG };
#define SIGNALS (sizeof signals / sizeof signals[0])

/* What was asked for last. */
static volatile int asked_signal, asked_kind, asked_flags;
static atomic_ulong calls, handled, runs[KINDS], changes, faults;
static pthread_t workers[WORKERS];
static pthread_barrier_t have_stacks;
static _Thread_local stack_t alternate;
static _Thread_local sigjmp_buf back;

static void use_alternate_stack(void)
{
	alternate.ss_size = 65536;
	alternate.ss_sp = malloc(alternate.ss_size);
	CHECK(alternate.ss_sp, "malloc");
	CHECKED(0, sigaltstack(&alternate, NULL));
}

static void ran(int kind, int sig, char *frame)
{
	int saved = errno, on_alternate = (uintptr_t)frame - (uintptr_t)alternate.ss_sp < alternate.ss_size;
	unsigned long got = in_handler(sig, kind);

	CHECK(got == 33ul * kind + sig, "in_handler: got %lu", got);
	CHECK(sig == asked_signal && kind == asked_kind, "signal %d by handler %d, not %d by %d", sig, kind, asked_signal, asked_kind);
	CHECK(on_alternate == !!(asked_flags & SA_ONSTACK), "signal %d, flags %#x: on the alternate stack: %d", sig, asked_flags, on_alternate);
	handled++;
	runs[kind]++;
	errno = saved;
}

static void plain(int sig)
{
	char frame;

	ran(PLAIN, sig, &frame);
}

static void with_info(int sig, siginfo_t *info, void *context)
{
	char frame;

	CHECK(info->si_signo == sig && info->si_code == SI_TKILL && info->si_pid == getpid(), "signal %d: si_signo %d, si_code %d, si_pid %d",
	      sig, info->si_signo, info->si_code, info->si_pid);
	CHECK(context, "signal %d: no context", sig);
	ran(INFO, sig, &frame);
}

/* Sends a signal to a thread, and waits for what has to come of it. */
static void send(pthread_t thread, int sig, int kind)
{
	unsigned long before = runs[kind], want = kind == PLAIN || kind == INFO;
	uint64_t until = now_ns() + 60000000000ull;

	CHECKED(0, pthread_kill(thread, sig));
	while (want && runs[kind] == before && now_ns() < until)
		sched_yield();
	CHECK(runs[kind] == before + want, "signal %d: handler %d ran %lu times, want %lu", sig, kind, runs[kind] - before, want);
}

static struct sigaction last[SIGNALS];

static void change(uint32_t *random)
{
	static const int choices[] = { SA_ONSTACK, SA_NODEFER, SA_RESTART, SA_RESETHAND };
	int i = next_random(random) % SIGNALS, sig = signals[i], kind = next_random(random) % KINDS, forced = i < 5;
	struct sigaction act = { 0 }, old;

	for (int k = 0; k < 4; k++)
		if (next_random(random) % 2)
			act.sa_flags |= choices[k];
	switch (kind) {
	case PLAIN:
		act.sa_handler = plain;
		break;
	case INFO:
		act.sa_sigaction = with_info, act.sa_flags |= SA_SIGINFO;
		break;
	default:
		act.sa_handler = kind == IGNORE ? SIG_IGN : SIG_DFL;
	}
	asked_signal = sig, asked_kind = kind, asked_flags = act.sa_flags;
	CHECKED(0, sigaction(sig, &act, &old));
	/* A tracer may have put its own before those of faults and traps. */
	CHECK(forced || (old.sa_handler == last[i].sa_handler && (old.sa_flags & SA_ONSTACK) == (last[i].sa_flags & SA_ONSTACK)),
	      "signal %d: its handler was %p, flags %#x", sig, (void *)old.sa_handler, old.sa_flags);
	if (kind != DEFAULT || sig == SIGURG)
		send(pthread_self(), sig, kind);
	if (kind < IGNORE && act.sa_flags & SA_RESETHAND) {
		CHECKED(0, sigaction(sig, NULL, &old));
		CHECK(forced || old.sa_handler == SIG_DFL, "signal %d: its handler stays, %p", sig, (void *)old.sa_handler);
		act.sa_handler = SIG_DFL;
	} else if (kind < IGNORE && !forced) { /* a thread that is traced may get one late that was ignored when it was sent */
		send(workers[next_random(random) % WORKERS], sig, kind);
	}
	last[i] = act;
	changes++;
}

static void on_fault(int sig, siginfo_t *info, void *context)
{
	uintptr_t pc = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];

	CHECK(sig == SIGSEGV && info->si_addr == (void *)8, "signal %d at %p", sig, info->si_addr);
	CHECK(pc - (uintptr_t)load < 64, "fault reported at %#lx, load is at %p", pc, (void *)load);
	faults++;
	siglongjmp(back, 1);
}

/* A tracer whose moved instructions may fault takes a moment to notice a handler. */
static void fault(void)
{
	struct sigaction act = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };

	CHECKED(0, sigaction(SIGSEGV, &act, NULL));
	for (int i = 0; i < 100 && !target_stopping; i++)
		pause_ms(10);
	if (sigsetjmp(back, 1) == 0 && !target_stopping) {
		load((long *)8);
		CHECK(0, "a load from 8");
	}
}

static void *changer(void *arg)
{
	uint32_t random = getpid();

	use_alternate_stack();
	while (!target_stopping) {
		uint64_t until = now_ns() + 1000000000;

		while (!target_stopping && now_ns() < until) {
			for (int i = 0; i < 20; i++)
				change(&random);
			pause_ms(1);
		}
		fault();
	}
	return arg;
}

static void *work(void *arg)
{
	long value = (intptr_t)arg;

	use_alternate_stack();
	pthread_barrier_wait(&have_stacks);
	while (!target_stopping) {
		unsigned long got = value, want = value;

		for (int i = 0; i < 500; i++) {
			got = probed(i, got);
			want = want * 31 + i;
			CHECKED(value + 1, load(&value));
		}
		CHECK(got == want, "probed: got %lu, want %lu", got, want);
		calls += 500;
		pause_ms(1);
	}
	return arg;
}

int main(void)
{
	pthread_t thread;

	for (unsigned i = 0; i < SIGNALS; i++)
		CHECKED(0, sigaction(signals[i], NULL, &last[i]));
	CHECKED(0, pthread_barrier_init(&have_stacks, NULL, WORKERS + 1));
	for (intptr_t i = 0; i < WORKERS; i++)
		CHECKED(0, pthread_create(&workers[i], NULL, work, (void *)i));
	pthread_barrier_wait(&have_stacks);
	CHECKED(0, pthread_create(&thread, NULL, changer, NULL));
	target_ready();
	target_wait();
	CHECKED(0, pthread_join(thread, NULL));
	for (int i = 0; i < WORKERS; i++)
		CHECKED(0, pthread_join(workers[i], NULL));
	target_counts("probed", calls);
	target_counts("in_handler", handled);
	printf("changes=%lu faults=%lu\n", changes, faults);
	return target_ok();
}
