/*
 * states STATE...: puts itself into states that a tracer must respect or refuse by name, then calls
 * probed() on two threads like every target. States:
 *
 *	seccomp      any system call beyond those that it makes itself kills it
 *	dispatch     system calls from outside the C library raise SIGSYS (syscall user dispatch)
 *	mdwe         memory that was writable cannot become executable (PR_SET_MDWE)
 *	notsc        rdtsc raises SIGSEGV (PR_SET_TSC)
 *	undumpable   as after a change of credentials (PR_SET_DUMPABLE)
 *	locked       all memory, also future memory, is locked (mlockall)
 *	full         the address space may not grow by a page (RLIMIT_AS)
 *	leaderless   the first thread has ended
 *	sharing      another process shares its memory (CLONE_VM) and calls probed() too
 *	sametp       two threads have one thread pointer (CLONE_THREAD without CLONE_SETTLS)
 *	traced       another process traces it
 *
 * A state that this kernel cannot give prints "unavailable STATE: ..." and exits with status 77.
 */
#include "target.h"
#include <link.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

PROBED unsigned long probed(long key, unsigned long sum)
{
	return sum * 31 + key;
}

static atomic_ulong calls;

#define AVAILABLE(state, condition) \
	do { if (!(condition)) { printf("unavailable %s: %s\n", state, strerror(errno)); exit(77); } } while (0)

static void seccomp(void)
{
#define ALLOW(number) \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		ALLOW(SYS_read), ALLOW(SYS_write), ALLOW(SYS_exit), ALLOW(SYS_exit_group), ALLOW(SYS_futex),
		ALLOW(SYS_nanosleep), ALLOW(SYS_clock_nanosleep), ALLOW(SYS_restart_syscall),
		ALLOW(SYS_rt_sigreturn), ALLOW(SYS_rt_sigprocmask), ALLOW(SYS_madvise), ALLOW(SYS_munmap),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
	};
	struct sock_fprog program = { sizeof filter / sizeof filter[0], filter };

	AVAILABLE("seccomp", prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	AVAILABLE("seccomp", syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
}

static int find_libc(struct dl_phdr_info *info, size_t size, void *text)
{
	uintptr_t here = (uintptr_t)nanosleep;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + p->p_vaddr;

		if (p->p_type == PT_LOAD && here >= start && here < start + p->p_memsz) {
			((uintptr_t *)text)[0] = start;
			((uintptr_t *)text)[1] = p->p_memsz;
			return 1;
		}
	}
	return 0;
}

static void dispatch(void)
{
	static char selector = 1; /* SYSCALL_DISPATCH_FILTER_BLOCK */
	uintptr_t text[2];

	CHECK(dl_iterate_phdr(find_libc, text), "no segment holds nanosleep");
	AVAILABLE("dispatch", prctl(59 /* PR_SET_SYSCALL_USER_DISPATCH */, 1, text[0], text[1], &selector) == 0);
}

static void mdwe(void) { AVAILABLE("mdwe", prctl(65 /* PR_SET_MDWE */, 1, 0, 0, 0) == 0); }
static void notsc(void) { AVAILABLE("notsc", prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0) == 0); }
static void undumpable(void) { AVAILABLE("undumpable", prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0); }
static void locked(void) { AVAILABLE("locked", mlockall(MCL_CURRENT | MCL_FUTURE) == 0); }

static void full(void)
{
	unsigned long pages;
	FILE *statm = fopen("/proc/self/statm", "r");
	struct rlimit limit;

	CHECK(statm && fscanf(statm, "%lu", &pages) == 1, "/proc/self/statm");
	fclose(statm);
	limit.rlim_cur = limit.rlim_max = pages * 4096;
	AVAILABLE("full", setrlimit(RLIMIT_AS, &limit) == 0);
}

/* Uses neither the thread's own memory nor a system call of the C library: it may be somebody else's. */
static int call_alone(void *arg)
{
	(void)arg;
	while (!target_stopping) {
		struct timespec ms = { .tv_nsec = 1000000 };

		for (int i = 0; i < 100; i++)
			if (probed(i, 1) != 31ul + i)
				return 1;
		atomic_fetch_add(&calls, 100);
		__asm__ volatile("syscall" : : "a"(SYS_nanosleep), "D"(&ms), "S"(0) : "rcx", "r11", "memory");
	}
	return 0;
}

static char stack[64 << 10] __attribute__((aligned(16)));
static pid_t sharer;
static volatile int same_tp_alive;

static void sharing(void)
{
	sharer = clone(call_alone, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
	AVAILABLE("sharing", sharer > 0);
}

static int call_same_tp(void *arg)
{
	int status = call_alone(arg);

	/* Ends this thread only: returning would end the process. */
	same_tp_alive = 0;
	__asm__ volatile("syscall" : : "a"(SYS_exit), "D"(status) : "rcx", "r11", "memory");
	__builtin_unreachable();
}

static void sametp(void)
{
	int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;

	same_tp_alive = 1;
	AVAILABLE("sametp", clone(call_same_tp, stack + sizeof stack, flags, NULL) > 0);
}

static pid_t tracer;

static void traced(void)
{
	int ready[2];
	char c;

	CHECKED(0, pipe(ready));
	tracer = fork();
	CHECK(tracer >= 0, "fork: %s", strerror(errno));
	if (tracer == 0) {
		int status;

		close(ready[0]);
		if (ptrace(PTRACE_SEIZE, getppid(), NULL, NULL) == 0)
			write(ready[1], "y", 1);
		close(ready[1]);
		/* Pass every signal on until the target is gone. */
		while (waitpid(getppid(), &status, __WALL) > 0 && WIFSTOPPED(status))
			ptrace(PTRACE_CONT, getppid(), NULL, (void *)(long)(status >> 16 ? 0 : WSTOPSIG(status)));
		_exit(0);
	}
	close(ready[1]);
	AVAILABLE("traced", read(ready[0], &c, 1) == 1);
}

static int leaderless;
static void leave(void) { leaderless = 1; }

static const struct {
	const char *name;
	void (*enter)(void);
} states[] = {
	{ "seccomp", seccomp }, { "dispatch", dispatch }, { "mdwe", mdwe }, { "notsc", notsc },
	{ "undumpable", undumpable }, { "locked", locked }, { "full", full }, { "leaderless", leave },
	{ "sharing", sharing }, { "sametp", sametp }, { "traced", traced },
};

static void enter(const char *name)
{
	for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
		if (strcmp(states[i].name, name) == 0) {
			states[i].enter();
			return;
		}
	CHECK(0, "unknown state %s", name);
}

static pthread_t first;
static int state_count;
static char **state_names;

static void *call_loop(void *arg)
{
	do {
		unsigned long got = 1, want = 1;

		for (int i = 0; i < 100; i++) {
			got = probed(i, got);
			want = want * 31 + i;
		}
		CHECK(got == want, "probed: got %lu, want %lu", got, want);
		atomic_fetch_add(&calls, 100);
		pause_ms(1);
	} while (!target_stopping);
	return arg;
}

/* Runs the program's main part, on the first thread or, when that has ended, on another. */
static void *serve(void *arg)
{
	static char in[64];
	pid_t pid = getpid();
	pthread_t other;

	setvbuf(stdin, in, _IOFBF, sizeof in);
	if (leaderless)
		CHECKED(0, pthread_join(first, NULL));
	CHECKED(0, pthread_create(&other, NULL, call_loop, NULL));
	while (calls == 0)
		pause_ms(1); /* until the thread has made the calls that start one */
	for (int i = 0; i < state_count; i++)
		if (strcmp(state_names[i], "leaderless") != 0)
			enter(state_names[i]);
	printf("ready pid=%d\n", pid);
	target_wait();
	CHECKED(0, pthread_join(other, NULL));
	while (same_tp_alive)
		pause_ms(1);
	if (sharer) {
		int status;

		CHECKED(sharer, waitpid(sharer, &status, 0));
		CHECK(status == 0, "the process that shares the memory: status %#x", status);
	}
	target_counts("probed", calls);
	printf("ok\n");
	fflush(stdout);
	_exit(0);
	return arg;
}

int main(int argc, char **argv)
{
	static char out[4096];
	pthread_t server;

	/* With buffers of our own the C library asks for no memory and no facts about files later. */
	setvbuf(stdout, out, _IOLBF, sizeof out);
	alarm(LIFETIME_SECONDS);
	state_names = argv + 1;
	state_count = argc - 1;
	for (int i = 0; i < state_count; i++)
		if (strcmp(state_names[i], "leaderless") == 0)
			enter("leaderless");
	if (!leaderless)
		serve(NULL);
	first = pthread_self();
	CHECKED(0, pthread_create(&server, NULL, serve, NULL));
	pthread_exit(NULL);
}
