// run executes pieces of machine code, each in a process state given with it,
// and reports the state in which each one ended. It reads struct piece from
// standard input until its end and writes one struct outcome for each.
//
// Everything around the code is int3, so that it ends by a signal, whose
// context is the outcome. A piece is entered by returning from a signal too:
// registers and flags are then loaded all at once.
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { CODE = 1 << 13, DATA = 1 << 14, MAXCODE = 48 };

// Greg order of the kernel's struct sigcontext: r8 to r15, rdi, rsi, rbp, rbx,
// rdx, rax, rcx, rsp.
struct piece {
	uint64_t at, seed, flags, regs[16];
	uint64_t len;
	uint8_t code[MAXCODE];
};

struct outcome {
	uint64_t sig, pc, fault, flags, regs[16], data, vector;
};

static const uintptr_t from = 0x200000000000, to = 0x200070000000, data = 0x200030000000, goal = 0x200038000000;
static const uint64_t status = 0x8d5; // OF SF ZF AF PF CF

static struct piece in;
static struct outcome out;
static ucontext_t home;
static volatile int running;

static uint64_t hash(const void *p, size_t n)
{
	uint64_t h = n;
	const unsigned char *b = p;
	for (size_t i = 0; i + 8 <= n; i += 8) {
		uint64_t w;
		memcpy(&w, b + i, 8);
		h = (h ^ w) * 0x9e3779b97f4a7c15;
		h ^= h >> 29;
	}
	return h;
}

// begin_vector loads the xmm registers and puts everything else in the state in
// which a program starts. Behind the legacy area of struct _fpstate follows the
// XSAVE header, whose first word says which other parts are not in that state.
static void begin_vector(fpregset_t f)
{
	uint64_t x = in.seed | 1;
	memset(f, 0, 416);
	f->cwd = 0x37f;
	f->mxcsr = 0x1f80;
	for (int i = 0; i < 16; i++)
		for (int k = 0; k < 4; k++)
			f->_xmm[i].element[k] = x = x * 6364136223846793005 + 1442695040888963407;
	*(uint64_t *)((char *)f + 512) = 3;
}

static void begin(ucontext_t *u)
{
	memcpy(&home, u, sizeof *u);
	memcpy(u->uc_mcontext.gregs, in.regs, sizeof in.regs);
	u->uc_mcontext.gregs[REG_RIP] = in.at;
	u->uc_mcontext.gregs[REG_EFL] = (u->uc_mcontext.gregs[REG_EFL] & ~status) | (in.flags & status);
	begin_vector(u->uc_mcontext.fpregs);
	running = 1;
}

static void end(int sig, siginfo_t *si, ucontext_t *u)
{
	memcpy(out.regs, u->uc_mcontext.gregs, sizeof out.regs);
	out.sig = sig;
	out.pc = u->uc_mcontext.gregs[REG_RIP];
	out.flags = u->uc_mcontext.gregs[REG_EFL] & (status | 0x400);
	out.fault = sig == SIGSEGV || sig == SIGBUS ? (uint64_t)si->si_addr : 0;
	out.data = hash((void *)data, DATA);
	out.vector = hash(u->uc_mcontext.fpregs->_xmm, sizeof u->uc_mcontext.fpregs->_xmm) +
		hash(u->uc_mcontext.fpregs->_st, sizeof u->uc_mcontext.fpregs->_st);
	memcpy(u->uc_mcontext.gregs, home.uc_mcontext.gregs, sizeof u->uc_mcontext.gregs);
	running = 0;
}

static void handler(int sig, siginfo_t *si, void *ctx)
{
	if (running)
		end(sig, si, ctx);
	else
		begin(ctx);
}

static void map(uintptr_t at, size_t len, int prot)
{
	if (mmap((void *)at, len, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != (void *)at) {
		perror("mmap");
		exit(2);
	}
}

static void prepare(void)
{
	memset((void *)from, 0xcc, CODE);
	memset((void *)to, 0xcc, CODE);
	memcpy((void *)in.at, in.code, in.len);
	uint64_t *d = (uint64_t *)data, x = in.seed;
	for (int i = 0; i < DATA / 8; i++) {
		x = x * 6364136223846793005 + 1442695040888963407;
		d[i] = x;
		if ((x >> 60) < 4) // some words are addresses of code
			d[i] = goal + (x >> 32 & 0xff);
	}
}

int main(void)
{
	static char stack[1 << 16];
	stack_t ss = {.ss_sp = stack, .ss_size = sizeof stack};
	struct sigaction sa = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
	int sigs[] = {SIGTRAP, SIGILL, SIGSEGV, SIGBUS, SIGFPE};
	sigaltstack(&ss, NULL);
	for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++)
		sigaction(sigs[i], &sa, NULL);
	map(from, CODE, PROT_READ | PROT_WRITE | PROT_EXEC);
	map(to, CODE, PROT_READ | PROT_WRITE | PROT_EXEC);
	map(data, DATA, PROT_READ | PROT_WRITE);
	map(goal, 4096, PROT_READ | PROT_WRITE | PROT_EXEC);
	memset((void *)goal, 0xcc, 4096);
	while (fread(&in, sizeof in, 1, stdin) == 1) {
		prepare();
		__asm__ volatile("int3" ::: "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
			"xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
		if (fwrite(&out, sizeof out, 1, stdout) != 1)
			return 1;
	}
	return fflush(stdout) != 0;
}
