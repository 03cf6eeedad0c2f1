/* A program of a few hundred bytes with one of everything that is read: seeds for the fuzzer. */
__attribute__((noinline)) static long helper(long x) { return x * 3; }
long alias(long) __attribute__((alias("_start")));
long _start(long x) { return helper(x) + 1; }
__asm__(".pushsection __rseq_cs, \"aw\"\n.long 0, 0\n.quad _start, 4, _start + 8\n.popsection\n"
	".pushsection .plt, \"ax\"\nret\n.popsection\n");
