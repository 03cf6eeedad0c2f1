// Runs generated code for the tests of package x86. The test maps the same two
// files, for the code with the gate and for the arena, writes code and requests
// and reads replies; see harness_test.go.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { RUN = 1, LOOP = 2, THREAD_POINTER = 3, STORM = 4, EXACT = 5 };

struct request {
	uint64_t op, entry, threads, iterations, keys;
	uint64_t regs[16]; // in hardware order; rsp is ignored
	uint64_t flags;
};

struct reply {
	uint64_t regs[16], flags, result, depth;
	uint8_t red_zone[128];
};

static struct request rq;
static struct reply rp;

// Everything call_case needs, at fixed addresses: it has no register to spare.
uint64_t case_regs[16], case_out[16], case_flags, case_out_flags, case_entry, case_sp, own_sp;

void call_case(void);
asm("call_case:\n"
    "push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15\n"
    "mov %rsp, own_sp\n"
    "mov case_sp, %rsp\n"
    "lea 64(%rsp), %rsp\n"
    "pushq case_flags\n"
    "popfq\n"
    "mov case_regs+0, %rax; mov case_regs+8, %rcx; mov case_regs+16, %rdx; mov case_regs+24, %rbx\n"
    "mov case_regs+40, %rbp; mov case_regs+48, %rsi; mov case_regs+56, %rdi; mov case_regs+64, %r8\n"
    "mov case_regs+72, %r9; mov case_regs+80, %r10; mov case_regs+88, %r11; mov case_regs+96, %r12\n"
    "mov case_regs+104, %r13; mov case_regs+112, %r14; mov case_regs+120, %r15\n"
    "lea -56(%rsp), %rsp\n"
    "call *case_entry\n"
    "mov %rax, case_out+0; mov %rcx, case_out+8; mov %rdx, case_out+16; mov %rbx, case_out+24\n"
    "mov %rsp, case_out+32; mov %rbp, case_out+40; mov %rsi, case_out+48; mov %rdi, case_out+56\n"
    "mov %r8, case_out+64; mov %r9, case_out+72; mov %r10, case_out+80; mov %r11, case_out+88\n"
    "mov %r12, case_out+96; mov %r13, case_out+104; mov %r14, case_out+112; mov %r15, case_out+120\n"
    "mov own_sp, %rsp\n"
    "pushfq\n"
    "popq case_out_flags\n"
    "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx\n"
    "ret\n");

static uint8_t stack[1 << 16] __attribute__((aligned(64)));

static void run(void)
{
	uint8_t *sp = stack + sizeof stack - 256;
	memset(stack, 0xa5, sizeof stack);
	case_sp = (uint64_t)sp;
	case_entry = rq.entry;
	case_flags = rq.flags;
	memcpy(case_regs, rq.regs, sizeof case_regs);
	call_case();
	memcpy(rp.regs, case_out, sizeof rp.regs);
	rp.regs[4] -= case_sp; // 8 when the stack is balanced
	rp.flags = case_out_flags;
	rp.result = case_sp; // what the code saw as its stack pointer
	uint8_t *low = stack;
	while (*low == 0xa5)
		low++;
	rp.depth = sp - low; // how far below it the code wrote
	memcpy(rp.red_zone, sp - sizeof rp.red_zone, sizeof rp.red_zone);
}

typedef void (*function)(uint64_t);

static pthread_barrier_t barrier;

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

// Calls the code with keys that go through 0 .. keys-1 in a scattered order.
static void *loop(void *took)
{
	function f = (function)rq.entry;
	pthread_barrier_wait(&barrier);
	uint64_t start = now();
	uint32_t x = 1;
	if (rq.keys <= 1)
		for (uint64_t i = 0; i < rq.iterations; i++)
			f(rq.regs[7]);
	else
		for (uint64_t i = 0; i < rq.iterations; i++) {
			f((uint64_t)x * rq.keys >> 32);
			x = x * 1664525 + 1013904223;
		}
	*(uint64_t *)took = now() - start;
	return 0;
}

static void loops(void)
{
	pthread_t t[64];
	uint64_t took[64], n = rq.threads;
	pthread_barrier_init(&barrier, 0, n);
	for (uint64_t i = 0; i < n; i++)
		pthread_create(&t[i], 0, loop, &took[i]);
	rp.result = 0;
	for (uint64_t i = 0; i < n; i++) {
		pthread_join(t[i], 0);
		if (took[i] > rp.result)
			rp.result = took[i];
	}
	pthread_barrier_destroy(&barrier);
}

static volatile uint64_t nested;

static void on_alarm(int sig)
{
	(void)sig;
	((function)rq.entry)(nested % rq.keys);
	nested++;
}

// Calls the code while a timer's signal handler calls it too; returns how often
// the handler did.
static void storm(void)
{
	struct sigaction sa = {.sa_handler = on_alarm, .sa_flags = SA_NODEFER};
	struct itimerval every = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
	sigaction(SIGALRM, &sa, 0);
	nested = 0;
	setitimer(ITIMER_REAL, &every, 0);
	for (uint64_t i = 0; i < rq.iterations; i++)
		((function)rq.entry)(i % rq.keys);
	setitimer(ITIMER_REAL, &never, 0);
	rp.result = nested;
}

// What follows calls the code from many threads that are moved between processors and interrupted by signals,
// whose handlers call it too and sometimes jump out, also out of calls that were under way. Calls are counted
// by key when they have returned; those that a jump has ended are counted as unsure. Every other thread has a
// stack of its own for signals.
enum { KEYS = 1000, NESTED = 64 };

static struct { uint64_t certain[KEYS], unsure[KEYS]; } *exact_total;
static pthread_mutex_t exact_lock = PTHREAD_MUTEX_INITIALIZER;

static __thread struct {
	uint64_t certain[KEYS], unsure[KEYS], done;
	uint32_t random;
	volatile int depth, ready;
	volatile uint32_t under_way[NESTED];
	sigjmp_buf out;
} mine;

static uint32_t draw(uint32_t n)
{
	mine.random = mine.random * 1664525 + 1013904223;
	return (uint64_t)mine.random * n >> 32;
}

static void exact_call(void)
{
	uint32_t key = draw(KEYS);
	int depth = mine.depth;

	mine.depth = depth + 1; // before, or a handler would take the place of this key
	mine.under_way[depth] = key;
	((function)rq.entry)(key);
	mine.certain[key]++;
	__asm__ volatile("" ::: "memory"); // a jump in between must find it under way, or counted
	mine.depth = depth;
}

static void on_poke(int sig)
{
	(void)sig;
	if (!mine.ready || mine.depth > NESTED - 2)
		return;
	exact_call();
	if (draw(8) == 0) {
		for (int i = 0; i < mine.depth; i++)
			mine.unsure[mine.under_way[i]]++;
		siglongjmp(mine.out, 1);
	}
}

static void *exact_work(void *arg)
{
	uint64_t n = (uint64_t)arg;
	static uint8_t stacks[64][1 << 16];
	stack_t own = {.ss_sp = stacks[n % 64], .ss_size = sizeof stacks[0]};
	cpu_set_t cpus;

	if (n & 1)
		sigaltstack(&own, 0);
	mine.random = n * 7919 + 1;
	sigsetjmp(mine.out, 1);
	mine.depth = 0;
	mine.ready = 1;
	while (mine.done < rq.iterations) {
		mine.done++;
		exact_call();
		if (mine.done % 4096 == 0) {
			CPU_ZERO(&cpus);
			CPU_SET(draw(sysconf(_SC_NPROCESSORS_ONLN)), &cpus);
			sched_setaffinity(0, sizeof cpus, &cpus); // fails for one that is not ours
		}
	}
	mine.ready = 0;
	pthread_mutex_lock(&exact_lock);
	for (int i = 0; i < KEYS; i++) {
		exact_total->certain[i] += mine.certain[i];
		exact_total->unsure[i] += mine.unsure[i];
	}
	pthread_mutex_unlock(&exact_lock);
	__atomic_fetch_add(&rp.result, 1, __ATOMIC_SEQ_CST);
	pthread_barrier_wait(&barrier); // until nobody is poked any more
	return 0;
}

// Returns how often it sent a signal; the counts are at regs[0].
static void exact(void)
{
	struct sigaction sa = {.sa_handler = on_poke, .sa_flags = SA_NODEFER | SA_ONSTACK};
	struct timespec pause = {0, 20000};
	pthread_t t[64];
	uint64_t n = rq.threads, poked = 0;

	exact_total = (void *)rq.regs[0];
	memset(exact_total, 0, sizeof *exact_total);
	sigaction(SIGUSR1, &sa, 0);
	pthread_barrier_init(&barrier, 0, n + 1);
	rp.result = 0;
	for (uint64_t i = 0; i < n; i++)
		pthread_create(&t[i], 0, exact_work, (void *)(i + 1));
	while (__atomic_load_n(&rp.result, __ATOMIC_SEQ_CST) < n) {
		pthread_kill(t[poked++ % n], SIGUSR1);
		nanosleep(&pause, 0);
	}
	pthread_barrier_wait(&barrier);
	for (uint64_t i = 0; i < n; i++)
		pthread_join(t[i], 0);
	pthread_barrier_destroy(&barrier);
	rp.result = poked;
}

static void map(const char *path, uint64_t at, int prot)
{
	int fd = open(path, O_RDWR);
	off_t size = lseek(fd, 0, SEEK_END);
	if (fd < 0 || mmap((void *)at, size, prot, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0) != (void *)at) {
		perror(path);
		exit(1);
	}
	close(fd);
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	map(argv[1], strtoull(argv[2], 0, 0), PROT_READ | PROT_WRITE | PROT_EXEC);
	map(argv[3], strtoull(argv[4], 0, 0), PROT_READ | PROT_WRITE);
	while (read(0, &rq, sizeof rq) == sizeof rq) {
		switch (rq.op) {
		case RUN: run(); break;
		case LOOP: loops(); break;
		case STORM: storm(); break;
		case EXACT: exact(); break;
		case THREAD_POINTER: asm("mov %%fs:0, %0" : "=r"(rp.result)); break;
		}
		if (write(1, &rp, sizeof rp) != sizeof rp)
			return 1;
	}
	return 0;
}
