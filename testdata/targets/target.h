/*
 * What the targets share: they print "ready pid=...", run until told to stop (a line "stop" or the end
 * of stdin), check themselves all the time, print counts of the calls of their probed functions, and end
 * with "ok" and exit status 0. The first thing that goes wrong prints "FAILED ..." and ends the process
 * with status 1.
 */
#ifndef TARGET_H
#define TARGET_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __cplusplus
#include <atomic>
using std::atomic_int;
#else
#include <stdatomic.h>
#endif

/* No target outlives its test for long, whatever happens to the test. */
#define LIFETIME_SECONDS 900

__attribute__((noreturn, format(printf, 3, 4), unused))
static void target_fail(const char *file, int line, const char *format, ...)
{
	char text[512];
	va_list args;
	int n = snprintf(text, sizeof text, "FAILED %s:%d: ", file, line);

	va_start(args, format);
	n += vsnprintf(text + n, sizeof text - n - 1, format, args);
	va_end(args);
	n = n < (int)sizeof text - 1 ? n : (int)sizeof text - 2;
	text[n++] = '\n';
	if (write(1, text, n) < 0)
		_exit(2);
	_exit(1);
}

#define CHECK(condition, ...) \
	do { if (!(condition)) target_fail(__FILE__, __LINE__, __VA_ARGS__); } while (0)

/* CHECKED calls a function that is to return want, and says what it returned instead. */
#define CHECKED(want, call) \
	do { \
		errno = 0; \
		long checked_got = (long)(call); \
		if (checked_got != (long)(want)) \
			target_fail(__FILE__, __LINE__, "%s = %ld (%s), want %ld", #call, checked_got, \
				    strerror(errno), (long)(want)); \
	} while (0)

/* FAILS_WITH calls a function that is to return -1 and to set errno. */
#define FAILS_WITH(want, call) \
	do { \
		errno = 0; \
		long checked_got = (long)(call); \
		if (checked_got != -1 || errno != (want)) \
			target_fail(__FILE__, __LINE__, "%s = %ld (%s), want %s", #call, checked_got, \
				    strerror(errno), strerror(want)); \
	} while (0)

/* Keeps a function whole: not inlined, not cloned, called by the ABI's rules, its result not foreseen. */
#define PROBED __attribute__((noipa)) __attribute__((visibility("default")))

static atomic_int target_stopping __attribute__((unused));

__attribute__((unused)) static void target_ready(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	alarm(LIFETIME_SECONDS);
	printf("ready pid=%d\n", getpid());
}

/* Waits on stdin for "stop" or its end, then asks every loop to stop. */
__attribute__((unused)) static void target_wait(void)
{
	char line[64];

	while (fgets(line, sizeof line, stdin) && strcmp(line, "stop\n") != 0)
		;
	target_stopping = 1;
}

/* Says how often a probed function was called, in all. */
__attribute__((unused)) static void target_counts(const char *function, uint64_t calls)
{
	printf("counts function=%s calls=%lu\n", function, calls);
}

__attribute__((unused)) static int target_ok(void)
{
	printf("ok\n");
	return 0;
}

__attribute__((unused)) static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

__attribute__((unused)) static void pause_ms(unsigned ms)
{
	struct timespec t = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	while (nanosleep(&t, &t) == -1 && errno == EINTR)
		;
}

/* A small generator of its own for each thread: no lock, no system call. */
__attribute__((unused)) static unsigned next_random(uint32_t *state)
{
	*state = *state * 1664525 + 1013904223;
	return *state >> 8;
}

#endif
