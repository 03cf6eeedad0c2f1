package x86

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/bpf"
)

// each goes through a map with a function that adds up keys and values, and may
// change, enter and delete entries, or stop.
func (g *mapRandomizer) each(m int, spec *abi.MapSpec) {
	g.labels++
	name := fmt.Sprintf("each%d", g.labels)
	const sums = -112 // on the stack
	load := bpfasm.Instruction{OpCode: bpfasm.LoadImmOp(bpfasm.DWord), Dst: bpfasm.R2, Src: bpfasm.PseudoFunc, Constant: -1}
	g.add(bpf.LoadMap(bpfasm.R1, m), load.WithReference(name))
	if own := g.IntN(4) > 0; own {
		g.add(bpfasm.Mov.Reg(bpfasm.R3, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R3, sums))
		defer g.add(bpfasm.LoadMem(bpfasm.R1, bpfasm.R10, sums, bpfasm.DWord), bpfasm.Add.Reg(bpfasm.R9, bpfasm.R1))
		g.eachFunc(name, m, spec, true)
	} else {
		g.add(bpfasm.Mov.Imm(bpfasm.R3, 0))
		g.eachFunc(name, m, spec, false)
	}
	g.add(bpfasm.Mov.Imm(bpfasm.R4, 0), bpf.Call(bpfasm.FnForEachMapElem), bpfasm.Mul.Imm(bpfasm.R9, 31), bpfasm.Add.Reg(bpfasm.R9, bpfasm.R0))
}

func (g *mapRandomizer) eachFunc(name string, m int, spec *abi.MapSpec, sums bool) {
	var f bpfasm.Instructions
	add := func(in ...bpfasm.Instruction) { f = append(f, in...) }
	add(bpfasm.LoadMem(bpfasm.R0, bpfasm.R2, int16(spec.KeySize-1), bpfasm.Byte).WithSymbol(name))
	size, off := bpfasm.Byte, int16(g.IntN(spec.ValueSize))
	if spec.ValueSize >= 8 {
		size, off = bpfasm.DWord, 0
	}
	add(bpfasm.LoadMem(bpfasm.R5, bpfasm.R3, off, size))
	if sums {
		add(bpfasm.LoadMem(bpfasm.R8, bpfasm.R4, 0, bpfasm.DWord), bpfasm.Mul.Imm(bpfasm.R8, 31), bpfasm.Add.Reg(bpfasm.R8, bpfasm.R0),
			bpfasm.Xor.Reg(bpfasm.R8, bpfasm.R5), bpfasm.StoreMem(bpfasm.R4, 0, bpfasm.R8, bpfasm.DWord))
	}
	switch g.IntN(4) {
	case 0:
		add(bpfasm.Add.Imm(bpfasm.R5, 3), bpfasm.StoreMem(bpfasm.R3, off, bpfasm.R5, size))
	case 1:
		if size == bpfasm.DWord {
			add(bpfasm.Mov.Imm(bpfasm.R5, 5), someAtomics[g.IntN(len(someAtomics))].Mem(bpfasm.R3, bpfasm.R5, size, off))
		}
	}
	add(bpfasm.Mov.Reg(bpfasm.R6, bpfasm.R0))
	switch g.IntN(4) {
	case 0:
		if spec.IsTable() {
			add(bpfasm.Mov.Reg(bpfasm.R3, bpfasm.R2), bpf.LoadMap(bpfasm.R1, m), bpf.Call(bpfasm.FnMapDeleteElem))
		}
	case 1: // whoever enters keys meanwhile
		add(bpfasm.Mov.Reg(bpfasm.R7, bpfasm.R3), bpfasm.Add.Imm(bpfasm.R6, 1), bpfasm.StoreMem(bpfasm.R10, -8, bpfasm.R6, bpfasm.DWord),
			bpf.LoadMap(bpfasm.R1, 4), bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R2, -8), bpfasm.Mov.Reg(bpfasm.R3, bpfasm.R2),
			bpfasm.Mov.Imm(bpfasm.R4, 0), bpf.Call(bpfasm.FnMapUpdateElem), bpfasm.LoadMem(bpfasm.R6, bpfasm.R7, off, size))
	}
	if g.IntN(3) == 0 { // stop, sometimes
		add(bpfasm.Mov.Reg(bpfasm.R0, bpfasm.R6), bpfasm.And.Imm(bpfasm.R0, 1))
	} else {
		add(bpfasm.Mov.Imm(bpfasm.R0, 0))
	}
	g.funcs = append(append(g.funcs, f...), bpfasm.Return())
}

// sumOf adds up the first words of a map's keys in word 0 of the input and of its
// values in word 1.
func sumOf(t testing.TB, maps []abi.MapSpec, m int) *bpf.Verified {
	t.Helper()
	load := bpfasm.Instruction{OpCode: bpfasm.LoadImmOp(bpfasm.DWord), Dst: bpfasm.R2, Src: bpfasm.PseudoFunc, Constant: -1}
	p := &bpf.Program{Name: "sum", Maps: maps, Input: bpf.Input{Memory: true, Size: 16}, Insns: bpfasm.Instructions{
		bpfasm.Mov.Reg(bpfasm.R6, bpfasm.R1), bpfasm.Mov.Imm(bpfasm.R7, 0), bpfasm.StoreMem(bpfasm.R10, -8, bpfasm.R7, bpfasm.DWord),
		bpfasm.StoreMem(bpfasm.R10, -16, bpfasm.R7, bpfasm.DWord), bpf.LoadMap(bpfasm.R1, m), load.WithReference("add"),
		bpfasm.Mov.Reg(bpfasm.R3, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R3, -16), bpfasm.Mov.Imm(bpfasm.R4, 0), bpf.Call(bpfasm.FnForEachMapElem),
		bpfasm.LoadMem(bpfasm.R1, bpfasm.R10, -16, bpfasm.DWord), bpfasm.StoreMem(bpfasm.R6, 0, bpfasm.R1, bpfasm.DWord),
		bpfasm.LoadMem(bpfasm.R1, bpfasm.R10, -8, bpfasm.DWord), bpfasm.StoreMem(bpfasm.R6, 8, bpfasm.R1, bpfasm.DWord), bpfasm.Return(),
		bpfasm.LoadMem(bpfasm.R1, bpfasm.R2, 0, bpfasm.DWord).WithSymbol("add"), bpfasm.LoadMem(bpfasm.R2, bpfasm.R3, 0, bpfasm.DWord),
		bpfasm.LoadMem(bpfasm.R5, bpfasm.R4, 0, bpfasm.DWord), bpfasm.Add.Reg(bpfasm.R5, bpfasm.R1), bpfasm.StoreMem(bpfasm.R4, 0, bpfasm.R5, bpfasm.DWord),
		bpfasm.LoadMem(bpfasm.R5, bpfasm.R4, 8, bpfasm.DWord), bpfasm.Add.Reg(bpfasm.R5, bpfasm.R2), bpfasm.StoreMem(bpfasm.R4, 8, bpfasm.R5, bpfasm.DWord),
		bpfasm.Mov.Imm(bpfasm.R0, 0), bpfasm.Return(),
	}}
	v, err := bpf.Verify(p)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// A map is gone through to its end, however its entries lie, and a map that is too
// large for a run's fuel ends the run.
func TestForEachSeesAll(t *testing.T) {
	for _, c := range []struct {
		kind  abi.MapKind
		key   int
		n     uint64 // of entries that are entered
		room  int
		spent bool
	}{
		{abi.Hash, 8, 0, 1, false}, {abi.Hash, 8, 1, 1, false}, {abi.Hash, 8, 700, 1000, false}, {abi.LRUHash, 8, 40, 64, false}, {abi.Hash, 24, 300, 400, false},
		{abi.PerSlotHash, 8, 300, 400, false}, {abi.PerSlotHash, 16, 300, 400, false}, {abi.Hash, 8, 3, 16_000, false},
		{abi.Hash, 8, 3, 100_000, true}, {abi.Hash, 8, 5000, 10_000, true},
	} {
		maps := []abi.MapSpec{{Name: "m", Kind: c.kind, KeySize: c.key, ValueSize: 8, MaxEntries: c.room}}
		h := newHelperHarness(t, arenaNear, maps)
		m := newModel(h)
		if _, err := h.callFunction(sumOf(t, maps, 0), make([]byte, 16)); err != nil { // the thread has its slot then
			t.Fatal(err)
		}
		m.reset(h.slotOf(h.tp))
		copy(m.Arena, h.arena)
		var keys, values uint64
		for i := range c.n {
			key := make([]byte, c.key)
			binary.LittleEndian.PutUint64(key, i*i+7)
			if !m.Update(0, key, binary.LittleEndian.AppendUint64(nil, 3*i)) {
				t.Fatal("the map is full")
			}
			keys, values = keys+i*i+7, values+3*i
		}
		copy(h.arena, m.Arena)
		got, err := h.callFunction(sumOf(t, maps, 0), make([]byte, 16))
		if err != nil {
			t.Fatal(err)
		}
		_, modelErr := m.RunMemory(sumOf(t, maps, 0), make([]byte, 16))
		if errors.Is(modelErr, bpf.ErrFuel) != c.spent || (h.word(abi.HdrMisses) > 0) != c.spent {
			t.Fatalf("%+v: %v, and %d runs ended early in the process", c, modelErr, h.word(abi.HdrMisses))
		}
		out := h.code[memoryBase-codeBase:]
		k, v := binary.LittleEndian.Uint64(out), binary.LittleEndian.Uint64(out[8:])
		if !c.spent && (got != c.n || k != keys || v != values) {
			t.Errorf("%+v: %d entries, of which the keys add up to %d and the values to %d, not %d and %d", c, got, k, v, keys, values)
		}
	}
}
