// Calls probed() as often as its first argument says, and ends. With a second argument it waits on
// standard input in between, after half of the calls.
#include <stdio.h>
#include <stdlib.h>

__attribute__((noinline)) long probed(long i) {
	__asm__ volatile("" : "+r"(i));
	return i + 1;
}

int main(int argc, char **argv) {
	long n = argc > 1 ? atol(argv[1]) : 1, sum = 0;
	for (long i = 0; i < n; i++) {
		if (argc > 2 && i == n / 2) {
			puts("ready half");
			fflush(stdout);
			if (getchar() == EOF)
				return 0;
		}
		sum += probed(i);
	}
	return sum < 0;
}
