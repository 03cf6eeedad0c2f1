/* Functions with parameters of all kinds of types. Each line of stdin calls them all once. */
#include "target.h"

enum colour { RED, GREEN = 5, BLUE = -1 };

struct point {
	int x, y;
};

union number {
	int whole;
	float part;
};

struct shape {
	struct shape *next;
	struct point at, corners[3];
	enum colour colour;
	unsigned flags : 3, kind : 5;
	signed char small;
	union number number;
	const char *name;
	char label[8];
	double area;
	struct {
		short inner;
	};
	_Bool open;
};

struct big {
	long words[5];
};

PROBED long draw(struct shape *shape, int count, enum colour colour, const char *title, unsigned char low, short last)
{
	return shape->at.x + count + colour + title[0] + low + last;
}

PROBED double mix(double a, int first, float b, long second) { return a * first + b * second; }

PROBED int by_value(struct point p, int after) { return p.x + p.y + after; }

PROBED void silent(int n) { __asm__ volatile("" : : "r"(n)); }

PROBED struct big large(int n)
{
	struct big b = { { n, n + 1, n + 2, n + 3, n + 4 } };

	return b;
}

PROBED struct shape *tail(struct shape *s) { return s->next; }

/* The compiler makes a variant of it that has lost a parameter. */
static __attribute__((noinline)) int altered(int unused __attribute__((unused)), int used, struct shape *s)
{
	return used + s->at.y;
}

static struct shape second = { .at = { 30, 40 }, .name = "second" };
static struct shape first = {
	.next = &second, .at = { -1, 2 }, .corners = { { 1, 2 }, { 3, 4 }, { 5, 6 } }, .colour = GREEN, .flags = 5, .kind = 17,
	.small = -3, .number = { .whole = 77 }, .name = "first", .label = "label", .area = 2.5, .inner = -300, .open = 1,
};

unsigned answer = 0x12345678;
unsigned char small_answer = 0x42;

int main(void)
{
	char line[64];

	target_ready();
	silent(1);
	while (fgets(line, sizeof line, stdin) && strcmp(line, "stop\n") != 0) {
		long sum = draw(&first, -7, BLUE, "title", 200, -2) + (long)mix(1.5, 2, 3.5, 4) + by_value(first.at, 9) + (tail(&first) == &second);

		printf("sum %ld\n", sum + large(1).words[2] + altered(1, (int)sum, &first));
	}
	return target_ok();
}
