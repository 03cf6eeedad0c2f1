/*
 * Calls here() on ways of every kind: each time it says what the compiler's unwinder thinks of the stack, as
 * "stack WAY ADDRESS ADDRESS ...", the return address of here() first.
 */
#include "target.h"
#include <alloca.h>
#include <execinfo.h>
#include <ucontext.h>

enum { DEEPEST = 100, FRAMES = 127 };

static volatile long sink;

PROBED void here(long way)
{
	void *at[FRAMES + 2];
	int n = backtrace(at, FRAMES + 1);

	printf("stack %ld", way);
	for (int i = 1; i < n && i < FRAMES; i++) /* the first one is in here() itself */
		printf(" %lx", (long)at[i]);
	printf("\n");
	sink++;
}

PROBED void straight(void) { here(1); sink++; }

PROBED void deep(int n)
{
	if (n > 0)
		deep(n - 1);
	else
		here(2);
	sink++;
}

PROBED void room(int n)
{
	volatile char *p = alloca(n); /* the frame pointer is needed */

	p[0] = 1;
	here(3);
	sink += p[0];
}

PROBED void aligned(int n)
{
	volatile char wide[64] __attribute__((aligned(64))); /* the stack pointer is aligned anew */
	volatile char *p = alloca(n);

	wide[n & 63] = p[0] = 1;
	here(4);
	sink += wide[n & 63] + p[0];
}

static int compare(const void *a, const void *b)
{
	static int once;

	if (!once++)
		here(5);
	return *(const char *)a - *(const char *)b;
}

PROBED void through_library(void)
{
	char text[] = "qsort calls back";

	qsort(text, sizeof text - 1, 1, compare);
	sink += text[0];
}

static void on_signal(int sig, siginfo_t *info, void *context)
{
	(void)info, (void)context;
	here(sig == SIGUSR1 ? 6 : 7);
	sink++;
}

PROBED void interrupted(int sig)
{
	raise(sig);
	sink++;
}

/* A fault in the first instruction of a function, where nothing is pushed yet. */
long faulty(long *p);
__asm__(".pushsection .text\n.globl faulty\n.type faulty,@function\nfaulty: .cfi_startproc\n"
	"mov (%rdi), %rax\nret\n.cfi_endproc\n.size faulty, .-faulty\n.popsection\n");

static long good;

static void on_fault(int sig, siginfo_t *info, void *context)
{
	(void)sig, (void)info;
	here(8);
	((ucontext_t *)context)->uc_mcontext.gregs[REG_RDI] = (long)&good;
}

PROBED void wide_frame(void)
{
	volatile char big[100000];

	big[0] = 1;
	here(9);
	sink += big[0];
}

PROBED void falls_behind(void)
{
	here(10);
	if (sink < 0)
		abort(); /* the return address of a last call lies behind its function */
}

static void *thread(void *arg)
{
	straight();
	deep(3);
	return arg;
}

static void handle(int sig, void (*handler)(int, siginfo_t *, void *), int flags)
{
	struct sigaction act = { .sa_sigaction = handler, .sa_flags = flags };

	CHECKED(0, sigaction(sig, &act, NULL));
}

static void prepare(void)
{
	static char alternate[65536];
	stack_t stack = { .ss_sp = alternate, .ss_size = sizeof alternate };

	CHECKED(0, sigaltstack(&stack, NULL));
	handle(SIGUSR1, on_signal, 0);
	handle(SIGUSR2, on_signal, SA_ONSTACK);
	handle(SIGSEGV, on_fault, SA_SIGINFO | SA_ONSTACK);
}

static void all(void)
{
	pthread_t t;

	straight();
	deep(DEEPEST);
	room(100);
	aligned(40);
	through_library();
	interrupted(SIGUSR1);
	interrupted(SIGUSR2);
	sink += faulty(NULL);
	wide_frame();
	falls_behind();
	CHECKED(0, pthread_create(&t, NULL, thread, NULL));
	CHECKED(0, pthread_join(t, NULL));
}

int main(void)
{
	prepare();
	target_ready();
	target_wait();
	all();
	return target_ok();
}
