/*
 * switch: functions with switch statements that compilers make tables of, in the ways in which the value
 * may reach the table.
 */
#include <stdio.h>

#define NOINLINE __attribute__((noinline, noclone))
#define CASES(x) \
	case 0: return x * 3; case 1: return x ^ 91; case 2: return x + n; case 3: return x / 7; \
	case 4: puts("four"); return 1; case 5: return n - x; case 6: return x << 4; case 7: puts("seven"); return 2;

NOINLINE long plain(unsigned long n, long x) { switch (n) { CASES(x) default: return -1; } }
NOINLINE long word(unsigned n, long x) { switch (n) { CASES(x) default: return -1; } }
NOINLINE long byte(unsigned char n, long x) { switch (n) { CASES(x) default: return -1; } }
NOINLINE long shifted(int n, long x) { switch (n - 100) { CASES(x) default: return -1; } }
NOINLINE long masked(unsigned n, long x) { switch (n & 7) { CASES(x) } return -1; }
NOINLINE long memory(const unsigned *p, long x) { unsigned n = *p; switch (*p) { CASES(x) default: return -1; } }
NOINLINE long after_call(int (*f)(void), long x) { int n = f(); switch (n) { CASES(x) default: return -1; } }
NOINLINE long in_loop(const unsigned char *s, long x)
{
	long sum = 0;

	for (; *s; s++)
		switch (*s) {
		case 'a': sum += x; break;
		case 'b': sum ^= 0x55; break;
		case 'c': sum *= 3; break;
		case 'd': puts("d"); break;
		case 'e': sum -= x; break;
		case 'f': sum <<= 1; break;
		case 'g': sum = -sum; break;
		default: sum++;
		}
	return sum;
}

static int four(void) { return 4; }

int main(int argc, char **argv)
{
	unsigned n = argc;

	printf("%ld\n", plain(n, 5) + word(n, 5) + byte(n, 5) + shifted(n + 100, 5) + masked(n, 5) + memory(&n, 5) +
	       after_call(four, 5) + in_loop((unsigned char *)argv[0], 5));
	return 0;
}
