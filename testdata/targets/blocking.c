/*
 * blocking: threads that sit in system calls which a tracer's stop can disturb: those that restart by
 * themselves and those that leak EINTR on any stop (signal(7)). Each call must return exactly what it
 * would without a tracer: no EINTR unless a handler ran, no timeout before its time, no lost byte, no
 * lost wake-up (then its thread hangs and the test's deadline shows it). Between the calls every
 * thread calls probed() and checks what it returns.
 */
#include "target.h"
#include <linux/aio_abi.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

PROBED unsigned long probed(long key, unsigned long sum)
{
	return sum * 31 + key;
}

static atomic_ulong calls;

static void call_probed(int key)
{
	unsigned long got = 1, want = 1;

	for (int i = 0; i < 20; i++) {
		got = probed(key, got);
		want = want * 31 + key;
	}
	CHECK(got == want, "probed: got %lu, want %lu", got, want);
	atomic_fetch_add(&calls, 20);
}

/* One thread's state: how long the next wait is, and since when. */
struct wait {
	uint32_t random;
	int ms;
	uint64_t since;
	int final; /* this wait is the last */
};

static struct timespec begin_wait(struct wait *w)
{
	w->ms = 1 + next_random(&w->random) % 8;
	w->since = now_ns();
	return (struct timespec){ .tv_nsec = w->ms * 1000000L };
}

static void check_waited(struct wait *w)
{
	uint64_t waited = now_ns() - w->since;

	CHECK(waited >= w->ms * 1000000ull, "a wait of %d ms ended after %lu ns", w->ms, waited);
}

static int idle_epoll, idle_event, idle_socket, full_socket, idle_sems;
static aio_context_t idle_aio;

static void in_epoll_wait(struct wait *w)
{
	struct epoll_event e;

	begin_wait(w);
	CHECKED(0, epoll_wait(idle_epoll, &e, 1, w->ms));
	check_waited(w);
}

static void in_epoll_pwait2(struct wait *w)
{
	struct timespec t = begin_wait(w);
	struct epoll_event e;

	CHECKED(0, syscall(SYS_epoll_pwait2, idle_epoll, &e, 1, &t, NULL, 0));
	check_waited(w);
}

static void in_sigtimedwait(struct wait *w)
{
	struct timespec t = begin_wait(w);
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR2); /* blocked everywhere, never sent to the process */
	FAILS_WITH(EAGAIN, sigtimedwait(&set, NULL, &t));
	check_waited(w);
	CHECKED(0, pthread_kill(pthread_self(), SIGUSR2));
	CHECKED(SIGUSR2, sigtimedwait(&set, NULL, &t));
}

static void set_timeout(int fd, int option, int ms)
{
	struct timeval t = { .tv_usec = ms * 1000 };

	CHECKED(0, setsockopt(fd, SOL_SOCKET, option, &t, sizeof t));
}

static void in_recv(struct wait *w)
{
	char c;

	begin_wait(w);
	set_timeout(idle_socket, SO_RCVTIMEO, w->ms);
	w->since = now_ns();
	FAILS_WITH(EAGAIN, recv(idle_socket, &c, 1, 0));
	/* The kernel rounds a socket's timeout to its tick: no lower bound to check. */
}

static void in_send(struct wait *w)
{
	static char data[4096];

	begin_wait(w);
	set_timeout(full_socket, SO_SNDTIMEO, w->ms);
	FAILS_WITH(EAGAIN, send(full_socket, data, sizeof data, 0));
}

static void in_semtimedop(struct wait *w)
{
	struct sembuf op = { .sem_num = 0, .sem_op = -1 };
	struct timespec t = begin_wait(w);

	FAILS_WITH(EAGAIN, semtimedop(idle_sems, &op, 1, &t));
	check_waited(w);
}

static void in_io_getevents(struct wait *w)
{
	struct timespec t = begin_wait(w);
	struct io_event e;

	if (!idle_aio) {
		pause_ms(10); /* this kernel has no aio */
		return;
	}
	CHECKED(0, syscall(SYS_io_getevents, idle_aio, 1, 1, &e, &t));
	check_waited(w);
}

static void in_futex(struct wait *w)
{
	static uint32_t word;
	struct timespec t = begin_wait(w);

	FAILS_WITH(ETIMEDOUT, syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &t, NULL, 0));
	check_waited(w);
}

static void in_cond_timedwait(struct wait *w)
{
	static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
	static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
	struct timespec t;

	begin_wait(w);
	clock_gettime(CLOCK_REALTIME, &t);
	t.tv_nsec += w->ms * 1000000;
	if (t.tv_nsec >= 1000000000)
		t.tv_nsec -= 1000000000, t.tv_sec++;
	pthread_mutex_lock(&mutex);
	CHECKED(ETIMEDOUT, pthread_cond_timedwait(&cond, &mutex, &t));
	pthread_mutex_unlock(&mutex);
}

static void in_nanosleep(struct wait *w)
{
	struct timespec t = begin_wait(w);

	CHECKED(0, nanosleep(&t, NULL));
	check_waited(w);
}

static void in_clock_nanosleep(struct wait *w)
{
	struct timespec t = begin_wait(w);

	CHECKED(0, clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL));
	check_waited(w);
}

static void in_poll(struct wait *w)
{
	struct pollfd p = { .fd = idle_event, .events = POLLIN };

	begin_wait(w);
	CHECKED(0, poll(&p, 1, w->ms));
	check_waited(w);
}

static void in_pselect(struct wait *w)
{
	struct timespec t = begin_wait(w);
	fd_set set;

	FD_ZERO(&set);
	FD_SET(idle_event, &set);
	CHECKED(0, pselect(idle_event + 1, &set, NULL, NULL, &t, NULL));
	check_waited(w);
}

/*
 * Pairs: the second thread wakes the first, which must see every wake-up once. Its last wake-up says
 * that it is the last.
 */

static int pipe_ends[2], listener, pair_sems;
static struct sockaddr_un listen_address;
static socklen_t listen_length;
static atomic_int semop_final, usr1_final;

#define LAST_NUMBER UINT32_MAX

static void in_read(struct wait *w)
{
	static uint32_t expected;
	uint32_t got;

	CHECKED(sizeof got, read(pipe_ends[0], &got, sizeof got));
	w->final = got == LAST_NUMBER;
	CHECK(w->final || got == expected, "read number %u from the pipe, want %u", got, expected);
	expected++;
}

static void write_pipe(struct wait *w)
{
	static uint32_t number;
	uint32_t next = w->final ? LAST_NUMBER : number++;

	pause_ms(next_random(&w->random) % 4);
	CHECKED(sizeof next, write(pipe_ends[1], &next, sizeof next));
}

static void in_accept(struct wait *w)
{
	char c;
	int fd = accept(listener, NULL, NULL);

	CHECK(fd >= 0, "accept: %s", strerror(errno));
	CHECKED(1, recv(fd, &c, 1, MSG_WAITALL));
	CHECKED(0, close(fd));
	w->final = c == '.';
}

static void connect_once(struct wait *w)
{
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	char c;

	pause_ms(next_random(&w->random) % 4);
	CHECKED(0, connect(fd, (struct sockaddr *)&listen_address, listen_length));
	CHECKED(1, send(fd, w->final ? "." : ",", 1, 0));
	CHECKED(0, recv(fd, &c, 1, 0)); /* the other side closes */
	CHECKED(0, close(fd));
}

static void in_semop(struct wait *w)
{
	struct sembuf ask = { .sem_num = 0, .sem_op = -1 }, answer = { .sem_num = 1, .sem_op = 1 };

	CHECKED(0, semop(pair_sems, &ask, 1));
	w->final = semop_final;
	CHECKED(0, semop(pair_sems, &answer, 1));
}

static void semop_once(struct wait *w)
{
	struct sembuf ask = { .sem_num = 0, .sem_op = 1 }, answer = { .sem_num = 1, .sem_op = -1 };

	pause_ms(next_random(&w->random) % 4);
	semop_final = w->final;
	CHECKED(0, semop(pair_sems, &ask, 1));
	CHECKED(0, semop(pair_sems, &answer, 1));
}

/*
 * The signal race: SIGUSR1 is blocked except during epoll_pwait, so a signal must be handled there, once,
 * and end it by EINTR; the sender waits until its signal was handled.
 */
static pthread_t raced;
static atomic_int raced_known;
static atomic_uint handled;

static void on_usr1(int sig)
{
	(void)sig;
	handled++;
}

static void in_epoll_pwait(struct wait *w)
{
	struct epoll_event e;
	sigset_t open;
	unsigned before = handled;

	w->final = usr1_final;
	raced = pthread_self();
	raced_known = 1;
	pthread_sigmask(SIG_SETMASK, NULL, &open);
	sigdelset(&open, SIGUSR1);
	begin_wait(w);
	errno = 0;
	switch (epoll_pwait(idle_epoll, &e, 1, w->ms, &open)) {
	case 0:
		check_waited(w);
		break;
	case -1:
		CHECK(errno == EINTR, "epoll_pwait: %s", strerror(errno));
		CHECK(handled == before + 1, "epoll_pwait: EINTR after %u signals", handled - before);
		break;
	default:
		CHECK(0, "epoll_pwait: an event on an idle descriptor");
	}
}

static void send_usr1(struct wait *w)
{
	unsigned before = handled;
	uint64_t since = now_ns();

	while (!raced_known)
		pause_ms(1);
	CHECKED(0, pthread_kill(raced, SIGUSR1));
	while (handled == before) {
		CHECK(now_ns() - since < 60000000000ull, "SIGUSR1 is not delivered: a wake-up was lost");
		pause_ms(1);
	}
	usr1_final = w->final;
	pause_ms(next_random(&w->random) % 4);
}

static struct {
	void (*once)(struct wait *);
	int follows; /* ends when its partner says so */
	pthread_t thread;
} threads[] = {
	{ .once = in_epoll_wait },
	{ .once = in_epoll_pwait2 },
	{ .once = in_sigtimedwait },
	{ .once = in_recv },
	{ .once = in_send },
	{ .once = in_semtimedop },
	{ .once = in_io_getevents },
	{ .once = in_futex },
	{ .once = in_cond_timedwait },
	{ .once = in_nanosleep },
	{ .once = in_clock_nanosleep },
	{ .once = in_poll },
	{ .once = in_pselect },
	{ .once = in_read, .follows = 1 },
	{ .once = write_pipe },
	{ .once = in_accept, .follows = 1 },
	{ .once = connect_once },
	{ .once = in_semop, .follows = 1 },
	{ .once = semop_once },
	{ .once = in_epoll_pwait, .follows = 1 },
	{ .once = send_usr1 },
};
#define THREADS (int)(sizeof threads / sizeof threads[0])

static void *thread_loop(void *arg)
{
	int i = (int)(intptr_t)arg;
	struct wait w = { .random = i };

	while (!w.final) {
		w.final = !threads[i].follows && target_stopping;
		threads[i].once(&w);
		call_probed(i);
	}
	return NULL;
}

static void open_everything(void)
{
	struct epoll_event e = { .events = EPOLLIN };
	int pair[2];
	char data[4096] = { 0 };

	idle_epoll = epoll_create1(0);
	idle_event = eventfd(0, 0);
	CHECKED(0, epoll_ctl(idle_epoll, EPOLL_CTL_ADD, idle_event, &e));
	CHECKED(0, socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	idle_socket = pair[0];
	CHECKED(0, socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	full_socket = pair[0];
	while (send(full_socket, data, sizeof data, MSG_DONTWAIT) > 0)
		;
	(void)unshare(CLONE_NEWIPC); /* where permitted: semaphores that end with the process */
	idle_sems = semget(IPC_PRIVATE, 1, 0600);
	pair_sems = semget(IPC_PRIVATE, 2, 0600);
	CHECK(idle_sems >= 0 && pair_sems >= 0, "semget: %s", strerror(errno));
	if (syscall(SYS_io_setup, 1, &idle_aio) != 0)
		idle_aio = 0;
	CHECKED(0, pipe(pipe_ends));
	listener = socket(AF_UNIX, SOCK_STREAM, 0);
	listen_address.sun_family = AF_UNIX;
	CHECKED(0, bind(listener, (struct sockaddr *)&listen_address, sizeof(sa_family_t))); /* autobind */
	listen_length = sizeof listen_address;
	CHECKED(0, getsockname(listener, (struct sockaddr *)&listen_address, &listen_length));
	CHECKED(0, listen(listener, 8));
}

static void remove_semaphores(void)
{
	semctl(idle_sems, 0, IPC_RMID);
	semctl(pair_sems, 0, IPC_RMID);
}

int main(void)
{
	struct sigaction act = { .sa_handler = on_usr1 };
	sigset_t blocked;

	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	sigaddset(&blocked, SIGUSR2);
	pthread_sigmask(SIG_BLOCK, &blocked, NULL);
	sigaction(SIGUSR1, &act, NULL);
	open_everything();
	for (int i = 0; i < THREADS; i++)
		CHECKED(0, pthread_create(&threads[i].thread, NULL, thread_loop, (void *)(intptr_t)i));
	target_ready();
	target_wait();
	for (int i = 0; i < THREADS; i++)
		CHECKED(0, pthread_join(threads[i].thread, NULL));
	remove_semaphores();
	target_counts("probed", calls);
	return target_ok();
}
