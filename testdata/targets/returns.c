/*
 * returns: functions that return in several ways, called a known number of times. Each prints a line with its
 * name, how often it returned and the sum of what it returned.
 */
#include "target.h"

#define CALLS 3000

PROBED long other(long x) { return x * 3; }

PROBED long once(long x) { return x + 1; }

PROBED long several(long x)
{
	if (x % 3 == 0)
		return other(x) - 1;
	if (x % 5 == 0) {
		__asm__ volatile("nop");
		return 7;
	}
	return x ^ 5;
}

PROBED long chooses(long x)
{
	switch (x & 7) {
	case 0: return other(x) ^ 1;
	case 1: return x * 77;
	case 2: return other(x * 5) + 2;
	case 3: return 12;
	case 4: return other(x) + x;
	case 5: return x / 3;
	case 6: return -x;
	}
	return 5;
}

/* ends as other() */
PROBED long tail(long x) { return other(x + 1); }

__attribute__((cold, noinline)) static void rare(void) { __asm__ volatile("nop"); }

PROBED long unlikely(long x)
{
	if (__builtin_expect(x % 100 == 0, 0)) {
		rare();
		rare();
		return other(x) + 100;
	}
	return x;
}

static void report(const char *name, long (*f)(long))
{
	unsigned long sum = 0;
	for (long i = 0; i < CALLS; i++)
		sum += (unsigned long)f(i);
	printf("%s %d %lu\n", name, CALLS, sum);
}

int main(void)
{
	report("once", once);
	report("several", several);
	report("chooses", chooses);
	report("tail", tail);
	report("unlikely", unlikely);
	return 0;
}
