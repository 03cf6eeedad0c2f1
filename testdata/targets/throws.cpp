// throws: exceptions of every kind pass through frames with something to destroy, through C code that calls
// back, out of constructors, out of destructors' callers, and are thrown again. The program checks that each
// arrives, that nothing is left undestroyed, and ends by itself with "thrown N caught N".
//
// usage: throws [ROUNDS]
#include "target.h"
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

static long alive, thrown, caught;

struct Guard {
	Guard() { alive++; }
	Guard(const Guard &) { alive++; }
	~Guard() { alive--; }
};

struct Base {
	virtual ~Base() {}
	virtual long value() const { return 1; }
};
struct Other {
	virtual ~Other() {}
	long spare = 7;
};
struct Derived : Other, Base {
	long n;
	Guard guard;
	explicit Derived(long n) : n(n) {}
	long value() const override { return n; }
};

PROBED void throw_one(long n)
{
	Guard guard;

	thrown++;
	switch (n % 7) {
	case 0: throw std::runtime_error("runtime " + std::to_string(n));
	case 1: throw n;
	case 2: throw Derived(n);
	case 3: throw std::make_shared<Derived>(n);
	case 4: throw std::vector<std::string>(3, std::to_string(n)).at(1);
	case 5: std::vector<int>().at(n); break;
	case 6: throw std::bad_alloc();
	}
}

PROBED void descend(long depth, long n)
{
	Guard guard;
	std::string text(depth, 'x');

	if (depth == 0)
		throw_one(n);
	else
		descend(depth - 1, n);
	CHECK(text.size() == 0, "descend returned");
}

struct Member {
	Guard guard;
	explicit Member(long n) { if (n % 3 == 0) descend(2, n); }
};
struct Whole {
	Guard guard;
	Member first, second;
	explicit Whole(long n) : first(1), second(n) {}
};

static int compare_and_throw(const void *a, const void *b)
{
	Guard guard;
	int x = *(const int *)a, y = *(const int *)b;

	if (x == 5 || y == 5)
		descend(1, 1);
	return x - y;
}

PROBED long throw_again(long depth, long n)
{
	Guard guard;

	try {
		if (depth > 0)
			return throw_again(depth - 1, n);
		descend(3, n);
	} catch (const std::exception &) {
		throw;
	} catch (long x) {
		thrown++, caught++;
		throw x + 7;
	} catch (...) {
		std::exception_ptr p = std::current_exception();
		thrown++, caught++;
		std::rethrow_exception(p);
	}
	return 0;
}

PROBED long catch_one(const std::function<void()> &f)
{
	Guard guard;

	try {
		f();
	} catch (const std::runtime_error &e) {
		caught++;
		return e.what()[0];
	} catch (const std::out_of_range &) {
		caught++;
		return 2;
	} catch (const std::bad_alloc &) {
		caught++;
		return 3;
	} catch (const Base &b) {
		caught++;
		return b.value();
	} catch (const std::shared_ptr<Derived> &p) {
		caught++;
		return p->value();
	} catch (const std::string &s) {
		caught++;
		return std::stol(s);
	} catch (long n) {
		caught++;
		return n;
	}
	return -1;
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 200;
	std::map<long, long> sums;

	for (long n = 0; n < rounds; n++) {
		sums[n % 7] += catch_one([n] { descend(n % 5, n); });
		sums[10] += catch_one([n] { throw_again(n % 4, n); });
		sums[11] += catch_one([n] { Whole whole(n); });
		sums[12] += catch_one([n] {
			int numbers[] = { 9, 3, 8, (int)(n % 2 ? 5 : 6), 1, 7 };
			qsort(numbers, 6, sizeof numbers[0], compare_and_throw);
		});
		sums[13] += catch_one([n] { if (n % 2) std::string("abc").substr(n + 4); });
		CHECK(alive == 0, "%ld objects were not destroyed in round %ld", alive, n);
	}
	for (auto &s : sums)
		printf("%ld: %ld\n", s.first, s.second);
	printf("thrown %ld caught %ld\n", thrown, caught);
	return 0;
}
