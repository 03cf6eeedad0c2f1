/*
 * symbols: functions that symbol tables describe in unusual ways: an alias, a choice made at load time
 * (STT_GNU_IFUNC), a function whose unlikely part lies elsewhere, symbols without a size, a function
 * inside another. Prints "address NAME OFFSET" for each, relative to anchor(), then behaves like every
 * target.
 */
#include "target.h"

PROBED long anchor(long x) { return x + 1; }
PROBED long original(long x) { return x + 2; }
extern __typeof__(original) alias_of_original __attribute__((alias("original")));

/* The choice is made before relocations are complete: it must call nothing. */
static long chosen_fast(long x) { return x + 3; }
static long (*choose(void))(long) { return chosen_fast; }
long chosen(long x) __attribute__((ifunc("choose")));

/* The compiler moves what follows the error away, under the name unlikely.cold. */
__attribute__((cold, noinline)) static void complain(const char *what, long x)
{
	fprintf(stderr, "%s %ld\n", what, x);
}
PROBED long unlikely(long x)
{
	if (__builtin_expect(x < 0, 0)) {
		complain("negative", x);
		complain("still negative", x * 3);
		return -x;
	}
	return x + 4;
}

/* No size, but unwind data; no size and no unwind data; an inner entry, with a size. */
long sizeless_unwound(long), sizeless(long), outer(long), inner(long);
__asm__(".pushsection .text\n.p2align 4\n"
	".globl sizeless_unwound\n.type sizeless_unwound, @function\nsizeless_unwound:\n.cfi_startproc\n"
	"lea 5(%rdi), %rax\nret\n.cfi_endproc\n"
	".p2align 4\n"
	".globl sizeless\n.type sizeless, @function\nsizeless:\nlea 6(%rdi), %rax\nret\n"
	".p2align 4\n"
	".globl outer\n.type outer, @function\nouter:\n.cfi_startproc\nadd $1, %rdi\n"
	".globl inner\n.type inner, @function\ninner:\nlea 6(%rdi), %rax\nret\n"
	".size inner, . - inner\n.cfi_endproc\n.size outer, . - outer\n"
	".popsection\n");

#define SHOW(name) printf("address %s %ld\n", #name, (long)name - (long)anchor)

int main(void)
{
	SHOW(original);
	SHOW(alias_of_original);
	SHOW(chosen_fast);
	SHOW(unlikely);
	SHOW(sizeless_unwound);
	SHOW(sizeless);
	SHOW(outer);
	SHOW(inner);
	fflush(stdout);
	target_ready();
	while (!target_stopping) {
		CHECKED(2, anchor(1));
		CHECKED(3, original(1));
		CHECKED(3, alias_of_original(1));
		CHECKED(4, chosen(1));
		CHECKED(5, unlikely(1));
		CHECKED(6, sizeless_unwound(1));
		CHECKED(7, sizeless(1));
		CHECKED(8, outer(1));
		CHECKED(7, inner(1));
		target_wait();
	}
	return target_ok();
}
