package x86

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// get_stack and get_stackid follow the frame pointers from a site where nothing else
// is known, wherever the frame pointer was saved to, and end where these lead nowhere.
func TestStacksByFramePointers(t *testing.T) {
	maps := []abi.MapSpec{{Name: "stacks", Kind: abi.StackTrace, KeySize: 4, ValueSize: 8 * 8, MaxEntries: 16},
		{Name: "out", Kind: abi.Array, KeySize: 4, ValueSize: 8 * 6, MaxEntries: 1}}
	h := newHelperHarness(t, arenaNear, maps)
	stacks, out := h.mapLayout(0), h.mapLayout(1)
	// The frames' words: the caller's frame pointer and the address it goes on at.
	frames := h.code[memoryBase-codeBase:]
	for depth, want := range [][]uint64{0: {0x1234}, 1: {0x1234, 0xa0}, 3: {0x1234, 0xa0, 0xa1, 0xa2}, 8: {0x1234, 0xa0, 0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6}} {
		if want == nil {
			continue
		}
		for i := range 8 {
			next := uint64(memoryBase) + uint64(32*(i+1))
			if i+1 >= depth {
				next = 0
			}
			binary.LittleEndian.PutUint64(frames[32*i:], next)
			binary.LittleEndian.PutUint64(frames[32*i+8:], 0xa0+uint64(i))
		}
		for _, live := range []asm.RegSet{0, allRegs} {
			v := stackProgram(t, maps)
			site := Site{Addr: 0x1234, LiveRegs: live, RedZoneLive: true, FlagsLive: true}
			h.install(site, v)
			rq := randomRun(rand.New(rand.NewPCG(1, 3)))
			rq.Regs[asm.RBP] = 0
			if depth > 0 {
				rq.Regs[asm.RBP] = uint64(memoryBase)
			}
			rp := h.do(rq)
			if err := rp.check(&rq, site); err != nil {
				t.Error(err)
			}
			at := out.Value(0)
			n, id := h.word(at), h.word(at+8)
			some := want[:min(len(want), 3)]
			if n != uint64(8*len(some)) || !slices.Equal(h.words(at+16, 4), append(slices.Clone(some), make([]uint64, 4-len(some))...)) {
				t.Errorf("depth %d: get_stack returned %d, and %x", depth, int64(n), h.words(at+16, 4))
			}
			if id >= 16 {
				t.Fatalf("depth %d: get_stackid returned %d", depth, int64(id))
			}
			if got := h.words(stacks.Value(id), int(h.word(stacks.Value(id)+8-16))); !slices.Equal(got, want) {
				t.Errorf("depth %d: stack %d is %x, not %x", depth, id, got, want)
			}
		}
	}
}

// stackProgram stores what get_stack and get_stackid return, and a stack in 28 bytes.
func stackProgram(t *testing.T, maps []abi.MapSpec) *bpf.Verified {
	store := func(off int16) []bpfasm.Instruction {
		return []bpfasm.Instruction{bpfasm.LoadMapValue(bpfasm.R2, 1, 0), bpfasm.StoreMem(bpfasm.R2, off, bpfasm.R0, bpfasm.DWord)}
	}
	insns := bpfasm.Instructions{bpfasm.Mov.Reg(bpfasm.R6, bpfasm.R1)}
	for off := int16(-32); off < 0; off += 8 {
		insns = append(insns, bpfasm.Instruction{OpCode: bpfasm.StoreImmOp(bpfasm.DWord), Dst: bpfasm.R10, Offset: off, Constant: 7})
	}
	insns = append(insns, bpfasm.StoreImm(bpfasm.R10, -4, 0, bpfasm.Word), bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R2, -32), bpfasm.Mov.Imm(bpfasm.R3, 28),
		bpfasm.Mov.Imm(bpfasm.R4, bpf.UserStack), bpfasm.FnGetStack.Call())
	insns = append(insns, store(0)...)
	for i := int16(0); i < 4; i++ {
		insns = append(insns, bpfasm.LoadMem(bpfasm.R0, bpfasm.R10, -32+8*i, bpfasm.DWord))
		insns = append(insns, store(16+8*i)...)
	}
	insns = append(insns, bpfasm.Mov.Reg(bpfasm.R1, bpfasm.R6), bpf.LoadMap(bpfasm.R2, 0), bpfasm.Mov.Imm(bpfasm.R3, bpf.UserStack), bpfasm.FnGetStackid.Call())
	insns = append(insns, store(8)...)
	v, err := bpf.Verify(&bpf.Program{Name: "stack", Maps: maps, Insns: append(insns, bpfasm.Mov.Imm(bpfasm.R0, 0), bpfasm.Return())})
	if err != nil {
		t.Fatal(fmt.Sprint(err))
	}
	return v
}

// words reads some words of the arena.
func (h *harness) words(at uint64, n int) (out []uint64) {
	for i := range n {
		out = append(out, h.word(at+8*uint64(i)))
	}
	return out
}
