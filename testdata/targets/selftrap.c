/*
 * selftrap: a program with a breakpoint of its own in its text, as tracing libraries make, and handlers that
 * it installs only when it is told to. Commands, each answered by one line:
 *
 *	calls N        call trapped() and other() N times; "trapped=N other=N"
 *	load N         call load() with a null pointer N times; its handler knows the address. "recovered=N"
 *	handle         install the handler of SIGSEGV that load needs, as crash reporters do late; "handling"
 */
#include "target.h"
#include <sys/mman.h>
#include <ucontext.h>

#define BEGIN(name) \
	".p2align 4\n.globl " #name "\n.type " #name ", @function\n" #name ":\n.cfi_startproc\n"
#define END(name) "\n.cfi_endproc\n.size " #name ", . - " #name "\n"

long trapped(long value), other(long value), load(long *pointer);
extern char recover_load[];
__asm__(".pushsection .text\n"
	BEGIN(trapped) "push %rbp\n" "mov %rsp, %rbp\n" "lea 1(%rdi), %rax\n" "pop %rbp\n" "ret" END(trapped)
	BEGIN(other) "push %rbp\n" "mov %rsp, %rbp\n" "lea 2(%rdi), %rax\n" "pop %rbp\n" "ret" END(other)
	BEGIN(load) "mov (%rdi), %rax\n" "mov %rax, %rax\n" "ret\n" "recover_load: mov $-1, %rax\n" "ret" END(load)
	".popsection\n");

static volatile unsigned long traps, faults;

static void on_trap(int sig, siginfo_t *info, void *context)
{
	greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;

	(void)sig, (void)info;
	CHECK(regs[REG_RIP] == (greg_t)trapped + 1, "a trap at %#llx", regs[REG_RIP]);
	regs[REG_RSP] -= 8; /* the push that the breakpoint stands for */
	*(greg_t *)regs[REG_RSP] = regs[REG_RBP];
	traps++;
}

static void on_fault(int sig, siginfo_t *info, void *context)
{
	greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;

	(void)sig, (void)info;
	CHECK(regs[REG_RIP] == (greg_t)load, "a fault at %#llx instead of %p", regs[REG_RIP], (void *)load);
	regs[REG_RIP] = (greg_t)recover_load;
	faults++;
}

static void install(int sig, void (*handler)(int, siginfo_t *, void *))
{
	struct sigaction a = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO };

	CHECKED(0, sigaction(sig, &a, NULL));
}

static void set_breakpoint(void)
{
	char *page = (char *)((uintptr_t)trapped & ~4095ul);

	CHECKED(0, mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC));
	*(volatile unsigned char *)trapped = 0xcc;
	CHECKED(0, mprotect(page, 8192, PROT_READ | PROT_EXEC));
}

int main(void)
{
	char line[64];
	long n;

	install(SIGTRAP, on_trap);
	set_breakpoint();
	target_ready();
	while (fgets(line, sizeof line, stdin)) {
		if (sscanf(line, "calls %ld", &n) == 1) {
			unsigned long before = traps;
			for (long i = 0; i < n; i++)
				CHECK(trapped(i) == i + 1 && other(i) == i + 2, "call %ld", i);
			printf("trapped=%lu other=%ld\n", traps - before, n);
		} else if (sscanf(line, "load %ld", &n) == 1) {
			unsigned long before = faults;
			for (long i = 0; i < n; i++)
				CHECKED(-1, load(NULL));
			printf("recovered=%lu\n", faults - before);
		} else if (strcmp(line, "handle\n") == 0) {
			install(SIGSEGV, on_fault);
			printf("handling\n");
		}
	}
	return target_ok();
}
