/*
 * mathematics: calls the functions of the C library's libm with arguments of all kinds and prints a digest
 * of each one's results, bit by bit. It ends by itself.
 *
 * usage: mathematics [ROUNDS]
 */
#include "target.h"
#include <fenv.h>
#include <math.h>

static uint64_t digest(uint64_t d, double x)
{
	uint64_t bits;

	memcpy(&bits, &x, sizeof bits);
	if (x != x)
		bits = 0x7ff8; /* which NaN it is does not matter */
	return (d ^ bits) * 0x9e3779b97f4a7c15;
}

static double argument(uint32_t *random)
{
	static const double special[] = { 0, -0.0, 1, -1, 0.5, INFINITY, -INFINITY, NAN, 1e-310, 1e308, 2, 3.14159265358979 };
	double x = (double)next_random(random) / (1 << 20) - 8;

	switch (next_random(random) % 8) {
	case 0: return special[next_random(random) % (sizeof special / sizeof special[0])];
	case 1: return ldexp(x, (int)(next_random(random) % 200) - 100);
	case 2: return x * 1e5;
	case 3: return x / 1e3;
	}
	return x;
}

#define ONE(X) X(sin) X(cos) X(tan) X(asin) X(acos) X(atan) X(sinh) X(cosh) X(tanh) X(asinh) X(acosh) X(atanh) X(exp) X(exp2) \
	X(expm1) X(log) X(log2) X(log10) X(log1p) X(cbrt) X(erf) X(erfc) X(tgamma) X(lgamma) X(floor) X(ceil) X(rint) X(round) \
	X(trunc) X(sqrt) X(logb) X(j0) X(y1)
#define TWO(X) X(pow) X(atan2) X(fmod) X(remainder) X(hypot) X(nextafter) X(fdim) X(copysign)

#define ROW(name) { #name, name, name##f },
static const struct {
	const char *name;
	double (*f)(double);
	float (*ff)(float);
} one[] = { ONE(ROW) };
#undef ROW
#define ROW(name) { #name, name, name##f, name##l },
static const struct {
	const char *name;
	double (*f)(double, double);
	float (*ff)(float, float);
	long double (*fl)(long double, long double);
} two[] = { TWO(ROW) };

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 300;
	uint32_t random = 1;

	for (size_t i = 0; i < sizeof one / sizeof one[0]; i++) {
		uint64_t d = 0;
		for (int n = 0; n < rounds; n++) {
			double x = argument(&random);
			d = digest(digest(d, one[i].f(x)), one[i].ff((float)x));
		}
		printf("%s %#lx\n", one[i].name, d);
	}
	for (size_t i = 0; i < sizeof two / sizeof two[0]; i++) {
		uint64_t d = 0;
		for (int n = 0; n < rounds; n++) {
			double x = argument(&random), y = argument(&random);
			d = digest(digest(d, two[i].f(x, y)), two[i].ff((float)x, (float)y));
			d = digest(d, (double)two[i].fl(x, y));
		}
		printf("%s %#lx\n", two[i].name, d);
	}
	printf("exceptions %d\n", fetestexcept(FE_ALL_EXCEPT));
	return 0;
}
