/*
 * many THREADS [huge]: a great number of small functions, many_0 to many_<MANY-1>, of eight shapes, which
 * threads call at random and check. Each thread rests after each thousand calls, so that a machine with
 * few processors can run many of them. The counts are those of all functions together. With "huge" the
 * functions lie on huge pages: of the file if the kernel can do that, else of anonymous memory that takes the
 * file's place, as some programs do for speed. Where neither can be, it prints "unavailable ..." and exits
 * with status 77.
 */
#include "target.h"
#include <sys/mman.h>

#ifndef MANY
#define MANY 40000
#endif
#ifndef ALIGN
#define ALIGN 4 /* 1 << ALIGN bytes for each function at least */
#endif
#define TEXT(x) TEXT1(x)
#define TEXT1(x) #x

/* Each returns its argument plus its number. The table has their addresses. */
__asm__(
	".pushsection .data.rel.ro, \"aw\"\n.p2align 3\n.globl many_table\nmany_table:\n.popsection\n"
	".pushsection .text\n"
	".altmacro\n"
	".macro one n\n"
	".p2align " TEXT(ALIGN) "\n.globl many_\\n\n.type many_\\n, @function\nmany_\\n:\n.cfi_startproc\n"
	".if \\n % 8 == 0\n"
	"	push %rbp\n	mov %rsp, %rbp\n	lea \\n(%rdi), %rax\n	pop %rbp\n	ret\n"
	".elseif \\n % 8 == 1\n"
	"	lea \\n+0x10000000(%rdi), %rax\n	sub $0x10000000, %rax\n	ret\n"
	".elseif \\n % 8 == 2\n"
	"	mov %rdi, %rax\n	add $\\n, %rax\n	ret\n"
	".elseif \\n % 8 == 3\n"
	"	endbr64\n	lea \\n(%rdi), %rax\n	ret\n"
	".elseif \\n % 8 == 4\n"
	"	sub $24, %rsp\n	mov %rdi, 8(%rsp)\n	mov 8(%rsp), %rax\n	add $\\n, %rax\n	add $24, %rsp\n	ret\n"
	".elseif \\n % 8 == 5\n"
	"	test %rdi, %rdi\n	lea \\n(%rdi), %rax\n	je 1f\n	nop\n1:	ret\n"
	".elseif \\n % 8 == 6\n"
	"	push %rbx\n	push %r12\n	mov %rdi, %rbx\n	lea \\n(%rbx), %rax\n	pop %r12\n	pop %rbx\n	ret\n"
	".else\n"
	"	mov 7f(%rip), %rax\n	add %rdi, %rax\n	ret\n"
	"	.pushsection .rodata\n	.p2align 3\n7:	.quad \\n\n	.popsection\n"
	".endif\n"
	".cfi_endproc\n.size many_\\n, . - many_\\n\n"
	".pushsection .data.rel.ro\n.quad many_\\n\n.popsection\n"
	".endm\n"
	".set number, 0\n"
	".rept " TEXT(MANY) "\n"
	"	one %number\n"
	"	.set number, number + 1\n"
	".endr\n"
	".popsection\n");

extern long (*const many_table[MANY])(long);

static atomic_ulong calls;

static void *work(void *arg)
{
	uint32_t random = 1 + (uintptr_t)arg;

	while (!target_stopping) {
		for (int i = 0; i < 1000; i++) {
			unsigned n = next_random(&random) % MANY;
			long got = many_table[n](i);

			CHECK(got == (long)n + i, "many_%u(%d) = %ld", n, i, got);
		}
		calls += 1000;
		pause_ms(5);
	}
	return NULL;
}

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#define HUGE_PAGE 0x200000ul

static void use_huge_pages(void)
{
	uintptr_t first = ((uintptr_t)many_table[0] + HUGE_PAGE - 1) & -HUGE_PAGE;
	uintptr_t end = (uintptr_t)many_table[MANY - 1] & -HUGE_PAGE;

	if (first < end && madvise((void *)first, end - first, MADV_COLLAPSE) == 0)
		return;
	if (first < end) {
		char *room = mmap(NULL, end - first + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		void *copy = (void *)(((uintptr_t)room + HUGE_PAGE - 1) & -HUGE_PAGE);

		if (room != MAP_FAILED && madvise(copy, end - first, MADV_HUGEPAGE) == 0) {
			memcpy(copy, (void *)first, end - first);
			CHECKED(0, mprotect(copy, end - first, PROT_READ | PROT_EXEC));
			CHECKED(first, mremap(copy, end - first, end - first, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)first));
			return;
		}
	}
	printf("unavailable huge: no huge pages for the text from %#lx to %#lx: %s\n", first, end, strerror(errno));
	exit(77);
}

int main(int argc, char **argv)
{
	int threads = argc > 1 ? atoi(argv[1]) : 1;
	pthread_t ids[threads];

	if (argc > 2 && strcmp(argv[2], "huge") == 0)
		use_huge_pages();
	target_ready();
	for (int i = 0; i < threads; i++)
		CHECKED(0, pthread_create(&ids[i], NULL, work, (void *)(uintptr_t)i));
	target_wait();
	for (int i = 0; i < threads; i++)
		CHECKED(0, pthread_join(ids[i], NULL));
	target_counts("many", calls);
	return target_ok();
}
