/*
 * Sixteen threads that sleep in system calls or compute, and check every
 * result. Runs until its standard input ends, then prints "ok" and exits 0; on
 * any violation it says what happened and exits 1.
 *
 * With the argument "crash" an EINTR without a signal is allowed where a tracer
 * that dies in the middle of a stop can cause one.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ipc.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static int crash;

/* Every thread counts its rounds, so that one that hangs is noticed. */
#define MAX 32
static struct worker {
	void *(*f)(void *);
	void *arg;
	atomic_long ticks;
} workers[MAX];
static int nworkers;
static _Thread_local struct worker *self;

static void tick(void)
{
	self->ticks++;
}

#define FAIL(...)                                                         \
	do {                                                              \
		fprintf(stderr, "violation: " __VA_ARGS__);               \
		fprintf(stderr, " (errno %d %s)\n", errno, strerror(errno)); \
		_exit(1);                                                 \
	} while (0)

/* eintr says whether an EINTR is to be overlooked. */
static int eintr(const char *what)
{
	if (errno != EINTR)
		return 0;
	if (!crash)
		FAIL("%s: EINTR without a signal", what);
	return 1;
}

static void pause_us(unsigned us)
{
	struct timespec ts = { us / 1000000, (us % 1000000) * 1000L };

	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, &ts) == EINTR)
		;
}

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

static void *enter(void *arg)
{
	self = arg;
	return self->f(self->arg);
}

static void start(void *(*f)(void *), void *arg)
{
	struct worker *w = &workers[nworkers++];
	pthread_t t;
	pthread_attr_t a;

	w->f = f;
	w->arg = arg;
	pthread_attr_init(&a);
	pthread_attr_setstacksize(&a, 256 << 10);
	if (pthread_create(&t, &a, enter, w))
		FAIL("pthread_create");
	pthread_detach(t);
}

/* --- epoll_wait: an eventfd counts up by one each time --- */
static int efd;

static void *epoller(void *arg)
{
	int ep = epoll_create1(0);
	struct epoll_event ev = { .events = EPOLLIN };
	uint64_t v;

	if (epoll_ctl(ep, EPOLL_CTL_ADD, efd, &ev))
		FAIL("epoll_ctl");
	for (;;) {
		int n = epoll_wait(ep, &ev, 1, 10000);
		if (n < 0 && eintr("epoll_wait"))
			continue;
		if (n != 1)
			FAIL("epoll_wait returned %d", n);
		if (read(efd, &v, 8) != 8 || v == 0)
			FAIL("eventfd");
		tick();
	}
	return arg;
}

/* --- epoll_pwait: a signal that is blocked outside must always interrupt it --- */
static atomic_int usr1;
static pthread_t pwaiter_thread;
static atomic_int pwaiter_ready, usr1_done;

static void on_usr1(int sig)
{
	(void)sig;
	usr1++;
}

static void *pwaiter(void *arg)
{
	int ep = epoll_create1(0), seen = 0;
	sigset_t inside;
	struct epoll_event ev;

	pthread_sigmask(SIG_SETMASK, NULL, &inside);
	sigdelset(&inside, SIGUSR1);
	pwaiter_thread = pthread_self();
	pwaiter_ready = 1;
	for (;;) {
		int n = epoll_pwait(ep, &ev, 1, 10000, &inside);
		if (n == 0)
			FAIL("epoll_pwait: the signal's wake-up was lost (%d seen, %d handled)", seen, usr1);
		if (n != -1 || errno != EINTR)
			FAIL("epoll_pwait returned %d", n);
		if (usr1 == seen && !crash)
			FAIL("epoll_pwait: EINTR without a signal");
		if (usr1 != seen) {
			seen = usr1;
			usr1_done = seen;
		}
		tick();
	}
	return arg;
}

static void *usr1_sender(void *arg)
{
	int sent = 0;

	while (!pwaiter_ready)
		pause_us(100);
	for (;;) {
		pthread_kill(pwaiter_thread, SIGUSR1);
		sent++;
		while (usr1_done != sent)
			pause_us(50);
		pause_us(300);
		tick();
	}
	return arg;
}

/* --- sigtimedwait --- */
static pthread_t sigwaiter_thread;
static atomic_int sigwaiter_ready, usr2_got;

static void *sigwaiter(void *arg)
{
	sigset_t set;
	struct timespec ts = { 10, 0 };
	siginfo_t si;
	int n = 0;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	sigwaiter_thread = pthread_self();
	sigwaiter_ready = 1;
	for (;;) {
		int r = syscall(SYS_rt_sigtimedwait, &set, &si, &ts, 8);
		if (r < 0 && eintr("rt_sigtimedwait"))
			continue;
		if (r != SIGUSR2)
			FAIL("rt_sigtimedwait returned %d", r);
		if (si.si_code != SI_QUEUE || si.si_value.sival_int != ++n)
			FAIL("rt_sigtimedwait: value %d, want %d", si.si_value.sival_int, n);
		usr2_got = n;
		tick();
	}
	return arg;
}

static void *usr2_sender(void *arg)
{
	int n = 0;

	while (!sigwaiter_ready)
		pause_us(100);
	for (;;) {
		union sigval v = { .sival_int = ++n };
		if (pthread_sigqueue(sigwaiter_thread, SIGUSR2, v))
			FAIL("pthread_sigqueue");
		while (usr2_got != n)
			pause_us(50);
		pause_us(700);
		tick();
	}
	return arg;
}

/* --- sockets with a timeout: recv, read and send in sequence --- */
static int sock[2];

static void *receiver(void *arg)
{
	struct timeval tv = { 10, 0 };
	uint32_t n = 0, v;

	setsockopt(sock[0], SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
	for (;; n++) {
		ssize_t r;
		do
			r = n & 1 ? recv(sock[0], &v, 4, 0) : read(sock[0], &v, 4);
		while (r < 0 && eintr("recv"));
		if (r != 4 || v != n)
			FAIL("recv returned %zd, value %u, want %u", r, v, n);
		tick();
	}
	return arg;
}

static void *transmitter(void *arg)
{
	uint32_t n = 0;

	for (;; n++) {
		if (send(sock[1], &n, 4, 0) != 4)
			FAIL("send");
		pause_us(n % 1000);
		tick();
	}
	return arg;
}

/* --- semtimedop: two threads hand a token to and fro --- */
static int sem;
static atomic_int ending;

static void token(int get, int put)
{
	struct timespec ts = { 10, 0 };
	struct sembuf op = { get, -1, 0 };

	while (semtimedop(sem, &op, 1, &ts)) {
		if (ending)
			pause();
		if (!eintr("semtimedop"))
			FAIL("semtimedop");
	}
	op = (struct sembuf){ put, 1, 0 };
	if (semop(sem, &op, 1) && !ending)
		FAIL("semop");
}

static void *semaphore(void *arg)
{
	int me = (int)(intptr_t)arg;

	for (;;) {
		token(me, !me);
		pause_us(200);
		tick();
	}
	return arg;
}

/* --- futex with a timeout, and nanosleep --- */
static atomic_uint word;

static void *futexer(void *arg)
{
	struct timespec ts = { 10, 0 };

	for (unsigned n = 0;; n++) {
		while (word == n)
			if (syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, n, &ts, NULL, 0) && errno != EAGAIN)
				FAIL("futex");
		tick();
	}
	return arg;
}

static void *waker(void *arg)
{
	for (unsigned n = 0;; n++) {
		uint64_t t = now_ns(), one = 1;
		struct timespec ts = { 0, 400000 };
		unsigned seen;
		if (nanosleep(&ts, NULL))
			FAIL("nanosleep");
		if (now_ns() - t < 400000)
			FAIL("nanosleep was too short");
		seen = word;
		word = n + 1;
		if (seen != n)
			FAIL("futex word");
		syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
		tick();
		if (n % 3 == 0 && write(efd, &one, 8) != 8)
			FAIL("write to the eventfd");
	}
	return arg;
}

/* --- pipe, poll and accept --- */
static int pfd[2], lfd;
static struct sockaddr_un name = { .sun_family = AF_UNIX };
static socklen_t namelen = sizeof(sa_family_t);

static void *piper(void *arg)
{
	uint64_t v, n = 0;
	struct pollfd p = { .fd = pfd[0], .events = POLLIN };

	for (;; n++) {
		if (n & 1 && poll(&p, 1, 10000) != 1)
			FAIL("poll");
		if (read(pfd[0], &v, 8) != 8 || v != n)
			FAIL("read from the pipe: %lu, want %lu", v, n);
		tick();
	}
	return arg;
}

static void *accepter(void *arg)
{
	struct timeval tv = { 10, 0 };

	setsockopt(lfd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
	for (;;) {
		int c = accept(lfd, NULL, NULL);
		if (c < 0 && eintr("accept"))
			continue;
		if (c < 0)
			FAIL("accept");
		close(c);
		tick();
	}
	return arg;
}

static void *feeder(void *arg)
{
	for (uint64_t n = 0;; n++) {
		int c = socket(AF_UNIX, SOCK_STREAM, 0);
		if (write(pfd[1], &n, 8) != 8)
			FAIL("write to the pipe");
		pause_us(500);
		if (c < 0 || connect(c, (struct sockaddr *)&name, namelen))
			FAIL("connect");
		close(c);
		pause_us(300);
		tick();
	}
	return arg;
}

/* --- registers, flags and vector registers --- */
static double mix(uint64_t seed, uint64_t *sum)
{
	uint64_t a = seed, b = ~seed, c = seed << 7, d = 1, e = 5, f = 7, g = 11;
	double x = 1.0, y = 0.5;

	for (int i = 0; i < 20000; i++) {
		a += b ^ (c >> 3);
		b = (b << 13) | (b >> 51);
		c ^= a * 0x9e3779b97f4a7c15ull;
		if (__builtin_add_overflow(d, c, &d))
			e++;
		f = d > c ? f + e : f ^ g;
		g += f & 1 ? a : b;
		x = x * 1.0000001 + y;
		y = y * 0.9999999 + 1e-9 * (double)(f & 15);
	}
	*sum = a ^ b ^ c ^ d ^ e ^ f ^ g;
	return x + y;
}

static void *computer(void *arg)
{
	uint64_t want, got, seed = (uintptr_t)arg * 77;
	double x = mix(seed, &want);

	for (;;) {
		double y = mix(seed, &got);
		if (x != y || want != got)
			FAIL("a computation went wrong: %lx, want %lx", got, want);
		tick();
		pause_us(100);
	}
	return arg;
}

/* progress waits until every thread has made a round; less than a timeout. */
static long progress(void)
{
	long sum = 0, before[MAX];

	for (int i = 0; i < nworkers; i++)
		before[i] = workers[i].ticks;
	for (int i = 0; i < nworkers; i++) {
		for (int ms = 0; workers[i].ticks < before[i] + 2; ms++) {
			if (ms == 8000) {
				for (int j = 0; j < nworkers; j++)
					fprintf(stderr, "thread %d: %ld then %ld now\n", j, before[j], workers[j].ticks);
				FAIL("thread %d hangs, SIGUSR1 was handled %d and seen %d times, SIGUSR2 %d", i, usr1, usr1_done, usr2_got);
			}
			pause_us(1000);
		}
		sum += workers[i].ticks;
	}
	return sum;
}

int main(int argc, char **argv)
{
	struct sigaction sa = { .sa_handler = on_usr1 };
	sigset_t block;
	char c;

	crash = argc > 1 && !strcmp(argv[1], "crash");
	sigaction(SIGUSR1, &sa, NULL);
	sigemptyset(&block);
	sigaddset(&block, SIGUSR1);
	sigaddset(&block, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &block, NULL);
	efd = eventfd(0, 0);
	sem = semget(IPC_PRIVATE, 2, 0600 | IPC_CREAT);
	lfd = socket(AF_UNIX, SOCK_STREAM, 0);
	if (efd < 0 || sem < 0 || pipe(pfd) || socketpair(AF_UNIX, SOCK_DGRAM, 0, sock) || lfd < 0)
		FAIL("set-up");
	/* an abstract name that the kernel chooses */
	if (bind(lfd, (struct sockaddr *)&name, namelen) || listen(lfd, 16))
		FAIL("bind");
	namelen = sizeof name;
	getsockname(lfd, (struct sockaddr *)&name, &namelen);
	semctl(sem, 0, SETVAL, 1);
	semctl(sem, 1, SETVAL, 0);

	start(epoller, NULL);
	start(pwaiter, NULL);
	start(usr1_sender, NULL);
	start(sigwaiter, NULL);
	start(usr2_sender, NULL);
	start(receiver, NULL);
	start(transmitter, NULL);
	start(semaphore, (void *)0);
	start(semaphore, (void *)1);
	start(futexer, NULL);
	start(waker, NULL);
	start(piper, NULL);
	start(accepter, NULL);
	start(feeder, NULL);
	start(computer, (void *)1);
	printf("ready\n");
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		;
	long sum = progress();
	ending = 1;
	semctl(sem, 0, IPC_RMID);
	printf("ok %ld\n", sum);
	fflush(stdout);
	_exit(0);
}
