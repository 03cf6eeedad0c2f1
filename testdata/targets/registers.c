/*
 * registers: calls a probed function that changes nothing, with a pattern in every register: the general
 * ones, flags, vector registers, x87, mxcsr, and the 128 bytes below the stack pointer. All must come back
 * as they were. The function is probed at its entry, or at "registers_middle", where the red zone is live.
 */
#include "target.h"
#include <cpuid.h>
#include <stddef.h>

/* What the calls leave behind, to be compared with what they found. */
struct state {
	uint64_t gpr[16];    /* by hardware number; rsp is the caller's business */
	uint64_t flags;
	uint8_t zone[128];   /* below the stack pointer at registers_middle, lowest address first */
	uint8_t x[4096] __attribute__((aligned(64))); /* as XSAVE writes it */
};

/* Loads every register from in, calls untouched(), stores them to out. */
void exchange(const struct state *in, struct state *out, uint64_t xsave_mask);
long untouched(void);

__asm__(".pushsection .text\n"
	".p2align 4\n.globl untouched\n.type untouched, @function\nuntouched:\n.cfi_startproc\n"
	".byte 0x0f, 0x1f, 0x44, 0, 0\n"
	".byte 0x66, 0x90\n"
	".globl registers_middle\nregisters_middle:\n"
	"nopl 0x200(%rax)\n"
	"ret\n.cfi_endproc\n.size untouched, . - untouched\n"

	".p2align 4\n.globl exchange\n.type exchange, @function\nexchange:\n.cfi_startproc\n"
	"push %rbx\npush %rbp\npush %r12\npush %r13\npush %r14\npush %r15\n"
	"push %rsi\n"			/* out */
	"push %rdx\n"			/* the mask */
	"push %rdi\n"			/* in */
	"sub $256, %rsp\n"
	/* The red zone of untouched: 128 bytes below its stack pointer, hence below our next push. */
	"lea 136(%rdi), %rsi\n"
	"lea -136(%rsp), %rdi\n"
	"mov $16, %ecx\n"
	"cld\nrep movsq\n"
	"mov 256(%rsp), %rdi\n"
	"mov 264(%rsp), %rax\nmov %rax, %rdx\nshr $32, %rdx\n"
	"xrstor 320(%rdi)\n"
	"push 128(%rdi)\npopf\n"	/* overwrites the first word of the zone: it is the return address's place */
	"mov 0(%rdi), %rax\nmov 8(%rdi), %rcx\nmov 16(%rdi), %rdx\nmov 24(%rdi), %rbx\n"
	"mov 40(%rdi), %rbp\nmov 48(%rdi), %rsi\n"
	"mov 64(%rdi), %r8\nmov 72(%rdi), %r9\nmov 80(%rdi), %r10\nmov 88(%rdi), %r11\n"
	"mov 96(%rdi), %r12\nmov 104(%rdi), %r13\nmov 112(%rdi), %r14\nmov 120(%rdi), %r15\n"
	"mov 56(%rdi), %rdi\n"
	"call untouched\n"
	/* Save one register in the frame, then use it for the rest. */
	"mov %rdi, 0(%rsp)\n"
	"mov 272(%rsp), %rdi\n"		/* out */
	"mov %rax, 0(%rdi)\nmov %rcx, 8(%rdi)\nmov %rdx, 16(%rdi)\nmov %rbx, 24(%rdi)\n"
	"mov %rbp, 40(%rdi)\nmov %rsi, 48(%rdi)\n"
	"mov %r8, 64(%rdi)\nmov %r9, 72(%rdi)\nmov %r10, 80(%rdi)\nmov %r11, 88(%rdi)\n"
	"mov %r12, 96(%rdi)\nmov %r13, 104(%rdi)\nmov %r14, 112(%rdi)\nmov %r15, 120(%rdi)\n"
	"mov 0(%rsp), %rax\nmov %rax, 56(%rdi)\n"
	/* The red zone before anything is pushed over it. */
	"mov %rdi, %rdx\n"
	"lea -136(%rsp), %rsi\nlea 136(%rdx), %rdi\nmov $16, %ecx\n"
	/* Not a flag may change before they are saved: the loop below would; pushf writes above the zone. */
	"pushf\npop 128(%rdx)\n"
	"cld\nrep movsq\n"
	"mov %rdx, %rdi\n"
	"mov 264(%rsp), %rax\nmov %rax, %rdx\nshr $32, %rdx\n"
	"xsave 320(%rdi)\n"
	"add $256, %rsp\n"
	"pop %rdi\npop %rdx\npop %rsi\n"
	"pop %r15\npop %r14\npop %r13\npop %r12\npop %rbp\npop %rbx\n"
	"cld\nret\n.cfi_endproc\n.size exchange, . - exchange\n"
	".popsection\n");

_Static_assert(offsetof(struct state, flags) == 128 && offsetof(struct state, zone) == 136, "the assembly's offsets");
_Static_assert(offsetof(struct state, x) == 320, "the assembly's offsets");

static atomic_ulong calls;
static uint64_t components; /* of XSAVE that are tested: x87, SSE, AVX, AVX-512 where the machine has them */

static uint64_t xgetbv(void)
{
	uint32_t low, high;

	__asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return low | (uint64_t)high << 32;
}

/* Carry, parity, adjust, zero, sign, direction, overflow: what a program may change. */
#define FLAGS 0xcd5ul

static void fill(struct state *s, uint32_t *random)
{
	memset(s, 0, sizeof *s);
	__asm__ volatile("xsave %0" : "+m"(s->x) : "a"(components), "d"(components >> 32));
	for (int i = 0; i < 16; i++)
		s->gpr[i] = (uint64_t)next_random(random) << 40 ^ (uint64_t)next_random(random) << 16 ^ next_random(random);
	s->flags = 0x202 | (next_random(random) & FLAGS);
	for (int i = 0; i < 128; i++)
		s->zone[i] = next_random(random);
	for (int i = 160; i < 160 + 256; i++) /* xmm0 to xmm15 */
		s->x[i] = next_random(random);
	for (int i = 0; i < 8; i++) /* mantissas of x87 */
		for (int j = 0; j < 8; j++)
			s->x[32 + 16 * i + j] = next_random(random) | 0x80;
	s->x[4] = 0xff; /* no x87 register is empty */
	s->x[24] = 0x80, s->x[25] = 0x1f | (next_random(random) & 3) << 5; /* mxcsr: masked, any rounding */
	s->x[512] |= components; /* XSTATE_BV: nothing is in its initial state */
	for (uint64_t i = 576; i < 576 + 256 && components & 4; i++) /* the upper halves of ymm0 to ymm15 */
		s->x[i] = next_random(random);
}

static void compare(const struct state *in, const struct state *out)
{
	static const char *const names[] = { "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10",
					     "r11", "r12", "r13", "r14", "r15" };

	for (int i = 0; i < 16; i++)
		CHECK(i == 4 || in->gpr[i] == out->gpr[i], "%s was %#lx, is %#lx", names[i], in->gpr[i], out->gpr[i]);
	CHECK((in->flags & FLAGS) == (out->flags & FLAGS), "flags were %#lx, are %#lx", in->flags, out->flags);
	for (int i = 0; i < 128; i++)
		CHECK(in->zone[i] == out->zone[i], "red zone byte %d was %#x, is %#x", i, in->zone[i], out->zone[i]);
	CHECK(memcmp(in->x + 24, out->x + 24, 4) == 0, "mxcsr changed");
	CHECK(memcmp(in->x, out->x, 5) == 0, "the state of x87 changed");
	for (int i = 0; i < 8; i++)
		CHECK(memcmp(in->x + 32 + 16 * i, out->x + 32 + 16 * i, 10) == 0, "st%d changed", i);
	CHECK(memcmp(in->x + 160, out->x + 160, 256) == 0, "an xmm register changed");
	CHECK(!(components & 4) || memcmp(in->x + 576, out->x + 576, 256) == 0, "a ymm register changed");
}

static void *exchange_loop(void *arg)
{
	struct state in __attribute__((aligned(64))), out __attribute__((aligned(64)));
	uint32_t random = (uint32_t)(intptr_t)arg;

	do {
		fill(&in, &random);
		memset(&out, 0, sizeof out);
		exchange(&in, &out, components);
		calls++;
		compare(&in, &out);
	} while (!target_stopping);
	return NULL;
}

int main(void)
{
	uint32_t a, b, c, d;
	pthread_t threads[2];

	CHECK(__get_cpuid(1, &a, &b, &c, &d) && c & bit_OSXSAVE, "the CPU has no XSAVE");
	components = xgetbv() & 7; /* in the standard form, whose offsets are fixed up to here */
	target_ready();
	for (long i = 0; i < 2; i++)
		CHECKED(0, pthread_create(&threads[i], NULL, exchange_loop, (void *)i));
	target_wait();
	for (int i = 0; i < 2; i++)
		CHECKED(0, pthread_join(threads[i], NULL));
	target_counts("untouched", calls);
	return target_ok();
}
