package bpf

import (
	"errors"
	"strings"
	"testing"

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

func TestValidateAccepts(t *testing.T) {
	for name, p := range map[string]*Program{
		"nothing": program(r0is(0), ret),
		"count": program(concat(asm.StoreImm(asm.R10, -8, 0, asm.Word), lookup(0), asm.Mov.Imm(asm.R1, 1),
			asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0), r0is(0), ret)...),
		"keyed": program(concat(LoadArg(asm.R3, asm.R1, 0), asm.StoreMem(asm.R10, -8, asm.R3, asm.DWord), lookup(1),
			asm.JEq.Imm(asm.R0, 0, "out"), asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 8),
			r0is(0).WithSymbol("out"), ret)...),
		"spilled context": program(asm.StoreMem(asm.R10, -16, asm.R1, asm.DWord), asm.LoadMem(asm.R2, asm.R10, -16, asm.DWord),
			asm.LoadMem(asm.R0, asm.R2, PtRegsSP, asm.DWord), ret),
		"process": program(Call(HelperGetCurrentPidTgid), asm.RSh.Imm(asm.R0, 32), ret),
		"exit":    program(Call(HelperExit), ret),
		"event": program(asm.Mov.Imm(asm.R2, 7), asm.StoreMem(asm.R10, -8, asm.R2, asm.DWord), LoadRing(asm.R1),
			asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -8), asm.Mov.Imm(asm.R3, 8), asm.Mov.Imm(asm.R4, 0),
			Call(HelperRingbufOutput), ret),
		"null test of a copy": program(concat(asm.Mov.Imm(asm.R2, 7), asm.StoreMem(asm.R10, -8, asm.R2, asm.DWord), lookup(1),
			asm.Mov.Reg(asm.R6, asm.R0), asm.JEq.Imm(asm.R0, 0, "out"), asm.LoadMem(asm.R1, asm.R6, 8, asm.DWord),
			r0is(0).WithSymbol("out"), ret)...),
	} {
		if _, err := Validate(p); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestValidateRefuses(t *testing.T) {
	key := asm.StoreImm(asm.R10, -8, 0, asm.Word)
	for want, p := range map[string]*Program{
		"0 instructions":                    program(),
		"goes on behind its last":           program(r0is(0)),
		"r0 may not have been written":      program(ret),
		"r5 may not have been written":      program(asm.Mov.Reg(asm.R0, asm.R5), ret),
		"jumps backwards":                   program(r0is(0).WithSymbol("l"), asm.Ja.Label("l")),
		"unknown symbol":                    program(asm.Ja.Label("l"), ret),
		"leaves the program":                program(asm.Instruction{OpCode: asm.Ja.Op(asm.ImmSource), Offset: 9}, ret),
		"frame pointer is read-only":        program(asm.Mov.Imm(asm.R10, 0), ret),
		"context is read-only":              program(asm.StoreImm(asm.R1, 0, 0, asm.Word), ret),
		"8 bytes at 120 of the context":     program(asm.LoadMem(asm.R0, asm.R1, 120, asm.DWord), ret),
		"8 bytes at 4 of the context":       program(asm.LoadMem(asm.R0, asm.R1, 4, asm.DWord), ret),
		"8 bytes at 216 of the context":     program(asm.LoadMem(asm.R0, asm.R1, 216, asm.DWord), ret),
		"outside the stack":                 program(asm.StoreImm(asm.R10, 0, 0, asm.Word), ret),
		"at r10-8 may not have been":        program(asm.LoadMem(asm.R0, asm.R10, -8, asm.DWord), ret),
		"not aligned":                       program(asm.StoreImm(asm.R10, -7, 0, asm.Word), ret),
		"helper 113":                        program(asm.FnProbeReadKernel.Call(), ret),
		"r1 is not a map":                   program(r0is(0), Call(HelperMapCell), ret),
		"r2 does not point to a key":        program(LoadMap(asm.R1, 0), asm.Mov.Imm(asm.R2, 0), Call(HelperMapCell), ret),
		"the key is not 8 bytes":            program(concat(key, lookup(1), ret)...),
		"there is no map 3":                 program(LoadMap(asm.R1, 3), ret),
		"r0 may be null":                    program(concat(asm.Mov.Imm(asm.R2, 1), asm.StoreMem(asm.R10, -8, asm.R2, asm.DWord), lookup(1), asm.LoadMem(asm.R0, asm.R0, 0, asm.DWord), ret)...),
		"8 bytes at 8 of a cell of 8":       program(concat(key, lookup(0), asm.LoadMem(asm.R0, asm.R0, 8, asm.DWord), ret)...),
		"pointer is stored outside":         program(concat(key, lookup(0), asm.StoreMem(asm.R0, 0, asm.R10, asm.DWord), ret)...),
		"a pointer is compared":             program(asm.JGT.Reg(asm.R1, asm.R10, "l"), ret.WithSymbol("l")),
		"pointer is used as a number":       program(asm.Mul.Imm(asm.R1, 3), ret),
		"a distance that is not constant":   program(asm.LoadMem(asm.R2, asm.R1, 0, asm.DWord), asm.Add.Reg(asm.R1, asm.R2), ret),
		"a part of a pointer":               program(asm.StoreMem(asm.R10, -8, asm.R1, asm.DWord), asm.LoadMem(asm.R0, asm.R10, -8, asm.Word), ret),
		"only the upper 32 bits":            program(Call(HelperGetCurrentPidTgid), asm.And.Imm(asm.R0, -1), ret),
		"multiple of 8":                     program(LoadRing(asm.R1), asm.Mov.Imm(asm.R2, 0), asm.Mov.Imm(asm.R3, 4), asm.Mov.Imm(asm.R4, 0), Call(HelperRingbufOutput), ret),
		"only helpers can be called":        program(asm.Call.Label("l"), ret, ret.WithSymbol("l")),
		"r3 may not have been written":      program(asm.Mov.Imm(asm.R3, 1), Call(HelperGetCurrentPidTgid), asm.Mov.Reg(asm.R0, asm.R3), ret),
		"both a source register and a cons": program(asm.Instruction{OpCode: asm.Mov.Op(asm.RegSource), Dst: 0, Src: 1, Constant: 3}, ret),
	} {
		_, err := Validate(p)
		if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v, for\n%v", want, err, p)
		}
	}
}
