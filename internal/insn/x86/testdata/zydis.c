// zydis says, for each struct question on standard input, what Zydis thinks of
// its bytes, as one struct answer on standard output. Questions come in batches
// of BATCH. oracle_zydis_test.go knows the same layout.
#include <Zydis/Zydis.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct question {
	uint8_t mode, len, bytes[16];
};

enum { BATCH = 4096 };

enum {
	MEM_READ = 1,
	MEM_WRITE = 2,
	RELATIVE = 4, // a RIP-relative operand
	KNC = 8,      // exists on Knights Corner only
	FLOAT = 16,   // may raise a floating-point exception
	PRIVILEGED = 32,
};

struct answer {
	uint8_t status; // 0 decoded, 1 more bytes needed, 2 invalid
	uint8_t len, encoding, opcode_map;
	uint8_t modrm_off, disp_off, disp_len, imm_off;
	uint8_t imm_len, imm2_off, imm2_len, opcode;
	uint8_t facts, branch, unused[2];
	uint32_t read, write, full; // general registers
	uint32_t flags_read, flags_write, flags_must;
	int64_t disp, imm;
	char mnemonic[24];
};

// gpr is a general register's number and width in bits, or -1.
static int gpr(ZydisRegister r, unsigned *width) {
	switch (ZydisRegisterGetClass(r)) {
	case ZYDIS_REGCLASS_GPR8:
		*width = 8;
		if (r >= ZYDIS_REGISTER_AH && r <= ZYDIS_REGISTER_BH)
			return r - ZYDIS_REGISTER_AH;
		return r < ZYDIS_REGISTER_AH ? r - ZYDIS_REGISTER_AL : r - ZYDIS_REGISTER_SPL + 4;
	case ZYDIS_REGCLASS_GPR16: *width = 16; return ZydisRegisterGetId(r);
	case ZYDIS_REGCLASS_GPR32: *width = 32; return ZydisRegisterGetId(r);
	case ZYDIS_REGCLASS_GPR64: *width = 64; return ZydisRegisterGetId(r);
	default: return -1;
	}
}

static void address(struct answer *a, const ZydisDecodedOperandMem *m) {
	ZydisRegister rs[2] = {m->base, m->index};
	unsigned width;
	for (int k = 0; k < 2; k++) {
		int n = gpr(rs[k], &width);
		if (n >= 0)
			a->read |= 1u << n;
		if (rs[k] == ZYDIS_REGISTER_RIP || rs[k] == ZYDIS_REGISTER_EIP)
			a->facts |= RELATIVE;
	}
}

static void operand(struct answer *a, const ZydisDecodedOperand *o) {
	int reads = (o->actions & ZYDIS_OPERAND_ACTION_MASK_READ) != 0;
	int writes = (o->actions & ZYDIS_OPERAND_ACTION_MASK_WRITE) != 0;
	unsigned width;
	int n;
	if (o->type == ZYDIS_OPERAND_TYPE_MEMORY) {
		address(a, &o->mem);
		if (o->encoding == ZYDIS_OPERAND_ENCODING_MODRM_RM)
			a->disp = o->mem.disp.value;
		if (o->mem.type == ZYDIS_MEMOP_TYPE_AGEN)
			return;
		a->facts |= (reads ? MEM_READ : 0) | (writes ? MEM_WRITE : 0);
		return;
	}
	if (o->type != ZYDIS_OPERAND_TYPE_REGISTER || (n = gpr(o->reg.value, &width)) < 0)
		return;
	if (reads)
		a->read |= 1u << n;
	if (writes)
		a->write |= 1u << n;
	if ((o->actions & ZYDIS_OPERAND_ACTION_WRITE) && width >= 32)
		a->full |= 1u << n;
}

// branch is the kind of a branch as oracle tests number them.
static int branch(ZydisInstructionCategory c) {
	switch (c) {
	case ZYDIS_CATEGORY_COND_BR: return 1;
	case ZYDIS_CATEGORY_UNCOND_BR: return 2;
	case ZYDIS_CATEGORY_CALL: return 3;
	case ZYDIS_CATEGORY_RET: return 4;
	case ZYDIS_CATEGORY_SYSCALL: return 5;
	case ZYDIS_CATEGORY_SYSRET: return 6;
	case ZYDIS_CATEGORY_INTERRUPT: return 7;
	default: return 0;
	}
}

static int facts(const ZydisDecodedInstruction *in) {
	int f = in->attributes & ZYDIS_ATTRIB_IS_PRIVILEGED ? PRIVILEGED : 0;
	if (in->encoding == ZYDIS_INSTRUCTION_ENCODING_MVEX)
		f |= KNC;
	switch (in->meta.isa_set) {
	case ZYDIS_ISA_SET_KNCE:
	case ZYDIS_ISA_SET_KNCJKBR:
	case ZYDIS_ISA_SET_KNCSTREAM:
	case ZYDIS_ISA_SET_KNCV:
	case ZYDIS_ISA_SET_KNC_MISC:
	case ZYDIS_ISA_SET_KNC_PF_HINT:
		f |= KNC;
	default:
	}
	switch (in->meta.exception_class) {
	case ZYDIS_EXCEPTION_CLASS_SSE2:
	case ZYDIS_EXCEPTION_CLASS_SSE3:
	case ZYDIS_EXCEPTION_CLASS_AVX2:
	case ZYDIS_EXCEPTION_CLASS_AVX3:
	case ZYDIS_EXCEPTION_CLASS_AVX11:
	case ZYDIS_EXCEPTION_CLASS_E2:
	case ZYDIS_EXCEPTION_CLASS_E3:
	case ZYDIS_EXCEPTION_CLASS_E3NF:
	case ZYDIS_EXCEPTION_CLASS_E11:
		f |= FLOAT;
	default:
	}
	return f;
}

static void answer(const ZydisDecoder *d, const struct question *q, struct answer *a) {
	ZydisDecodedInstruction in;
	ZydisDecodedOperand ops[ZYDIS_MAX_OPERAND_COUNT];
	memset(a, 0, sizeof *a);
	ZyanStatus s = ZydisDecoderDecodeFull(d, q->bytes, q->len, &in, ops);
	if (!ZYAN_SUCCESS(s)) {
		a->status = s == ZYDIS_STATUS_NO_MORE_DATA ? 1 : 2;
		return;
	}
	a->len = in.length;
	a->encoding = in.encoding;
	a->opcode_map = in.opcode_map;
	a->opcode = in.opcode;
	a->modrm_off = in.raw.modrm.offset;
	a->disp_off = in.raw.disp.offset;
	a->disp_len = in.raw.disp.size / 8;
	a->imm_off = in.raw.imm[0].offset;
	a->imm_len = in.raw.imm[0].size / 8;
	a->imm2_off = in.raw.imm[1].offset;
	a->imm2_len = in.raw.imm[1].size / 8;
	a->imm = in.raw.imm[0].value.s;
	a->branch = branch(in.meta.category);
	a->facts |= facts(&in);
	strncpy(a->mnemonic, ZydisMnemonicGetString(in.mnemonic), sizeof a->mnemonic - 1);
	for (int k = 0; k < in.operand_count; k++)
		operand(a, &ops[k]);
	if (in.cpu_flags) {
		const ZydisAccessedFlags *f = in.cpu_flags;
		a->flags_read = f->tested;
		a->flags_must = f->modified | f->set_0 | f->set_1 | f->undefined;
		a->flags_write = a->flags_must;
	}
}

int main(void) {
	static struct question q[BATCH];
	static struct answer a[BATCH];
	ZydisDecoder d64, d32;
	size_t n;
	ZydisDecoderInit(&d64, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
	ZydisDecoderInit(&d32, ZYDIS_MACHINE_MODE_LONG_COMPAT_32, ZYDIS_STACK_WIDTH_32);
	while ((n = fread(q, sizeof *q, BATCH, stdin)) > 0) {
		for (size_t k = 0; k < n; k++)
			answer(q[k].mode == 64 ? &d64 : &d32, &q[k], &a[k]);
		fwrite(a, sizeof *a, n, stdout);
		fflush(stdout);
	}
	return 0;
}
