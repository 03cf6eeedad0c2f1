/*
 * relocated: functions of a few instructions each, in every form that moves in its own way, or that what
 * runs around it might disturb. Each exists twice, as NAME and as unprobed_NAME, which nobody probes. Both are
 * run in the same random state, and leave the same 16 registers, flags, memory and vector register behind,
 * or the program fails. It ends by itself, and prints how much it ran.
 *
 * usage: relocated [ROUNDS]
 */
#include "target.h"
#include <cpuid.h>
#include <stddef.h>

/* What a case starts with and leaves behind. rsp is how far it is from where it was. */
struct state {
	uint64_t gpr[16]; /* by hardware number */
	uint64_t flags;
	uint64_t vector[8];
};

#define CELLS 128
#define STACK 4096 /* words: a signal may come while it is in use */
static uint64_t cells[CELLS] __attribute__((aligned(64)));       /* what operands refer to */
static uint64_t other_stack[STACK] __attribute__((aligned(64))); /* for a case that changes stacks */
extern char callee[];
char *callee_pointer = callee; /* for calls and jumps through memory */

/* Runs a function in a state, which it replaces. */
void enter(struct state *s, void (*function)(void));

__asm__(".pushsection .bss\n.p2align 3\n"
	"enter_rsp: .quad 0\nenter_state: .quad 0\nenter_function: .quad 0\nenter_rax: .quad 0\n"
	".popsection\n.pushsection .text\n"
	".p2align 4\n.globl enter\n.type enter, @function\nenter:\n.cfi_startproc\n"
	"push %rbx\npush %rbp\npush %r12\npush %r13\npush %r14\npush %r15\npush %rax\n"
	"mov %rsp, enter_rsp(%rip)\nmov %rdi, enter_state(%rip)\nmov %rsi, enter_function(%rip)\n"
	"mov %rdi, %rax\nmovups 136(%rax), %xmm1\nmovups 152(%rax), %xmm2\n"
	"mov 8(%rax), %rcx\nmov 16(%rax), %rdx\nmov 24(%rax), %rbx\nmov 40(%rax), %rbp\nmov 48(%rax), %rsi\n"
	"mov 56(%rax), %rdi\nmov 64(%rax), %r8\nmov 72(%rax), %r9\nmov 80(%rax), %r10\nmov 88(%rax), %r11\n"
	"mov 96(%rax), %r12\nmov 104(%rax), %r13\nmov 112(%rax), %r14\nmov 120(%rax), %r15\n"
	"push 128(%rax)\npopf\nmov 0(%rax), %rax\n"
	"call *enter_function(%rip)\n"
	"mov %rax, enter_rax(%rip)\nmov enter_state(%rip), %rax\n"
	"mov %rcx, 8(%rax)\nmov %rdx, 16(%rax)\nmov %rbx, 24(%rax)\nmov %rbp, 40(%rax)\nmov %rsi, 48(%rax)\n"
	"mov %rdi, 56(%rax)\nmov %r8, 64(%rax)\nmov %r9, 72(%rax)\nmov %r10, 80(%rax)\nmov %r11, 88(%rax)\n"
	"mov %r12, 96(%rax)\nmov %r13, 104(%rax)\nmov %r14, 112(%rax)\nmov %r15, 120(%rax)\n"
	"mov enter_rax(%rip), %rcx\nmov %rcx, 0(%rax)\n"
	"pushf\npop 128(%rax)\ncld\n"
	"mov %rsp, %rcx\nsub enter_rsp(%rip), %rcx\nmov %rcx, 32(%rax)\n"
	"movups %xmm1, 136(%rax)\nmovups %xmm2, 152(%rax)\n"
	"mov enter_rsp(%rip), %rsp\n"
	"pop %rax\npop %r15\npop %r14\npop %r13\npop %r12\npop %rbp\npop %rbx\nret\n"
	".cfi_endproc\n.size enter, . - enter\n"

	/* Called by cases; it says where it would return to. */
	".p2align 4\n.globl callee\n.type callee, @function\ncallee:\n.cfi_startproc\n"
	"mov (%rsp), %r9\nadd %rsi, %rax\nrol $3, %rax\nret\n"
	".cfi_endproc\n.size callee, . - callee\n"
	".popsection\n");

/* JCC is one case for a condition: jumps of eight bits, one over a single byte. */
#define JCC(X, cc) \
	X(jump_##cc, ANY, "cmp %esi, %eax\nj" #cc " 1f\ninc %eax\n1: j" #cc " 2f\nnop\n2: lea 1(%rax), %rax\n" \
		"j" #cc " 3f\nnot %rax\n3: j" #cc " 4f\nnop\nnop\nnop\n4: set" #cc " %dl\ncmov" #cc " %rsi, %r8\nret")

/* RIP is an instruction with an operand relative to itself, between others. */
#define RIP(X, name, instruction) X(rip_##name, ANY, "inc %r8d\n" instruction "\nlea 3(%r9), %r9\nret")
#define AVX_RIP(X, name, instruction) \
	X(rip_##name, AVX2, "vmovups cells+64(%rip), %ymm0\nvmovups cells+96(%rip), %ymm3\n" instruction "\nvmovups %ymm0, cells+256(%rip)\nvzeroupper\nret")
#define AVX512_RIP(X, name, instruction) \
	X(rip_##name, AVX512, "vmovups cells+64(%rip), %zmm0\nkxnorw %k1, %k1, %k1\n" instruction "\nvmovups %zmm0, cells+256(%rip)\nvzeroupper\nret")

/* X(name, what the processor must have, the instructions) */
#define CASES(X) \
	/* Branches that have a short form only. */ \
	X(jrcxz_forward, ANY, "jrcxz 1f\nadd $3, %rax\nret\n1: sub $5, %rax\nret") \
	X(jecxz_forward, ANY, "jecxz 1f\nadd $3, %rax\nret\n1: sub $5, %rax\nret") \
	X(jrcxz_back, ANY, "jmp 2f\n1: not %rax\nret\n2: jrcxz 1b\ninc %eax\nret") \
	X(loop_back, ANY, "and $7, %ecx\ninc %ecx\n1: add %rcx, %rax\nloop 1b\nret") \
	X(loop_self, ANY, "and $7, %ecx\ninc %ecx\n1: loop 1b\nret") \
	X(loop_start, ANY, "0: inc %rax\nshr $5, %rcx\njrcxz 1f\ninc %rcx\nloop 0b\n1: ret") \
	X(loop_equal, ANY, "and $15, %ecx\ninc %ecx\n1: inc %rax\ntest $4, %al\nloope 1b\nret") \
	X(loop_not_equal, ANY, "and $15, %ecx\ninc %ecx\n1: inc %rax\ntest $3, %al\nloopne 1b\nret") \
	X(loop_ecx, ANY, "and $7, %ecx\ninc %ecx\n1: inc %rax\naddr32 loop 1b\nret") \
	JCC(X, o) JCC(X, no) JCC(X, b) JCC(X, ae) JCC(X, e) JCC(X, ne) JCC(X, be) JCC(X, a) \
	JCC(X, s) JCC(X, ns) JCC(X, p) JCC(X, np) JCC(X, l) JCC(X, ge) JCC(X, le) JCC(X, g) \
	/* Jumps into what lies near. */ \
	X(jump_next, ANY, "jmp 1f\n1: jmp 1f\n1: inc %eax\njmp 1f\n1: ret") \
	X(jump_back, ANY, "and $15, %eax\n1: dec %al\njns 1b\nret") \
	X(jump_start, ANY, "0: shr $1, %rax\njnz 0b\nret") \
	X(jump_second, ANY, "inc %edx\n1: shr $1, %rax\njnz 1b\nret") \
	X(jump_third, ANY, "inc %edx\nnop\n1: shr $7, %rax\njnz 1b\nret") \
	X(jump_over_prefix, ANY, "test $1, %al\nje 1f\n.byte 0xf0\n1: incl cells+8(%rip)\nret") \
	X(jump_hinted, ANY, "test %al, %al\n.byte 0x2e\njz 1f\ninc %eax\n1: .byte 0x3e\njnz 2f\nnop\n2: ret") \
	X(jump_long, ANY, "test %al, %al\n.byte 0x0f, 0x84, 2, 0, 0, 0\ninc %eax\n.byte 0xe9, 0, 0, 0, 0\nret") \
	X(jump_bnd, ANY, "bnd jmp 1f\nnop\n1: ret") \
	X(jump_tail, ANY, "nop\njmp callee") \
	X(jump_tail_if, ANY, "test $1, %al\njz callee\nxor %r9d, %r9d\nret") \
	X(jump_pointer, ANY, "jmp *callee_pointer(%rip)") \
	X(jump_register, ANY, "lea callee(%rip), %rdx\njmp *%rdx") \
	/* Switches: by a table of distances, of addresses, and by arithmetic, which nobody foresees. */ \
	X(table_relative, ANY, "mov %eax, %edx\nand $7, %edx\nlea 9f(%rip), %r8\nmovslq (%r8,%rdx,4), %rdx\nadd %r8, %rdx\n" \
		"notrack jmp *%rdx\n1: inc %eax\n2: inc %eax\n3: nop\n4: add $3, %al\n5: xor $1, %al\n6: cltq\n7: not %rax\n" \
		"8: xor %edx, %edx\nxor %r8d, %r8d\nret\n.pushsection .rodata\n.p2align 2\n" \
		"9: .long 1b - 9b, 2b - 9b, 3b - 9b, 4b - 9b, 5b - 9b, 6b - 9b, 7b - 9b, 8b - 9b\n.popsection") \
	X(table_bounded, ANY, "cmp $5, %al\nja 8f\nmovzbl %al, %edx\nlea 9f(%rip), %r8\nmovslq (%r8,%rdx,4), %rdx\nadd %r8, %rdx\n" \
		"jmp *%rdx\n1: inc %eax\n2: inc %eax\n3: nop\n4: add $3, %al\n5: xor $1, %al\n6: cltq\n" \
		"8: xor %edx, %edx\nxor %r8d, %r8d\nret\n.pushsection .rodata\n.p2align 2\n" \
		"9: .long 1b - 9b, 2b - 9b, 3b - 9b, 4b - 9b, 5b - 9b, 6b - 9b\n.popsection") \
	X(table_absolute, ANY, "mov %eax, %edx\nand $3, %edx\nlea 9f(%rip), %r8\nmov (%r8,%rdx,8), %rdx\n" \
		"jmp *%rdx\n1: inc %eax\n2: inc %eax\n3: nop\n4: add $3, %al\nxor %edx, %edx\nxor %r8d, %r8d\nret\n" \
		".pushsection .data.rel.ro,\"aw\"\n.p2align 3\n9: .quad 1b, 2b, 3b, 4b\n.popsection") \
	X(table_computed, ANY, "mov %eax, %edx\nand $3, %edx\nlea 1f(%rip), %r8\nlea (%r8,%rdx,2), %r8\njmp *%r8\n" \
		"1: inc %eax\ninc %eax\ninc %eax\ninc %eax\nxor %r8d, %r8d\nret") \
	X(table_of_bytes, ANY, "mov %eax, %edx\nand $7, %edx\nlea 1f(%rip), %r8\nlea (%r8,%rdx), %r8\njmp *%r8\n" \
		"1: nop\ncmc\nnop\ncwtl\nnop\ncmc\ncltd\nnop\nmov $0, %r8d\nret") \
	/* Calls and returns. */ \
	X(call_local, ANY, "call 1f\ninc %rax\nret\n1: add %rsi, %rax\nret") \
	X(call_other, ANY, "push %rax\ncall callee\n1: pop %rdx\nlea 1b(%rip), %r8\nsub %r8, %r9\nmov $0, %r8d\nret") \
	X(call_first, ANY, "call callee\n1: lea 1b(%rip), %r8\nsub %r8, %r9\nmov $0, %r8d\nret") \
	X(call_next, ANY, "call 1f\n1: pop %rdx\nlea 1b(%rip), %r8\nsub %r8, %rdx\nmov $0, %r8d\nret") \
	X(call_register, ANY, "lea callee(%rip), %r8\ncall *%r8\n1: lea 1b(%rip), %r8\nsub %r8, %r9\nmov $0, %r8d\nret") \
	X(call_pointer, ANY, "call *callee_pointer(%rip)\n1: lea 1b(%rip), %r8\nsub %r8, %r9\nmov $0, %r8d\nret") \
	X(call_deep, ANY, "and $15, %ecx\n1: jrcxz 2f\ndec %ecx\ncall 1b\ninc %rax\n2: ret") \
	X(call_prefixed, ANY, "bnd call callee\n1: lea 1b(%rip), %r8\nsub %r8, %r9\nmov $0, %r8d\nret") \
	X(return_popping, ANY, "push %rax\npush %rcx\ncall 1f\ninc %rax\nret\n1: inc %rax\nret $16") \
	X(return_prefixed, ANY, "inc %eax\nrepz ret") \
	X(return_to_pushed, ANY, "lea 1f(%rip), %rdx\npush %rdx\nxor %edx, %edx\nret\n1: inc %rax\nret") \
	X(return_alone, ANY, "ret") \
	X(return_second, ANY, "nop\nret") \
	X(return_third, ANY, "inc %eax\nret") \
	X(endbr, ANY, "endbr64\nret") \
	/* The stack. */ \
	X(stack_pushes, ANY, "push %rax\npush %r15\npush $7\npush $0x12345678\npop %rdx\npop %rcx\npop %r8\npop %r9\nret") \
	X(stack_pointer_pushed, ANY, "push %rsp\npop %rdx\nsub %rsp, %rdx\nret") \
	X(stack_frame, ANY, "push %rbp\nmov %rsp, %rbp\nsub $24, %rsp\nmov %rax, -8(%rbp)\nmov -8(%rbp), %rdx\nleave\nret") \
	X(stack_enter, ANY, "enter $32, $0\nmov %rax, (%rsp)\nmov (%rsp), %rdx\nleave\nret") \
	X(stack_misaligned, ANY, "pushw %ax\nnop\ninc %eax\nmov (%rsp), %dx\npopw %cx\nret") \
	X(stack_switched, ANY, "mov %rsp, %r8\nlea other_stack+32768(%rip), %rsp\npush %rax\ncall callee\npop %rdx\n" \
		"mov %r8, %rsp\nxor %r8d, %r8d\nxor %r9d, %r9d\nret") \
	X(stack_exchanged, ANY, "lea other_stack+32768(%rip), %r8\nxchg %rsp, %r8\npush %rax\npop %rdx\nxchg %r8, %rsp\nxor %r8d, %r8d\nret") \
	X(red_zone, ANY, "mov %rax, -8(%rsp)\nmov %rsi, -64(%rsp)\nmov %rcx, -128(%rsp)\nnop\ninc %eax\n" \
		"xor -8(%rsp), %rdx\nadd -64(%rsp), %rdx\nsub -128(%rsp), %rdx\nret") \
	X(red_zone_leaf, ANY, "movups %xmm1, -24(%rsp)\nnop\nnop\nmov -24(%rsp), %rax\nmov -16(%rsp), %rdx\nret") \
	/* Flags that live on. */ \
	X(flags_kept, ANY, "cmp %rax, %rsi\nnop\nlea 1(%rax), %rax\nmov %rcx, %rcx\nadc $0, %rax\nsetg %dl\nseto %cl\nnop\nret") \
	X(flags_all, ANY, "add %rsi, %rax\npushf\npop %rdx\nnop\npushf\nnop\npopf\nlahf\nnop\nsahf\nret") \
	X(flags_in, ANY, "nop\nnop\nadc %rcx, %rax\nrcl $1, %rdx\nrcr $3, %r8\nsbb %rsi, %r9\ncmc\nrcl %cl, %r10\nret") \
	X(flags_direction, ANY, "std\nnop\nlodsb\ninc %ecx\nstosb\nnop\ncld\nlodsb\nret") \
	X(flags_alignment, ANY, "pushf\norl $0x40000, (%rsp)\npopf\nnop\nmov %rax, -8(%rsp)\ninc %eax\nmov -8(%rsp), %rdx\n" \
		"pushf\nandl $~0x40000, (%rsp)\npopf\nret") \
	X(flags_partial, ANY, "inc %eax\ndec %ecx\nrol $1, %edx\nshl $0, %r8\nshl %cl, %r9\nbt $3, %eax\nadc %r10d, %r11d\nret") \
	/* Single bytes, each a boundary. */ \
	X(bytes, ANY, "nop\ncmc\nclc\nstc\ncld\ncwtl\ncltq\ncltd\ncqto\nlahf\nsahf\nxchg %eax, %edx\nxchg %rax, %rsi\nnop\nret") \
	X(bytes_of_stack, ANY, "push %rax\npush %rcx\npush %rdx\npush %rbx\npop %rax\npop %rcx\npop %rdx\npop %rbx\npushf\npop %rsi\nret") \
	X(bytes_of_strings, ANY, "lodsb\nstosb\nmovsb\nscasb\ncmpsb\nlodsl\nstosl\nmovsl\nscasl\ncmpsl\nret") \
	X(strings, ANY, "and $63, %ecx\nrep movsb\nmov $3, %ecx\nrep stosq\nmov $9, %ecx\nrepne scasb\nmov $9, %ecx\nrepe cmpsw\nret") \
	X(strings_none, ANY, "xor %ecx, %ecx\nrep movsb\nrep stosq\nrepne scasb\nrepe cmpsb\nret") \
	X(translate, ANY, "mov %rdi, %rbx\nxlat\nret") \
	/* Its own address, and what is far away. */ \
	X(own_address, ANY, "lea (%rip), %rdx\n1: lea 1b(%rip), %r8\nsub %r8, %rdx\nmov $0, %r8d\nret") \
	X(far_below, ANY, "lea -0x7ff00000(%rip), %rdx\n1: lea 1b(%rip), %r8\nsub %r8, %rdx\nmov $0, %r8d\nret") \
	X(far_above, ANY, "lea 0x7ff00000(%rip), %rdx\n1: lea 1b(%rip), %r8\nsub %r8, %rdx\nmov $0, %r8d\nret") \
	X(system_call, ANY, "mov $110, %eax\nsyscall\n1: lea 1b(%rip), %rdx\nsub %rdx, %rcx\nmov $0, %edx\nret") \
	X(thread_pointer, ANY, "mov %fs:0, %rdx\nmov %fs:0x10, %r8\nsub %rdx, %r8\nret") \
	X(long_nops, ANY, ".byte 0x66,0x66,0x66,0x66,0x2e,0x0f,0x1f,0x84,0,0,0,0,0\nmovabs $0x123456789abcdef0, %rdx\n.byte 0x66,0x90\nret") \
	X(x87, ANY, "fld1\nfldpi\nfaddp\nfstpl cells+32(%rip)\nfildl cells+4(%rip)\nfstpt cells+48(%rip)\nret") \
	X(memory, ANY, "mov (%rdi), %eax\nadd %rax, 8(%rdi)\nmovzbl 3(%rsi,%rcx), %edx\nlock xadd %rax, 16(%rdi)\nxchg %cl, 5(%rdi)\nret") \
	/* Operands relative to the instruction, of every width, with and without immediates behind them. */ \
	RIP(X, load8, "mov cells+1(%rip), %al") RIP(X, load16, "mov cells+2(%rip), %ax") \
	RIP(X, load32, "mov cells+4(%rip), %eax") RIP(X, load64, "mov cells+8(%rip), %rax") \
	RIP(X, store8, "mov %cl, cells+1(%rip)") RIP(X, store16, "mov %cx, cells+2(%rip)") \
	RIP(X, store32, "mov %ecx, cells+4(%rip)") RIP(X, store64, "mov %r12, cells+8(%rip)") \
	RIP(X, imm8, "movb $0x12, cells+1(%rip)") RIP(X, imm16, "movw $0x1234, cells+2(%rip)") \
	RIP(X, imm32, "movl $0x12345678, cells+4(%rip)") RIP(X, imm64, "movq $-0x12345678, cells+8(%rip)") \
	RIP(X, add_imm8, "addq $-3, cells+8(%rip)") RIP(X, add_imm32, "addl $0x1000, cells+4(%rip)") \
	RIP(X, adc_load, "adc cells+8(%rip), %rax") RIP(X, sbb_store, "sbb %rdx, cells+8(%rip)") \
	RIP(X, cmp_imm, "cmpb $0x40, cells+3(%rip)") RIP(X, test_imm16, "testw $0x8001, cells+6(%rip)") \
	RIP(X, test_imm32, "testl $0x80010000, cells+4(%rip)") RIP(X, inc, "incb cells(%rip)") RIP(X, neg, "negq cells+16(%rip)") \
	RIP(X, shl_one, "shlq cells+8(%rip)") RIP(X, sar_imm, "sarl $5, cells+8(%rip)") RIP(X, rol_cl, "rolw %cl, cells+8(%rip)") \
	RIP(X, shld_imm, "shld $7, %rax, cells+8(%rip)") RIP(X, shrd_cl, "shrd %cl, %eax, cells+8(%rip)") \
	RIP(X, imul, "imul cells+8(%rip), %rdx") RIP(X, imul_imm8, "imul $7, cells+8(%rip), %edx") \
	RIP(X, imul_imm32, "imul $0x10001, cells+8(%rip), %rdx") RIP(X, imul_imm16, "imul $0x101, cells+8(%rip), %dx") \
	RIP(X, mul, "mulq cells+8(%rip)") RIP(X, xchg, "xchg %rdx, cells+8(%rip)") RIP(X, xadd, "lock xadd %edx, cells+8(%rip)") \
	RIP(X, cmpxchg, "lock cmpxchg %rdx, cells+8(%rip)") RIP(X, cmpxchg8b, "lock cmpxchg8b cells+8(%rip)") \
	RIP(X, cmpxchg16b, "lock cmpxchg16b cells+16(%rip)") RIP(X, bts, "lock btsl $9, cells+8(%rip)") RIP(X, bt, "btq $40, cells+8(%rip)") \
	RIP(X, bsf, "bsf cells+8(%rip), %rdx") RIP(X, popcnt, "popcnt cells+8(%rip), %rdx") RIP(X, movsx8, "movsbq cells+3(%rip), %rdx") \
	RIP(X, movzx16, "movzwl cells+2(%rip), %edx") RIP(X, movsxd, "movslq cells+4(%rip), %rdx") \
	RIP(X, cmov, "cmovc cells+8(%rip), %rdx") RIP(X, setcc, "setg cells+5(%rip)") \
	RIP(X, push, "push cells+8(%rip)\npop %rdx") RIP(X, pop, "push %rdx\npop cells+8(%rip)") RIP(X, lea, "lea cells+8(%rip), %rdx") \
	RIP(X, float32, "flds cells+4(%rip)\nfstps cells+8(%rip)") RIP(X, float80, "fldt cells+16(%rip)\nfstpt cells+64(%rip)") \
	RIP(X, float_control, "fnstcw cells+2(%rip)\nfldcw cells+2(%rip)") RIP(X, mxcsr, "stmxcsr cells+4(%rip)\nldmxcsr cells+4(%rip)") \
	RIP(X, sse_load, "movups cells+8(%rip), %xmm1") RIP(X, sse_aligned, "movaps %xmm1, cells+16(%rip)") \
	RIP(X, sse_scalar, "movss cells+4(%rip), %xmm1") RIP(X, sse_add, "paddd cells+16(%rip), %xmm1") \
	RIP(X, sse_shuffle, "pshufd $0x1b, cells+16(%rip), %xmm1") RIP(X, sse_insert, "pinsrw $5, cells+2(%rip), %xmm1") \
	RIP(X, sse_extract, "pextrb $3, %xmm1, cells+7(%rip)") RIP(X, sse_convert, "cvtsi2sdq cells+8(%rip), %xmm2") \
	RIP(X, sse_compare, "ucomisd cells+8(%rip), %xmm1") RIP(X, sse_align, "palignr $5, cells+32(%rip), %xmm1") \
	RIP(X, sse_string, "pcmpistri $0x0c, cells+32(%rip), %xmm1") RIP(X, crc32, "crc32l cells+4(%rip), %edx") \
	RIP(X, store_nt, "movnti %rdx, cells+8(%rip)") RIP(X, prefetch, "prefetcht0 cells+8(%rip)") \
	X(rip_movbe, AVX2, "movbe cells+8(%rip), %rdx\nret") X(rip_andn, AVX2, "andn cells+8(%rip), %rax, %rdx\nret") \
	X(rip_rorx, AVX2, "rorx $13, cells+8(%rip), %rdx\nret") X(rip_mulx, AVX2, "mulx cells+8(%rip), %r8, %r9\nret") \
	AVX_RIP(X, avx_load, "vmovups cells+8(%rip), %ymm0") AVX_RIP(X, avx_add, "vpaddq cells+8(%rip), %ymm3, %ymm0") \
	AVX_RIP(X, avx_permute, "vpermilps $0x1b, cells+32(%rip), %ymm0") AVX_RIP(X, avx_lanes, "vperm2f128 $0x31, cells+32(%rip), %ymm3, %ymm0") \
	AVX_RIP(X, avx_broadcast, "vpbroadcastb cells+3(%rip), %ymm0") AVX_RIP(X, avx_blend, "vblendvps %ymm3, cells+32(%rip), %ymm0, %ymm0") \
	AVX_RIP(X, avx_insert, "vinserti128 $1, cells+48(%rip), %ymm3, %ymm0") AVX_RIP(X, avx_extract, "vextracti128 $1, %ymm3, cells+48(%rip)") \
	AVX512_RIP(X, evex_load, "vmovdqu64 cells+8(%rip), %zmm0") AVX512_RIP(X, evex_mask, "vpaddd cells+64(%rip), %zmm0, %zmm0{%k1}") \
	AVX512_RIP(X, evex_immediate, "vpternlogd $0x96, cells+128(%rip), %zmm0, %zmm0") \
	AVX512_RIP(X, evex_broadcast, "vpaddd cells+4(%rip){1to16}, %zmm0, %zmm0") \
	AVX512_RIP(X, evex_store, "vpmovqb %zmm0, cells+24(%rip)")

enum needs { ANY, AVX2, AVX512 };

#define ONE(name, body) \
	".p2align 4\n.globl " #name "\n.type " #name ", @function\n" #name ":\n.cfi_startproc\n" \
	body "\n.cfi_endproc\n.size " #name ", . - " #name "\n"
#define CODE(name, need, body) ONE(name, body) ONE(unprobed_##name, body)
__asm__(".pushsection .text\n" CASES(CODE) ".popsection\n");

#define DECLARE(name, need, body) void name(void), unprobed_##name(void);
CASES(DECLARE)

#define ROW(name, need, body) { #name, need, name, unprobed_##name },
static const struct {
	const char *name;
	enum needs needs;
	void (*probed)(void), (*unprobed)(void);
} cases[] = { CASES(ROW) };

static enum needs machine(void)
{
	if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("bmi2") || !__builtin_cpu_supports("sse4.2"))
		return ANY;
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") ? AVX512 : AVX2;
}

/* Carry, parity, adjust, zero, sign, overflow. */
#define FLAGS 0x8d5ul
/* Trap: set while somebody single-steps us. */
#define IGNORED 0x100ul

static uint64_t random64(uint32_t *random)
{
	return (uint64_t)next_random(random) << 40 ^ (uint64_t)next_random(random) << 20 ^ next_random(random);
}

static void fill(struct state *s, uint32_t *random)
{
	for (int i = 0; i < 16; i++)
		s->gpr[i] = next_random(random) % 2 ? random64(random) : next_random(random) % 16;
	s->gpr[1] = next_random(random) % 3 ? next_random(random) % 64 : 0;       /* rcx: a count */
	s->gpr[6] = (uint64_t)&cells[CELLS / 2 + next_random(random) % 8];        /* rsi, rdi: addresses */
	s->gpr[7] = (uint64_t)&cells[CELLS / 2 + 24 + next_random(random) % 8];
	s->gpr[4] = 0;
	s->flags = 0x202 | (next_random(random) & FLAGS);
	for (int i = 0; i < 8; i++)
		s->vector[i] = random64(random);
}

/* In few instructions: somebody may single-step us. */
static void fill_cells(uint64_t random)
{
	for (int i = 0; i < CELLS; i++)
		cells[i] = random = random * 6364136223846793005 + 1442695040888963407;
	memset(other_stack + STACK - 64, 0, 64 * sizeof other_stack[0]);
	((uint32_t *)cells)[1] = 0x1f80; /* a valid mxcsr, and a float */
	((uint16_t *)cells)[1] = 0x37f;  /* a valid x87 control word */
}

static void compare(const char *name, const struct state *want, const struct state *got)
{
	static const char *const names[] = { "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10",
					     "r11", "r12", "r13", "r14", "r15" };

	for (int i = 0; i < 16; i++)
		CHECK((want->gpr[i] & ~IGNORED) == (got->gpr[i] & ~IGNORED) || (i == 11 && !strcmp(name, "system_call")),
		      "%s: %s is %#lx, want %#lx", name, names[i], got->gpr[i], want->gpr[i]);
	CHECK((want->flags | IGNORED) == (got->flags | IGNORED), "%s: flags are %#lx, want %#lx", name, got->flags, want->flags);
	CHECK(!memcmp(want->vector, got->vector, sizeof want->vector), "%s: a vector register differs", name);
}

int main(int argc, char **argv)
{
	static uint64_t kept[CELLS];
	int rounds = argc > 1 ? atoi(argv[1]) : 200, ran = 0;
	enum needs has = machine();
	uint32_t random = 1;

	for (int round = 0; round < rounds; round++) {
		for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
			struct state want, got;
			uint32_t seed = random;

			if (cases[i].needs > has)
				continue;
			fill(&want, &random);
			got = want;
			fill_cells(seed);
			enter(&want, cases[i].unprobed);
			memcpy(kept, cells, sizeof cells);
			fill_cells(seed);
			enter(&got, cases[i].probed);
			compare(cases[i].name, &want, &got);
			CHECK(!memcmp(kept, cells, sizeof cells), "%s: memory differs", cases[i].name);
			ran++;
		}
	}
	printf("ran %d cases in %d rounds\n", ran, rounds);
	return 0;
}
