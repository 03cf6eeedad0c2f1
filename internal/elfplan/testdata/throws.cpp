// throws: exceptions through frames with cleanups, landing pads next to switch tables, and code moved elsewhere
// because it is unlikely.
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

struct Guard {
	long &sum;
	~Guard() { sum += 3; }
};

__attribute__((noinline)) static long risky(int n, long x)
{
	switch (n) {
	case 0: return x + 1;
	case 1: throw std::runtime_error("one");
	case 2: throw n;
	case 3: return x * 5;
	case 4: throw std::string("four");
	case 5: return x ^ 77;
	case 6: throw std::out_of_range("six");
	default: return -x;
	}
}

__attribute__((noinline)) static long handled(int n, long x)
{
	long sum = 0;

	try {
		Guard guard{sum};
		std::vector<std::string> names(n, "name");
		sum += risky(n, x) + names.size();
	} catch (const std::out_of_range &) {
		sum += 6;
	} catch (const std::runtime_error &e) {
		sum += e.what()[0];
	} catch (int i) {
		switch (i + n) {
		case 4: sum += 44; break;
		case 5: sum ^= 5; break;
		case 6: sum *= 66; break;
		case 7: sum -= 7; break;
		case 8: sum <<= 1; break;
		default: sum++;
		}
	}
	return sum;
}

__attribute__((noinline)) static long outer(int n, long x)
{
	long sum = 0;

	try {
		Guard guard{sum};
		sum += handled(n, x);
	} catch (const std::string &s) {
		sum += s.size();
	} catch (...) {
		std::puts("?");
		throw;
	}
	return sum;
}

int main()
{
	long sum = 0;

	for (int i = 0; i < 8; i++)
		sum += outer(i, sum + i);
	std::printf("%ld\n", sum);
}
