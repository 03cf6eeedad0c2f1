/*
 * USDT probes, as sys/sdt.h makes them, with every form of operand that an argument can have. Commands:
 * "fire N" passes each probe N times, "guarded N" passes those behind a semaphore if that is raised,
 * "semaphore" prints it.
 */
#include "target.h"

/* What debuggers and tracers find in the notes: https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation */
#define PROBE(provider, name, semaphore, operands, ...) \
	__asm__ volatile("990:	nop\n" \
		".pushsection .note.stapsdt,\"?\",\"note\"\n" \
		".balign 4\n" \
		".4byte 992f-991f, 994f-993f, 3\n" \
		"991:	.asciz \"stapsdt\"\n" \
		"992:	.balign 4\n" \
		"993:	.8byte 990b\n" \
		".8byte _.stapsdt.base\n" \
		".8byte " semaphore "\n" \
		".asciz \"" provider "\"\n" \
		".asciz \"" name "\"\n" \
		".asciz \"" operands "\"\n" \
		"994:	.balign 4\n" \
		".popsection\n" \
		".ifndef _.stapsdt.base\n" \
		".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
		".weak _.stapsdt.base\n" \
		".hidden _.stapsdt.base\n" \
		"_.stapsdt.base: .space 1\n" \
		".size _.stapsdt.base, 1\n" \
		".popsection\n" \
		".endif\n" : : __VA_ARGS__ : "memory")

unsigned short guarded_semaphore __attribute__((section(".probes"), used, visibility("hidden")));

volatile int64_t numbers[4] = { 11, -22, 33, 0x1122334455667788 };
static volatile double half __attribute__((used)) = 0.5;

PROBED void registers(uint64_t v)
{
	register uint64_t r10 __asm__("r10") = v + 1;

	PROBE("test", "registers", "0", "8@%%rax -4@%%eax 4@%%eax -2@%%ax 2@%%ax -1@%%al 1@%%al 1@%%ah 8@%%r10 2@%%r10w", "a"(v), "r"(r10));
}

PROBED void memory(uint64_t i)
{
	volatile uint32_t local[2] = { 7, 0xfffffff9 };

	PROBE("test", "memory", "0", "8@8(%%rax) -4@(%%rax,%%rcx,8) 4@4(%%rdx) -4@4(%%rdx) 8@numbers+16(%%rip) 8@24+numbers(%%rip) 8f@half(%%rip) 8@-0x8(%%rax,%%rcx,8) 8@8(%%rbx)",
	      "a"(numbers), "c"(i), "d"(local), "b"(8));
}

PROBED void constants(void)
{
	PROBE("test", "constants", "0", "8@$-5 4@$-5 -1@$255 8@$0x123456789abcdef0 8@$numbers");
}

PROBED void twice_first(uint64_t v) { PROBE("test", "twice", "0", "8@%%rdi", "D"(v)); }
PROBED void twice_second(uint64_t v) { PROBE("test", "twice", "0", "8@%%rsi", "S"(v)); }
PROBED void odd(uint64_t v) { PROBE("other", "odd", "0", "8@%%rax 8@%%fs:8 4f@%%xmm0 8@nowhere(%%rip)", "a"(v)); }
PROBED void guarded(uint64_t v)
{
	if (guarded_semaphore)
		PROBE("test", "guarded", "guarded_semaphore", "8@%%rdi", "D"(v));
}

static void fire(uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		registers(0xf00000008f00fe80);
		memory(1);
		constants();
		twice_first(1);
		twice_second(2);
		odd(3);
	}
}

static void answer(char *line)
{
	unsigned long n = 0;

	if (sscanf(line, "fire %lu", &n) == 1)
		fire(n);
	else if (sscanf(line, "guarded %lu", &n) == 1)
		for (unsigned long i = 0; i < n; i++)
			guarded(i);
	printf("semaphore=%u numbers=%#lx\n", *(volatile unsigned short *)&guarded_semaphore, (unsigned long)numbers);
}

int main(void)
{
	char line[64];

	target_ready();
	while (fgets(line, sizeof line, stdin) && strcmp(line, "stop\n") != 0)
		answer(line);
	return target_ok();
}
