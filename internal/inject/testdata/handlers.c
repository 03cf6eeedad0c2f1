// Runs the signal handlers that trapless injects, without a tracer: maps the
// code that the test assembled, installs it the way the tracer does, and checks
// what a target sees. Each case runs in a child of its own.
//
// usage: handlers CODE-FILE CASE
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/ucontext.h>
#include <unistd.h>

// What the test puts at the start of the file, then size bytes for base.
struct head {
	uint64_t base, size, data, handler, restorer, tables;
	// Code in the region: each returns a number, unless stated otherwise.
	uint64_t int3_boundary; // int3 at a boundary, moved: returns 42
	uint64_t ill_boundary;  // 06 at a boundary, moved: returns 43
	uint64_t fault;         // moved load from NULL, whose original address is fault_orig
	uint64_t call_fault;    // moved call through NULL that has pushed, whose original address is fault_orig, too
	uint64_t divide;        // moved division by zero, whose original address is fault_orig, too
	uint64_t fault_orig;
	uint64_t foreign_int3; // int3 that nobody knows, then returns 44
	uint64_t foreign_ill;  // ud2 that nobody knows
	uint64_t was_int3;     // the target's int3 where something of ours was, then returns 44
	uint64_t was_gone;     // a nop where something of ours was
} h;

struct kernel_sigaction { uint64_t handler, flags, restorer, mask; };

static void die(const char *what) { perror(what); exit(100); }

static struct kernel_sigaction *old_of(int sig) { return (void *)(h.data + 0x40 + 32 * sig); }

static void install(int sig)
{
	struct kernel_sigaction now, *old = old_of(sig);
	if (syscall(SYS_rt_sigaction, sig, NULL, old, 8)) die("rt_sigaction");
	now = *old;
	if (old->handler <= 1)
		now = (struct kernel_sigaction){ .flags = SA_ONSTACK | SA_NODEFER };
	now.flags = (now.flags & ~(uint64_t)SA_RESETHAND) | SA_SIGINFO | 0x04000000;
	now.handler = h.handler;
	now.restorer = h.restorer;
	if (syscall(SYS_rt_sigaction, sig, &now, NULL, 8)) die("rt_sigaction");
}

static volatile uint64_t traps; // counted by the handlers

static void install_all(void)
{
	int sigs[] = { SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV };
	for (int i = 0; i < 5; i++) install(sigs[i]);
	((uint64_t *)h.data)[0] = h.tables;
	((uint64_t *)h.data)[3] = (uint64_t)&traps;
}

static volatile int calls;
static volatile uint64_t seen_rip, seen_rsp, seen_mask, seen_addr;
static sigjmp_buf escape;

static uint64_t mask_now(void)
{
	uint64_t m = 0;
	if (syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &m, 8)) die("rt_sigprocmask");
	return m;
}

static void note(int sig, siginfo_t *info, void *ctx)
{
	(void)sig;
	calls++;
	seen_rip = ((ucontext_t *)ctx)->uc_mcontext.gregs[REG_RIP];
	seen_rsp = ((ucontext_t *)ctx)->uc_mcontext.gregs[REG_RSP];
	seen_addr = (uint64_t)info->si_addr;
	seen_mask = mask_now();
}

static void note_and_leave(int sig, siginfo_t *info, void *ctx) { note(sig, info, ctx); siglongjmp(escape, 1); }

static void action(int sig, void (*f)(int, siginfo_t *, void *), int flags)
{
	struct sigaction sa = { .sa_sigaction = f, .sa_flags = SA_SIGINFO | flags };
	sigemptyset(&sa.sa_mask);
	sigaddset(&sa.sa_mask, SIGUSR2);
	if (sigaction(sig, &sa, NULL)) die("sigaction");
}

static uint64_t call(uint64_t at) { return ((uint64_t(*)(void))at)(); }
static uint64_t bit(int sig) { return 1ull << (sig - 1); }

static void want(int ok, const char *what)
{
	if (!ok) { printf("failed: %s (calls %d rip %#lx mask %#lx)\n", what, calls, seen_rip, seen_mask); exit(1); }
}

static int run(const char *c)
{
	if (!strcmp(c, "boundaries")) {
		install_all();
		want(call(h.int3_boundary) == 42, "int3 boundary");
		want(call(h.ill_boundary) == 43, "invalid opcode boundary");
		want(mask_now() == 0, "mask after a boundary");
		want(traps == 2, "both were counted");
		((uint64_t *)h.data)[3] = 0;
		want(call(h.ill_boundary) == 43 && traps == 2, "without a counter");
	} else if (!strcmp(c, "boundaries-beside-a-handler")) {
		action(SIGTRAP, note, 0);
		action(SIGILL, note, 0);
		install_all();
		want(call(h.int3_boundary) == 42 && call(h.ill_boundary) == 43, "boundaries");
		want(calls == 0, "the target's handler is not called for ours");
	} else if (!strcmp(c, "fault-is-reported-at-its-own-address")) {
		action(SIGSEGV, note_and_leave, 0);
		install_all();
		if (!sigsetjmp(escape, 1)) call(h.fault);
		want(calls == 1 && seen_rip == h.fault_orig, "address of the fault");
		want(seen_addr == 0, "si_addr, the address that was read");
		want(traps == 0, "a fault is no trap");
		want(seen_mask == (bit(SIGSEGV) | bit(SIGUSR2)), "mask in the handler");
	} else if (!strcmp(c, "division-is-reported-at-its-own-address")) {
		action(SIGFPE, note_and_leave, 0);
		install_all();
		if (!sigsetjmp(escape, 1)) call(h.divide);
		want(calls == 1 && seen_rip == h.fault_orig, "address of the division");
		want(seen_addr == h.fault_orig, "si_addr of the division");
	} else if (!strcmp(c, "fault-of-a-call-that-has-pushed")) {
		volatile uint64_t rsp;
		action(SIGSEGV, note_and_leave, 0);
		install_all();
		if (!sigsetjmp(escape, 1)) call(h.fault);
		rsp = seen_rsp;
		if (!sigsetjmp(escape, 1)) call(h.call_fault);
		want(calls == 2 && seen_rip == h.fault_orig, "address of the call");
		want(seen_rsp == rsp, "stack pointer before the call");
	} else if (!strcmp(c, "foreign-trap-goes-to-the-target")) {
		action(SIGTRAP, note, SA_NODEFER);
		install_all();
		want(call(h.foreign_int3) == 44, "goes on after its int3");
		want(calls == 1 && seen_rip == h.foreign_int3 + 1, "address of the trap");
		want(seen_mask == bit(SIGUSR2), "mask of a handler with SA_NODEFER");
	} else if (!strcmp(c, "own-trap-where-ours-was")) {
		action(SIGTRAP, note, SA_NODEFER);
		install_all();
		want(call(h.was_int3) == 44 && calls == 1 && seen_rip == h.was_int3 + 1, "goes to the target");
		want(traps == 0, "it is not counted");
	} else if (!strcmp(c, "taken-out-meanwhile")) {
		// As if the trap had come while ours was still there.
		void (*handler)(int, siginfo_t *, void *) = (void *)h.handler;
		ucontext_t ctx = {};
		siginfo_t info = { .si_code = SI_KERNEL };
		action(SIGTRAP, note, 0);
		install_all();
		ctx.uc_mcontext.gregs[REG_RIP] = h.was_gone + 1;
		handler(SIGTRAP, &info, &ctx);
		want((uint64_t)ctx.uc_mcontext.gregs[REG_RIP] == h.was_gone, "an int3 is tried again");
		info.si_code = ILL_ILLOPN;
		handler(SIGILL, &info, &ctx);
		want((uint64_t)ctx.uc_mcontext.gregs[REG_RIP] == h.was_gone, "an invalid opcode is tried again");
		want(calls == 0 && traps == 0, "nobody is told");
	} else if (!strcmp(c, "one-shot-handler")) {
		action(SIGTRAP, note, SA_RESETHAND);
		install_all();
		want(call(h.foreign_int3) == 44 && calls == 1, "first time");
		call(h.foreign_int3); // dies
	} else if (!strcmp(c, "sent-signal-reaches-the-handler")) {
		action(SIGSEGV, note, 0);
		install_all();
		raise(SIGSEGV);
		want(calls == 1, "sent SIGSEGV");
	} else if (!strcmp(c, "sent-signal-is-ignored")) {
		signal(SIGTRAP, SIG_IGN);
		install_all();
		raise(SIGTRAP);
	} else if (!strcmp(c, "own-trap-is-not-ignored")) {
		signal(SIGTRAP, SIG_IGN);
		install_all();
		call(h.foreign_int3); // dies
	} else if (!strcmp(c, "default-int3")) {
		install_all();
		call(h.foreign_int3); // dies
	} else if (!strcmp(c, "default-sent-trap")) {
		install_all();
		raise(SIGTRAP); // dies
	} else if (!strcmp(c, "default-ill")) {
		install_all();
		call(h.foreign_ill); // dies
	} else if (!strcmp(c, "default-segv")) {
		install_all();
		call(h.fault); // dies
	} else if (!strcmp(c, "default-sent-segv")) {
		install_all();
		raise(SIGSEGV); // dies
	} else {
		printf("no case %s\n", c);
		return 1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	int fd = argc == 3 ? open(argv[1], O_RDONLY) : -1;
	if (fd < 0 || read(fd, &h, sizeof h) != sizeof h) die("code file");
	void *at = mmap((void *)h.base, h.size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (at != (void *)h.base || read(fd, at, h.size) != (ssize_t)h.size) die("region");
	if (mprotect(at, h.size, PROT_READ | PROT_EXEC)) die("mprotect");
	if (mmap((void *)h.data, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED) die("data");
	return run(argv[2]);
}
