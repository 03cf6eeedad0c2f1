package bpf

import (
	"fmt"
	"strings"
)

// Reason is the kind of thing that is wrong with a program, in a word that
// stays the same.
type Reason string

// The reasons of Decode, and of Verify.
const (
	ReasonEncoding    Reason = "encoding"    // not an instruction of RFC 9669
	ReasonUnsupported Reason = "unsupported" // an instruction that has no meaning in a process
	ReasonJump        Reason = "jump-target" // a jump or a call leads nowhere
	ReasonFunction    Reason = "function"    // functions are not closed, or call each other in a circle
	ReasonMap         Reason = "no-such-map" // a map is not among the program's

	ReasonUninitialised      Reason = "uninitialised-register" // a register is read that may not have been written
	ReasonUninitialisedStack Reason = "uninitialised-stack"    // the same of a byte of the stack
	ReasonMixed              Reason = "mixed-register"         // a register is one thing on one path and another on another
	ReasonFramePointer       Reason = "frame-pointer"          // r10 is written
	ReasonMaybeNull          Reason = "maybe-null"             // a pointer is used that was not tested for 0
	ReasonNotPointer         Reason = "not-a-pointer"          // memory is accessed through something else
	ReasonNotNumber          Reason = "not-a-number"           // a number is needed, and there is something else
	ReasonOutside            Reason = "outside"                // an access may leave the object
	ReasonUnbounded          Reason = "unbounded"              // a pointer may point anywhere
	ReasonUnaligned          Reason = "unaligned"              // an atomic operation is not aligned
	ReasonContext            Reason = "context"                // this part of the context cannot be read
	ReasonReadOnly           Reason = "read-only"              // something that must not change is written
	ReasonPointerPart        Reason = "part-of-pointer"        // a pointer is taken apart
	ReasonPointerStored      Reason = "pointer-stored"         // a pointer is stored where it cannot be kept
	ReasonPointerArithmetic  Reason = "pointer-arithmetic"     // a pointer is calculated with as if it were a number
	ReasonPointerComparison  Reason = "pointer-comparison"     // a pointer is compared with what says nothing
	ReasonReference          Reason = "reference"              // a record or another reference is not used as it must be
	ReasonHelper             Reason = "helper"                 // there is no such helper
	ReasonCallTarget         Reason = "call-target"            // it is not known what a callx calls
	ReasonArgument           Reason = "argument"               // a helper takes something else
	ReasonSize               Reason = "size"                   // a size may be wrong
	ReasonFormat             Reason = "format"                 // a format cannot be printed, or not with these arguments
	ReasonMapType            Reason = "map-type"               // a map is not of the type that is needed
	ReasonReturn             Reason = "return-value"           // a function returns what it must not
	ReasonNotInMain          Reason = "not-in-main"            // only the main function may do this
	ReasonReleased           Reason = "released"               // a record is used that was given back
	ReasonStackSize          Reason = "stack-size"             // the functions need too much stack
	ReasonTooComplex         Reason = "too-complex"            // the verifier gave up
)

// explain makes an error of a rejection.
func (v *verifier) explain(r *rejection) error {
	e := &InsnError{
		Program: v.prog.Name, Index: r.at, Insn: fmt.Sprint(v.code.Insns[r.at]),
		Word: r.reason, Reason: r.text, Hint: r.hint, Source: v.prog.source(r.at),
	}
	if r.st != nil {
		e.State = v.stateText(r.st)
		e.Callers = r.st.callers()
	}
	return e
}

// source is the line of the source that an instruction was made of, if the
// program knows: the line of the last instruction up to it that has one.
func (p *Program) source(at int) string {
	for i := at; i >= 0; i-- {
		switch s := p.Insns[i].Source().(type) {
		case nil:
		case sourceLine:
			return fmt.Sprintf("%s:%d: %s", s.FileName(), s.LineNumber(), strings.TrimSpace(s.Line()))
		default:
			return strings.TrimSpace(s.String())
		}
		if p.Insns[i].Symbol() != "" {
			break // another function
		}
	}
	return ""
}

// sourceLine is a line of BTF's line information, as package btf has it.
type sourceLine interface {
	FileName() string
	LineNumber() uint32
	Line() string
}

// stateText describes the running function's registers and stack as the
// kernel's verifier log does.
func (v *verifier) stateText(s *state) string {
	var parts []string
	f := s.top()
	for r := range f.regs {
		if f.regs[r].kind != Unknown {
			parts = append(parts, fmt.Sprintf("R%d=%s", r, v.text(&f.regs[r])))
		}
	}
	for i := slots - 1; i >= 0; i-- {
		if t := v.slotText(f.at(i)); t != "" {
			parts = append(parts, fmt.Sprintf("fp%d=%s", 8*i-StackSize, t))
		}
	}
	for _, r := range s.refs {
		parts = append(parts, fmt.Sprintf("refs=%d", r.id))
	}
	text := strings.Join(parts, " ")
	if n := s.depth(); n > 0 {
		text = fmt.Sprintf("frame%d: %s", n, text)
	}
	return text
}

// slotText is a value that fills the slot, or a letter for each byte: m for a
// number, ? for what was not written.
func (v *verifier) slotText(sl *slot) string {
	if sl.init == 0 && len(sl.parts) == 0 {
		return ""
	}
	for _, p := range sl.parts {
		if p.size == 8 {
			return v.text(&p.val)
		}
	}
	b := []byte("????????")
	for i := range b {
		if sl.init>>i&1 != 0 {
			b[7-i] = 'm'
		}
	}
	return string(b)
}

func (v *verifier) text(x *value) string {
	if x.kind == Scalar {
		return x.num.String()
	}
	var parts []string
	off := ""
	if c, ok := x.num.Known(); ok {
		if c != 0 {
			off = fmt.Sprintf("off=%d", int64(c))
		}
	} else {
		off = "off=" + x.num.String()
	}
	switch x.kind {
	case Stack:
		c, _ := x.num.Known()
		if x.num.Bits.Known() {
			return fmt.Sprintf("fp%d", int64(c)) + frameSuffix(x.obj)
		}
		return fmt.Sprintf("fp+%v", x.num) + frameSuffix(x.obj)
	case MapRef, Cell, CellOrNull, MapValue, MapValueOrNull, MapKey:
		m := &v.code.Maps[x.obj]
		parts = append(parts, "map="+m.Name, fmt.Sprintf("ks=%d", m.KeySize), fmt.Sprintf("vs=%d", m.ValueSize))
	case Record, RecordOrNull, InputMem:
		parts = append(parts, fmt.Sprintf("sz=%d", x.size))
	case FuncRef:
		parts = append(parts, fmt.Sprintf("insn=%d", v.code.Funcs[x.obj].Start))
	}
	if off != "" {
		parts = append(parts, off)
	}
	return fmt.Sprintf("%v(%s)", x.kind, strings.Join(parts, ","))
}

func frameSuffix(frame int32) string {
	if frame == 0 {
		return ""
	}
	return fmt.Sprintf("[%d]", frame)
}
