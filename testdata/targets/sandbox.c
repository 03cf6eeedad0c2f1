/*
 * sandbox: a program that gives itself seccomp filters.
 *
 *   sandbox [FILTER...]   with these filters from the start
 *
 * "filter FILTER" adds one, "call N" calls probed() N times; each is answered by "done". The filter "allow"
 * lets everything pass; a number is that of a system call for which it kills the process. "strict" is the
 * strict mode (prctl(2)).
 */
#include "target.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

PROBED long probed(long n)
{
	return n * 5 + 2;
}

static void filter(const char *what)
{
	struct sock_filter f[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)atoi(what), 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { 4, f };

	if (strcmp(what, "strict") == 0) {
		CHECKED(0, prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
		return;
	}
	if (strcmp(what, "allow") == 0)
		f[1].k = 0x7fffffff;
	CHECKED(0, prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	CHECKED(0, prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
}

int main(int argc, char **argv)
{
	char line[64], what[64];
	long n;

	for (int i = 1; i < argc; i++)
		filter(argv[i]);
	target_ready();
	while (fgets(line, sizeof line, stdin) && strcmp(line, "stop\n") != 0) {
		if (sscanf(line, "filter %63s", what) == 1)
			filter(what);
		for (long i = 0; sscanf(line, "call %ld", &n) == 1 && i < n; i++)
			CHECK(probed(i) == i * 5 + 2, "probed(%ld)", i);
		printf("done\n");
	}
	printf("ok\n");
	syscall(SYS_exit, 0); /* strict mode knows no exit_group */
}
