/*
 * forker: one storm each of fork, vfork, posix_spawn and system(). The parent's thread and every
 * child that shares or copies its memory call probed() and check what it returns; a child that went
 * wrong ends with a status that its parent does not expect. "counts" are the parent's calls and those of
 * vfork's children, which run in the parent's memory; "copies" are those of forked children, "programs" those
 * of children that were spawned.
 */
#include "target.h"
#include <spawn.h>
#include <sys/wait.h>

#define CHILD_STATUS 42

extern char **environ;

PROBED unsigned long probed(long key, unsigned long sum)
{
	return sum * 31 + key;
}

static atomic_ulong calls, copies, programs;

/* Returns whether 100 calls gave the right result. Safe in a child of vfork. */
static int call_probed(int key)
{
	unsigned long got = 1, want = 1;

	for (int i = 0; i < 100; i++) {
		got = probed(key, got);
		want = want * 31 + key;
	}
	return got == want;
}

static void call_and_count(int key)
{
	CHECK(call_probed(key), "probed: wrong result in the parent");
	atomic_fetch_add(&calls, 100);
}

static void reap(pid_t pid, const char *how)
{
	int status;

	CHECKED(pid, waitpid(pid, &status, 0));
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == CHILD_STATUS, "child of %s: wait status %#x", how, status);
}

static void fork_one(int key)
{
	pid_t pid = fork();

	CHECK(pid >= 0, "fork: %s", strerror(errno));
	if (pid == 0)
		_exit(call_probed(key) ? CHILD_STATUS : 1);
	atomic_fetch_add(&copies, 100);
	reap(pid, "fork");
}

__attribute__((noinline)) static void vfork_one(int key)
{
	pid_t pid = vfork();

	CHECK(pid >= 0, "vfork: %s", strerror(errno));
	if (pid == 0)
		_exit(call_probed(key) ? CHILD_STATUS : 1);
	atomic_fetch_add(&calls, 100);
	reap(pid, "vfork");
}

static void spawn_one(int key)
{
	char *args[] = { "/proc/self/exe", "child", NULL };
	pid_t pid;

	(void)key;
	CHECKED(0, posix_spawn(&pid, args[0], NULL, NULL, args, environ));
	atomic_fetch_add(&programs, 100);
	reap(pid, "posix_spawn");
}

static void system_one(int key)
{
	int status;

	(void)key;
	status = system("exit 42");
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == CHILD_STATUS, "system: wait status %#x", status);
}

static void *storm(void *arg)
{
	void (*one)(int) = arg;

	for (int key = 0; !target_stopping; key++) {
		one(key);
		call_and_count(key);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	static void (*const storms[])(int) = { fork_one, vfork_one, spawn_one, system_one };
	pthread_t threads[4];

	if (argc > 1 && strcmp(argv[1], "child") == 0)
		return call_probed(7) ? CHILD_STATUS : 1;
	for (int i = 0; i < 4; i++)
		CHECKED(0, pthread_create(&threads[i], NULL, storm, (void *)storms[i]));
	target_ready();
	target_wait();
	for (int i = 0; i < 4; i++)
		CHECKED(0, pthread_join(threads[i], NULL));
	target_counts("probed", calls);
	printf("copies function=probed calls=%lu\n", copies);
	printf("programs function=probed calls=%lu\n", programs);
	return target_ok();
}
