/*
 * faults: functions whose first instructions fault, in a program that recovers: as a JVM or a Go program
 * does, its handlers know the faulting instruction by its address. Wherever that instruction is run from, the
 * handler must be told its own address, the right registers and the right signal.
 */
#include "target.h"
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

/*
 * load: returns *pointer; divide: returns dividend / divisor. Both fault at their first or second
 * instruction, whose address is fault_NAME, and return -1 when the handler sends them to recover_NAME.
 */
long load(long *pointer), divide(long dividend, long divisor), store(long *pointer, long value);
extern char fault_load[], recover_load[], fault_divide[], recover_divide[], fault_store[], recover_store[];
__asm__(".pushsection .text\n"
	".p2align 4\n.globl load\n.type load, @function\nload:\n.cfi_startproc\n"
	"fault_load: mov (%rdi), %rax\n" "add $1, %rax\n" "sub $1, %rax\n" "ret\n"
	"recover_load: mov $-1, %rax\n" "ret\n.cfi_endproc\n.size load, . - load\n"
	".p2align 4\n.globl store\n.type store, @function\nstore:\n.cfi_startproc\n"
	"xor %eax, %eax\n" "fault_store: mov %rsi, (%rdi)\n" "add $0, %rax\n" "ret\n"
	"recover_store: mov $-1, %rax\n" "ret\n.cfi_endproc\n.size store, . - store\n"
	".p2align 4\n.globl divide\n.type divide, @function\ndivide:\n.cfi_startproc\n"
	"mov %rdi, %rax\n" "cqo\n" "fault_divide: idiv %rsi\n" "ret\n"
	"recover_divide: mov $-1, %rax\n" "ret\n.cfi_endproc\n.size divide, . - divide\n"
	".popsection\n");

static const struct {
	char *fault, *recover;
	int signal;
} places[] = {
	{ fault_load, recover_load, SIGSEGV },
	{ fault_load, recover_load, SIGBUS },
	{ fault_store, recover_store, SIGSEGV },
	{ fault_divide, recover_divide, SIGFPE },
};

static atomic_ulong loads, stores, divides;
static _Thread_local long *expected_address;
static _Thread_local sigjmp_buf back;
static _Thread_local volatile sig_atomic_t jumps;
static _Thread_local int by_jump;

static void on_fault(int sig, siginfo_t *info, void *context)
{
	ucontext_t *u = context;
	char *pc = (char *)u->uc_mcontext.gregs[REG_RIP];

	for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
		if (pc != places[i].fault || sig != places[i].signal)
			continue;
		if (sig != SIGFPE) {
			CHECK(info->si_addr == expected_address, "signal %d at address %p, want %p", sig, info->si_addr,
			      (void *)expected_address);
			CHECK((long *)u->uc_mcontext.gregs[REG_RDI] == expected_address, "signal %d: rdi is %#llx", sig,
			      u->uc_mcontext.gregs[REG_RDI]);
		} else {
			CHECK(info->si_addr == pc, "SIGFPE at %p, want %p", info->si_addr, pc);
		}
		if (by_jump) {
			jumps++;
			siglongjmp(back, 1);
		}
		u->uc_mcontext.gregs[REG_RIP] = (long)places[i].recover;
		return;
	}
	CHECK(0, "signal %d at unknown pc %p (load %p, store %p, divide %p)", sig, pc, fault_load, fault_store, fault_divide);
}

/* A page of a file that ends before it: reading it is SIGBUS. */
static long *behind_the_end(void)
{
	FILE *empty = tmpfile();
	void *page;

	CHECK(empty, "tmpfile: %s", strerror(errno));
	page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fileno(empty), 0);
	CHECK(page != MAP_FAILED, "mmap: %s", strerror(errno));
	return page;
}

static void fault_once(long *bad)
{
	long good = 17;

	expected_address = bad;
	loads += 2;
	stores += 2;
	divides += 2;
	CHECKED(17, load(&good));
	CHECKED(-1, load(bad));
	CHECKED(0, store(&good, 18));
	CHECKED(18, good);
	expected_address = NULL;
	CHECKED(-1, store(NULL, 1));
	CHECKED(6, divide(42, 7));
	CHECKED(-1, divide(42, 0));
}

static void fault_and_jump(void)
{
	by_jump = 1;
	expected_address = NULL;
	loads++;
	if (sigsetjmp(back, 1) == 0) {
		load(NULL);
		CHECK(0, "load(NULL) returned");
	}
	by_jump = 0;
}

static void *fault_loop(void *arg)
{
	long *behind = behind_the_end();

	for (int i = 0; !target_stopping; i++) {
		fault_once(i % 2 ? behind : NULL);
		fault_and_jump();
	}
	return arg;
}

int main(void)
{
	struct sigaction act = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	pthread_t threads[4];

	CHECKED(0, sigaction(SIGSEGV, &act, NULL));
	CHECKED(0, sigaction(SIGBUS, &act, NULL));
	CHECKED(0, sigaction(SIGFPE, &act, NULL));
	for (int i = 0; i < 4; i++)
		CHECKED(0, pthread_create(&threads[i], NULL, fault_loop, NULL));
	target_ready();
	target_wait();
	for (int i = 0; i < 4; i++)
		CHECKED(0, pthread_join(threads[i], NULL));
	target_counts("load", loads);
	target_counts("store", stores);
	target_counts("divide", divides);
	return target_ok();
}
