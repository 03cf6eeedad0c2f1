package plan

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

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
	jmpLen     = 5 // jmp rel32
	shortLen   = 2 // jmp rel8
	opJmp      = 0xe9
	opJmpShort = 0xeb
	opCall     = 0xe8
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
		if !need.allows(byte(rel >> (8 * i))) {
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

// Patch is the change that sends the window to the detour, or to the springboard
// that leads there; and the window's guests, in their order, to theirs. It fails
// if the window does not allow that address.
func (w *Window) Patch(detour abi.Addr, guests ...abi.Addr) (Patch, error) {
	p := Patch{Addr: w.Start, Old: slices.Clone(w.Old)}
	var err error
	switch {
	case w.Bare:
		p.New = slices.Clone(w.Old)
	case w.Boosted:
		p.New = slices.Clone(w.Old)
		for _, s := range w.Sites {
			p.New[s.Addr-w.Start] = breakpoint
		}
		return p, nil
	case !w.Allows(detour):
		return Patch{}, refuse(w.Site, NoSpringboard, "%v is no address that the window of %d bytes at %v can jump to",
			detour, w.Len, w.Start)
	case w.Call:
		if p.New, err = reloc.RetargetCall(w.Insts[0].Inst, w.Old, w.Start, detour); err != nil {
			return Patch{}, fmt.Errorf("call at %v: %w", w.Site, err)
		}
		return p, nil
	case w.Cave != 0:
		p.New = []byte{opJmpShort, byte(w.Cave - w.Start - shortLen)}
	default:
		p.New = jump(w.rel(detour))
	}
	for len(p.New) < w.Len {
		p.New = append(p.New, breakpoint)
	}
	p.New = p.New[:w.Len]
	for i, g := range w.Guests {
		if guests[i] == 0 {
			continue
		}
		copy(p.New[g.Cave-w.Start:], jump(g.rel(guests[i])))
	}
	return p, nil
}

// jump is jmp rel32.
func jump(rel int64) []byte {
	return binary.LittleEndian.AppendUint32([]byte{opJmp}, uint32(rel))
}

// Boundaries are the offsets of the instructions that start inside the window.
func (w *Window) Boundaries() []int {
	var offs []int
	for i, in := range w.Insts {
		if i > 0 || w.Bare {
			offs = append(offs, in.Off)
		}
	}
	return offs
}

// setNeed derives the constraints on rel32: bytes at boundaries trap, and bytes
// behind a window of less than five are what they are. text is the function's.
func (w *Window) setNeed(text []byte) {
	if w.Boosted || w.Call {
		return
	}
	from, jumps := w, w.Start
	if w.Cave != 0 {
		from, jumps = w.Host, w.Cave
	}
	for _, off := range from.Boundaries() {
		if d := int(from.Start-jumps) + off; d > 0 && d < jmpLen && !from.Bare {
			w.need[d-1].kind = trapByte
		}
	}
	for d := w.Len; d < jmpLen && w.Cave == 0; d++ {
		w.need[d-1] = need{thisByte, text[int(w.Start-w.Func.Start)+d]}
	}
}

// Tail is what must stand behind the window while its patch is in place: the end
// of its jump.
func (w *Window) Tail() []byte {
	n := int(w.Extent().Len()) - w.Len
	if w.Cave != 0 && n > 0 {
		return []byte{byte(w.Cave - w.Start - shortLen)}
	}
	var tail []byte
	for d := jmpLen - n; d < jmpLen; d++ {
		tail = append(tail, w.need[d-1].value)
	}
	return tail
}

// Follow tells a window what the patches of those Behind it write: its jump ends
// in their bytes.
func (w *Window) Follow(behind []Patch) {
	for _, p := range behind {
		for d := w.Len; d < jmpLen; d++ {
			at := w.Start + abi.Addr(d)
			if at >= p.Addr && at < p.Addr+abi.Addr(len(p.New)) {
				w.need[d-1].value = p.New[at-p.Addr]
			}
		}
	}
}
