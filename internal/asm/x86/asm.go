// Package x86 encodes x86-64 machine code. A caller makes an Asm for the
// address at which the code will run, calls one method per instruction, and
// takes the bytes; labels name places before or after they are known.
//
// The same calls always give the same bytes. Where an instruction has several
// encodings, the one taken depends on its operands alone, and a branch to a
// label that is not bound yet always has its long form, so nothing moves once
// it was emitted. A mistake (an operand that cannot be encoded, a label out of
// reach or never bound) is kept and returned by Bytes, with the offset at
// which it happened, so that emitters need no error handling of their own.
//
// The package knows encodings only: no calling convention, no target and no
// program. It never reads what it emits.
package x86

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"trapless/internal/abi"
)

// ErrEncode wraps every reason why code cannot be encoded.
var ErrEncode = errors.New("x86 encoder")

// Label names a place in the code. NewLabel makes one, Bind places it.
type Label int

// Asm collects the code of one contiguous piece. Its methods must not be
// called concurrently.
type Asm struct {
	base   abi.Addr
	buf    []byte
	labels []int // offset of each label, unbound until Bind
	fixups []fixup
	rip    ripOperand
	err    error
}

const unbound = -1

// fixup is a field that waits for its label.
type fixup struct {
	at    int // offset of the field
	end   int // offset that the field counts from (the instruction's end)
	size  int // bytes: 1 or 4 (relative), 8 (absolute)
	label Label
	disp  int32 // added to the label
}

// ripOperand is the RIP-relative operand of the instruction that is being
// emitted. It counts from the instruction's end, which is known only after
// the immediate was written.
type ripOperand struct {
	at  int // offset of the displacement; 0 when there is none (an opcode precedes it)
	mem Mem
}

// New starts a piece of code that will run at base.
func New(base abi.Addr) *Asm { return &Asm{base: base} }

// PC is the address of the next byte.
func (a *Asm) PC() abi.Addr { return a.base + abi.Addr(len(a.buf)) }

// Len is the number of bytes emitted so far.
func (a *Asm) Len() int { return len(a.buf) }

// NewLabel makes a label that is not bound yet.
func (a *Asm) NewLabel() Label {
	a.labels = append(a.labels, unbound)
	return Label(len(a.labels) - 1)
}

// Bind places the label here. A label is bound once.
func (a *Asm) Bind(l Label) {
	switch {
	case !a.known(l):
		a.fail("label %d was not made by this assembler", l)
	case a.labels[l] != unbound:
		a.fail("label %d is bound twice", l)
	default:
		a.labels[l] = len(a.buf)
	}
}

// LabelAddr is the address of a bound label.
func (a *Asm) LabelAddr(l Label) abi.Addr {
	if !a.known(l) || a.labels[l] == unbound {
		a.fail("the address of label %d is asked for before it is bound", l)
		return a.base
	}
	return a.base + abi.Addr(a.labels[l])
}

// Bytes resolves the labels and returns the code, or the first mistake. It may
// be called once, at the end.
func (a *Asm) Bytes() ([]byte, error) {
	for _, f := range a.fixups {
		a.resolve(f)
	}
	a.fixups = nil
	if a.err != nil {
		return nil, a.err
	}
	return a.buf, nil
}

// Raw emits bytes as they are.
func (a *Asm) Raw(b ...byte) { a.buf = append(a.buf, b...) }

// Long emits a 32-bit word of data.
func (a *Asm) Long(v uint32) { a.buf = binary.LittleEndian.AppendUint32(a.buf, v) }

// Quad emits a 64-bit word of data.
func (a *Asm) Quad(v uint64) { a.buf = binary.LittleEndian.AppendUint64(a.buf, v) }

// QuadLabel emits the 64-bit address of a label as data.
func (a *Asm) QuadLabel(l Label) {
	a.fixups = append(a.fixups, fixup{at: len(a.buf), end: len(a.buf), size: 8, label: l})
	a.Quad(0)
}

// Align emits no-ops up to the next address that is a multiple of n, a power
// of two.
func (a *Asm) Align(n int) {
	if n <= 0 || n&(n-1) != 0 {
		a.fail("alignment %d is not a power of two", n)
		return
	}
	a.Nop(int(-a.PC() & abi.Addr(n-1)))
}

func (a *Asm) known(l Label) bool { return l >= 0 && int(l) < len(a.labels) }

// fail keeps the first mistake.
func (a *Asm) fail(format string, args ...any) {
	if a.err == nil {
		a.err = fmt.Errorf("%w: at offset %d: %s", ErrEncode, len(a.buf), fmt.Sprintf(format, args...))
	}
}

// resolve writes the field of one fixup.
func (a *Asm) resolve(f fixup) {
	if !a.known(f.label) || a.labels[f.label] == unbound {
		a.fail("label %d, used at offset %d, is not bound", f.label, f.at)
		return
	}
	to := a.labels[f.label]
	rel := int64(to) - int64(f.end) + int64(f.disp)
	switch field := a.buf[f.at:]; {
	case f.size == 8:
		binary.LittleEndian.PutUint64(field, uint64(a.base)+uint64(to))
	case f.size == 4 && fits32(rel):
		binary.LittleEndian.PutUint32(field, uint32(rel))
	case f.size == 1 && fits8(rel):
		field[0] = byte(rel)
	default:
		a.fail("label %d is %d bytes from its use at offset %d", f.label, rel, f.at)
	}
}

// finish ends an instruction: its RIP-relative operand, if it has one, counts
// from here.
func (a *Asm) finish() {
	r := a.rip
	if r.at == 0 {
		return
	}
	a.rip = ripOperand{}
	if r.mem.kind == memLabel {
		a.fixups = append(a.fixups, fixup{at: r.at, end: len(a.buf), size: 4, label: r.mem.label, disp: r.mem.Disp})
		return
	}
	rel := int64(r.mem.addr-a.PC()) + int64(r.mem.Disp)
	if !fits32(rel) {
		a.fail("operand at %v is out of reach of %v", r.mem.addr, a.PC())
	}
	binary.LittleEndian.PutUint32(a.buf[r.at:], uint32(rel))
}

func fits8(v int64) bool  { return v == int64(int8(v)) }
func fits32(v int64) bool { return math.MinInt32 <= v && v <= math.MaxInt32 }
