/*
 * crowd THREADS: a great number of functions, crowd_0 to crowd_<CROWD-1>, of several shapes, which threads call at
 * random and check. Each thread rests for 5 ms after each thousand calls, so that a machine with few processors can
 * run many of them. It prints "ready", and answers lines:
 *
 *	time CALLS   calls crowd_0 so often while the others rest, and prints "time NANOSECONDS" of its CPU time
 *	rest 1       lets the others rest until "rest 0", and prints "rest 1"
 *	quit         ends, and prints "calls TOTAL"
 *
 * A wrong result is told on standard error and ends it with status 1.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TEXT(x) TEXT1(x)
#define TEXT1(x) #x

/* Each returns its argument plus its number. The table has their addresses. */
__asm__(
	".pushsection .data.rel.ro, \"aw\"\n.p2align 3\n.globl crowd_table\ncrowd_table:\n.popsection\n"
	".pushsection .text\n"
	".altmacro\n"
	".macro one n\n"
	".p2align 4\n.globl crowd_\\n\n.type crowd_\\n, @function\ncrowd_\\n:\n.cfi_startproc\n"
	".if \\n % 4 == 0\n"
	"	push %rbp\n	mov %rsp, %rbp\n	lea \\n(%rdi), %rax\n	pop %rbp\n	ret\n"
	".elseif \\n % 4 == 1\n"
	"	sub $24, %rsp\n	mov %rdi, 8(%rsp)\n	mov 8(%rsp), %rax\n	add $\\n, %rax\n	add $24, %rsp\n	ret\n"
	".elseif \\n % 4 == 2\n"
	"	push %rbx\n	push %r12\n	mov %rdi, %rbx\n	lea \\n(%rbx), %rax\n	pop %r12\n	pop %rbx\n	ret\n"
	".else\n"
	"	endbr64\n	lea \\n(%rdi), %rax\n	ret\n"
	".endif\n"
	".cfi_endproc\n.size crowd_\\n, . - crowd_\\n\n"
	".pushsection .data.rel.ro\n.quad crowd_\\n\n.popsection\n"
	".endm\n"
	".set number, 0\n"
	".rept " TEXT(CROWD) "\n"
	"	one %number\n"
	"	.set number, number + 1\n"
	".endr\n"
	".popsection\n");

extern long (*const crowd_table[CROWD])(long);

static atomic_ulong calls;
static atomic_int resting, stopping;

static void call(unsigned n, long arg)
{
	long got = crowd_table[n](arg);

	if (got == arg + (long)n)
		return;
	fprintf(stderr, "crowd_%u(%ld) = %ld\n", n, arg, got);
	exit(1);
}

static void rest(long ns)
{
	struct timespec t = { 0, ns };

	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &t, &t) != 0)
		;
}

static void *work(void *arg)
{
	uint64_t random = (uintptr_t)arg * 2 + 1;

	for (; !stopping; rest(5000000)) {
		for (int i = 0; i < 1000 && !resting; i++) {
			random = random * 6364136223846793005u + 1442695040888963407u;
			call((random >> 33) % CROWD, i);
			calls++;
		}
	}
	return NULL;
}

static void measure(unsigned long n)
{
	struct timespec a, b;
	int rested = resting;

	resting = 1;
	rest(20000000);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
	for (unsigned long i = 0; i < n; i++)
		call(0, i);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
	calls += n;
	resting = rested;
	printf("time %ld\n", (b.tv_sec - a.tv_sec) * 1000000000 + b.tv_nsec - a.tv_nsec);
}

int main(int argc, char **argv)
{
	int threads = argc > 1 ? atoi(argv[1]) : 0;
	pthread_t ids[threads + 1];
	unsigned long n;
	char line[64];

	setlinebuf(stdout);
	for (long i = 0; i < threads; i++)
		if (pthread_create(&ids[i], NULL, work, (void *)i) != 0)
			return 1;
	puts("ready");
	while (fgets(line, sizeof line, stdin) && strcmp(line, "quit\n") != 0)
		if (sscanf(line, "time %lu", &n) == 1)
			measure(n);
		else if (sscanf(line, "rest %lu", &n) == 1)
			printf("rest %d\n", resting = n != 0);
	stopping = 1;
	for (int i = 0; i < threads; i++)
		pthread_join(ids[i], NULL);
	printf("calls %lu\n", calls);
	return 0;
}
