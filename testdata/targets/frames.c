/*
 * frames: goes down through frames of all kinds and stays there until told to stop, for debuggers and
 * profilers to look at: with and without a frame pointer, of a size that only the program knows, of the C
 * library, of a signal handler. "wait" waits on stdin at the bottom, "spin" spins there until SIGUSR2 comes,
 * having left out the C library and the handler. What is on the way checks that it comes back whole.
 */
#include "target.h"
#include <alloca.h>

static volatile sig_atomic_t stop;
static int spins;

/* Nobody probes what begins so: a profiler finds a known address on top. */
PROBED long unprobed_spin(long n)
{
	while (!stop)
		n = n * 31 + 7;
	return n;
}

PROBED long unprobed_wait(long n)
{
	target_ready();
	target_wait();
	return n;
}

PROBED long deepest(long n)
{
	long kept[4] = { n, n + 1, n + 2, n + 3 };

	if (spins) {
		target_ready();
		unprobed_spin(n);
	} else {
		unprobed_wait(n);
	}
	for (int i = 0; i < 4; i++)
		CHECK(((volatile long *)kept)[i] == n + i, "kept[%d] is %ld", i, kept[i]);
	return n + 1;
}

static volatile long from_handler;

PROBED void on_signal(int sig)
{
	from_handler = deepest(sig);
	__asm__ volatile("" ::: "memory");
}

PROBED int by_comparison(const void *a, const void *b)
{
	static int once;

	if (!once++)
		CHECKED(0, raise(SIGUSR1));
	return *(const int *)a - *(const int *)b;
}

PROBED long by_library(long n)
{
	int numbers[] = { 3, 1, 2 };

	if (spins)
		return deepest(n) + 1;
	qsort(numbers, 3, sizeof numbers[0], by_comparison);
	CHECK(numbers[0] == 1 && numbers[2] == 3 && from_handler == SIGUSR1 + 1, "numbers %d %d, handler %ld", numbers[0], numbers[2],
	      from_handler);
	return n + 2;
}

PROBED long by_size(long n)
{
	char *room = alloca(n % 97 + 33);

	memset(room, 'x', 33);
	n = by_library(n);
	CHECK(room[32] == 'x', "room was changed");
	return n + 1;
}

__attribute__((optimize("no-omit-frame-pointer"))) PROBED long by_frame_pointer(long n)
{
	n = by_size(n) + 1;
	__asm__ volatile("" ::: "memory");
	return n;
}

PROBED long by_registers(long a, long b, long c, long d)
{
	long n = by_frame_pointer(a);

	return n + b * c * d;
}

static void on_stop(int sig) { stop = sig; }

int main(int argc, char **argv)
{
	spins = argc > 1 && !strcmp(argv[1], "spin");
	signal(SIGUSR1, on_signal);
	signal(SIGUSR2, on_stop);
	CHECKED(100 + 4 + 2 * 3 * 4, by_registers(100, 2, 3, 4));
	return target_ok();
}
