// unwind: exceptions, backtraces and cancelled threads pass through probed functions. The unwinder finds
// its way by return addresses and by the tables for them, so a frame must look as if nobody had probed
// it.
#include "target.h"
#include <execinfo.h>
#include <stdexcept>
#include <string>

static std::atomic<unsigned long> thrown, passed, traced;
static std::atomic<long> alive;

struct Guard {
	Guard() { alive++; }
	~Guard() { alive--; }
};

extern "C" {

// Throws for odd numbers.
PROBED long thrower(long n)
{
	Guard g;

	thrown++;
	if (n & 1)
		throw std::runtime_error(std::to_string(n));
	return n;
}

// Has something to destroy, catches nothing.
PROBED long passer(long n)
{
	Guard g;

	passed++;
	return thrower(n) + 1;
}

// Says how many frames the unwinder finds from here, and that the direct caller is right.
PROBED long tracer(void *caller_low, void *caller_high)
{
	void *frames[64];
	int n = backtrace(frames, 64);

	traced++;
	CHECK(n >= 3, "backtrace found %d frames", n);
	CHECK(frames[1] > caller_low && frames[1] <= caller_high, "the caller's frame is at %p, want in [%p, %p]",
	      frames[1], caller_low, caller_high);
	return n;
}

PROBED long trace_through(long depth, void *low, void *high)
{
	if (depth > 0)
		return trace_through(depth - 1, low, high) + 0 * depth;
	return tracer(low, high);
}

}

static void throw_once(long n)
{
	bool caught = false;

	try {
		long got = passer(n);
		CHECK(got == n + 1 && !(n & 1), "passer(%ld) = %ld", n, got);
	} catch (const std::runtime_error &e) {
		caught = true;
		CHECK(std::to_string(n) == e.what(), "caught %s, want %ld", e.what(), n);
	}
	CHECK(caught == ((n & 1) == 1), "passer(%ld): caught %d", n, caught);
}

static void *throw_loop(void *arg)
{
	long frames = 0;

	for (long n = 0; !target_stopping; n++) {
		throw_once(n);
		if (n % 16 == 0) {
			long found = trace_through(5, (void *)trace_through, (char *)(void *)trace_through + 256);

			CHECK(!frames || frames == found, "%ld frames, then %ld", frames, found);
			frames = found;
		}
	}
	return arg;
}

// pthread_exit unwinds the stack too.
PROBED void *leaver(void *arg)
{
	Guard g;

	thrown++;
	pthread_exit(arg);
}

static void *leave_loop(void *arg)
{
	while (!target_stopping) {
		pthread_t t;
		void *result;

		CHECKED(0, pthread_create(&t, NULL, leaver, arg));
		CHECKED(0, pthread_join(t, &result));
		CHECKED(arg, result);
		pause_ms(1);
	}
	return arg;
}

int main()
{
	pthread_t threads[3];
	void *(*loops[])(void *) = { throw_loop, throw_loop, leave_loop };

	target_ready();
	for (int i = 0; i < 3; i++)
		CHECKED(0, pthread_create(&threads[i], NULL, loops[i], NULL));
	target_wait();
	for (int i = 0; i < 3; i++)
		CHECKED(0, pthread_join(threads[i], NULL));
	CHECK(alive == 0, "%ld objects were not destroyed", (long)alive);
	target_counts("passer", passed);
	target_counts("tracer", traced);
	return target_ok();
}
