package plan

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"trapless/internal/abi"
)

// Link says where a window's jump leads, and what its patch is.
type Link struct {
	Window *Window
	Detour abi.Addr // 0 for one without: Window.Bare
	// Board is the address of a springboard that the jump leads to, 0 if it leads
	// to the detour itself. Kept: it is there already.
	Board abi.Addr
	Kept  bool
	Patch Patch
}

// BoardSize is the length of a springboard in bytes.
const BoardSize = 14

// BoardCode is a springboard at an address: a jump to the detour.
func BoardCode(at, detour abi.Addr) []byte {
	code := make([]byte, 0, BoardSize)
	if rel := int64(detour - at - jmpLen); rel >= math.MinInt32 && rel <= math.MaxInt32 {
		code = append(code, jump(rel)...)
		return append(code, make([]byte, BoardSize-jmpLen)...)
	}
	code = append(code, 0xff, 0x25, 0, 0, 0, 0) // jmp *0(%rip)
	return binary.LittleEndian.AppendUint64(code, uint64(detour))
}

// linker links the windows of one call of Space.Link.
type linker struct {
	*Space
	links map[*Window]*Link
	kept  func(w *Window, detour abi.Addr) []abi.Addr
}

// Link decides where the jumps of windows lead whose detours have been placed; of
// windows that have none (Bare) detour is 0. kept names the springboards from a
// window to its detour that are there already; it may be nil. Windows that no
// springboard can be found for become breakpoints (Boost), or are refused if they
// cannot.
//
// The links are in the order in which they must be applied; they are taken back
// the other way round.
func (s *Space) Link(windows []*Window, detour func(*Window) abi.Addr, kept func(*Window, abi.Addr) []abi.Addr) ([]*Link, []*Refusal) {
	if kept == nil {
		kept = func(*Window, abi.Addr) []abi.Addr { return nil }
	}
	l := &linker{s, map[*Window]*Link{}, kept}
	order := slices.SortedFunc(slices.Values(windows), func(x, y *Window) int { return cmp.Compare(y.Start, x.Start) })
	for _, w := range order {
		l.links[w] = &Link{Window: w, Detour: detour(w)}
	}
	refusals := l.dropOverlaps(order)
	for _, w := range order {
		if l.links[w] == nil {
			continue
		}
		if r := l.link(w); r != nil {
			refusals = append(refusals, r)
			delete(l.links, w)
		}
	}
	return l.inOrder(windows), refusals
}

// dropOverlaps drops what lies in the bytes of another window, or in those that
// its jump ends in without knowing. Functions are planned one by one; whoever plans
// many should have looked for that (Conflicts). This makes sure. The windows are in
// the order of their addresses, the last one first.
func (l *linker) dropOverlaps(order []*Window) (refusals []*Refusal) {
	var last *Window
	for _, w := range slices.Backward(order) {
		if last == nil || w.Start >= last.Extent().End || w.Start >= last.End() && slices.Contains(last.Behind, w) {
			last = w
			continue
		}
		drop := w
		if len(last.Sites) == 0 {
			drop, last = last, w
		}
		delete(l.links, drop)
		if len(drop.Sites) > 0 {
			refusals = append(refusals, refuse(drop.Site, WindowOverlap, "its window at %v to %v overlaps that at %v to %v, in %s",
				drop.Start, drop.End(), last.Start, last.End(), last.Func.Name))
		}
	}
	return refusals
}

// link finds the springboard of a window, if it needs one, and its patch as far as
// those in front of it need that. Precondition: those behind it are linked.
func (l *linker) link(w *Window) *Refusal {
	k := l.links[w]
	if w.Host != nil && (l.links[w.Host] == nil || w.Host.Boosted) && !w.Boosted {
		if r := w.Boost(); r != nil {
			return r
		}
	}
	if !w.Boosted && k.Board == 0 {
		if r := l.board(w, k); r != nil {
			if r := w.Boost(); r != nil {
				return r
			}
		}
	}
	var err error
	k.Patch, err = w.Patch(k.lead(), make([]abi.Addr, len(w.Guests))...)
	if err != nil {
		return refuse(w.Site, NoSpringboard, "%v", err)
	}
	return nil
}

// lead is where the window's jump leads.
func (k *Link) lead() abi.Addr { return cmp.Or(k.Board, k.Detour) }

// board finds the springboard of a window that needs one, for itself or for the
// window before it.
func (l *linker) board(w *Window, k *Link) *Refusal {
	if b := l.links[w.Before]; b != nil && !w.Before.Boosted && w.jumps() {
		if l.keepBoards(k, b) {
			return nil
		}
		if at, before, r := l.PickBoards(w, BoardSize); r == nil {
			k.Board, b.Board = at, before
			w.Before.fix(before)
			return nil
		}
	}
	if w.Len >= jmpLen || w.Cave != 0 {
		return nil
	}
	var patches []Patch
	for _, next := range w.Behind {
		if n := l.links[next]; n != nil {
			patches = append(patches, n.Patch)
		}
	}
	w.Follow(patches)
	for _, at := range l.kept(w, k.Detour) {
		if w.Allows(at) {
			k.Board, k.Kept = at, true
			return nil
		}
	}
	at, r := l.PickBoard(w, BoardSize)
	k.Board = at
	return r
}

// keepBoards looks for springboards of a window and of the one before it that are
// there already and go together.
func (l *linker) keepBoards(k, before *Link) bool {
	for _, at := range l.kept(k.Window, k.Detour) {
		if !k.Window.Allows(at) {
			continue
		}
		patch, err := k.Window.Patch(at, make([]abi.Addr, len(k.Window.Guests))...)
		if err != nil {
			continue
		}
		first := *before.Window
		first.Follow([]Patch{patch})
		for _, b := range l.kept(before.Window, before.Detour) {
			if first.Allows(b) {
				k.Board, before.Board, k.Kept, before.Kept = at, b, true, true
				*before.Window = first
				return true
			}
		}
	}
	return false
}

// inOrder completes the patches of hosts, and puts those first that others need.
// Windows that only make room, and that nobody needs, are left out.
func (l *linker) inOrder(windows []*Window) (list []*Link) {
	done := map[*Window]bool{}
	var add func(w *Window)
	add = func(w *Window) {
		k := l.links[w]
		if k == nil || done[w] || w.Boosted && len(w.Sites) == 0 {
			return
		}
		done[w] = true
		if !w.Boosted {
			for _, need := range append(slices.Clone(w.Behind), w.Host) {
				add(need)
			}
		}
		var guests []abi.Addr
		for _, g := range w.Guests {
			if n := l.links[g]; n != nil && !g.Boosted {
				guests = append(guests, n.lead())
			} else {
				guests = append(guests, 0)
			}
		}
		patch, err := w.Patch(k.lead(), guests...)
		if err != nil {
			panic("BUG: plan: a link that its window does not allow: " + err.Error())
		}
		k.Patch = patch
		list = append(list, k)
	}
	for _, w := range windows {
		if len(w.Sites) > 0 {
			add(w)
		}
	}
	return list
}

// Boost makes breakpoints of the window's sites, whose handler goes on at the
// detour. It refuses where a trap would kill the target, and a site that is no
// instruction of the window.
func (w *Window) Boost() *Refusal {
	last := w.Sites
	switch {
	case w.noTraps != "":
		return refuse(w.Site, NoSpringboard, "no free address serves its jump, and no breakpoint may be there: %s", w.noTraps)
	case len(last) > 0 && last[len(last)-1].Inst == len(w.Insts):
		return refuse(w.Site, NoSpringboard, "no address for the jump of its window at %v, behind which it lies", w.Start)
	}
	w.Boosted, w.Tactic, w.need, w.Before = true, Trap, [4]need{}, nil
	w.Host, w.Cave, w.Behind = nil, 0, nil
	return nil
}
