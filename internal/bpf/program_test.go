package bpf

import (
	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

var testMaps = []abi.MapSpec{
	{Name: "one", Kind: abi.PerSlotArray, KeySize: 4, ValueSize: 8, MaxEntries: 1},
	{Name: "keyed", Kind: abi.PerSlotHash, KeySize: 8, ValueSize: 16, MaxEntries: 4},
	{Name: "pairs", Kind: abi.PerSlotHash, KeySize: 16, ValueSize: 8, MaxEntries: 4},
}

func program(insns ...asm.Instruction) *Program {
	return &Program{Name: "test", Insns: insns, Maps: testMaps}
}

// lookup calls HelperMapCell with the key at r10-8.
func lookup(m int) asm.Instructions {
	return asm.Instructions{
		LoadMap(asm.R1, m),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, -8),
		Call(HelperMapCell),
	}
}

func concat(parts ...any) []asm.Instruction {
	var out []asm.Instruction
	for _, p := range parts {
		switch p := p.(type) {
		case asm.Instruction:
			out = append(out, p)
		case asm.Instructions:
			out = append(out, p...)
		}
	}
	return out
}

var (
	ret  = asm.Return()
	r0is = func(v int32) asm.Instruction { return asm.Mov.Imm(asm.R0, v) }
)
