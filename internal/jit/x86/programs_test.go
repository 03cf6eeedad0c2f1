package x86

import (
	"testing"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/bpf"
)

// Numbers of the maps that the tests use.
const (
	mapCount = iota // one cell
	mapArray
	mapKeyed
	mapPairs // keys of two words
	mapTiny  // is soon full
	mapWide  // values of three words
	numMaps
)

var testMaps = []abi.MapSpec{
	mapCount: {Name: "count", Kind: abi.PerSlotArray, KeySize: 4, ValueSize: 8, MaxEntries: 1},
	mapArray: {Name: "array", Kind: abi.PerSlotArray, KeySize: 4, ValueSize: 16, MaxEntries: 10},
	mapKeyed: {Name: "keyed", Kind: abi.PerSlotHash, KeySize: 8, ValueSize: 8, MaxEntries: 2048},
	mapPairs: {Name: "pairs", Kind: abi.PerSlotHash, KeySize: 16, ValueSize: 8, MaxEntries: 256},
	mapTiny:  {Name: "tiny", Kind: abi.PerSlotHash, KeySize: 8, ValueSize: 16, MaxEntries: 3},
	mapWide:  {Name: "wide", Kind: abi.PerSlotHash, KeySize: 8, ValueSize: 24, MaxEntries: 64},
}

var testConfig = abi.Config{Threads: 16, Maps: testMaps, RingSize: 1 << 12}

func verified(t testing.TB, insns ...bpfasm.Instructions) *bpf.Verified {
	t.Helper()
	p := &bpf.Program{Name: t.Name(), Maps: testMaps}
	for _, i := range insns {
		p.Insns = append(p.Insns, i...)
	}
	v, err := bpf.Verify(p)
	if err != nil {
		t.Fatalf("%v\n%v", err, p)
	}
	return v
}

// cell calls HelperMapCell with the key at r10+off and jumps to out without
// one.
func cell(m int, off int32) bpfasm.Instructions {
	return bpfasm.Instructions{
		bpf.LoadMap(bpfasm.R1, m),
		bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10),
		bpfasm.Add.Imm(bpfasm.R2, off),
		bpf.Call(bpf.HelperMapCell),
		bpfasm.JEq.Imm(bpfasm.R0, 0, "out"),
	}
}

// increment adds one to the cell in r0 and ends the program.
func increment() bpfasm.Instructions {
	return bpfasm.Instructions{
		bpfasm.Mov.Imm(bpfasm.R1, 1),
		bpfasm.AddAtomic.Mem(bpfasm.R0, bpfasm.R1, bpfasm.DWord, 0),
		bpfasm.Mov.Imm(bpfasm.R0, 0).WithSymbol("out"),
		bpfasm.Return(),
	}
}

// count is @ = count().
func count(t testing.TB) *bpf.Verified {
	return verified(t, bpfasm.Instructions{bpfasm.StoreImm(bpfasm.R10, -4, 0, bpfasm.Word)}, cell(mapCount, -4), increment())
}

// keyed is @[arg0] = count().
func keyed(t testing.TB, m int) *bpf.Verified {
	return verified(t, bpfasm.Instructions{
		bpf.LoadArg(bpfasm.R3, bpfasm.R1, 0),
		bpfasm.StoreMem(bpfasm.R10, -8, bpfasm.R3, bpfasm.DWord),
	}, cell(m, -8), increment())
}

// paired is @[arg0, 7] = count().
func paired(t testing.TB) *bpf.Verified {
	return verified(t, bpfasm.Instructions{
		bpf.LoadArg(bpfasm.R3, bpfasm.R1, 0),
		bpfasm.StoreMem(bpfasm.R10, -16, bpfasm.R3, bpfasm.DWord),
		bpfasm.Mov.Imm(bpfasm.R3, 7),
		bpfasm.StoreMem(bpfasm.R10, -8, bpfasm.R3, bpfasm.DWord),
	}, cell(mapPairs, -16), increment())
}

// event writes a record of 1 and arg0.
func event(t testing.TB) *bpf.Verified {
	return verified(t, bpfasm.Instructions{
		bpf.LoadArg(bpfasm.R3, bpfasm.R1, 0),
		bpfasm.StoreMem(bpfasm.R10, -8, bpfasm.R3, bpfasm.DWord),
		bpfasm.Mov.Imm(bpfasm.R3, 1),
		bpfasm.StoreMem(bpfasm.R10, -16, bpfasm.R3, bpfasm.DWord),
		bpf.LoadRing(bpfasm.R1),
		bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10),
		bpfasm.Add.Imm(bpfasm.R2, -16),
		bpfasm.Mov.Imm(bpfasm.R3, 16),
		bpfasm.Mov.Imm(bpfasm.R4, 0),
		bpf.Call(bpf.HelperRingbufOutput),
		bpfasm.Mov.Imm(bpfasm.R0, 0),
		bpfasm.Return(),
	})
}

var returnZero = bpfasm.Instructions{bpfasm.Mov.Imm(bpfasm.R0, 0), bpfasm.Return()}
