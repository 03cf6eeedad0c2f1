/*
 * offspring: makes children that live on, as servers do. "fork" makes one and answers "child PID"; parent and
 * children call probed() all the time. Children end with their parent.
 */
#include "target.h"
#include <poll.h>
#include <sys/prctl.h>

PROBED unsigned long probed(long key, unsigned long sum)
{
	return sum * 31 + key;
}

static void burst(void)
{
	unsigned long got = 1, want = 1;

	for (int i = 0; i < 100; i++) {
		got = probed(i, got);
		want = want * 31 + i;
	}
	CHECK(got == want, "probed: got %lu, want %lu", got, want);
}

static void child(pid_t parent)
{
	CHECKED(0, prctl(PR_SET_PDEATHSIG, SIGKILL));
	while (getppid() == parent) {
		burst();
		pause_ms(1);
	}
	_exit(0);
}

int main(void)
{
	struct pollfd in = { .fd = 0, .events = POLLIN };
	pid_t self = getpid();
	char line[16];

	signal(SIGCHLD, SIG_IGN);
	target_ready();
	for (;;) {
		int n = poll(&in, 1, 1);

		CHECK(n >= 0 || errno == EINTR, "poll: %s", strerror(errno));
		burst();
		if (n <= 0)
			continue;
		if (read(0, line, sizeof line) < 5 || strncmp(line, "fork\n", 5) != 0)
			return target_ok();
		pid_t pid = fork();
		CHECK(pid >= 0, "fork: %s", strerror(errno));
		if (pid == 0)
			child(self);
		printf("child %d\n", pid);
	}
}
