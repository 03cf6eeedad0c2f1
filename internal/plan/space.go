package plan

import (
	"cmp"
	"math"
	"slices"
	"sync"

	"trapless/internal/abi"
)

// Mapping is one mapping of the target.
type Mapping struct {
	Range abi.Range
	Name  string // as /proc/PID/maps has it; [heap] and [stack] matter
}

// SpaceConfig says what a Space may use.
type SpaceConfig struct {
	Maps []Mapping
	// Brk is where the heap may begin to grow although there is no [heap]
	// yet (start_brk, field 47 of /proc/PID/stat); 0 keeps nothing free.
	Brk abi.Addr
	// StackLimit is RLIMIT_STACK in bytes; 0 stands for the usual 8 MB.
	StackLimit uint64
	// RegionSize is the greatest size of a region in bytes, whole pages; 0
	// stands for the 16 MB within which the top byte of rel32 stays the same.
	RegionSize uint64
	// RegionHead is kept for the caller at the start of each region, in
	// bytes, whole pages.
	RegionHead uint64
	// HeadShare makes the head of a region greater by one byte for as many
	// bytes of the region, rounded up to whole pages; 0 by none.
	HeadShare uint64
	// Regions is the greatest number of regions; 0 stands for 64.
	Regions int
	// Boards is the greatest number of mappings of springboards; 0 stands for
	// 16384. A process may have 65530 of all kinds (vm.max_map_count).
	Boards int
}

const (
	slotSize     = 1 << 24 // addresses with the same top byte of rel32
	lowest       = 1 << 20 // keeps null pointers with an offset unmapped
	highest      = 0x7ffffffff000
	neighbour    = 1 << 20 // the kernel's stack_guard_gap: keeps MAP_GROWSDOWN mappings growing
	stackReserve = 128 << 20
	growthMost   = 1 << 40 // what is kept free for a heap, or a stack without limit
	regionLimit  = 64
	boardLimit   = 16 << 10
)

// Space knows the free address space of a target and picks addresses in it for
// detours. It reserves regions, each to be mapped as one, and hands out pieces
// of them; a piece is never handed out twice. It is deterministic.
type Space struct {
	config  SpaceConfig
	free    []abi.Range // outside of all mappings and regions, ascending
	regions []*region
	boards  []*region         // pages of springboards
	sorted  []*region         // the same, ascending
	nearMu  sync.Mutex        // guards near: functions are planned at the same time
	near    map[abi.Addr]bool // what trapsNear has found, by the address without its low 24 bits
}

// region is a stretch reserved for detours, or pages of springboards.
type region struct {
	whole abi.Range
	free  []abi.Range // ascending
	least uint64      // of a free piece that is kept, in bytes
}

// leastPiece is less than most detours need, in bytes. What is left over between
// detours and is smaller is forgotten: of ten thousands of such pieces hardly one
// is ever used, but all would be looked at each time.
const leastPiece = 64

// NewSpace computes the free address space.
//
// Kept out, besides the mappings themselves and 1 MB around each: what is above
// the heap up to the next mapping, at most 1 TB, for brk; and below the main
// stack its limit, at least 128 MB as the kernel's own layout leaves.
func NewSpace(c SpaceConfig) *Space {
	if c.RegionSize == 0 {
		c.RegionSize = slotSize
	}
	if c.Regions == 0 {
		c.Regions = regionLimit
	}
	if c.Boards == 0 {
		c.Boards = boardLimit
	}
	s := &Space{config: c}
	s.findFree()
	return s
}

// Renew takes note of what the target has mapped meanwhile. What was handed out
// stays so.
func (s *Space) Renew(maps []Mapping) {
	s.config.Maps = maps
	s.findFree()
}

// findFree computes what is free outside of mappings, regions and springboards.
func (s *Space) findFree() {
	var out []abi.Range
	for _, m := range s.config.Maps {
		out = append(out, s.guarded(m))
	}
	if s.config.Brk != 0 {
		out = append(out, s.growth(s.config.Brk))
	}
	for _, r := range slices.Concat(s.regions, s.boards) {
		out = append(out, r.whole)
	}
	slices.SortFunc(out, func(x, y abi.Range) int { return cmp.Compare(x.Start, y.Start) })
	s.free = s.free[:0]
	from := abi.Addr(lowest)
	for _, r := range append(out, abi.Range{Start: highest, End: highest}) {
		if start := min(r.Start, highest); start > from {
			s.free = append(s.free, abi.Range{Start: from, End: start})
		}
		from = max(from, r.End)
	}
}

// guarded is a mapping with its guard distances.
func (s *Space) guarded(m Mapping) abi.Range {
	g := abi.Range{Start: below(m.Range.Start, neighbour), End: above(m.Range.End, neighbour)}
	switch m.Name {
	case "[heap]":
		g.End = s.growth(m.Range.End).End
	case "[stack]":
		limit := min(s.config.StackLimit, growthMost)
		g.Start = max(s.lastMapping(m.Range.Start), below(m.Range.Start, neighbour+max(limit, stackReserve)))
	}
	return g
}

// growth is what is kept free above the program break.
func (s *Space) growth(brk abi.Addr) abi.Range {
	return abi.Range{Start: brk, End: min(s.nextMapping(brk), above(brk, growthMost))}
}

// nextMapping is the start of the first mapping at or above an address.
func (s *Space) nextMapping(a abi.Addr) abi.Addr {
	next := abi.Addr(math.MaxUint64)
	for _, m := range s.config.Maps {
		if m.Range.Start >= a {
			next = min(next, m.Range.Start)
		}
	}
	return next
}

// lastMapping is the end of the last mapping that ends at or below an address.
func (s *Space) lastMapping(a abi.Addr) abi.Addr {
	var last abi.Addr
	for _, m := range s.config.Maps {
		if m.Range.End <= a {
			last = max(last, m.Range.End)
		}
	}
	return last
}

// subtract takes a range out of an ascending list of ranges.
func subtract(list []abi.Range, out abi.Range) []abi.Range {
	var rest []abi.Range
	for _, r := range list {
		if !r.Overlaps(out) {
			rest = append(rest, r)
			continue
		}
		if r.Start < out.Start {
			rest = append(rest, abi.Range{Start: r.Start, End: out.Start})
		}
		if out.End < r.End {
			rest = append(rest, abi.Range{Start: out.End, End: r.End})
		}
	}
	return rest
}

// Regions are the reserved stretches, in the order in which Pick came to need
// them. Each must be mapped, whole, before a detour in it is used.
func (s *Space) Regions() []abi.Range {
	var all []abi.Range
	for _, r := range s.regions {
		all = append(all, r.whole)
	}
	return all
}

// Pick reserves size bytes for a detour at an address that the window allows, if
// it needs no springboard, and from which everything that its instructions refer
// to is in reach.
func (s *Space) Pick(w *Window, size int) (abi.Addr, *Refusal) {
	if w.NeedsBoard() {
		loose := *w
		loose.need = [4]need{}
		w = &loose
	}
	if at, r := s.bestFit(w, size); r != nil {
		r.take(at, size)
		return at, nil
	}
	if len(s.regions) == s.config.Regions {
		return 0, refuse(w.Site, NoSpringboard, "all %d regions for detours are in use", len(s.regions))
	}
	at, ok := s.reserve(w, size)
	if !ok {
		return 0, refuse(w.Site, NoSpringboard,
			"no free address within 2 GB gives a jump whose bytes at offsets %v of the window trap", w.Boundaries())
	}
	r := s.regions[len(s.regions)-1]
	r.take(at, size)
	return at, nil
}

// bestFit finds the place in the smallest free piece that holds it.
func (s *Space) bestFit(w *Window, size int) (abi.Addr, *region) {
	var at abi.Addr
	var in *region
	best := uint64(math.MaxUint64)
	for _, r := range s.regions {
		for _, f := range r.free {
			if f.Len() >= best || f.Len() < uint64(size) {
				continue
			}
			if a, ok := w.firstIn(f, size); ok {
				at, in, best = a, r, f.Len()
			}
		}
	}
	return at, in
}

// take marks a place as used. Precondition: one free piece holds it.
func (r *region) take(at abi.Addr, size int) {
	end := at + abi.Addr(size)
	i, exact := slices.BinarySearchFunc(r.free, at, func(f abi.Range, a abi.Addr) int { return cmp.Compare(f.Start, a) })
	if !exact {
		i--
	}
	var left []abi.Range
	for _, rest := range []abi.Range{{Start: r.free[i].Start, End: at}, {Start: end, End: r.free[i].End}} {
		if rest.Len() >= r.least {
			left = append(left, rest)
		}
	}
	r.free = slices.Replace(r.free, i, i+1, left...)
}

// GiveBack takes back what a detour at an address does not need of the size that
// was picked for it, if what follows is free. It returns the size that is left.
func (s *Space) GiveBack(at abi.Addr, size, needed int) int {
	end := at + abi.Addr(size)
	for _, r := range s.regions {
		if !r.whole.Contains(at) {
			continue
		}
		i, free := slices.BinarySearchFunc(r.free, end, func(f abi.Range, a abi.Addr) int { return cmp.Compare(f.Start, a) })
		if free {
			r.free[i].Start = at + abi.Addr(needed)
			return needed
		}
	}
	return size
}

// reserve makes a new region that holds a place for the window: a large one if
// there is one, else any. It is the last of s.regions afterwards.
func (s *Space) reserve(w *Window, size int) (abi.Addr, bool) {
	for _, least := range []uint64{s.config.RegionSize / 2, abi.PageSize} {
		for _, slot := range w.slots() {
			for _, f := range s.free {
				piece := intersect(pages(slot), f)
				if piece.Len() < least {
					continue
				}
				room := piece
				room.Start = min(room.Start+s.headFor(piece, size), room.End)
				if at, ok := w.firstIn(room, size); ok {
					s.addRegion(piece, at, size)
					return at, true
				}
			}
		}
	}
	return 0, false
}

// trapsNear reports whether there is room for detours where a jump that counts from
// an address has a trapping top byte.
func (s *Space) trapsNear(from abi.Addr) bool {
	key := from &^ (slotSize - 1)
	s.nearMu.Lock()
	defer s.nearMu.Unlock()
	if known, ok := s.near[key]; ok {
		return known
	}
	w := Window{Start: from - jmpLen}
	w.need[3].kind = trapByte
	found := false
	for _, slot := range w.slots() {
		for _, f := range s.free {
			found = found || intersect(pages(slot), f).Len() >= s.config.RegionHead+roomLeast
		}
		for _, r := range s.regions {
			for _, f := range r.free {
				found = found || intersect(slot, f).Len() >= roomLeast
			}
		}
	}
	if s.near == nil {
		s.near = map[abi.Addr]bool{}
	}
	s.near[key] = found
	return found
}

// roomLeast is less room than what a few detours need, in bytes.
const roomLeast = 64 << 10

// Reserve makes a new region with room for size bytes that no window leads to,
// anywhere. It is the last of Regions afterwards. It reports false if there is no
// room.
func (s *Space) Reserve(size int) bool {
	if len(s.regions) == s.config.Regions {
		return false
	}
	n := abi.Addr(size + alignment).PageUp()
	need := n + s.head(2*uint64(n)+s.config.RegionHead)
	for _, f := range s.free {
		piece := pages(f)
		if piece.Start < piece.End && abi.Addr(piece.Len()) >= need {
			piece.End = piece.Start + need
			s.free = subtract(s.free, piece)
			s.Adopt(piece, nil)
			return true
		}
	}
	return false
}

// head is the size of the head of a region of that length.
func (s *Space) head(length uint64) abi.Addr {
	n := abi.Addr(s.config.RegionHead)
	if s.config.HeadShare != 0 {
		n += abi.Addr(length / s.config.HeadShare).PageUp()
	}
	return n
}

// headFor is the most that the head of a region in a piece has that is made for
// size bytes.
func (s *Space) headFor(piece abi.Range, size int) abi.Addr {
	return s.head(min(piece.Len(), max(s.config.RegionSize, 2*uint64(size))))
}

// addRegion reserves up to RegionSize bytes of a free piece, with the place at
// an address in it.
func (s *Space) addRegion(piece abi.Range, at abi.Addr, size int) {
	first := at.PageDown() - s.headFor(piece, size)
	want := max(s.config.RegionSize, uint64((at+abi.Addr(size)).PageUp()-first))
	whole := piece
	if piece.Len() > want {
		whole.Start = min(first, piece.End-abi.Addr(want))
		whole.End = whole.Start + abi.Addr(want)
	}
	s.free = subtract(s.free, whole)
	s.Adopt(whole, nil)
}

// Adopt adds a region that is mapped already and the pieces of it that are in
// use. Its head is kept out as that of any region.
func (s *Space) Adopt(whole abi.Range, used []abi.Range) {
	used = slices.SortedFunc(slices.Values(used), func(x, y abi.Range) int { return cmp.Compare(x.Start, y.Start) })
	rest := abi.Range{Start: whole.Start + s.head(whole.Len()), End: whole.End}
	r := &region{whole: whole, least: leastPiece}
	for _, u := range append(used, abi.Range{Start: rest.End, End: rest.End}) {
		if piece := intersect(rest, abi.Range{Start: rest.Start, End: u.Start}); piece.Len() >= r.least {
			r.free = append(r.free, piece)
		}
		rest.Start = min(max(rest.Start, u.End), rest.End)
	}
	s.regions = append(s.regions, r)
}

// PickIn reserves size bytes anywhere in region number i, for code that no
// window leads to. It reports false if there is no room.
func (s *Space) PickIn(i, size int) (abi.Addr, bool) {
	r := s.regions[i]
	for _, f := range r.free {
		at := (f.Start + alignment - 1) &^ (alignment - 1)
		if at < f.End && uint64(f.End-at) >= uint64(size) {
			r.take(at, size)
			return at, true
		}
	}
	return 0, false
}

func pages(r abi.Range) abi.Range {
	return abi.Range{Start: r.Start.PageUp(), End: r.End.PageDown()}
}

// intersect is empty, with Len 0, when the ranges share nothing.
func intersect(x, y abi.Range) abi.Range {
	r := abi.Range{Start: max(x.Start, y.Start), End: min(x.End, y.End)}
	r.End = max(r.End, r.Start)
	return r
}

// slots are the ranges in which to look for a region, best first: those that
// give rel32 a trapping top byte, because all windows of a module can share
// them, then, if the window does not need that, everything in reach.
//
// A position-independent image has its heap and its libraries above it and
// nothing below, so slots below come first there; a fixed one lies so low that
// there is no place below.
func (w *Window) slots() []abi.Range {
	tops := slices.Concat(topsBelow, topsAbove)
	if w.Start < 1<<32 {
		tops = slices.Concat(topsAbove, topsBelow)
	}
	if n := w.need[3]; n.kind == thisByte {
		tops = []int{int(int8(n.value))}
	}
	from := w.jumpBase()
	var slots []abi.Range
	for _, top := range tops {
		start := int64(from) + int64(top)*slotSize
		if start > 0 {
			slots = append(slots, abi.Range{Start: abi.Addr(start), End: abi.Addr(start) + slotSize})
		}
	}
	if w.need[3].kind == anyByte {
		slots = append(slots, abi.Range{Start: below(from, 1<<31), End: above(from, 1<<31)})
	}
	return slots
}

// topsBelow and topsAbove are the trapping top bytes as signed numbers,
// nearest first.
var topsBelow, topsAbove = func() (below, above []int) {
	for _, b := range Traps {
		if top := int(int8(b)); top < 0 {
			below = append(below, top)
		} else {
			above = append(above, top)
		}
	}
	slices.SortFunc(below, func(x, y int) int { return y - x })
	slices.Sort(above)
	return below, above
}()
