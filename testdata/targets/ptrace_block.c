/*
 * Blocks in one system call, given by name, for a quarter of a second, round
 * after round, and checks what it returns: the event, never EINTR. Says "ready",
 * then runs ten rounds and says "ok".
 *
 * Exit status 77: this kernel does not know the call.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 10

static int sp[2], efd, pfd[2], epfd, sem = -1, msq = -1, lfd, fullfd[2];
static unsigned word;
static pthread_t main_thread;
static struct sockaddr_un name = { .sun_family = AF_UNIX };
static socklen_t namelen = sizeof(sa_family_t);
static char buf[1 << 16];

static void fail(const char *what, long r)
{
	printf("violation: %s returned %ld, errno %d (%s)\n", what, r, errno, strerror(errno));
	fflush(stdout);
	if (sem >= 0)
		semctl(sem, 0, IPC_RMID);
	if (msq >= 0)
		msgctl(msq, IPC_RMID, NULL);
	_exit(1);
}

static void nap(void)
{
	struct timespec ts = { 0, 250000000 };

	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, &ts) == EINTR)
		;
}

static void put_event(void)
{
	unsigned long long one = 1;

	if (write(efd, &one, 8) != 8)
		fail("eventfd", 0);
}

static void get_event(void)
{
	unsigned long long v;

	if (read(efd, &v, 8) != 8)
		fail("eventfd read", 0);
}

/* --- wakers: run by the other thread after the nap --- */
static void wake_event(void) { put_event(); }
static void wake_sock(void) { if (send(sp[1], "x", 1, 0) != 1) fail("waker", 0); }
static void wake_pipe(void) { if (write(pfd[1], "x", 1) != 1) fail("waker", 0); }
static void wake_usr1(void) { pthread_kill(main_thread, SIGUSR1); }
static void wake_none(void) { }
static void wake_connect(void)
{
	int c = socket(AF_UNIX, SOCK_STREAM, 0);

	if (connect(c, (struct sockaddr *)&name, namelen))
		fail("waker", 0);
	close(c);
}
static void wake_sem(void)
{
	struct sembuf op = { 0, 1, 0 };

	if (semop(sem, &op, 1))
		fail("waker", 0);
}
static void wake_msg(void)
{
	struct { long type; char c; } m = { 1, 'x' };

	if (msgsnd(msq, &m, 1, 0))
		fail("waker", 0);
}
static void wake_futex(void)
{
	__atomic_store_n(&word, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &word, FUTEX_WAKE, 100, NULL, NULL, 0);
}
static void wake_drain(void)
{
	/* makes room in the full socket or pipe */
	static char tmp[1 << 20];

	if (read(fullfd[0], tmp, sizeof tmp) <= 0)
		fail("waker", 0);
}

/* --- the calls --- */
static long c_epoll_wait(void)
{
	struct epoll_event ev;
	long r = epoll_wait(epfd, &ev, 1, 60000);
	get_event();
	return r - 1;
}
static long c_epoll_pwait(void)
{
	struct epoll_event ev;
	sigset_t none;
	long r;

	sigemptyset(&none);
	r = epoll_pwait(epfd, &ev, 1, 60000, &none);
	get_event();
	return r - 1;
}
static long c_epoll_pwait2(void)
{
	struct epoll_event ev;
	struct timespec ts = { 60, 0 };
	long r = syscall(441, epfd, &ev, 1, &ts, NULL, 0);

	if (r < 0 && errno == ENOSYS)
		_exit(77);
	get_event();
	return r - 1;
}
static int usr1;
static void on_usr1(int sig) { (void)sig; usr1++; }
static long c_epoll_pwait_signal(void)
{
	struct epoll_event ev;
	sigset_t none;
	int before = usr1;
	long r;

	sigemptyset(&none);
	r = epoll_pwait(epfd, &ev, 1, 60000, &none);
	return r == -1 && errno == EINTR && usr1 == before + 1 ? 0 : -1;
}
static long c_ppoll_signal(void)
{
	struct timespec ts = { 60, 0 };
	sigset_t none;
	int before = usr1;
	long r;

	sigemptyset(&none);
	r = ppoll(NULL, 0, &ts, &none);
	return r == -1 && errno == EINTR && usr1 == before + 1 ? 0 : -1;
}
static long c_sigsuspend(void)
{
	sigset_t none;
	int before = usr1;

	sigemptyset(&none);
	return sigsuspend(&none) == -1 && errno == EINTR && usr1 == before + 1 ? 0 : -1;
}
static long c_sigtimedwait(void)
{
	sigset_t set;
	struct timespec ts = { 60, 0 };

	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	return sigtimedwait(&set, NULL, &ts) - SIGUSR1;
}
static void timeouts(int fd)
{
	struct timeval tv = { 60, 0 };

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof tv);
}
static long c_recv(void) { return recv(sp[0], buf, 1, 0) - 1; }
static long c_read_socket(void) { return read(sp[0], buf, 1) - 1; }
static long c_readv_socket(void)
{
	struct iovec v = { buf, 1 };
	return readv(sp[0], &v, 1) - 1;
}
static long c_recvmsg(void)
{
	struct iovec v = { buf, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
	return recvmsg(sp[0], &m, 0) - 1;
}
static long c_recvmmsg(void)
{
	struct iovec v = { buf, 1 };
	struct mmsghdr m = { .msg_hdr = { .msg_iov = &v, .msg_iovlen = 1 } };
	return recvmmsg(sp[0], &m, 1, 0, NULL) - 1;
}
/* fills the sending side so that the next byte blocks */
static void fill(void)
{
	while (send(fullfd[1], buf, sizeof buf, MSG_DONTWAIT) > 0)
		;
	while (send(fullfd[1], buf, 1, MSG_DONTWAIT) > 0)
		;
}
static long c_send(void) { fill(); return send(fullfd[1], buf, 1, 0) - 1; }
static long c_write_socket(void) { fill(); return write(fullfd[1], buf, 1) - 1; }
static long c_writev_socket(void)
{
	struct iovec v = { buf, 1 };
	fill();
	return writev(fullfd[1], &v, 1) - 1;
}
static long c_sendmsg(void)
{
	struct iovec v = { buf, 1 };
	struct msghdr m = { .msg_iov = &v, .msg_iovlen = 1 };
	fill();
	return sendmsg(fullfd[1], &m, 0) - 1;
}
static long c_sendmmsg(void)
{
	struct iovec v = { buf, 1 };
	struct mmsghdr m = { .msg_hdr = { .msg_iov = &v, .msg_iovlen = 1 } };
	fill();
	return sendmmsg(fullfd[1], &m, 1, 0) - 1;
}
static long c_sendfile(void)
{
	static int file = -1;
	off_t zero = 0;

	if (file < 0)
		file = open("/proc/self/exe", O_RDONLY);
	fill();
	return sendfile(fullfd[1], file, &zero, 1) - 1;
}
static long c_splice(void)
{
	fill();
	if (write(pfd[1], "x", 1) != 1)
		fail("splice", 0);
	return splice(pfd[0], NULL, fullfd[1], NULL, 1, 0) - 1;
}
static long c_accept(void)
{
	int c = accept(lfd, NULL, NULL);
	if (c < 0)
		return c;
	close(c);
	return 0;
}
static long c_accept4(void)
{
	int c = accept4(lfd, NULL, NULL, SOCK_CLOEXEC);
	if (c < 0)
		return c;
	close(c);
	return 0;
}
/* connect to a listener whose queue is full blocks until somebody accepts */
static int full_lfd;
static void wake_accept(void)
{
	int c = accept(full_lfd, NULL, NULL);
	if (c < 0)
		fail("waker", 0);
	close(c);
}
static long c_connect(void)
{
	struct sockaddr_un n;
	socklen_t len = sizeof n;
	int c = socket(AF_UNIX, SOCK_STREAM, 0), d;
	long r;

	getsockname(full_lfd, (struct sockaddr *)&n, &len);
	for (;;) { /* fill the queue */
		d = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
		if (connect(d, (struct sockaddr *)&n, len))
			break;
	}
	close(d);
	timeouts(c);
	r = connect(c, (struct sockaddr *)&n, len);
	close(c);
	return r;
}
static long c_semop(void)
{
	struct sembuf op = { 0, -1, 0 };
	return semop(sem, &op, 1);
}
static long c_semtimedop(void)
{
	struct sembuf op = { 0, -1, 0 };
	struct timespec ts = { 60, 0 };
	return semtimedop(sem, &op, 1, &ts);
}
static long c_msgrcv(void)
{
	struct { long type; char c; } m;
	return msgrcv(msq, &m, 1, 0, 0) - 1;
}
static aio_context_t aio;
static struct iocb *aio_submit_poll(void)
{
	static struct iocb cb;
	struct iocb *list = &cb;

	if (!aio && syscall(SYS_io_setup, 8, &aio))
		_exit(77);
	memset(&cb, 0, sizeof cb);
	cb.aio_lio_opcode = 5; /* IOCB_CMD_POLL */
	cb.aio_fildes = efd;
	cb.aio_buf = POLLIN;
	if (syscall(SYS_io_submit, aio, 1, &list) != 1)
		_exit(77);
	return &cb;
}
static long c_io_getevents(void)
{
	struct io_event ev;
	struct timespec ts = { 60, 0 };
	long r;

	aio_submit_poll();
	r = syscall(SYS_io_getevents, aio, 1, 1, &ev, &ts);
	get_event();
	return r - 1;
}
static long c_io_pgetevents(void)
{
	struct io_event ev;
	struct timespec ts = { 60, 0 };
	long r;

	aio_submit_poll();
	r = syscall(333, aio, 1, 1, &ev, &ts, NULL);
	get_event();
	return r - 1;
}
/* io_uring: one poll request at a time */
static int ring = -1;
static unsigned char *sq, *cq;
static struct io_uring_params rp;
static struct io_uring_sqe *sqes;
static void ring_setup(void)
{
	ring = syscall(425, 4, &rp);
	if (ring < 0)
		_exit(77);
	sq = mmap(NULL, rp.sq_off.array + rp.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
	cq = mmap(NULL, rp.cq_off.cqes + rp.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
	sqes = mmap(NULL, rp.sq_entries * sizeof *sqes, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
	if (sq == MAP_FAILED || cq == MAP_FAILED || (void *)sqes == MAP_FAILED)
		fail("io_uring", 0);
}
static long c_io_uring(void)
{
	unsigned mask, tail;
	long r;

	if (ring < 0)
		ring_setup();
	mask = *(unsigned *)(sq + rp.sq_off.ring_mask);
	tail = *(unsigned *)(sq + rp.sq_off.tail);
	memset(&sqes[tail & mask], 0, sizeof *sqes);
	sqes[tail & mask].opcode = IORING_OP_POLL_ADD;
	sqes[tail & mask].fd = efd;
	sqes[tail & mask].poll_events = POLLIN;
	((unsigned *)(sq + rp.sq_off.array))[tail & mask] = tail & mask;
	__atomic_store_n((unsigned *)(sq + rp.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
	if (syscall(426, ring, 1, 0, 0, NULL, 0) != 1)
		fail("io_uring submit", 0);
	r = syscall(426, ring, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
	if (r == 0) {
		unsigned head = *(unsigned *)(cq + rp.cq_off.head);
		if (head == __atomic_load_n((unsigned *)(cq + rp.cq_off.tail), __ATOMIC_ACQUIRE))
			fail("io_uring: nothing completed", 0);
		__atomic_store_n((unsigned *)(cq + rp.cq_off.head), head + 1, __ATOMIC_RELEASE);
		get_event();
	}
	return r;
}
static long c_futex(void)
{
	struct timespec ts = { 60, 0 };
	long r = 0;

	while (!__atomic_load_n(&word, __ATOMIC_SEQ_CST) && r == 0)
		r = syscall(SYS_futex, &word, FUTEX_WAIT, 0, &ts, NULL, 0);
	word = 0;
	return r < 0 && errno == EAGAIN ? 0 : r;
}
static long slept(int (*f)(void))
{
	struct timespec a, b;
	double s;

	clock_gettime(CLOCK_MONOTONIC, &a);
	if (f())
		return -1;
	clock_gettime(CLOCK_MONOTONIC, &b);
	s = (b.tv_sec - a.tv_sec) + (b.tv_nsec - a.tv_nsec) * 1e-9;
	errno = 0;
	return s < 0.25 ? -2 : 0;
}
static int f_nanosleep(void) { struct timespec ts = { 0, 250000000 }; return nanosleep(&ts, NULL); }
static int f_abstime(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	ts.tv_nsec += 250000000;
	if (ts.tv_nsec >= 1000000000) {
		ts.tv_nsec -= 1000000000;
		ts.tv_sec++;
	}
	return clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL);
}
static int f_poll_timeout(void) { return poll(NULL, 0, 250); }
static int f_select(void) { struct timeval tv = { 0, 250000 }; return select(0, NULL, NULL, NULL, &tv); }
static int f_epoll_timeout(void) { struct epoll_event ev; return epoll_wait(epfd, &ev, 1, 250); }
static long c_nanosleep(void) { return slept(f_nanosleep); }
static long c_abstime(void) { return slept(f_abstime); }
static long c_poll_timeout(void) { return slept(f_poll_timeout); }
static long c_select_timeout(void) { return slept(f_select); }
static long c_epoll_timeout(void) { return slept(f_epoll_timeout); }
static long c_poll(void)
{
	struct pollfd p = { .fd = efd, .events = POLLIN };
	long r = poll(&p, 1, 60000);
	get_event();
	return r - 1;
}
static long c_pselect(void)
{
	fd_set s;
	struct timespec ts = { 60, 0 };
	long r;

	FD_ZERO(&s);
	FD_SET(efd, &s);
	r = pselect(efd + 1, &s, NULL, NULL, &ts, NULL);
	get_event();
	return r - 1;
}
static long c_read_pipe(void) { return read(pfd[0], buf, 1) - 1; }
static long c_wait(void)
{
	pid_t p = fork();
	int st;

	if (p == 0) {
		usleep(250000);
		_exit(3);
	}
	return waitpid(p, &st, 0) == p && WEXITSTATUS(st) == 3 ? 0 : -1;
}
static long c_flock(void)
{
	int a = open("/proc/self/exe", O_RDONLY), b = open("/proc/self/exe", O_RDONLY);
	long r;
	pid_t p;

	if (flock(a, LOCK_EX))
		fail("flock", 0);
	p = fork();
	if (p == 0) {
		/* the child's copy of a keeps the lock */
		usleep(250000);
		_exit(0);
	}
	close(a);
	r = flock(b, LOCK_EX);
	close(b);
	waitpid(p, NULL, 0);
	return r;
}

static const struct {
	const char *name;
	long (*call)(void);
	void (*wake)(void);
	int block_usr1;
} table[] = {
	{ "epoll_wait", c_epoll_wait, wake_event, 0 },
	{ "epoll_wait-timeout", c_epoll_timeout, wake_none, 0 },
	{ "epoll_pwait", c_epoll_pwait, wake_event, 0 },
	{ "epoll_pwait2", c_epoll_pwait2, wake_event, 0 },
	{ "epoll_pwait-signal", c_epoll_pwait_signal, wake_usr1, 1 },
	{ "ppoll-signal", c_ppoll_signal, wake_usr1, 1 },
	{ "sigsuspend", c_sigsuspend, wake_usr1, 1 },
	{ "rt_sigtimedwait", c_sigtimedwait, wake_usr1, 1 },
	{ "recvfrom", c_recv, wake_sock, 0 },
	{ "read", c_read_socket, wake_sock, 0 },
	{ "readv", c_readv_socket, wake_sock, 0 },
	{ "recvmsg", c_recvmsg, wake_sock, 0 },
	{ "recvmmsg", c_recvmmsg, wake_sock, 0 },
	{ "sendto", c_send, wake_drain, 0 },
	{ "write", c_write_socket, wake_drain, 0 },
	{ "writev", c_writev_socket, wake_drain, 0 },
	{ "sendmsg", c_sendmsg, wake_drain, 0 },
	{ "sendmmsg", c_sendmmsg, wake_drain, 0 },
	{ "sendfile", c_sendfile, wake_drain, 0 },
	{ "splice", c_splice, wake_drain, 0 },
	{ "accept", c_accept, wake_connect, 0 },
	{ "accept4", c_accept4, wake_connect, 0 },
	{ "connect", c_connect, wake_accept, 0 },
	{ "semop", c_semop, wake_sem, 0 },
	{ "semtimedop", c_semtimedop, wake_sem, 0 },
	{ "msgrcv", c_msgrcv, wake_msg, 0 },
	{ "io_getevents", c_io_getevents, wake_event, 0 },
	{ "io_pgetevents", c_io_pgetevents, wake_event, 0 },
	{ "io_uring_enter", c_io_uring, wake_event, 0 },
	{ "futex", c_futex, wake_futex, 0 },
	{ "nanosleep", c_nanosleep, wake_none, 0 },
	{ "clock_nanosleep", c_abstime, wake_none, 0 },
	{ "poll", c_poll, wake_event, 0 },
	{ "poll-timeout", c_poll_timeout, wake_none, 0 },
	{ "select", c_select_timeout, wake_none, 0 },
	{ "pselect6", c_pselect, wake_event, 0 },
	{ "read-pipe", c_read_pipe, wake_pipe, 0 },
	{ "wait4", c_wait, wake_none, 0 },
	{ "flock", c_flock, wake_none, 0 },
};

static void (*waker)(void);
static pthread_barrier_t barrier;

static void *wake_thread(void *arg)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_BLOCK, &all, NULL);
	for (int i = 0; i < ROUNDS; i++) {
		pthread_barrier_wait(&barrier);
		nap();
		waker();
	}
	return arg;
}

static void setup(void)
{
	struct sigaction sa = { .sa_handler = on_usr1 };
	struct epoll_event ev = { .events = EPOLLIN };
	struct sockaddr_un any = { .sun_family = AF_UNIX };

	sigaction(SIGUSR1, &sa, NULL);
	efd = eventfd(0, 0);
	epfd = epoll_create1(0);
	sem = semget(IPC_PRIVATE, 1, 0600);
	msq = msgget(IPC_PRIVATE, 0600);
	lfd = socket(AF_UNIX, SOCK_STREAM, 0);
	full_lfd = socket(AF_UNIX, SOCK_STREAM, 0);
	if (efd < 0 || epfd < 0 || sem < 0 || msq < 0 || epoll_ctl(epfd, EPOLL_CTL_ADD, efd, &ev) ||
	    socketpair(AF_UNIX, SOCK_DGRAM, 0, sp) || socketpair(AF_UNIX, SOCK_STREAM, 0, fullfd) || pipe(pfd) ||
	    bind(lfd, (struct sockaddr *)&name, namelen) || listen(lfd, 4) ||
	    bind(full_lfd, (struct sockaddr *)&any, sizeof(sa_family_t)) || listen(full_lfd, 0))
		fail("set-up", 0);
	namelen = sizeof name;
	getsockname(lfd, (struct sockaddr *)&name, &namelen);
	timeouts(sp[0]);
	timeouts(fullfd[1]);
	timeouts(lfd);
}

int main(int argc, char **argv)
{
	pthread_t t;
	long (*call)(void) = NULL;

	setup();
	main_thread = pthread_self();
	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (argc > 1 && !strcmp(argv[1], table[i].name)) {
			sigset_t s;
			call = table[i].call;
			waker = table[i].wake;
			sigemptyset(&s);
			sigaddset(&s, SIGUSR1);
			if (table[i].block_usr1)
				pthread_sigmask(SIG_BLOCK, &s, NULL);
		}
	if (!call) {
		for (size_t i = 0; i < sizeof table / sizeof *table; i++)
			printf("%s\n", table[i].name);
		return 2;
	}
	pthread_barrier_init(&barrier, NULL, 2);
	pthread_create(&t, NULL, wake_thread, NULL);
	printf("ready\n");
	fflush(stdout);
	for (int i = 0; i < ROUNDS; i++) {
		long r;
		pthread_barrier_wait(&barrier);
		errno = 0;
		r = call();
		if (r)
			fail(argv[1], r);
	}
	pthread_join(t, NULL);
	semctl(sem, 0, IPC_RMID);
	msgctl(msq, IPC_RMID, NULL);
	printf("ok\n");
	return 0;
}
