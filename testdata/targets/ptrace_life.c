/*
 * Processes in the states that a tracer meets now and then:
 *
 *   threads N       N threads that compute, and end with standard input
 *   churn           threads that are born and die all the time
 *   leader          the leader ends, another thread goes on
 *   vfork MS        the main thread is in vfork for MS milliseconds, again and again
 *   sharer          a process that shares the memory by clone without CLONE_THREAD
 *   leave PROG      the same, which keeps the memory when the first process calls execve at a line of input
 *   exit MS         ends after MS milliseconds with status 7
 *   exec MS PROG    another thread than the main one calls execve after MS milliseconds
 *   fork            children that are forked all the time and compute
 *   uring           threads of the kernel that belong to the process
 *   spin            one thread that never makes a system call
 *   sleep           one thread in epoll_wait for ever
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/io_uring.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static atomic_long work_done;
static char **args;

static void fail(const char *what)
{
	fprintf(stderr, "violation: %s: %s\n", what, strerror(errno));
	_exit(1);
}

static void ready(void)
{
	printf("ready\n");
	fflush(stdout);
}

static void finish(void)
{
	char c;

	while (read(0, &c, 1) > 0)
		;
	printf("ok %ld\n", work_done);
	fflush(stdout);
	_exit(0);
}

static void pause_ms(long ms)
{
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000 };

	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, &ts) == EINTR)
		;
}

__attribute__((noipa)) static uint64_t compute(uint64_t x)
{
	for (int i = 0; i < 100000; i++)
		x = (x ^ (x >> 7)) * 0x9e3779b97f4a7c15ull + i;
	return x;
}

static void *worker(void *arg)
{
	uint64_t want = compute((uintptr_t)arg);

	for (;;) {
		if (compute((uintptr_t)arg) != want)
			fail("a computation went wrong");
		work_done++;
	}
	return NULL;
}

static void start(void *(*f)(void *), void *arg)
{
	pthread_t t;
	pthread_attr_t a;

	pthread_attr_init(&a);
	pthread_attr_setstacksize(&a, 128 << 10);
	pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
	if ((errno = pthread_create(&t, &a, f, arg)))
		fail("pthread_create");
}

static void *short_life(void *arg)
{
	uint64_t want = compute((uintptr_t)arg), got = compute((uintptr_t)arg);

	if (want != got)
		fail("a computation went wrong");
	work_done++;
	return NULL;
}

static void *churner(void *arg)
{
	for (;;) {
		pthread_t t[4];
		for (int i = 0; i < 4; i++)
			if ((errno = pthread_create(&t[i], NULL, short_life, arg)))
				fail("pthread_create");
		for (int i = 0; i < 4; i++)
			pthread_join(t[i], NULL);
	}
	return NULL;
}

static void *leaderless(void *arg)
{
	pause_ms(50); /* let the leader go */
	ready();
	finish();
	return arg;
}

static void vforker(void)
{
	long ms = atol(args[2]);

	for (;;) {
		int st;
		pid_t p = vfork();
		if (p == 0) {
			struct timespec ts = { ms / 1000, ms % 1000 * 1000000 };
			syscall(SYS_nanosleep, &ts, NULL);
			_exit(5);
		}
		if (p < 0 || waitpid(p, &st, 0) != p || WEXITSTATUS(st) != 5)
			fail("vfork");
		work_done++;
		pause_ms(20);
	}
}

static void *vfork_thread(void *arg)
{
	vforker();
	return arg;
}

static int share(void *arg)
{
	uint64_t want = compute(3);

	(void)arg;
	for (;;) {
		if (compute(3) != want)
			_exit(9);
		work_done++;
	}
}

static int stay(void *arg)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	return share(arg);
}

static void leave(void)
{
	static char stack[64 << 10];
	char c;

	if (clone(stay, stack + sizeof stack, CLONE_VM, NULL) < 0)
		fail("clone");
	ready();
	if (read(0, &c, 1) != 1)
		fail("read");
	execv(args[2], args + 2);
	fail("execv");
}

static void *execer(void *arg)
{
	pause_ms(atol(args[2]));
	execv(args[3], args + 3);
	fail("execv");
	return arg;
}

static void *forker(void *arg)
{
	for (;;) {
		int st;
		pid_t p = fork();
		if (p == 0)
			_exit(compute(5) == compute(5) ? 6 : 9);
		if (p < 0 || waitpid(p, &st, 0) != p || WEXITSTATUS(st) != 6)
			fail("fork");
		work_done++;
	}
	return arg;
}

/* An asynchronous read of an empty pipe occupies a worker, and a second ring
 * has a thread that polls it. */
static void uring(void)
{
	static char c;
	int p[2];
	struct io_uring_params rp = { 0 }, poll = { .flags = IORING_SETUP_SQPOLL, .sq_thread_idle = 100000 };
	int ring = syscall(425, 4, &rp);
	char *sq, *cq;
	struct io_uring_sqe *sqe;
	struct io_uring_cqe *cqe;

	if (ring < 0 || pipe(p))
		_exit(77);
	sq = mmap(NULL, rp.sq_off.array + rp.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	sqe = mmap(NULL, rp.sq_entries * sizeof *sqe, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
	if (sq == MAP_FAILED || (void *)sqe == MAP_FAILED)
		fail("mmap");
	sqe->opcode = IORING_OP_READ;
	sqe->flags = IOSQE_ASYNC;
	sqe->fd = p[0];
	sqe->addr = (uintptr_t)&c;
	sqe->len = 1;
	*(unsigned *)(sq + rp.sq_off.array) = 0;
	__atomic_store_n((unsigned *)(sq + rp.sq_off.tail), 1, __ATOMIC_RELEASE);
	if (syscall(426, ring, 1, 0, 0, NULL, 0) != 1)
		fail("io_uring_enter");
	if (syscall(425, 4, &poll) < 0)
		_exit(77);
	pause_ms(50);
	ready();
	while (read(0, &c, 1) > 0)
		;
	cq = mmap(NULL, rp.cq_off.cqes + rp.cq_entries * sizeof *cqe, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
	cqe = (struct io_uring_cqe *)(cq + rp.cq_off.cqes);
	if (write(p[1], "x", 1) != 1)
		fail("write");
	for (int ms = 0; !__atomic_load_n((unsigned *)(cq + rp.cq_off.tail), __ATOMIC_ACQUIRE); ms++) {
		if (ms == 5000)
			fail("the read does not end");
		pause_ms(1);
	}
	if (cqe->res != 1) {
		errno = -cqe->res;
		fail("the read failed");
	}
	printf("ok\n");
	fflush(stdout);
	_exit(0);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	args = argv;
	if (!strcmp(what, "threads")) {
		for (int i = atoi(argv[2]); i > 1; i--)
			start(worker, (void *)(uintptr_t)i);
	} else if (!strcmp(what, "churn")) {
		start(churner, (void *)1);
		start(churner, (void *)2);
	} else if (!strcmp(what, "leader")) {
		start(worker, (void *)1);
		start(leaderless, NULL);
		pthread_exit(NULL);
	} else if (!strcmp(what, "vfork")) {
		start(vfork_thread, NULL);
		start(worker, (void *)1);
	} else if (!strcmp(what, "sharer")) {
		static char stack[64 << 10];
		int p = clone(share, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);
		if (p < 0)
			fail("clone");
		ready();
		char c;
		while (read(0, &c, 1) > 0)
			;
		kill(p, SIGKILL);
		int st;
		if (waitpid(p, &st, 0) != p || !WIFSIGNALED(st))
			fail("the process that shares the memory ended early");
		printf("ok %ld\n", work_done);
		return 0;
	} else if (!strcmp(what, "leave")) {
		leave();
	} else if (!strcmp(what, "exit")) {
		start(worker, (void *)1);
		ready();
		pause_ms(atol(argv[2]));
		_exit(7);
	} else if (!strcmp(what, "exec")) {
		start(worker, (void *)1);
		ready();
		start(execer, NULL);
		for (;;)
			pause();
	} else if (!strcmp(what, "fork")) {
		start(forker, NULL);
		start(forker, NULL);
	} else if (!strcmp(what, "uring")) {
		uring();
	} else if (!strcmp(what, "spin")) {
		ready();
		for (volatile uint64_t x = 0;; x++)
			;
	} else if (!strcmp(what, "sleep")) {
		struct epoll_event ev;
		int n, ep = epoll_create1(0), fd0 = 0;
		ev = (struct epoll_event){ .events = EPOLLIN, .data.fd = fd0 };
		if (epoll_ctl(ep, EPOLL_CTL_ADD, fd0, &ev))
			fail("epoll_ctl");
		ready();
		n = epoll_wait(ep, &ev, 1, -1);
		if (n != 1)
			fail("epoll_wait");
	} else {
		return 2;
	}
	if (strcmp(what, "sleep"))
		ready();
	finish();
}
