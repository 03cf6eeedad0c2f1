// Package usdt makes programs of templates: a program that uses the arguments of a USDT probe
// (bpf.MarkerArg) becomes one for each place of the probe, in which they are read from where they are
// there, as the note in the file says. It is pure.
package usdt

import (
	"fmt"
	"math"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/bpf"
	"trapless/internal/image"
)

// ArgError says why a program cannot run at a place: it uses an argument that is not there, or of which it
// is not known where it is.
type ArgError struct {
	Marker string // provider:name
	N      int
	Detail string
}

func (e *ArgError) Error() string { return fmt.Sprintf("arg%d of %s: %s", e.N, e.Marker, e.Detail) }

// Uses reports whether a program is a template.
func Uses(p *bpf.Program) bool {
	for _, in := range p.Insns {
		if _, _, ok := bpf.IsMarkerArg(in); ok {
			return true
		}
	}
	return false
}

// Bind makes the program for one place of a probe; the template itself if it uses no argument. The error is
// an *ArgError.
func Bind(p *bpf.Program, m *image.Marker) (*bpf.Program, error) {
	if !Uses(p) {
		return p, nil
	}
	pieces := make([][]asm.Instruction, len(p.Insns))
	for i, in := range p.Insns {
		n, slot, ok := bpf.IsMarkerArg(in)
		if !ok {
			pieces[i] = []asm.Instruction{in}
			continue
		}
		code, err := fetch(m, n, slot)
		if err != nil {
			return nil, err
		}
		code[0] = code[0].WithMetadata(in.Metadata)
		pieces[i] = code
	}
	out := *p
	out.Insns = join(p.Insns, pieces)
	return &out, nil
}

// Verify verifies a program. A template stands for what becomes of it at its places: here all its
// arguments are constants.
func Verify(p *bpf.Program) (*bpf.Verified, error) {
	constant := image.Marker{Args: make([]image.MarkerArg, bpf.MaxMarkerArgs)}
	for i := range constant.Args {
		constant.Args[i] = image.MarkerArg{Size: 8, Kind: image.ArgConstant, Disp: int64(i)}
	}
	bound, err := Bind(p, &constant)
	if err != nil {
		return nil, err
	}
	return bpf.Verify(bound)
}

// join puts the pieces that instructions have become behind each other, and lets jumps and calls lead to
// where they led. Distances count units of 8 bytes.
func join(insns asm.Instructions, pieces [][]asm.Instruction) asm.Instructions {
	at := make([]int, 0, len(insns)) // by old unit: the new one
	unit := 0
	for i, piece := range pieces {
		for range insns[i].Width() {
			at = append(at, unit)
		}
		for _, in := range piece {
			unit += int(in.Width())
		}
	}
	at = append(at, unit)
	var out asm.Instructions
	old, unit := 0, 0
	for i, piece := range pieces {
		if len(piece) == 1 {
			piece = []asm.Instruction{moved(piece[0], old, unit, at)}
		}
		for _, in := range piece {
			out = append(out, in)
			unit += int(in.Width())
		}
		old += int(insns[i].Width())
	}
	return out
}

// moved lets an instruction lead to where it led, that was at one unit and is at another.
func moved(in asm.Instruction, old, unit int, at []int) asm.Instruction {
	to := func(distance int64) int64 {
		target := int64(old) + 1 + distance
		if target < 0 || target >= int64(len(at)) {
			return distance // the verifier will refuse it
		}
		return int64(at[target] - unit - 1)
	}
	switch {
	case in.Reference() != "": // by name
	case in.IsFunctionCall(), in.IsFunctionReference():
		in.Constant = to(in.Constant)
	case in.OpCode.Class().IsJump() && in.OpCode.JumpOp() != asm.Call && in.OpCode.JumpOp() != asm.Exit:
		if in.OpCode.Class() == asm.Jump32Class && in.OpCode.JumpOp() == asm.Ja {
			in.Constant = to(in.Constant)
			break
		}
		in.Offset = int16(max(math.MinInt16, min(to(int64(in.Offset)), math.MaxInt16)))
	}
	return in
}

// fetch are the instructions that put an argument into r0. r1 points to the context.
func fetch(m *image.Marker, n int, slot int16) ([]asm.Instruction, error) {
	refuse := func(format string, args ...any) error {
		return &ArgError{m.Provider + ":" + m.Name, n, fmt.Sprintf(format, args...)}
	}
	if n >= len(m.Args) {
		return nil, refuse("the probe has %d arguments at %v", len(m.Args), m.At)
	}
	a := &m.Args[n]
	if a.Problem != "" {
		return nil, refuse("%s: %s", a.Text, a.Problem)
	}
	f := fetcher{slot: slot, at: m.At}
	switch a.Kind {
	case image.ArgConstant:
		f.address(a)
		f.extend(a)
	case image.ArgRegister:
		if _, ok := registers[a.Reg]; !ok {
			return nil, refuse("%s is in a vector register, which is not supported yet", a.Text)
		}
		f.register(asm.R0, a.Reg)
		if a.Shift != 0 {
			f.emit(asm.RSh.Imm(asm.R0, int32(a.Shift)))
		}
		f.extend(a)
	default:
		f.address(a)
		f.read(a)
	}
	return f.code, nil
}

// registers are the context's fields.
var registers = map[string]int16{
	"rax": bpf.PtRegsAX, "rbx": bpf.PtRegsBX, "rcx": bpf.PtRegsCX, "rdx": bpf.PtRegsDX,
	"rsi": bpf.PtRegsSI, "rdi": bpf.PtRegsDI, "rbp": bpf.PtRegsBP, "rsp": bpf.PtRegsSP,
	"r8": bpf.PtRegsR8, "r9": bpf.PtRegsR9, "r10": bpf.PtRegsR10, "r11": bpf.PtRegsR11,
	"r12": bpf.PtRegsR12, "r13": bpf.PtRegsR13, "r14": bpf.PtRegsR14, "r15": bpf.PtRegsR15,
}

type fetcher struct {
	slot int16
	at   image.VAddr // of the place
	code []asm.Instruction
}

func (f *fetcher) emit(in asm.Instruction) { f.code = append(f.code, in) }

func (f *fetcher) register(dst asm.Register, name string) {
	f.emit(asm.LoadMem(dst, asm.R1, registers[name], asm.DWord))
}

// address makes r0 Base + Index*Scale + Disp. An address in the file is told by its distance from the
// place, at which the program knows to be.
func (f *fetcher) address(a *image.MarkerArg) {
	disp := a.Disp
	if a.Relocated {
		disp -= int64(f.at)
	}
	if small := disp >= math.MinInt32 && disp <= math.MaxInt32; small {
		f.emit(asm.Mov.Imm(asm.R0, int32(disp)))
	} else {
		f.emit(asm.LoadImm(asm.R0, disp, asm.DWord))
	}
	if a.Relocated {
		f.emit(asm.LoadMem(asm.R3, asm.R1, bpf.PtRegsIP, asm.DWord))
		f.emit(asm.Add.Reg(asm.R0, asm.R3))
	}
	if a.Base != "" {
		f.register(asm.R3, a.Base)
		f.emit(asm.Add.Reg(asm.R0, asm.R3))
	}
	if a.Index != "" {
		f.register(asm.R3, a.Index)
		f.emit(asm.Mul.Imm(asm.R3, int32(a.Scale)))
		f.emit(asm.Add.Reg(asm.R0, asm.R3))
	}
}

// read reads the value at r0; 0 if that cannot be read.
func (f *fetcher) read(a *image.MarkerArg) {
	zero := asm.Instruction{OpCode: asm.OpCode(asm.StClass).SetMode(asm.MemMode).SetSize(asm.DWord), Dst: asm.R10, Offset: f.slot}
	f.emit(zero)
	f.emit(asm.Mov.Reg(asm.R1, asm.R10))
	f.emit(asm.Add.Imm(asm.R1, int32(f.slot)))
	f.emit(asm.Mov.Imm(asm.R2, int32(a.Size)))
	f.emit(asm.Mov.Reg(asm.R3, asm.R0))
	f.emit(bpf.Call(asm.FnProbeReadUser))
	f.emit(asm.LoadMem(asm.R0, asm.R10, f.slot, asm.DWord))
	f.extend(a)
}

// extend makes the low Size bytes of r0 a value of 64 bits.
func (f *fetcher) extend(a *image.MarkerArg) {
	switch {
	case a.Size == 8:
	case a.Size == 4 && a.Signed:
		f.emit(asm.MovSX32.Reg(asm.R0, asm.R0))
	case a.Size == 2 && a.Signed:
		f.emit(asm.MovSX16.Reg(asm.R0, asm.R0))
	case a.Signed:
		f.emit(asm.MovSX8.Reg(asm.R0, asm.R0))
	case a.Size == 4:
		f.emit(asm.Mov.Reg32(asm.R0, asm.R0))
	default:
		f.emit(asm.And.Imm(asm.R0, 1<<(8*a.Size)-1))
	}
}
