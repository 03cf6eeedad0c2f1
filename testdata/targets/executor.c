/*
 * executor: replaces itself by execve every 50 ms or so, while eight threads call probed(); what is counted and
 * who waits on stdin is handed on. Beside it, children are forked that exec another copy of the program.
 */
#include "target.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>

PROBED unsigned long probed(long key, unsigned long sum)
{
	return sum * 31 + key;
}

static atomic_ulong calls;
static atomic_int leaving;

static void burst(void)
{
	unsigned long got = 1, want = 1;

	for (int i = 0; i < 500; i++) {
		got = probed(i, got);
		want = want * 31 + i;
	}
	CHECK(got == want, "probed: got %lu, want %lu", got, want);
	calls += 500;
}

static void *work(void *arg)
{
	for (;;) {
		burst();
		pause_ms(1);
	}
	return arg;
}

static void child(void)
{
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0, "fork: %s", strerror(errno));
	if (pid == 0) {
		execl("/proc/self/exe", "executor", "child", NULL);
		_exit(1);
	}
	CHECKED(pid, waitpid(pid, &status, 0));
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42, "child: wait status %#x", status);
}

/* Whether "stop" was written, or stdin has ended. */
static int stopped(int ms)
{
	struct pollfd p = { .fd = 0, .events = POLLIN };
	int n = poll(&p, 1, ms);

	CHECK(n >= 0, "poll: %s", strerror(errno));
	return n > 0;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	char count[32];

	if (argc > 1 && strcmp(argv[1], "child") == 0) {
		burst();
		return 42;
	}
	if (argc > 1) {
		calls = strtoul(argv[1], NULL, 10);
		setvbuf(stdout, NULL, _IOLBF, 0);
	} else {
		target_ready();
	}
	for (int i = 0; i < 8; i++)
		CHECKED(0, pthread_create(&thread, NULL, work, NULL));
	child();
	if (stopped(50)) {
		target_counts("probed", calls);
		return target_ok();
	}
	leaving = 1;
	snprintf(count, sizeof count, "%lu", (unsigned long)calls);
	execl("/proc/self/exe", "executor", count, NULL);
	CHECK(0, "execl: %s", strerror(errno));
}
