package plan

import (
	"math/rand/v2"
	"slices"
	"strings"
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

// TestLivenessSeesTheWholeFunction: what is read last decides.
func TestLivenessSeesTheWholeFunction(t *testing.T) {
	code := "9090909090" + strings.Repeat("90", 5000)
	w := windowAt(t, code+"31c0 89c1 b802000000 4831d2 c3", 0)
	if want := allGPRs &^ asm.Regs(asm.RAX, asm.RCX, asm.RDX); w.LiveRegs != want || w.LiveFlags != 0 {
		t.Errorf("%v, %v", w.LiveRegs, w.LiveFlags)
	}
}

// TestLivenessByItsDefinition holds the solution of the equations against what
// they mean: some way leads from an instruction to one that reads the register,
// or to what is not known, and none on it overwrites it.
func TestLivenessByItsDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	pieces := [][]byte{unhex("4801c8"), unhex("31d2"), unhex("89f7"), unhex("b901000000"), unhex("85f6"), unhex("0f94c0"),
		unhex("11d0"), unhex("e800000000"), unhex("c3"), unhex("ffe0"), unhex("f9"), unhex("b201"), unhex("0f44c7")}
	for range 300 {
		var code []byte
		for len(code) < 60 {
			switch r.IntN(4) {
			case 0:
				code = append(code, 0x70+byte(r.IntN(16)), byte(r.IntN(60)-30))
			case 1:
				code = append(code, 0xeb, byte(r.IntN(60)-30))
			default:
				code = append(code, pieces[r.IntN(len(pieces))]...)
			}
		}
		b := read(&Func{Name: "f", Start: base, Code: code})
		for k := range 2 * len(b.insts) { // first each by itself, then all together
			i := k % len(b.insts)
			b.asked = 0
			if k == len(b.insts) {
				b.lives = b.solve()
			}
			regs, flags := b.liveAt(i)
			for bit := range 64 {
				bit := liveSet(1) << bit
				if bit&(liveSet(allGPRs)|liveSet(insn.StatusFlags)<<32)&^liveSet(asm.Regs(asm.RSP)) == 0 {
					continue
				}
				got := (liveSet(regs)|liveSet(flags)<<32)&bit != 0
				if want := mayRead(b, i, bit, map[int]bool{}); got != want {
					t.Fatalf("%x: instruction %d, bit %#x: %v", code, i, bit, got)
				}
			}
		}
	}
}

func mayRead(b *body, i int, bit liveSet, seen map[int]bool) bool {
	if i == len(b.insts) {
		return true
	}
	if seen[i] {
		return false
	}
	seen[i] = true
	in := b.insts[i]
	e := in.Effects()
	switch {
	case in.Branch == insn.BranchCall, (live(e.Read, e.FlagsRead))&bit != 0:
		return true
	case live(e.FullWrite, e.FlagsMust)&bit != 0:
		return false
	case in.Branch == insn.BranchRet, in.Branch == insn.BranchJmpInd:
		return true
	}
	if in.Branch.Falls() && mayRead(b, i+1, bit, seen) {
		return true
	}
	to, ok := in.Target(b.addr(b.at[i]))
	if !ok {
		return false
	}
	k := slices.Index(b.at, int(to-b.f.Start))
	return k < 0 || mayRead(b, k, bit, seen)
}
