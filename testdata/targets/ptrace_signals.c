/*
 * A storm of signals: a timer signal every millisecond or less, whose handler
 * checks flags, registers and errno, over computations whose every result is
 * checked. "ptrace_signals USEC THREADS"; one thread means only main. Ends with
 * its standard input, saying "ok" and how many signals there were.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

static atomic_long signals, queued, taken;
static atomic_int done;

static void fail(const char *what, long a, long b)
{
	char s[200];
	int n = snprintf(s, sizeof s, "violation: %s (%lx, %lx)\n", what, a, b);

	if (write(2, s, n)) {
	}
	_exit(1);
}

/* The handler must never see a thread in code that is not the program's. The
 * injected code lies in anonymous memory, or in slack behind etext. */
static uintptr_t libs[64][2];
static int nlibs;

static void read_maps(void)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512], perm[8];
	unsigned long lo, hi;

	nlibs = 0;
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "%lx-%lx %7s", &lo, &hi, perm) == 3 && perm[2] == 'x' && nlibs < 64) {
			libs[nlibs][0] = lo;
			libs[nlibs++][1] = hi;
		}
	if (f)
		fclose(f);
}

static void on_alarm(int sig, siginfo_t *si, void *uc)
{
	uintptr_t pc = ((ucontext_t *)uc)->uc_mcontext.gregs[REG_RIP];
	int saved = errno, known = 0;

	if (sig != SIGALRM || si->si_signo != SIGALRM)
		fail("signal number", sig, si->si_signo);
	for (int i = 0; i < nlibs; i++)
		known |= libs[i][0] <= pc && pc < libs[i][1];
	if (!known)
		fail("a handler interrupted code at", pc, 0);
	signals++;
	errno = saved;
}

static void on_rt(int sig, siginfo_t *si, void *uc)
{
	(void)uc;
	(void)sig;
	/* queued real-time signals keep their order and their values */
	if (si->si_code != SI_QUEUE || si->si_value.sival_int != taken)
		fail("a queued signal is out of order", si->si_value.sival_int, taken);
	taken++;
}

/* flags: every combination that matters survives a loop of instructions that
 * leave it alone */
static void check_flags(uint64_t i)
{
	uint64_t want = 0x202 | ((i & 1) << 0) | ((i >> 1 & 1) << 2) | ((i >> 2 & 1) << 4) | ((i >> 3 & 1) << 6) |
			((i >> 4 & 1) << 7) | ((i >> 5 & 1) << 11);
	uint64_t got, n = 200;

	if (i & 64)
		want |= 1 << 10; /* DF */
	__asm__ volatile("sub $128, %%rsp\n\t"
			 "pushq %2\n\t"
			 "popfq\n"
			 "1:\tlea -1(%1), %1\n\t"
			 "mov %1, %%rcx\n\t"
			 "jrcxz 2f\n\t"
			 "jmp 1b\n"
			 "2:\tpushfq\n\t"
			 "popq %0\n\t"
			 "cld\n\t"
			 "add $128, %%rsp"
			 : "=&r"(got), "+r"(n)
			 : "r"(want)
			 : "rcx", "cc", "memory");
	if ((got & 0xed5) != (want & 0xed5))
		fail("flags", got, want);
}

/* registers: all hold a pattern while the thread spins */
static void check_regs(uint64_t seed)
{
	uint64_t v[4] = { seed, ~seed, seed * 3, seed ^ 0x5555 };
	uint64_t out[8];

	__asm__ volatile("mov (%0), %%r8\n\tmov 8(%0), %%r9\n\tmov 16(%0), %%r10\n\tmov 24(%0), %%r11\n\t"
			 "mov (%0), %%r12\n\tmov 8(%0), %%r13\n\tmov 16(%0), %%r14\n\tmov 24(%0), %%r15\n\t"
			 "movq (%0), %%xmm5\n\t"
			 "mov $300, %%rcx\n"
			 "1:\tlea -1(%%rcx), %%rcx\n\tjrcxz 2f\n\tjmp 1b\n2:\t"
			 "mov %%r8, (%1)\n\tmov %%r9, 8(%1)\n\tmov %%r10, 16(%1)\n\tmov %%r11, 24(%1)\n\t"
			 "mov %%r12, 32(%1)\n\tmov %%r13, 40(%1)\n\tmov %%r14, 48(%1)\n\tmovq %%xmm5, 56(%1)"
			 :
			 : "r"(v), "r"(out)
			 : "rcx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm5", "memory");
	for (int i = 0; i < 7; i++)
		if (out[i] != v[i & 3])
			fail("registers", out[i], v[i & 3]);
	if (out[7] != v[0])
		fail("xmm5", out[7], v[0]);
}

static void *work(void *arg)
{
	uint64_t i = (uintptr_t)arg;

	while (!done) {
		check_flags(i++);
		check_regs(i * 0x9e3779b97f4a7c15ull);
		if (i % 64 == 0) {
			errno = 0;
			if (read(-1, NULL, 0) != -1 || errno != EBADF)
				fail("read(-1)", errno, 0);
		}
	}
	return arg;
}

int main(int argc, char **argv)
{
	struct sigaction sa = { .sa_sigaction = on_alarm, .sa_flags = SA_SIGINFO | SA_RESTART };
	int usec = argc > 1 ? atoi(argv[1]) : 1000, threads = argc > 2 ? atoi(argv[2]) : 1;
	struct itimerval it = { { 0, usec }, { 0, usec } };
	uint64_t i = 0;

	sigaction(SIGALRM, &sa, NULL);
	sa.sa_sigaction = on_rt;
	sigaction(SIGRTMIN, &sa, NULL);
	read_maps();
	for (int t = 1; t < threads; t++) {
		pthread_t th;
		if (pthread_create(&th, NULL, work, (void *)(uintptr_t)t))
			fail("pthread_create", t, 0);
		pthread_detach(th);
	}
	setitimer(ITIMER_REAL, &it, NULL);
	printf("ready\n");
	fflush(stdout);
	for (;; i++) {
		struct pollfd p = { .fd = 0, .events = POLLIN };
		char c;
		check_flags(i);
		check_regs(i * 77);
		if (i % 128 == 0) {
			union sigval v = { .sival_int = (int)queued };
			sigset_t s, o;
			sigemptyset(&s);
			sigaddset(&s, SIGRTMIN);
			pthread_sigmask(SIG_BLOCK, &s, &o);
			for (int k = 0; k < 3; k++, v.sival_int++, queued++)
				if (pthread_sigqueue(pthread_self(), SIGRTMIN, v))
					fail("pthread_sigqueue", errno, 0);
			pthread_sigmask(SIG_SETMASK, &o, NULL);
			if (taken != queued)
				fail("queued signals were lost", taken, queued);
		}
		if (i % 256 == 0 && poll(&p, 1, 0) == 1 && read(0, &c, 1) == 0)
			break;
	}
	done = 1;
	printf("ok %ld signals\n", signals);
	return 0;
}
