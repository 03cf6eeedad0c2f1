/*
 * heir: on its first line of input it forks, prints "child PID" and goes on, as its child does: both call
 * probed() until stdin ends, the child until its parent has ended.
 */
#include "target.h"
#include <sys/prctl.h>

PROBED unsigned long probed(long key, unsigned long sum)
{
	return sum * 31 + key;
}

static void call(void)
{
	for (long i = 0; i < 100; i++)
		CHECK(probed(i, 7) == 7 * 31ul + i, "probed(%ld)", i);
}

int main(void)
{
	char line[64];
	pid_t pid;

	target_ready();
	if (!fgets(line, sizeof line, stdin))
		return target_ok();
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (pid == 0) {
		CHECKED(0, prctl(PR_SET_PDEATHSIG, SIGKILL));
		for (;;) {
			call();
			pause_ms(1);
		}
	}
	printf("child %d\n", pid);
	while (fgets(line, sizeof line, stdin))
		call();
	return target_ok();
}
