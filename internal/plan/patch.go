package plan

import (
	"encoding/binary"
	"fmt"
	"math"

	"trapless/internal/abi"
	"trapless/internal/reloc"
)

// Traps are the bytes that raise SIGTRAP (the first, with the program counter
// behind it) or SIGILL (the others, with the program counter at it), whatever
// follows and whatever the processor's features are: int3, and opcodes that
// 64-bit mode does not have (SDM volume 2, table A-2; D6 is reserved). Not
// among them: opcodes that fetch operands before they fail (82, 9A, D4, EA),
// that begin a longer encoding (62, D5), and privileged ones.
var Traps = [...]byte{
	0xcc, 0x06, 0x07, 0x0e, 0x16, 0x17, 0x1e, 0x1f, 0x27, 0x2f, 0x37, 0x3f, 0x60, 0x61, 0xce, 0xd6,
}

const (
	jmpLen     = 5 // jmp rel32, the shortest window
	opJmp      = 0xe9
	breakpoint = 0xcc
)

// trapping has the members of Traps.
var trapping = func() (set [256]bool) {
	for _, b := range Traps {
		set[b] = true
	}
	return set
}()

// Patch is a change of the target's text.
type Patch struct {
	Addr     abi.Addr
	Old, New []byte // of the same length
}

// Allows reports whether the window may jump to the detour, or springboard, at
// this address: whether rel32 reaches it and has a trapping byte at each
// boundary. Whether moved code fits there is Reach's matter.
func (w *Window) Allows(detour abi.Addr) bool {
	rel := w.rel(detour)
	if rel < math.MinInt32 || rel > math.MaxInt32 {
		return false
	}
	for i, need := range w.need {
		if need && !trapping[byte(rel>>(8*i))] {
			return false
		}
	}
	return true
}

// rel is what the window's rel32 must be for an address.
func (w *Window) rel(detour abi.Addr) int64 { return int64(detour - w.jumpBase()) }

// Reach is the range of addresses in which the relocated code must lie, so
// that everything that it refers to is in its reach.
func (w *Window) Reach() abi.Range { return w.reach }

// Patch is the change that sends the window to the detour. It fails if the
// window does not allow that address.
func (w *Window) Patch(detour abi.Addr) (Patch, error) {
	if !w.Allows(detour) {
		return Patch{}, refuse(w.Site, NoSpringboard, "%v is no address that the window of %d bytes at %v can jump to",
			detour, w.Len, w.Start)
	}
	p := Patch{Addr: w.Start, Old: append([]byte(nil), w.Old...)}
	if w.Call {
		call, err := reloc.RetargetCall(w.Insts[0].Inst, w.Old, w.Start, detour)
		if err != nil {
			return Patch{}, fmt.Errorf("call at %v: %w", w.Site, err)
		}
		p.New = call
		return p, nil
	}
	p.New = append(p.New, opJmp)
	p.New = binary.LittleEndian.AppendUint32(p.New, uint32(w.rel(detour)))
	for len(p.New) < w.Len {
		p.New = append(p.New, breakpoint)
	}
	return p, nil
}

// Boundaries are the offsets of the instructions that start inside the window.
func (w *Window) Boundaries() []int {
	var offs []int
	for _, in := range w.Insts[1:] {
		offs = append(offs, in.Off)
	}
	return offs
}

// setNeed derives the constraints on rel32 from the boundaries.
func (w *Window) setNeed() {
	for _, off := range w.Boundaries() {
		if off < jmpLen {
			w.need[off-1] = true
		}
	}
}
