/*
 * Programs in which injected code must not run, or must be chosen with care:
 *
 *   seccomp-kill NR   a filter that kills for system call NR
 *   seccomp-allow     a filter that allows everything
 *   seccomp-strict    strict mode
 *   dispatch          syscall user dispatch
 *   rseq              a thread that stays in a restartable sequence
 *   nospace           RLIMIT_AS at what is mapped already
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/rseq.h>
#include <sys/syscall.h>
#include <unistd.h>

static void ready(void)
{
	if (write(1, "ready\n", 6) != 6)
		_exit(1);
}

static void finish(void)
{
	char c;

	while (read(0, &c, 1) > 0)
		;
	if (write(1, "ok\n", 3) != 3)
		_exit(1);
	syscall(SYS_exit, 0);
}

static void filter(int nr)
{
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog p = { 4, f };

	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p)) {
		perror("seccomp");
		_exit(77);
	}
}

static volatile char selector;

static long ticks;

/* A restartable sequence that spins; the kernel restarts it at its abort
 * handler whenever the thread is preempted in it, and then it begins anew. */
static void sequence(void)
{
#if __GLIBC_PREREQ(2, 35)
	struct rseq *rs = (struct rseq *)((char *)__builtin_thread_pointer() + __rseq_offset);

	if (!__rseq_size)
		_exit(77);
	ready();
	for (;;) {
		__asm__ volatile(".pushsection .data.cs, \"aw\"\n\t"
				 ".balign 32\n"
				 "3:\t.long 0, 0\n\t"
				 ".quad 1f, 2f - 1f, 4f\n\t"
				 ".popsection\n\t"
				 "lea 3b(%%rip), %%rax\n\t"
				 "mov %%rax, 8(%0)\n"
				 "1:\tmov $1000000, %%ecx\n"
				 "5:\tdec %%ecx\n\t"
				 "jnz 5b\n"
				 "2:\n\t"
				 "jmp 6f\n\t"
				 ".byte 0x0f, 0xb9, 0x3d\n\t"
				 ".long %c1\n"
				 "4:\tincq %2\n"
				 "6:"
				 :
				 : "r"(rs), "i"(RSEQ_SIG), "m"(ticks)
				 : "rax", "rcx", "memory", "cc");
	}
#else
	_exit(77);
#endif
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if (!strcmp(what, "seccomp-kill")) {
		filter(atoi(argv[2]));
	} else if (!strcmp(what, "seccomp-allow")) {
		filter(-1);
	} else if (!strcmp(what, "seccomp-strict")) {
		ready();
		if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT))
			_exit(77);
		finish();
	} else if (!strcmp(what, "dispatch")) {
		if (prctl(59, 1, 0, 0, &selector))
			_exit(77);
	} else if (!strcmp(what, "rseq")) {
		sequence();
	} else if (!strcmp(what, "nospace")) {
		struct rlimit l = { 1 << 20, 1 << 20 };
		if (setrlimit(RLIMIT_AS, &l))
			_exit(77);
	} else {
		return 2;
	}
	ready();
	finish();
}
