/*
 * switches: what compilers make tables of, where the way from the comparison and from the table's address to
 * the jump is long: loops, several tables in one function, memory as the value, parts that are moved elsewhere.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOINLINE __attribute__((noinline))

struct item { int kind, size; unsigned char tag; long value; struct item *next; };

NOINLINE static __attribute__((cold)) void rare(const char *what) { fprintf(stderr, "%s\n", what); }
NOINLINE static __attribute__((cold, noreturn)) void fail(const char *what) { rare(what); exit(3); }

/* The table's address is loaded once, before the loop; the value comes from memory. */
NOINLINE long walk(const struct item *p, long x)
{
	for (; p; p = p->next)
		switch (p->kind) {
		case 0: x += p->value; break;
		case 1: x ^= p->value; break;
		case 2: printf("%ld\n", x); break;
		case 3: x *= 3; break;
		case 4: x = labs(x); break;
		case 5: x -= p->size; break;
		case 6: x <<= 1; break;
		case 9: fail("nine");
		default: x++;
		}
	return x;
}

/* Two tables in one loop, each of whose cases leads to the other. */
NOINLINE long machine(const unsigned char *s, long x)
{
	int state = 0;

	for (; *s; s++) {
		switch (state) {
		case 0: state = *s & 7; break;
		case 1: x += *s; state = 3; break;
		case 2: x ^= *s; state = 5; break;
		case 3: puts("three"); state = 0; break;
		case 4: x -= *s; state = 6; break;
		case 5: x = x * 31; state = 1; break;
		case 6: state = 7; break;
		case 7: x = ~x; state = 2; break;
		default: fail("state");
		}
		switch (*s) {
		case 'a': x += 5; break;
		case 'b': x ^= 0x55; break;
		case 'c': x *= 7; break;
		case 'd': puts("d"); break;
		case 'e': state = 0; break;
		case 'f': x <<= 2; break;
		case 'g': x = -x; break;
		case 'h': rare("h"); x++; break;
		}
	}
	return x;
}

/* A switch in a case of another one. */
NOINLINE long nested(unsigned a, unsigned b, long x)
{
	switch (a) {
	case 0: return x * 3;
	case 1: return x ^ 91;
	case 2:
		switch (b) {
		case 10: return x + 1;
		case 11: return x * x;
		case 12: puts("twelve"); return 12;
		case 13: return x - 7;
		case 14: return x / 3;
		case 15: return -x;
		default: return b;
		}
	case 3: return x / 7;
	case 4: puts("four"); return 1;
	case 5: return a - x;
	case 6: return x << 4;
	default: return -1;
	}
}

/* All values of a byte have a case: nothing is compared. */
#define EIGHT(n) case n: case n + 8: x += n; break; case n + 1: x ^= n; break; case n + 2: x *= n + 3; break; \
	case n + 3: x -= n; break; case n + 4: puts("x"); break; case n + 5: x = ~x; break; case n + 6: x <<= 1; break; \
	case n + 7: x >>= 1; break;
NOINLINE long nibble(unsigned char n, long x)
{
	switch (n & 15) {
	EIGHT(0)
	case 9: x = 1; break;
	case 10: x = 22; break;
	case 11: x += 333; break;
	case 12: x ^= 4444; break;
	case 13: x *= 55; break;
	case 14: x -= 666; break;
	case 15: x = x * x; break;
	}
	return x;
}

/* Most cases are unlikely and are moved elsewhere. */
NOINLINE long unlikely(int n, long x)
{
	switch (n) {
	case 0: return x + 1;
	case 1: rare("one"); return x * 2;
	case 2: rare("two"); x ^= 5; break;
	case 3: return x - 9;
	case 4: rare("four"); return x / 5;
	case 5: return x << 3;
	case 6: rare("six"); x = -x; break;
	default: fail("unlikely");
	}
	return x * 77;
}

/* The value and the place of a call in the place of a return. */
typedef long (*func)(long);
static long twice(long x) { return 2 * x; }
static long thrice(long x) { return 3 * x; }
static const func funcs[] = {twice, thrice, labs, twice};
NOINLINE long tail(unsigned n, long x) { return n < 4 ? funcs[n](x + 1) : x; }

/* Labels as values: data hold their addresses. */
NOINLINE long labels(const unsigned char *s, long x)
{
	static const void *const ops[] = {&&end, &&add, &&mul, &&neg, &&say};

	goto *ops[*s++ % 5];
add:	x += 10; goto *ops[*s++ % 5];
mul:	x *= 3; goto *ops[*s++ % 5];
neg:	x = -x; goto *ops[*s++ % 5];
say:	printf("%ld\n", x); goto *ops[*s++ % 5];
end:	return x;
}

/* The same, but with offsets to one of the labels. */
NOINLINE long offsets(const unsigned char *s, long x)
{
	static const int ops[] = {&&end - &&add, &&add - &&add, &&mul - &&add, &&neg - &&add};

	goto *(&&add + ops[*s++ & 3]);
add:	x += 10; goto *(&&add + ops[*s++ & 3]);
mul:	x *= 3; goto *(&&add + ops[*s++ & 3]);
neg:	x = -x; goto *(&&add + ops[*s++ & 3]);
end:	return x;
}

int main(int argc, char **argv)
{
	static const unsigned char code[] = {1, 2, 3, 4, 1, 2, 0}, other[] = {1, 2, 3, 1, 0};
	struct item items[12];
	long sum = argc;
	int i;

	(void)argv;
	memset(items, 0, sizeof items);
	for (i = 0; i < 12; i++) {
		items[i].kind = i % 9;
		items[i].value = 3 * i;
		items[i].size = i;
		items[i].next = i < 11 ? &items[i + 1] : NULL;
	}
	sum += walk(items, 7);
	sum += machine((const unsigned char *)"abcdefghijklmnopqrstuvwxyzabcdefghabcdefgh", sum);
	for (i = 0; i < 9; i++) {
		sum += nested(i, i + 8, sum) + nested(2, i + 8, sum);
		sum += nibble(i * 37, sum) + nibble(i + 8, sum);
		if (i < 7)
			sum += unlikely(i, sum);
		sum += tail(i, sum);
	}
	sum += labels(code, sum) + offsets(other, sum);
	printf("%ld\n", sum);
	return 0;
}
