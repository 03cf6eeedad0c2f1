// names: functions with the names that C++ and Rust give them.
#include "target.h"

namespace shop {
PROBED long price(int x) { return x; }
PROBED long price(long x) { return x + 1; }
template <typename T> struct Basket {
	PROBED long add(T x) { return x + 2; }
};
template struct Basket<int>;
namespace { PROBED long hidden(int x) { return x + 3; } }
}

PROBED long operator+(shop::Basket<int>, int x) { return x + 4; }

// As rustc writes them: the older form, and v0.
extern "C" PROBED long rust_legacy(long x) __asm__("_ZN4shop4till5count17h0123456789abcdefE");
extern "C" PROBED long rust_legacy(long x) { return x + 5; }
extern "C" PROBED long rust_v0(long x) __asm__("_RNvCs15kBYyAo9fc_4shop7receipt");
extern "C" PROBED long rust_v0(long x) { return x + 6; }

int main()
{
	shop::Basket<int> b;

	target_ready();
	do {
		CHECKED(1, shop::price(1));
		CHECKED(2, shop::price(1L));
		CHECKED(3, b.add(1));
		CHECKED(4, shop::hidden(1));
		CHECKED(5, b + 1);
		CHECKED(6, rust_legacy(1));
		CHECKED(7, rust_v0(1));
		target_wait();
	} while (!target_stopping);
	return target_ok();
}
