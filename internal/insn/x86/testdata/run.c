// run executes single instructions. For each struct question on standard input
// it sets the registers, the flags and 8 KiB of memory, runs the instruction,
// and writes what became of them as one struct answer. Questions come in batches
// of BATCH. run_test.go knows the same layout.
//
// The memory is the only thing that is mapped around its address, and so is the
// code: a stray access faults, and the answer says so.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

enum { BATCH = 512, MEMORY = 8192 };
#define CODE_AT 0x200000000000
#define MEMORY_AT 0x100000000000

struct question {
	uint8_t len, code[15];
	uint64_t seed; // of the memory's contents
	uint64_t regs[16], flags;
};

struct answer {
	uint64_t signal, memory; // number, or 0; a checksum
	uint64_t regs[16], flags;
};

// What entry and landing below use.
uint64_t in_regs[16], in_flags, out_regs[16], out_flags, host_rsp;
uint8_t *code_at;
static volatile int caught;
static uint8_t vector_state[16384] __attribute__((aligned(64)));
uint8_t *vector_at = vector_state;

void entry(void);
void landing(void);
void leave_fault(void);

// entry loads the state and jumps to the code; landing, which the code jumps to,
// saves it and returns to entry's caller. XRSTOR's mask is x87, SSE, AVX and
// AVX-512. The last value stored to flags on the way out clears DF, AC and TF.
__asm__(".text\n"
	"entry:\n"
	"push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15\n"
	"mov %rsp, host_rsp(%rip)\n"
	"mov vector_at(%rip), %rcx; mov $0xe7, %eax; xor %edx, %edx; xrstor64 (%rcx)\n"
	"push in_flags(%rip); popfq\n"
	"mov in_regs(%rip), %rax; mov in_regs+8(%rip), %rcx; mov in_regs+16(%rip), %rdx\n"
	"mov in_regs+24(%rip), %rbx; mov in_regs+40(%rip), %rbp; mov in_regs+48(%rip), %rsi\n"
	"mov in_regs+56(%rip), %rdi; mov in_regs+64(%rip), %r8; mov in_regs+72(%rip), %r9\n"
	"mov in_regs+80(%rip), %r10; mov in_regs+88(%rip), %r11; mov in_regs+96(%rip), %r12\n"
	"mov in_regs+104(%rip), %r13; mov in_regs+112(%rip), %r14; mov in_regs+120(%rip), %r15\n"
	"mov in_regs+32(%rip), %rsp\n"
	"jmp *code_at(%rip)\n"
	"landing:\n"
	"mov %rax, out_regs(%rip); mov %rcx, out_regs+8(%rip); mov %rdx, out_regs+16(%rip)\n"
	"mov %rbx, out_regs+24(%rip); mov %rsp, out_regs+32(%rip); mov %rbp, out_regs+40(%rip)\n"
	"mov %rsi, out_regs+48(%rip); mov %rdi, out_regs+56(%rip); mov %r8, out_regs+64(%rip)\n"
	"mov %r9, out_regs+72(%rip); mov %r10, out_regs+80(%rip); mov %r11, out_regs+88(%rip)\n"
	"mov %r12, out_regs+96(%rip); mov %r13, out_regs+104(%rip); mov %r14, out_regs+112(%rip)\n"
	"mov %r15, out_regs+120(%rip)\n"
	"mov host_rsp(%rip), %rsp\n"
	"pushfq; pop out_flags(%rip)\n"
	"leave_fault:\n"
	"push $0x202; popfq\n"
	"pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx\n"
	"ret\n");

// on_fault continues behind the instruction, on the host's stack.
static void on_fault(int sig, siginfo_t *info, void *context) {
	ucontext_t *u = context;
	(void)info;
	caught = sig;
	u->uc_mcontext.gregs[REG_RSP] = host_rsp;
	u->uc_mcontext.gregs[REG_RIP] = (uintptr_t)leave_fault;
	u->uc_mcontext.gregs[REG_EFL] = 0x202;
}

static void *map_at(uintptr_t at, size_t size, int prot) {
	void *p = mmap((void *)at, size, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (p != (void *)at) {
		perror("mmap");
		exit(1);
	}
	return p;
}

static void fill(uint64_t *memory, uint64_t seed) {
	for (int k = 0; k < MEMORY / 8; k++) {
		seed = seed * 6364136223846793005u + 1442695040888963407u;
		memory[k] = seed >> 7;
	}
}

static uint64_t checksum(const uint64_t *memory) {
	uint64_t sum = 0;
	for (int k = 0; k < MEMORY / 8; k++)
		sum = (sum ^ memory[k]) * 0x9e3779b97f4a7c15u;
	return sum;
}

static void run(const struct question *q, struct answer *a, uint64_t *memory) {
	static const uint8_t jump[6] = {0xff, 0x25}; // jmp *0(%rip)
	void (*target)(void) = landing;
	fill(memory, q->seed);
	memcpy(code_at, q->code, q->len);
	memcpy(code_at + q->len, jump, sizeof jump);
	memcpy(code_at + q->len + sizeof jump, &target, sizeof target);
	memcpy(in_regs, q->regs, sizeof in_regs);
	in_flags = q->flags;
	caught = 0;
	entry();
	a->signal = caught;
	a->memory = checksum(memory);
	memcpy(a->regs, out_regs, sizeof out_regs);
	a->flags = out_flags;
}

int main(void) {
	static struct question q[BATCH];
	static struct answer a[BATCH];
	static uint8_t stack[1 << 16];
	int signals[] = {SIGSEGV, SIGILL, SIGFPE, SIGBUS, SIGTRAP};
	struct sigaction sa = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
	stack_t alt = {.ss_sp = stack, .ss_size = sizeof stack};
	sigaltstack(&alt, NULL);
	for (unsigned k = 0; k < sizeof signals / sizeof *signals; k++)
		sigaction(signals[k], &sa, NULL);
	code_at = map_at(CODE_AT, 4096, PROT_READ | PROT_WRITE | PROT_EXEC);
	uint64_t *memory = map_at(MEMORY_AT, MEMORY, PROT_READ | PROT_WRITE);
	__asm__ volatile("xsave64 (%0)" : : "r"(vector_state), "a"(0xe7), "d"(0) : "memory");
	for (int k = 160; k < 416; k++) // XMM0 to XMM15
		vector_state[k] = k * 37;
	vector_state[512] |= 3; // x87 and SSE are present
	for (size_t n; (n = fread(q, sizeof *q, BATCH, stdin)) > 0;) {
		for (size_t k = 0; k < n; k++)
			run(&q[k], &a[k], memory);
		fwrite(a, sizeof *a, n, stdout);
		fflush(stdout);
	}
	return 0;
}
