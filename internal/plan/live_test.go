package plan

import (
	"testing"

	asm "trapless/internal/asm/x86"
	insn "trapless/internal/insn/x86"
)

func TestLiveness(t *testing.T) {
	const all = allGPRs
	without := func(rs ...asm.Reg) asm.RegSet { return all &^ asm.Regs(rs...) }
	for _, row := range []struct {
		name, code string
		regs       asm.RegSet
		flags      insn.Flags
	}{
		{"nothing is known", "b801000000 c3", without(asm.RAX), insn.StatusFlags},
		{"read first", "4801c0 b801000000 c3 9090", all, 0},
		{"a prologue kills the flags", "55 4889e5 4883ec10 c3", all, 0},
		{"32 bits overwrite the whole", "b901000000 c3", without(asm.RCX), insn.StatusFlags},
		{"16 bits do not", "66b90100 90 c3", all, insn.StatusFlags},
		{"8 bits do not", "b101 909090 c3", all, insn.StatusFlags},
		{"a zeroing idiom does not read", "31c0 31d2 90 c3", without(asm.RAX, asm.RDX), 0},
		{"a shift by cl may keep the flags", "d3e0 909090 c3", all, insn.StatusFlags},
		{"inc keeps the carry", "ffc0 ffc1 90 c3", all, insn.CF},
		{"cmov may keep its target", "0f44c1 9090 c3", all, insn.StatusFlags},
		{"both ways kill", "7405 b801000000 b802000000 c3", without(asm.RAX), insn.StatusFlags},
		{"one way reads", "7405 b801000000 4889c2 b900000000 c3", without(asm.RDX, asm.RCX), insn.StatusFlags},
		{"a loop reads", "4889c2 ffc9 75f9 b800000000 c3", without(asm.RDX), insn.CF},
		{"a call reads all", "90 b801000000 e800000000 c3", without(asm.RAX), insn.StatusFlags},
		{"an indirect jump reads all", "b801000000 ffe2", without(asm.RAX), insn.StatusFlags},
		{"a jump out reads all", "b801000000 e900100000", without(asm.RAX), insn.StatusFlags},
		{"the end reads all", "b801000000", without(asm.RAX), insn.StatusFlags},
		{"sahf leaves overflow", "9e 90909090 c3", all, insn.OF},
	} {
		w := windowAt(t, row.code, 0)
		if w.LiveRegs != row.regs || w.LiveFlags != row.flags || w.FlagsLive != (row.flags != 0) {
			t.Errorf("%s: %v, flags %v; want %v, flags %v", row.name, w.LiveRegs, w.LiveFlags, row.regs, row.flags)
		}
	}
}

// TestLivenessIsBounded: behind more code than the scan looks at, everything
// counts as read.
func TestLivenessIsBounded(t *testing.T) {
	code := "9090909090"
	for range scanBudget {
		code += "90"
	}
	code += "31c0 c3"
	w := windowAt(t, code, 0)
	if w.LiveRegs != allGPRs || w.LiveFlags != insn.StatusFlags {
		t.Errorf("%v, %v", w.LiveRegs, w.LiveFlags)
	}
}
