/*
 * servers: an epoll server and an io_uring server, each with four clients that send numbered messages and
 * check the answers. An answer is the message, passed through probed(). Where the kernel has no io_uring, that
 * one serves by epoll, too. With the argument "filter" a seccomp filter makes some system calls fail.
 */
#include "target.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define CLIENTS 4

struct message { unsigned long number, sum; };

PROBED unsigned long probed(long key, unsigned long sum)
{
	return sum * 31 + key;
}

static atomic_ulong calls;
static int pairs[2][CLIENTS][2]; /* server's end first */

static void answer(struct message *m)
{
	m->sum = probed(m->number, m->sum);
	calls++;
}

static void serve_one(int fd)
{
	struct message m;
	ssize_t n = read(fd, &m, sizeof m);

	if (n == 0)
		return;
	CHECK(n == sizeof m, "read: %zd, %s", n, strerror(errno));
	answer(&m);
	CHECKED(sizeof m, write(fd, &m, sizeof m));
}

/* Serves until all clients have hung up. */
static void serve_epoll(int (*ends)[2])
{
	int ep = epoll_create1(EPOLL_CLOEXEC), open = CLIENTS;

	CHECK(ep >= 0, "epoll_create1");
	for (int i = 0; i < CLIENTS; i++) {
		struct epoll_event e = { .events = EPOLLIN, .data.fd = ends[i][0] };

		CHECKED(0, epoll_ctl(ep, EPOLL_CTL_ADD, ends[i][0], &e));
	}
	while (open) {
		struct epoll_event e[CLIENTS];
		int n = epoll_wait(ep, e, CLIENTS, 10000);

		CHECK(n > 0, "epoll_wait: %d, %s", n, strerror(errno));
		for (int i = 0; i < n; i++) {
			if (e[i].events & EPOLLIN)
				serve_one(e[i].data.fd);
			if (e[i].events & EPOLLHUP) {
				CHECKED(0, epoll_ctl(ep, EPOLL_CTL_DEL, e[i].data.fd, NULL));
				open--;
			}
		}
	}
	CHECKED(0, close(ep));
}

struct ring {
	int fd;
	unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqes;
};

static int open_ring(struct ring *r)
{
	struct io_uring_params p = { 0 };
	char *sq, *cq;

	r->fd = syscall(SYS_io_uring_setup, 16, &p);
	if (r->fd < 0)
		return 0;
	sq = mmap(NULL, p.sq_off.array + p.sq_entries * sizeof(unsigned), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_SQ_RING);
	cq = mmap(NULL, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_CQ_RING);
	r->sqes = mmap(NULL, p.sq_entries * sizeof(struct io_uring_sqe), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, r->fd, IORING_OFF_SQES);
	CHECK(sq != MAP_FAILED && cq != MAP_FAILED && (void *)r->sqes != MAP_FAILED, "mmap of the ring");
	r->sq_tail = (unsigned *)(sq + p.sq_off.tail), r->sq_mask = (unsigned *)(sq + p.sq_off.ring_mask);
	r->sq_array = (unsigned *)(sq + p.sq_off.array);
	r->cq_head = (unsigned *)(cq + p.cq_off.head), r->cq_tail = (unsigned *)(cq + p.cq_off.tail);
	r->cq_mask = (unsigned *)(cq + p.cq_off.ring_mask);
	r->cqes = (struct io_uring_cqe *)(cq + p.cq_off.cqes);
	return 1;
}

static void submit(struct ring *r, int opcode, int fd, void *buffer, unsigned size, unsigned long data)
{
	unsigned tail = *r->sq_tail, i = tail & *r->sq_mask;

	r->sqes[i] = (struct io_uring_sqe){ .opcode = opcode, .fd = fd, .addr = (uintptr_t)buffer, .len = size, .user_data = data };
	r->sq_array[i] = i;
	__atomic_store_n(r->sq_tail, tail + 1, __ATOMIC_RELEASE);
}

static void serve_uring(int (*ends)[2], struct ring *r)
{
	struct message messages[CLIENTS];
	int open = CLIENTS, pending = CLIENTS;

	for (int i = 0; i < CLIENTS; i++)
		submit(r, IORING_OP_READ, ends[i][0], &messages[i], sizeof messages[i], 2 * i);
	while (open) {
		int n = syscall(SYS_io_uring_enter, r->fd, pending, 1, IORING_ENTER_GETEVENTS, NULL, 0);
		unsigned head = *r->cq_head;

		CHECK(n == pending, "io_uring_enter: %d of %d, %s", n, pending, strerror(errno));
		for (pending = 0; head != __atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE); head++) {
			struct io_uring_cqe *c = &r->cqes[head & *r->cq_mask];
			int i = c->user_data / 2;

			if (c->res == 0) {
				open--;
				continue;
			}
			CHECK(c->res == sizeof messages[i], "io_uring: %d", c->res);
			if (c->user_data % 2 == 0)
				answer(&messages[i]);
			submit(r, c->user_data % 2 ? IORING_OP_READ : IORING_OP_WRITE, ends[i][0], &messages[i], sizeof messages[i], c->user_data ^ 1);
			pending++;
		}
		__atomic_store_n(r->cq_head, head, __ATOMIC_RELEASE);
	}
	CHECKED(0, close(r->fd));
}

static void *server(void *arg)
{
	intptr_t which = (intptr_t)arg;
	struct ring ring;

	if (which == 1 && open_ring(&ring))
		serve_uring(pairs[1], &ring);
	else
		serve_epoll(pairs[which]);
	return arg;
}

static void *client(void *arg)
{
	int fd = *(int *)arg;
	struct message m = { 0, 1 };

	while (!target_stopping) {
		unsigned long want = m.sum * 31 + m.number;

		CHECKED(sizeof m, write(fd, &m, sizeof m));
		CHECKED(sizeof m, read(fd, &m, sizeof m));
		CHECK(m.sum == want, "answer %lu: got %lu, want %lu", m.number, m.sum, want);
		if (++m.number % 64 == 0)
			pause_ms(1);
	}
	CHECKED(0, close(fd));
	return arg;
}

/* mount, ptrace and reboot fail, all else goes. */
static void filter(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mount, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ptrace, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_reboot, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof code / sizeof code[0], code };

	CHECKED(0, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	CHECKED(0, prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
	FAILS_WITH(EPERM, syscall(SYS_ptrace, 0, 0, 0, 0));
}

int main(int argc, char **argv)
{
	pthread_t servers[2], clients[2][CLIENTS];

	for (int s = 0; s < 2; s++)
		for (int i = 0; i < CLIENTS; i++)
			CHECKED(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pairs[s][i]));
	if (argc > 1 && strcmp(argv[1], "filter") == 0)
		filter();
	target_ready();
	for (intptr_t s = 0; s < 2; s++) {
		CHECKED(0, pthread_create(&servers[s], NULL, server, (void *)s));
		for (int i = 0; i < CLIENTS; i++)
			CHECKED(0, pthread_create(&clients[s][i], NULL, client, &pairs[s][i][1]));
	}
	target_wait();
	for (int s = 0; s < 2; s++) {
		for (int i = 0; i < CLIENTS; i++)
			CHECKED(0, pthread_join(clients[s][i], NULL));
		CHECKED(0, pthread_join(servers[s], NULL));
	}
	target_counts("probed", calls);
	return target_ok();
}
