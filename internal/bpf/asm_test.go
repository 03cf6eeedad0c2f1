package bpf

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

// assemble makes instructions of text in the notation of the kernel's verifier
// log, separated by semicolons or lines: what Insn.String prints, with labels
// ("name:") for jumps, "call name" for helpers, "call @name" for functions,
// "rN = map name", "rN = value name +off", "rN = func name" and "rN = ring".
func assemble(text string, maps []abi.MapSpec) (out asm.Instructions, err error) {
	label := ""
	for _, line := range strings.FieldsFunc(text, func(r rune) bool { return r == ';' || r == '\n' }) {
		line = strings.TrimSpace(line)
		if l, rest, ok := strings.Cut(line, ":"); ok {
			label, line = l, strings.TrimSpace(rest)
		}
		if line == "" {
			continue
		}
		in, ok := assembleLine(line, maps)
		if !ok {
			return nil, fmt.Errorf("cannot assemble %q", line)
		}
		if label != "" {
			in, label = in.WithSymbol(label), ""
		}
		out = append(out, in)
	}
	return out, nil
}

// asmForm is one form of an instruction.
type asmForm struct {
	re   *regexp.Regexp
	make func(m []string, maps []abi.MapSpec) (asm.Instruction, bool)
}

const (
	reReg  = `([rw])(\d+)`
	reWide = `r(\d+)`
	reNum  = `(-?(?:0x[0-9a-f]+|\d+))`
	reMem  = `\*\(([us])(8|16|32|64) \*\)\(r(\d+) ([+-]\d+)\)`
	reRHS  = `(?:([rw])(\d+)|` + reNum + `)`
	reName = `([a-z_0-9]+)`
)

var asmForms = []asmForm{
	form(`exit`, func(m []string, _ []abi.MapSpec) (asm.Instruction, bool) { return asm.Return(), true }),
	form(reWide+` = `+reNum+` ll`, func(m []string, _ []abi.MapSpec) (asm.Instruction, bool) {
		return asm.LoadImm(register(m[1]), integer(m[2]), asm.DWord), true
	}),
	form(reWide+` = map `+reName, func(m []string, maps []abi.MapSpec) (asm.Instruction, bool) {
		i := mapNamed(maps, m[2])
		return LoadMap(register(m[1]), i), i >= 0
	}),
	form(reWide+` = value `+reName+` ([+-]\d+)`, func(m []string, maps []abi.MapSpec) (asm.Instruction, bool) {
		i := mapNamed(maps, m[2])
		return asm.LoadMapValue(register(m[1]), i, uint32(integer(m[3]))), i >= 0
	}),
	form(reWide+` = ring`, func(m []string, _ []abi.MapSpec) (asm.Instruction, bool) { return LoadRing(register(m[1])), true }),
	form(reWide+` = func `+reName, func(m []string, _ []abi.MapSpec) (asm.Instruction, bool) {
		in := asm.Instruction{OpCode: asm.LoadImmOp(asm.DWord), Dst: register(m[1]), Src: asm.PseudoFunc, Constant: -1}
		return in.WithReference(m[2]), true
	}),
	form(reReg+` = -[rw]\d+`, func(m []string, _ []abi.MapSpec) (asm.Instruction, bool) {
		return aluInsn(asm.Neg, m[1] == "r", asm.Instruction{Dst: register(m[2])}, false), true
	}),
	form(reWide+` = (be|le|bswap)(16|32|64) r\d+`, assembleSwap),
	form(reReg+` = \(s(8|16|32)\) ?[rw](\d+)`, func(m []string, _ []abi.MapSpec) (asm.Instruction, bool) {
		op := map[string]asm.ALUOp{"8": asm.MovSX8, "16": asm.MovSX16, "32": asm.MovSX32}[m[3]]
		in := op.Reg(register(m[2]), register(m[4]))
		if m[1] == "w" {
			in.OpCode = in.OpCode&^7 | asm.OpCode(asm.ALUClass)
		}
		return in, true
	}),
	form(reReg+` ((?:s?[-+*/%&|^]|<<|>>|s>>)?=) `+reRHS, assembleALU),
	form(reWide+` = `+reMem, func(m []string, _ []abi.MapSpec) (asm.Instruction, bool) {
		if m[2] == "s" {
			return asm.LoadMemSX(register(m[1]), register(m[4]), int16(integer(m[5])), sizeOf(m[3])), true
		}
		return asm.LoadMem(register(m[1]), register(m[4]), int16(integer(m[5])), sizeOf(m[3])), true
	}),
	form(reMem+` = (?:r(\d+)|`+reNum+`)`, func(m []string, _ []abi.MapSpec) (asm.Instruction, bool) {
		if m[5] != "" {
			return asm.StoreMem(register(m[3]), int16(integer(m[4])), register(m[5]), sizeOf(m[2])), true
		}
		return asm.Instruction{OpCode: asm.StoreImmOp(sizeOf(m[2])), Dst: register(m[3]), Offset: int16(integer(m[4])), Constant: integer(m[6])}, true
	}),
	form(`lock ([a-z_]+) `+reMem+`, r(\d+)`, func(m []string, _ []abi.MapSpec) (asm.Instruction, bool) {
		for op, name := range atomicText {
			if name == m[1] {
				return op.Mem(register(m[4]), register(m[6]), sizeOf(m[3]), int16(integer(m[5]))), true
			}
		}
		return asm.Instruction{}, false
	}),
	form(`if `+reReg+` (\S+) `+reRHS+` goto `+reName, assembleJump),
	form(`goto `+reName, func(m []string, _ []abi.MapSpec) (asm.Instruction, bool) { return asm.Ja.Label(m[1]), true }),
	form(`call @`+reName, func(m []string, _ []abi.MapSpec) (asm.Instruction, bool) { return asm.Call.Label(m[1]), true }),
	form(`callx r(\d+)`, func(m []string, _ []abi.MapSpec) (asm.Instruction, bool) {
		return asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call).SetSource(asm.RegSource), Dst: register(m[1])}, true
	}),
	form(`call (\d+)`, func(m []string, _ []abi.MapSpec) (asm.Instruction, bool) {
		return Call(asm.BuiltinFunc(integer(m[1]))), true
	}),
	form(`call `+reName, func(m []string, _ []abi.MapSpec) (asm.Instruction, bool) {
		i := slices.IndexFunc(helpers, func(h Helper) bool { return h.Name == m[1] })
		if i < 0 {
			return asm.Instruction{}, false
		}
		return Call(helpers[i].ID), true
	}),
}

func form(re string, make func([]string, []abi.MapSpec) (asm.Instruction, bool)) asmForm {
	return asmForm{regexp.MustCompile(`^` + re + `$`), make}
}

func assembleLine(line string, maps []abi.MapSpec) (asm.Instruction, bool) {
	for _, f := range asmForms {
		if m := f.re.FindStringSubmatch(line); m != nil {
			if in, ok := f.make(m, maps); ok {
				return in, true
			}
		}
	}
	return asm.Instruction{}, false
}

func register(s string) asm.Register { return asm.Register(integer(s)) }

func integer(s string) int64 {
	v, err := strconv.ParseInt(s, 0, 64)
	if err != nil {
		u, uerr := strconv.ParseUint(s, 0, 64)
		if uerr != nil {
			panic(err)
		}
		v = int64(u)
	}
	return v
}

func sizeOf(bits string) asm.Size {
	return map[string]asm.Size{"8": asm.Byte, "16": asm.Half, "32": asm.Word, "64": asm.DWord}[bits]
}

func mapNamed(maps []abi.MapSpec, name string) int {
	return slices.IndexFunc(maps, func(m abi.MapSpec) bool { return m.Name == name })
}

func aluInsn(op asm.ALUOp, wide bool, in asm.Instruction, reg bool) asm.Instruction {
	src := asm.ImmSource
	if reg {
		src = asm.RegSource
	}
	in.OpCode = op.Op(src)
	if !wide {
		in.OpCode = op.Op32(src)
	}
	return in
}

func assembleALU(m []string, _ []abi.MapSpec) (asm.Instruction, bool) {
	for op, text := range aluText {
		if text != m[3] {
			continue
		}
		wide := m[1] == "r"
		if m[5] == "" {
			in := op.Imm(register(m[2]), 0)
			if !wide {
				in = op.Imm32(register(m[2]), 0)
			}
			v := integer(m[6])
			if v > math.MaxInt32 && v <= math.MaxUint32 && !wide {
				v = int64(int32(v))
			}
			in.Constant = v
			return in, true
		}
		if (m[4] == "r") != wide {
			return asm.Instruction{}, false
		}
		if wide {
			return op.Reg(register(m[2]), register(m[5])), true
		}
		return op.Reg32(register(m[2]), register(m[5])), true
	}
	return asm.Instruction{}, false
}

func assembleSwap(m []string, _ []abi.MapSpec) (asm.Instruction, bool) {
	size := sizeOf(m[3])
	switch m[2] {
	case "be":
		return asm.HostTo(asm.BE, register(m[1]), size), true
	case "le":
		return asm.HostTo(asm.LE, register(m[1]), size), true
	}
	return asm.BSwap(register(m[1]), size), true
}

func assembleJump(m []string, _ []abi.MapSpec) (asm.Instruction, bool) {
	for op, text := range jumpText {
		if text != m[3] {
			continue
		}
		dst, wide := register(m[2]), m[1] == "r"
		switch {
		case m[5] != "" && (m[4] == "r") != wide:
			return asm.Instruction{}, false
		case m[5] != "" && wide:
			return op.Reg(dst, register(m[5]), m[7]), true
		case m[5] != "":
			return op.Reg32(dst, register(m[5]), m[7]), true
		case wide:
			return op.Imm(dst, int32(integer(m[6])), m[7]), true
		}
		return op.Imm32(dst, int32(integer(m[6])), m[7]), true
	}
	return asm.Instruction{}, false
}
