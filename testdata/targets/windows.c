/*
 * windows: functions whose first instructions are what a jump over them must not break: something jumps or
 * returns between them, they branch, they need their own address, they are too short. Each is called all
 * the time with changing arguments and checked against C. "counts" says how often each was entered; the
 * functions that loop to an instruction of theirs also print how often that was run ("reached NAME N").
 */
#include "target.h"
#include <sys/syscall.h>

#define BEGIN(name) \
	".p2align 4\n.globl " #name "\n.type " #name ", @function\n" #name ":\n.cfi_startproc\n"
#define END(name) "\n.cfi_endproc\n.size " #name ", . - " #name "\n"

__asm__(".pushsection .text\n"

	/* A loop back to the second instruction: n(n+1)/2. */
	BEGIN(loop_to_second)
	"xor %eax, %eax\n"
	".globl loop_to_second_at\nloop_to_second_at: add %rdi, %rax\n"
	"dec %rdi\n" "jg loop_to_second_at\n" "ret"
	END(loop_to_second)

	/* The same back to the first. */
	BEGIN(loop_to_first)
	"dec %rdi\n" "js 1f\n" "add $3, %esi\n" "jmp loop_to_first\n" "1: mov %rsi, %rax\n" "ret"
	END(loop_to_first)

	/* A table of addresses, two of them inside the first five bytes. */
	BEGIN(table_inside)
	"0: inc %esi\n" "1: inc %esi\n" "2: inc %esi\n" "3: mov %esi, %eax\n" "ret"
	END(table_inside)
	BEGIN(table_jump)
	"lea 9f(%rip), %rax\n" "and $3, %edi\n" "movslq (%rax,%rdi,4), %rdi\n" "add %rdi, %rax\n" "jmp *%rax\n"
	".p2align 2\n9: .long 0b - 9b, 1b - 9b, 2b - 9b, 3b - 9b"
	END(table_jump)

	/* Branches of eight bits first, taken and not. */
	BEGIN(short_jcc)
	"test %rdi, %rdi\n" "je 1f\n" "lea 1(%rdi), %rax\n" "ret\n" "1: mov $-1, %rax\n" "ret"
	END(short_jcc)
	BEGIN(flags_at_entry) /* called with the carry flag as an argument */
	"jc 1f\n" "mov $0, %eax\n" "ret\n" "1: mov $1, %eax\n" "ret"
	END(flags_at_entry)
	BEGIN(jrcxz_first)
	"jrcxz 1f\n" "mov %rcx, %rax\n" "ret\n" "1: mov $77, %eax\n" "ret"
	END(jrcxz_first)
	BEGIN(loop_first) /* rcx times */
	"lea 1(%rdi), %rdi\n" "loop loop_first\n" "mov %rdi, %rax\n" "ret"
	END(loop_first)

	/* Calls first: the return address lies in the first bytes. */
	BEGIN(call_first)
	"call twice\n" "inc %rax\n" "ret"
	END(call_first)
	BEGIN(call_second)
	"push %rbx\n" "call twice\n" "pop %rbx\n" "ret"
	END(call_second)
	BEGIN(twice)
	"lea (%rdi,%rdi), %rax\n" "ret"
	END(twice)
	BEGIN(returns_its_return_address) /* what a C++ unwinder or a profiler sees */
	"mov (%rsp), %rax\n" "ret"
	END(returns_its_return_address)
	BEGIN(return_address)
	"call returns_its_return_address\n"
	".globl return_address_at\nreturn_address_at: lea return_address_at(%rip), %rdx\n" "sub %rdx, %rax\n" "ret"
	END(return_address)

	/* A system call, that may be restarted two bytes before where it returns to. */
	BEGIN(syscall_second)
	"mov %edi, %eax\n" "syscall\n" "ret"
	END(syscall_second)

	/* Operands relative to the instruction. */
	BEGIN(rip_relative)
	"mov cell(%rip), %rax\n" "add %rdi, %rax\n" "ret"
	END(rip_relative)
	BEGIN(rip_relative_store)
	"incq counted(%rip)\n" "mov counted(%rip), %rax\n" "ret"
	END(rip_relative_store)
	BEGIN(rip_relative_sse)
	"movq %rdi, %xmm0\n" "paddq wide(%rip), %xmm0\n" "movq %xmm0, %rax\n" "ret"
	END(rip_relative_sse)
	BEGIN(own_address)
	"lea own_address(%rip), %rax\n" "ret"
	END(own_address)

	/* Indirect branch tracking, a prefix that looks like padding, long nops. */
	BEGIN(endbr_first)
	"endbr64\n" "lea 5(%rdi), %rax\n" "ret"
	END(endbr_first)
	BEGIN(long_instruction)
	"movabs $0x1122334455667788, %rax\n" "xor %rdi, %rax\n" "ret"
	END(long_instruction)
	BEGIN(repeated)
	"xor %eax, %eax\n" "rep stosb\n" "mov %rdi, %rax\n" "ret"
	END(repeated)

	/* Short functions, with the next one right behind. */
	".p2align 4\n.globl only_ret\n.type only_ret, @function\nonly_ret: ret\n.size only_ret, . - only_ret\n"
	".globl three_bytes\n.type three_bytes, @function\nthree_bytes: push %rdi\npop %rax\nret\n.size three_bytes, . - three_bytes\n"
	".globl four_bytes\n.type four_bytes, @function\nfour_bytes: mov %rdi, %rax\nret\n.size four_bytes, . - four_bytes\n"

	/* A leaf that keeps its argument below the stack pointer. */
	BEGIN(red_zone)
	"mov %rdi, -8(%rsp)\n" "mov %rsi, -128(%rsp)\n"
	".globl red_zone_at\nred_zone_at: lea 0x100(%rdi), %rdx\n"
	"mov -8(%rsp), %rax\n" "add -128(%rsp), %rax\n" "ret"
	END(red_zone)

	/* All callee-saved pushes, as compilers begin functions. */
	BEGIN(pushes)
	"push %rbp\n" "mov %rsp, %rbp\n" "push %r15\n" "push %r14\n" "push %rbx\n"
	"lea 7(%rdi), %rbx\n" "mov %rbx, %rax\n" "pop %rbx\n" "pop %r14\n" "pop %r15\n" "pop %rbp\n" "ret"
	END(pushes)
	".popsection\n"
	".data\n.p2align 4\nwide: .quad 40, 0\ncell: .quad 1000\n.previous\n"
	".bss\n.p2align 3\n.globl counted\ncounted: .quad 0\n.previous\n");

long loop_to_second(long), loop_to_first(long, long), table_jump(long, long), short_jcc(long), call_first(long),
	call_second(long), return_address(void), syscall_second(long), rip_relative(long), rip_relative_store(void),
	rip_relative_sse(long), own_address(void), endbr_first(long), long_instruction(long),
	three_bytes(long), four_bytes(long), red_zone(long, long), pushes(long);
void only_ret(void);

/* Functions that take an argument in the carry flag, in rcx, or change more than the ABI allows. */
static long with_carry(int carry)
{
	long result;

	__asm__ volatile("sub $128, %%rsp\nbt $0, %1\ncall flags_at_entry\nlea 128(%%rsp), %%rsp"
			 : "=a"(result) : "r"(carry) : "cc", "memory");
	return result;
}

static long with_rcx(long rcx)
{
	long result;

	__asm__ volatile("sub $128, %%rsp\ncall jrcxz_first\nadd $128, %%rsp" : "=a"(result), "+c"(rcx) : : "cc", "memory");
	return result;
}

static long loop_times(long times)
{
	long result = 0;

	__asm__ volatile("sub $128, %%rsp\ncall loop_first\nadd $128, %%rsp" : "+D"(result), "+c"(times) : : "rax", "cc", "memory");
	return result;
}

static char *clear(char *at, long n)
{
	char *end;

	__asm__ volatile("sub $128, %%rsp\ncall repeated\nadd $128, %%rsp" : "=a"(end), "+D"(at), "+c"(n) : : "cc", "memory");
	return end;
}

static uint64_t rounds, second_reached, first_reached;

static void call_all(long i)
{
	long n = i % 20 + 1;
	char bytes[32];

	CHECKED(n * (n + 1) / 2, loop_to_second(n));
	second_reached += n;
	CHECKED(5 + 3 * n, loop_to_first(n, 5));
	first_reached += n + 1;
	CHECKED(10 + 3 - i % 4, table_jump(i % 4, 10));
	CHECKED(n + 1, short_jcc(n));
	CHECKED(-1, short_jcc(0));
	CHECKED(i & 1, with_carry(i & 1));
	CHECKED(i % 3 ? i % 3 : 77, with_rcx(i % 3));
	CHECKED(n, loop_times(n));
	CHECKED(2 * i + 1, call_first(i));
	CHECKED(2 * i, call_second(i));
	CHECKED(0, return_address());
	CHECKED(getpid(), syscall_second(SYS_getpid));
	CHECKED(1000 + i, rip_relative(i));
	CHECKED(rounds + 1, rip_relative_store());
	CHECKED(40 + i, rip_relative_sse(i));
	CHECKED(own_address, own_address());
	CHECKED(i + 5, endbr_first(i));
	CHECKED(0x1122334455667788 ^ i, long_instruction(i));
	memset(bytes, 1, sizeof bytes);
	CHECKED(bytes + n, clear(bytes, n));
	CHECK(bytes[n - 1] == 0 && bytes[n] == 1, "rep stosb wrote %d and %d", bytes[n - 1], bytes[n]);
	only_ret();
	CHECKED(i, three_bytes(i));
	CHECKED(i, four_bytes(i));
	CHECKED(i + n, red_zone(i, n));
	CHECKED(i + 7, pushes(i));
	rounds++;
}

int main(void)
{
	static const struct { const char *name; int each; } entered[] = {
		{ "loop_to_second", 1 }, { "table_jump", 1 }, { "short_jcc", 2 }, { "flags_at_entry", 1 },
		{ "jrcxz_first", 1 }, { "call_first", 1 }, { "call_second", 1 }, { "twice", 2 },
		{ "return_address", 1 }, { "returns_its_return_address", 1 }, { "syscall_second", 1 },
		{ "rip_relative", 1 }, { "rip_relative_store", 1 }, { "rip_relative_sse", 1 }, { "own_address", 1 },
		{ "endbr_first", 1 }, { "long_instruction", 1 }, { "repeated", 1 }, { "only_ret", 1 },
		{ "three_bytes", 1 }, { "four_bytes", 1 }, { "red_zone", 1 }, { "pushes", 1 },
	};
	pthread_t waiter;
	void *(*wait)(void *) = (void *(*)(void *))(void (*)(void))target_wait;

	target_ready();
	CHECKED(0, pthread_create(&waiter, NULL, wait, NULL));
	do
		call_all(rounds);
	while (!target_stopping);
	CHECKED(0, pthread_join(waiter, NULL));
	for (size_t i = 0; i < sizeof entered / sizeof entered[0]; i++)
		target_counts(entered[i].name, rounds * entered[i].each);
	printf("reached loop_to_second_at %lu\n", second_reached);
	printf("reached loop_to_first %lu\n", first_reached);
	return target_ok();
}
