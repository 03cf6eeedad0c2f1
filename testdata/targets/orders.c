/*
 * orders: a program with a little of everything that probes like to look at. It obeys commands on stdin and
 * checks its own results.
 *
 *	run N    N rounds, the same in every process    "ran rounds=... sum=..."
 *
 * A round calls each function below with arguments that depend on its number alone.
 */
#include <inttypes.h>

#include "target.h"

struct order {
	uint32_t id;
	uint32_t amount;
	char customer[24];
};

/* The first argument is a small number. */
PROBED long count(long key, long size)
{
	return key * 3 + size;
}

/* The first argument is of any size. */
PROBED long spread(uint64_t value)
{
	return (long)(value >> 7 ^ value);
}

/* The first argument is a string. */
PROBED long greet(const char *name, int times)
{
	return (long)strlen(name) * times;
}

/* The first argument points to a structure. */
PROBED long place(const struct order *o)
{
	return o->id + o->amount;
}

/* It calls itself and returns a number that depends on how deep. */
PROBED long nest(int depth)
{
	long below = depth > 0 ? nest(depth - 1) : 0;

	return below * 2 + depth;
}

/* Its result is negative now and then. */
PROBED int try_it(int n)
{
	return n % 5 == 0 ? -n : n;
}

PROBED long six(long a, long b, long c, long d, long e, long f)
{
	return a ^ b << 1 ^ c << 2 ^ d << 3 ^ e << 4 ^ f << 5;
}

static const char *const names[] = {"ada", "grace hopper", "barbara liskov", "x", "", "edsger wybe dijkstra, of rotterdam"};

static long round_of(uint64_t n)
{
	uint64_t mixed = n * 0x9e3779b97f4a7c15;
	struct order o = {.id = (uint32_t)n % 7, .amount = (uint32_t)(mixed >> 50)};
	long sum = 0;

	snprintf(o.customer, sizeof o.customer, "customer %u", o.id);
	sum += count((long)(mixed >> 60), (long)(n & 255));
	sum += spread(mixed >> (n % 64));
	sum += greet(names[n % 6], (int)(n % 3));
	sum += place(&o);
	sum += nest((int)(n % 4));
	sum += try_it((int)n);
	sum += six((long)n, 1, (long)n * 2, 3, (long)n * 4, (long)(n & 15));
	return sum;
}

int main(void)
{
	char line[64];
	uint64_t rounds = 0;

	target_ready();
	while (fgets(line, sizeof line, stdin)) {
		uint64_t n, sum = 0;

		if (sscanf(line, "run %" SCNu64, &n) != 1)
			break;
		for (uint64_t i = 0; i < n; i++)
			sum += (uint64_t)round_of(i);
		rounds += n;
		printf("ran rounds=%" PRIu64 " sum=%" PRIu64 "\n", rounds, sum);
	}
	return target_ok();
}
