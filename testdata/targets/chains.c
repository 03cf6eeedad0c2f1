/*
 * chains: a program whose handler of SIGSEGV is followed by another one that calls the one before it, as crash
 * reporters do. "late" installs that one and answers "installed". "fault" makes a fault that nobody mends: the
 * first handler prints "first handler" and ends the process with status 0; a circle of handlers fails.
 */
#include "target.h"

PROBED long load(long *pointer)
{
	return *pointer + 5;
}

static struct sigaction before;
static int depth;

static void first(int sig, siginfo_t *info, void *context)
{
	(void)sig, (void)info, (void)context;
	printf("first handler\n");
	fflush(stdout);
	_exit(0);
}

static void chained(int sig, siginfo_t *info, void *context)
{
	CHECK(depth++ == 0, "the handlers go in a circle");
	before.sa_sigaction(sig, info, context);
}

static void install(void (*handler)(int, siginfo_t *, void *), struct sigaction *old)
{
	struct sigaction a = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_NODEFER };

	CHECKED(0, sigaction(SIGSEGV, &a, old));
}

int main(void)
{
	char line[64];
	long value = 1;

	install(first, NULL);
	target_ready();
	while (fgets(line, sizeof line, stdin)) {
		CHECKED(6, load(&value));
		if (strcmp(line, "late\n") == 0) {
			install(chained, &before);
			printf("installed\n");
		} else if (strcmp(line, "fault\n") == 0) {
			load(NULL);
		}
	}
	return target_ok();
}
