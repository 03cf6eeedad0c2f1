// llvm says, for each struct question on standard input, what LLVM's disassembler
// thinks of its bytes, as one struct answer on standard output. Questions come in
// batches of BATCH. llvm_test.go knows the same layout.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { BATCH = 4096 };

struct question {
	uint8_t mode, len, bytes[16];
};

struct answer {
	uint8_t len; // 0: invalid
	char text[79];
};

// From llvm-c/Disassembler.h and llvm-c/Target.h, which are in a much larger package.
void *LLVMCreateDisasm(const char *triple, void *info, int tag, void *get_info, void *lookup);
size_t LLVMDisasmInstruction(void *context, uint8_t *bytes, uint64_t size, uint64_t pc, char *text, size_t room);
void LLVMInitializeX86TargetInfo(void);
void LLVMInitializeX86TargetMC(void);
void LLVMInitializeX86Disassembler(void);

int main(void) {
	static struct question q[BATCH];
	static struct answer a[BATCH];
	LLVMInitializeX86TargetInfo();
	LLVMInitializeX86TargetMC();
	LLVMInitializeX86Disassembler();
	void *d = LLVMCreateDisasm("x86_64-linux-gnu", NULL, 0, NULL, NULL);
	for (size_t n; (n = fread(q, sizeof *q, BATCH, stdin)) > 0;) {
		for (size_t k = 0; k < n; k++) {
			memset(&a[k], 0, sizeof a[k]);
			a[k].len = LLVMDisasmInstruction(d, q[k].bytes, q[k].len, 0x1000, a[k].text, sizeof a[k].text);
		}
		fwrite(a, sizeof *a, n, stdout);
		fflush(stdout);
	}
	return 0;
}
