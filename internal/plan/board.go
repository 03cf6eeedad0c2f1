package plan

import (
	"slices"
	"sort"

	"trapless/internal/abi"
)

// boardLen is what a springboard needs at least: jmp rel32.
const boardLen = jmpLen

// fits reports whether there is a free address for a springboard of the window.
func (s *Space) fits(w *Window) bool {
	_, r := s.bestBoard(w, boardLen)
	if r != nil {
		return true
	}
	_, _, ok := s.newBoard(w, boardLen)
	return ok
}

// PickBoard reserves size bytes for a springboard at an address that the window
// allows. Nothing else of the window matters: the code that it leads to lies
// elsewhere.
func (s *Space) PickBoard(w *Window, size int) (abi.Addr, *Refusal) {
	if at, r := s.bestBoard(w, size); r != nil {
		r.take(at, size)
		return at, nil
	}
	whole, at, ok := s.newBoard(w, size)
	if !ok || len(s.boards) >= s.config.Boards {
		return 0, refuse(w.Site, NoSpringboard, "none of the few addresses that a jump of %d bytes can lead to is free", w.Len)
	}
	s.free = subtract(s.free, whole)
	r := &region{whole: whole, free: []abi.Range{whole}, least: boardLen}
	s.addBoard(r)
	r.take(at, size)
	return at, nil
}

// PickBoards reserves springboards of size bytes each for a window and for the pun
// before it, whose jump ends in the first one's.
func (s *Space) PickBoards(w *Window, size int) (at, before abi.Addr, r *Refusal) {
	x, y, ok := s.both(w, w.Before, size)
	if !ok {
		return 0, 0, refuse(w.Before.Site, NoSpringboard, "no pair of free addresses serves the jump of %d bytes and the one that it ends in", w.Before.Len)
	}
	if at, r = s.PickBoard(x, size); r != nil {
		return 0, 0, r
	}
	before, r = s.PickBoard(y, size)
	return at, before, r
}

// fitBoth reports whether PickBoards would find something.
func (s *Space) fitBoth(w, before *Window) bool {
	_, _, ok := s.both(w, before, boardLen)
	return ok
}

// pairTries bounds how many addresses for the pun are tried in one stretch of
// free addresses.
const pairTries = 64

// both finds addresses for the springboards of a window and of the pun before
// it. It returns copies of the two that allow these alone.
func (s *Space) both(w, before *Window, size int) (x, y *Window, ok bool) {
	off := int(w.Start - before.Start)
	y = new(Window)
	*y = *before
	for d := off; d < jmpLen; d++ {
		y.need[d-1] = need{kind: thisByte, value: w.opcode()}
		if d > off {
			y.need[d-1] = w.need[d-off-1]
		}
	}
	for _, part := range s.parts(y) {
		for range pairTries {
			at, ok := y.firstAllowed(part, size)
			if !ok {
				break
			}
			x = w.endingIn(y, at, off)
			if s.fits(x) {
				fixed := *y
				fixed.fix(at)
				return x, &fixed, true
			}
			part.Start = at + 1
		}
	}
	return nil, nil, false
}

// parts are the free stretches in which a window's springboard may lie.
func (s *Space) parts(w *Window) (list []abi.Range) {
	for _, r := range s.boards {
		list = append(list, r.free...)
	}
	for _, slot := range w.slots() {
		for _, f := range s.free {
			if part := intersect(slot, f); part.Len() > 0 {
				list = append(list, part)
			}
		}
	}
	return list
}

// endingIn is a copy of the window that allows only jumps whose first bytes are
// the last ones of the jump before it, which leads to an address.
func (w *Window) endingIn(before *Window, at abi.Addr, off int) *Window {
	x := *w
	rel := before.rel(at)
	for d := off + 1; d < jmpLen; d++ {
		x.need[d-off-1] = need{thisByte, byte(rel >> (8 * (d - 1)))}
	}
	return &x
}

// fix makes the window allow one address alone.
func (w *Window) fix(at abi.Addr) {
	rel := w.rel(at)
	for i := range w.need {
		w.need[i] = need{thisByte, byte(rel >> (8 * i))}
	}
}

// opcode is the first byte of the window's jump.
func (w *Window) opcode() byte {
	if w.Call {
		return opCall
	}
	return opJmp
}

// bestBoard finds a place among the springboards that there are.
func (s *Space) bestBoard(w *Window, size int) (abi.Addr, *region) {
	for from := abi.Addr(0); ; {
		at, ok := w.next(from)
		if !ok {
			return 0, nil
		}
		i := sort.Search(len(s.sorted), func(i int) bool { return s.sorted[i].whole.End > at })
		if i == len(s.sorted) {
			return 0, nil
		}
		r := s.sorted[i]
		for _, f := range r.free {
			if at, ok := w.firstAllowed(f, size); ok {
				return at, r
			}
		}
		from = r.whole.End
	}
}

// addBoard notes pages of springboards.
func (s *Space) addBoard(r *region) {
	s.boards = append(s.boards, r)
	i := sort.Search(len(s.sorted), func(i int) bool { return s.sorted[i].whole.Start > r.whole.Start })
	s.sorted = slices.Insert(s.sorted, i, r)
}

// newBoard finds pages for a springboard.
func (s *Space) newBoard(w *Window, size int) (whole abi.Range, at abi.Addr, ok bool) {
	for _, slot := range w.slots() {
		if at, ok := w.firstAmong(s.free, slot, size); ok {
			return abi.Range{Start: at.PageDown(), End: (at + abi.Addr(size)).PageUp()}, at, true
		}
	}
	return abi.Range{}, 0, false
}

// Boards are the pages of springboards, in the order in which PickBoard came to
// need them. Each must be mapped before a springboard in it is used.
func (s *Space) Boards() []abi.Range {
	var all []abi.Range
	for _, r := range s.boards {
		all = append(all, r.whole)
	}
	return all
}

// AdoptBoard adds pages of springboards that are mapped already and the pieces of
// them that are in use.
func (s *Space) AdoptBoard(whole abi.Range, used []abi.Range) {
	free := []abi.Range{whole}
	for _, u := range used {
		free = subtract(free, u)
	}
	s.free = subtract(s.free, whole)
	s.addBoard(&region{whole: whole, free: free, least: boardLen})
}
