package x86

import (
	"testing"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/bpf"
)

// A run may make so many tail calls, and the next one starts from nothing: also where
// they are counted in a function, and for each of two programs at a site.
func TestTailCallsAreCounted(t *testing.T) {
	maps := []abi.MapSpec{{Name: "n", Kind: abi.PerSlotArray, KeySize: 4, ValueSize: 8, MaxEntries: 2}}
	count := func(cell int32) *bpf.Verified {
		v, err := bpf.Verify(&bpf.Program{Name: "count", Maps: maps, Insns: bpfasm.Instructions{
			bpfasm.Mov.Reg(bpfasm.R6, bpfasm.R1).WithSymbol("again"), bpfasm.Mov.Reg(bpfasm.R1, bpfasm.R6),
			bpfasm.Instruction{OpCode: bpfasm.OpCode(bpfasm.JumpClass).SetJumpOp(bpfasm.Call), Src: bpfasm.PseudoCall, Constant: -1}.WithReference("one"),
			bpfasm.JEq.Imm(bpfasm.R0, 0, "over"), bpf.Call(bpf.HelperContext), bpfasm.Mov.Reg(bpfasm.R1, bpfasm.R0), bpfasm.Ja.Label("again"),
			bpfasm.Mov.Imm(bpfasm.R0, 0).WithSymbol("over"), bpfasm.Return(),
			bpf.Call(bpf.HelperTailCount).WithSymbol("one"), bpfasm.Mov.Reg(bpfasm.R7, bpfasm.R0), bpfasm.Mov.Imm(bpfasm.R1, cell), bpfasm.StoreMem(bpfasm.R10, -4, bpfasm.R1, bpfasm.Word),
			bpf.LoadMap(bpfasm.R1, 0), bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R2, -4), bpf.Call(bpf.HelperMapCell),
			bpfasm.AddAtomic.Mem(bpfasm.R0, bpfasm.R7, bpfasm.DWord, 0), bpfasm.Mov.Reg(bpfasm.R0, bpfasm.R7), bpfasm.Return(),
		}})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for name, free := range map[string]int{"own": 1, "shared": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, arenaNear, abi.Config{Threads: 4, Maps: maps, RingSize: 1 << 12})
			h.freeEach(free)
			m := newModel(h)
			progs := []*bpf.Verified{count(0), count(1)}
			h.install(entrySite, progs...)
			for range 3 {
				if err := h.same(m, request{Op: opRun, Entry: uint64(entryBase), Flags: 2}, entrySite, progs); err != nil {
					t.Fatal(err)
				}
			}
			ml := h.mapLayout(0)
			for cell := range uint64(2) {
				if n := h.word(h.slotBase(max(h.slotOf(h.tp), abi.SlotShared)) + ml.Cells + 8*cell); n != 3*bpf.MaxTailCalls {
					t.Errorf("3 runs made %d tail calls", n)
				}
			}
		})
	}
}
