/*
 * breaks: a program without a heap, until it is told to grow one by sbrk: on its first line of input it moves
 * its break by 1 GB in steps, calls work() and answers "grown MEGABYTES". It uses no malloc and so no stdio.
 */
#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>

__attribute__((noipa)) long work(long value)
{
	return value * 3 + 1;
}

static void say(const char *s)
{
	if (write(1, s, strlen(s)) < 0)
		_exit(2);
}

int main(void)
{
	char c, text[16] = "grown 0000\n";
	int grown = 0;

	alarm(900);
	say("ready\n");
	if (read(0, &c, 1) != 1)
		return 1;
	while (grown < 1024 && sbrk(1 << 20) != (void *)-1)
		grown++;
	if (work(5) != 16)
		return 1;
	for (int i = 9, n = grown; i > 5; i--, n /= 10)
		text[i] = '0' + n % 10;
	say(text);
	while (read(0, &c, 1) == 1)
		;
	return 0;
}
