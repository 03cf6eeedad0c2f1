/*
 * dispositions: changes what it does at signals when it is told to. Commands on stdin, each answered by a line:
 *
 *	handle    install a handler for SIGSEGV that knows the faulting instruction by its address
 *	fault     make load() fault and recover
 *	call      call load() a thousand times
 *	reset     SIGTRAP and SIGILL get their default actions
 *	ignore    SIGTRAP and SIGILL are ignored
 */
#include "target.h"
#include <ucontext.h>

/* Returns *pointer, or -1 when the handler sends it to recover. */
long load(long *pointer);
extern char fault[], recover[];
__asm__(".pushsection .text\n"
	".p2align 4\n.globl load\n.type load, @function\nload:\n.cfi_startproc\n"
	"fault: mov (%rdi), %rax\n" "add $1, %rax\n" "sub $1, %rax\n" "ret\n"
	"recover: mov $-1, %rax\n" "ret\n.cfi_endproc\n.size load, . - load\n"
	".popsection\n");

static void on_fault(int sig, siginfo_t *info, void *context)
{
	ucontext_t *u = context;
	char *pc = (char *)u->uc_mcontext.gregs[REG_RIP];

	CHECK(sig == SIGSEGV && pc == fault && info->si_addr == NULL, "signal %d at %p, want %p", sig, (void *)pc, (void *)fault);
	u->uc_mcontext.gregs[REG_RIP] = (long)recover;
}

static void set(int sig, void (*handler)(int))
{
	struct sigaction act = { .sa_handler = handler };

	CHECKED(0, sigaction(sig, &act, NULL));
}

int main(void)
{
	char line[64];
	unsigned long calls = 0;

	target_ready();
	while (fgets(line, sizeof line, stdin) && strcmp(line, "stop\n") != 0) {
		if (strcmp(line, "handle\n") == 0) {
			struct sigaction act = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };

			CHECKED(0, sigaction(SIGSEGV, &act, NULL));
		} else if (strcmp(line, "fault\n") == 0) {
			CHECKED(-1, load(NULL));
			calls++;
		} else if (strcmp(line, "call\n") == 0) {
			for (long i = 0; i < 1000; i++, calls++)
				CHECKED(i, load(&i));
		} else if (strcmp(line, "reset\n") == 0) {
			set(SIGTRAP, SIG_DFL);
			set(SIGILL, SIG_DFL);
		} else if (strcmp(line, "ignore\n") == 0) {
			set(SIGTRAP, SIG_IGN);
			set(SIGILL, SIG_IGN);
		} else {
			CHECK(0, "unknown command %s", line);
		}
		printf("did %s", line);
	}
	target_counts("load", calls);
	return target_ok();
}
