package plan

import (
	"math/rand/v2"
	"slices"
	"testing"

	"trapless/internal/abi"
)

func mapping(start, end abi.Addr, name string) Mapping {
	return Mapping{abi.Range{Start: start, End: end}, name}
}

// pie is how a position-independent program lies in memory, fixed how one at
// the usual fixed address does.
var (
	pie = []Mapping{
		mapping(0x555555554000, 0x555555954000, "/usr/bin/program"),
		mapping(0x555555a00000, 0x555556a00000, "[heap]"),
		mapping(0x7ffff7c00000, 0x7ffff7e00000, "/usr/lib/libc.so.6"),
		mapping(0x7ffffffde000, 0x7ffffffff000, "[stack]"),
	}
	fixed = []Mapping{
		mapping(0x400000, 0x800000, "/usr/bin/program"),
		mapping(0x20000000, 0x21000000, "[heap]"),
		mapping(0x7ffff7c00000, 0x7ffff7e00000, "/usr/lib/libc.so.6"),
		mapping(0x7ffffffde000, 0x7ffffffff000, "[stack]"),
	}
)

// shapes are windows with different boundaries inside.
var shapes = []string{
	"b801000000 c3",        // none
	"55 4889e5 4883ec10",   // 1, 4
	"f30f1efa 55",          // 4
	"4889e5 4889ec",        // 3
	"6690 6690 6690",       // 2, 4
	"90 6690 6690",         // 1, 3
	"c3 | cccccccccccccc",  // 1, 2, 3, 4
	"488b0500001000 c3",    // none, refers to something
	"e800100000 c3",        // a call
	"90 0f1f8000000000 c3", // 1
}

// manyWindows plans one window of a random shape every 64 bytes.
func manyWindows(t *testing.T, start abi.Addr, n int) []*Window {
	t.Helper()
	r := rand.New(rand.NewPCG(7, 8))
	var all []*Window
	for i := range n {
		f := function(shapes[r.IntN(len(shapes))])
		f.Start = start + abi.Addr(i*64)
		windows, refusals := Analyze(f, []abi.Addr{f.Start}, &easy)
		if len(windows) != 1 {
			t.Fatal(refusals)
		}
		all = append(all, windows...)
	}
	return all
}

type piece struct {
	abi.Range
	window *Window
}

// pickAll picks an address for every window and checks each.
func pickAll(t *testing.T, s *Space, windows []*Window, size func(i int) int) []piece {
	t.Helper()
	var pieces []piece
	for i, w := range windows {
		at, r := s.Pick(w, size(i))
		if r != nil {
			t.Fatalf("window %d: %v", i, r)
		}
		p := piece{abi.Range{Start: at, End: at + abi.Addr(size(i))}, w}
		if !w.Allows(at) || p.Start < w.Reach().Start || p.End > w.Reach().End {
			t.Fatalf("window %d at %v does not allow %v", i, w.Start, at)
		}
		if _, err := w.Patch(at); err != nil {
			t.Fatal(err)
		}
		pieces = append(pieces, p)
	}
	sorted := slices.SortedFunc(slices.Values(pieces), func(x, y piece) int {
		if x.Start < y.Start {
			return -1
		}
		return 1
	})
	for i := 1; i < len(sorted); i++ {
		if sorted[i-1].Overlaps(sorted[i].Range) {
			t.Fatalf("%v overlaps %v", sorted[i-1], sorted[i])
		}
	}
	return pieces
}

func TestPick(t *testing.T) {
	for _, layout := range []struct {
		name  string
		maps  []Mapping
		start abi.Addr
		most  int // regions
	}{
		{"program", pie, 0x555555555000, 1},
		{"library", pie, 0x7ffff7c01000, 1},
		{"fixed", fixed, 0x401000, 1},
	} {
		t.Run(layout.name, func(t *testing.T) {
			s := NewSpace(SpaceConfig{Maps: layout.maps})
			windows := manyWindows(t, layout.start, 2000)
			pieces := pickAll(t, s, windows, func(i int) int { return 120 + i%7*30 })
			checkRegions(t, s, layout.maps, pieces)
			if n := len(s.Regions()); n > layout.most {
				t.Errorf("%d regions", n)
			}
			t.Logf("%d detours in %v", len(pieces), s.Regions())
		})
	}
}

// checkRegions checks that pieces lie in regions, and regions in free space.
func checkRegions(t *testing.T, s *Space, maps []Mapping, pieces []piece) {
	t.Helper()
	for _, p := range pieces {
		if !slices.ContainsFunc(s.Regions(), func(r abi.Range) bool { return r.Start <= p.Start && p.End <= r.End }) {
			t.Errorf("%v lies in no region", p.Range)
		}
	}
	for i, r := range s.Regions() {
		if r.Start%abi.PageSize != 0 || r.End%abi.PageSize != 0 || r.Len() == 0 || r.Len() > slotSize {
			t.Errorf("region %v to %v", r.Start, r.End)
		}
		for _, m := range maps {
			guard := abi.Range{Start: m.Range.Start - neighbour, End: m.Range.End + neighbour}
			if guard.Overlaps(r) {
				t.Errorf("region %v to %v is too near to %s", r.Start, r.End, m.Name)
			}
		}
		for _, other := range s.Regions()[:i] {
			if other.Overlaps(r) {
				t.Errorf("regions overlap at %v", r.Start)
			}
		}
	}
}

func TestPickIsDeterministic(t *testing.T) {
	run := func() (at []abi.Addr) {
		s := NewSpace(SpaceConfig{Maps: pie})
		for _, p := range pickAll(t, s, manyWindows(t, 0x555555555000, 300), func(i int) int { return 100 + i%3 }) {
			at = append(at, p.Start)
		}
		return at
	}
	if !slices.Equal(run(), run()) {
		t.Error("two runs differ")
	}
}

func TestSlotsBelowComeFirst(t *testing.T) {
	for _, row := range []struct {
		name  string
		maps  []Mapping
		start abi.Addr
		below bool
	}{{"program", pie, 0x555555555000, true}, {"library", pie, 0x7ffff7c01000, true}, {"fixed", fixed, 0x401000, false}} {
		for _, shape := range []string{shapes[0], shapes[1]} {
			f := function(shape)
			f.Start = row.start
			windows, _ := Analyze(f, []abi.Addr{f.Start}, &easy)
			at, r := NewSpace(SpaceConfig{Maps: row.maps}).Pick(windows[0], 200)
			if r != nil || (at < row.start) != row.below {
				t.Errorf("%s, %s: %v, %v", row.name, shape, at, r)
			}
		}
	}
}

// TestKeptFree: nothing is reserved where the heap or the stack grow to.
func TestKeptFree(t *testing.T) {
	low := []Mapping{
		mapping(0x400000, 0x800000, "/usr/bin/program"),
		mapping(0x900000, 0xa00000, "[heap]"),
		mapping(0x7ffffffde000, 0x7ffffffff000, "[stack]"),
	}
	window := func(start abi.Addr) *Window {
		f := function(shapes[1])
		f.Start = start
		windows, _ := Analyze(f, []abi.Addr{start}, &easy)
		return windows[0]
	}
	if at, r := NewSpace(SpaceConfig{Maps: low}).Pick(window(0x401000), 100); r == nil || r.Reason != NoSpringboard {
		t.Errorf("above a heap without gap: %v", at)
	}
	noHeap := slices.Delete(slices.Clone(low), 1, 2)
	if at, r := NewSpace(SpaceConfig{Maps: noHeap, Brk: 0x900000}).Pick(window(0x401000), 100); r == nil {
		t.Errorf("above the program break: %v", at)
	}
	if _, r := NewSpace(SpaceConfig{Maps: noHeap}).Pick(window(0x401000), 100); r != nil {
		t.Error(r)
	}
	high := []Mapping{
		mapping(0x7ffff0000000, 0x7ffff0100000, "/usr/lib/x.so"),
		mapping(0x7ffffffde000, 0x7ffffffff000, "[stack]"),
	}
	for _, limit := range []uint64{0, 8 << 20, 1 << 30, ^uint64(0)} {
		s := NewSpace(SpaceConfig{Maps: high, StackLimit: limit})
		f := function(shapes[0])
		f.Start = 0x7ffff0001000
		windows, _ := Analyze(f, []abi.Addr{f.Start}, &easy)
		for range 40 { // one region each
			if _, r := s.Pick(windows[0], slotSize-2*abi.PageSize); r != nil {
				break
			}
		}
		kept := abi.Range{Start: 0x7ffffffde000 - abi.Addr(max(min(limit, growthMost), stackReserve)), End: 0x7ffffffde000}
		kept.Start = max(kept.Start, 0x7ffff0100000) // the stack cannot grow into the library
		for _, r := range s.Regions() {
			if r.Overlaps(kept) {
				t.Errorf("limit %d: region %v to %v", limit, r.Start, r.End)
			}
		}
	}
}

func TestRegionsAreLimited(t *testing.T) {
	s := NewSpace(SpaceConfig{Maps: pie, RegionSize: 16 * abi.PageSize, Regions: 3})
	w := windowAt(t, shapes[0], 0)
	n := 0
	for ; n < 1000; n++ {
		if _, r := s.Pick(w, 0x4000); r != nil {
			if r.Reason != NoSpringboard {
				t.Error(r)
			}
			break
		}
	}
	if n != 12 || len(s.Regions()) != 3 {
		t.Errorf("%d pieces in %d regions", n, len(s.Regions()))
	}
}

// TestLittleIsWasted: windows without constraints fill what others leave.
func TestLittleIsWasted(t *testing.T) {
	const size, n = 256, 4000
	s := NewSpace(SpaceConfig{Maps: pie, RegionSize: 4 << 20})
	pieces := pickAll(t, s, manyWindows(t, 0x555555555000, n), func(int) int { return size })
	touched := map[abi.Addr]bool{}
	for _, p := range pieces {
		for a := p.Start.PageDown(); a < p.End; a += abi.PageSize {
			touched[a] = true
		}
	}
	least := n * size / abi.PageSize
	t.Logf("%d pages touched, %d would do, %d regions", len(touched), least, len(s.Regions()))
	if len(touched) > 2*least {
		t.Errorf("%d pages are touched, %d would do", len(touched), least)
	}
}

func TestRegionHeadIsKept(t *testing.T) {
	const head, share = 4 * abi.PageSize, 32
	for _, size := range []uint64{1 << 18, 1 << 20} {
		s := NewSpace(SpaceConfig{Maps: pie, RegionHead: head, HeadShare: share, RegionSize: size})
		pieces := pickAll(t, s, manyWindows(t, 0x555555555000, 500), func(i int) int { return 200 + i%7*3000 })
		for n := range 3 {
			if !s.Reserve(1 << (12 * n)) {
				t.Fatalf("no room for %d bytes", 1<<(12*n))
			}
			last := len(s.Regions()) - 1
			at, ok := s.PickIn(last, 1<<(12*n))
			if !ok {
				t.Fatalf("region %v was made for %d bytes and has no room", s.Regions()[last], 1<<(12*n))
			}
			pieces = append(pieces, piece{Range: abi.Range{Start: at, End: at + 1<<(12*n)}})
		}
		for _, p := range pieces {
			for _, r := range s.Regions() {
				end := r.Start + head + abi.Addr(r.Len()/share).PageUp()
				if p.Overlaps(abi.Range{Start: r.Start, End: end}) {
					t.Fatalf("%v to %v lies in the head of %v", p.Start, p.End, r)
				}
			}
		}
	}
}

// TestAdopt: a region that is mapped already is used further, but not what of
// it is in use.
func TestAdopt(t *testing.T) {
	mapped := abi.Range{Start: 0x55552b556000, End: 0x55552b566000}
	used := abi.Range{Start: mapped.Start, End: mapped.Start + 0x8000}
	s := NewSpace(SpaceConfig{Maps: append(slices.Clone(pie), Mapping{Range: mapped})})
	s.Adopt(mapped, []abi.Range{used})
	w := windowAt(t, shapes[0], 0)
	for n := 0; len(s.Regions()) == 1; n++ {
		at, r := s.Pick(w, 0x1000)
		switch {
		case r != nil || n > 8:
			t.Fatalf("%d pieces: %v", n, r)
		case used.Contains(at):
			t.Fatalf("%v is in use", at)
		case n == 8 && mapped.Contains(at), n < 8 && !mapped.Contains(at):
			t.Fatalf("piece %d is at %v", n, at)
		}
	}
}

// TestAdoptScattered: what is in use may come in any order, and overlap, because
// a journal that was damaged names it.
func TestAdoptScattered(t *testing.T) {
	const pages = 64
	r := rand.New(rand.NewPCG(9, 10))
	for range 100 {
		whole := abi.Range{Start: 0x55552b556000, End: 0x55552b556000 + pages*abi.PageSize}
		var used []abi.Range
		free := [pages]bool{}
		for i := range free {
			free[i] = i > 0 // the first is the head
		}
		for range r.IntN(20) {
			first, n := r.IntN(pages+4)-2, 1+r.IntN(6)
			start := whole.Start + abi.Addr(first*abi.PageSize)
			used = append(used, abi.Range{Start: start, End: start + abi.Addr(n*abi.PageSize)})
			for i := max(first, 0); i < min(first+n, pages); i++ {
				free[i] = false
			}
		}
		s := NewSpace(SpaceConfig{Maps: pie, RegionHead: abi.PageSize})
		s.Adopt(whole, used)
		for n := 0; ; n++ {
			at, ok := s.PickIn(0, abi.PageSize)
			if !ok {
				break
			}
			i := int(at-whole.Start) / abi.PageSize
			if at < whole.Start || i >= pages || !free[i] {
				t.Fatalf("%v is in use: %v of %v", at, used, whole)
			}
			free[i] = false
		}
		if slices.Contains(free[:], true) {
			t.Fatalf("not all free pages were found: %v of %v", used, whole)
		}
	}
}

func TestReserve(t *testing.T) {
	s := NewSpace(SpaceConfig{Maps: pie, RegionHead: 2 * abi.PageSize, Regions: 3})
	for i, size := range []int{1, abi.PageSize, 100 << 20} {
		if !s.Reserve(size) {
			t.Fatalf("no room for %d bytes", size)
		}
		if _, ok := s.PickIn(i, size); !ok {
			t.Errorf("no room for %d bytes in the region made for them", size)
		}
	}
	for i, r := range s.Regions() {
		for _, m := range pie {
			if r.Overlaps(m.Range) || r.Start%abi.PageSize != 0 || r.End%abi.PageSize != 0 {
				t.Errorf("region %d is %v", i, r)
			}
		}
		if i > 0 && r.Overlaps(s.Regions()[i-1]) {
			t.Errorf("regions %v overlap", s.Regions())
		}
	}
	if s.Reserve(1) {
		t.Error("a fourth region of three")
	}
}

func TestPickIn(t *testing.T) {
	whole := abi.Range{Start: 0x55552b556000, End: 0x55552b558000}
	s := NewSpace(SpaceConfig{Maps: pie})
	s.Adopt(whole, nil)
	last := whole.Start - 1
	for n := 0; ; n++ {
		at, ok := s.PickIn(0, 1000)
		if !ok {
			if n != 8 {
				t.Errorf("%d pieces of 1000 bytes in 8192", n)
			}
			break
		}
		if at <= last || at%alignment != 0 || at+1000 > whole.End {
			t.Errorf("piece %d is at %v", n, at)
		}
		last = at + 999
	}
}

// Nothing is placed over the pages of springboards that were taken over, although
// these may have counted as free.
func TestAdoptedBoardsAreNotFree(t *testing.T) {
	s := NewSpace(SpaceConfig{RegionSize: 1 << 20})
	w := manyWindows(t, 0x7f0000001000, 1)[0]
	at, r := s.Pick(w, 100)
	if r != nil {
		t.Fatal(r)
	}
	page := abi.Range{Start: at.PageDown(), End: at.PageDown() + abi.PageSize}
	s = NewSpace(SpaceConfig{RegionSize: 1 << 20})
	s.AdoptBoard(page, nil)
	if _, r = s.Pick(w, 100); r != nil {
		t.Fatal(r)
	}
	for _, region := range s.Regions() {
		if region.Overlaps(page) {
			t.Errorf("a region at %v over the springboards at %v", region, page)
		}
	}
}

// randomNeed is any of the kinds of need.
func randomNeed(r *rand.Rand) need {
	return need{kind: needKind(r.IntN(3)), value: byte(r.IntN(256))}
}

// TestNeedsAreMet compares what is looked up with what each value says.
func TestNeedsAreMet(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for range 1000 {
		n, i, v := randomNeed(r), r.IntN(4), r.IntN(256)
		turn := byte(0)
		if i == 3 {
			turn = sign
		}
		want, ok := 256, false
		for d := 255; d >= v; d-- {
			if n.allows(byte(d) ^ turn) {
				want, ok = d, true
			}
		}
		if got, found := n.from(i, byte(v)); found != ok || ok && int(got) != want {
			t.Fatalf("%+v: digit %d from %d on: %d, %v; want %d, %v", n, i, v, got, found, want, ok)
		}
	}
}

// TestFirstAmong compares leaps with a look at each range.
func TestFirstAmong(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	found := 0
	for range 3000 {
		w := &Window{Start: 0x7f0000000000 + abi.Addr(r.Uint64()>>40)}
		for i := range w.need {
			w.need[i] = randomNeed(r)
		}
		var list []abi.Range
		at := w.Start - 1<<31 - 1<<20
		for range r.IntN(200) {
			at += abi.Addr(r.Uint64N(1<<26) + 1)
			end := at + abi.Addr(r.Uint64N(1<<uint(r.IntN(25)))+1)
			list = append(list, abi.Range{Start: at, End: end})
			at = end
		}
		within := abi.Range{Start: w.Start - abi.Addr(r.Uint64N(1<<31)), End: w.Start + abi.Addr(r.Uint64N(1<<31))}
		size := 1 + r.IntN(40)
		var want abi.Addr
		ok := false
		for _, f := range list {
			if want, ok = w.firstAllowed(intersect(f, within), size); ok {
				break
			}
		}
		got, gotOK := w.firstAmong(list, within, size)
		if gotOK != ok || ok && got != want {
			t.Fatalf("%v of %d ranges within %v, needs %v: %v, %v; one by one %v, %v", size, len(list), within, w.need, got, gotOK, want, ok)
		}
		if ok {
			found++
		}
	}
	if found < 100 {
		t.Errorf("only %d were found", found)
	}
}
