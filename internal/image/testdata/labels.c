/* labels: an interpreter that jumps through a static table of its own labels. */
#include <stdio.h>

__attribute__((noinline, noclone)) long interpret(const unsigned char *code, long x)
{
	static const void *const labels[] = { &&end, &&twice, &&flip, &&print };

	goto *labels[*code++ & 3];
twice:
	x *= 2;
	goto *labels[*code++ & 3];
flip:
	x = ~x;
	goto *labels[*code++ & 3];
print:
	printf("%ld\n", x);
	goto *labels[*code++ & 3];
end:
	return x;
}

int main(int argc, char **argv) { return (int)interpret((unsigned char *)argv[0], argc); }
