package plan

import (
	"encoding/binary"
	"slices"
	"testing"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/reloc"
)

// FuzzAnalyze gives Analyze bytes of which the first say how to cut the rest
// into body and padding, and which facts hold.
func FuzzAnalyze(f *testing.F) {
	for _, code := range shapes {
		fn := function(code)
		f.Add(uint8(len(fn.Pad)), uint8(0xff), uint64(base), append(slices.Clone(fn.Code), fn.Pad...))
	}
	f.Add(uint8(0), uint8(0xff), uint64(base), unhex("83ff01 7712 488d15f41f0000 486304ba 4801d0 ffe0 90 90 c3"))
	f.Add(uint8(0), uint8(0), ^uint64(0)-3, unhex("b801000000c3"))
	f.Fuzz(func(t *testing.T, pad, facts uint8, start uint64, code []byte) {
		code = code[:min(len(code), 600)] // every byte is a site
		cut := max(0, len(code)-int(pad))
		fn := &Func{Name: "f", Start: abi.Addr(start), Code: code[:cut], Pad: code[cut:], Entry: facts&1 != 0, InboundKnown: facts&2 != 0}
		if facts&4 != 0 {
			fn.Inbound = []abi.Addr{fn.Start + 7, fn.Start + 1000}
		}
		if facts&128 != 0 {
			fn.ReadOnly = Constants{{fn.Start, code}, {fn.Start + 0x2000, unhex("15e0ffff 16e0ffff")}}.Read
			fn.Taken = []abi.Addr{fn.Start + 5, fn.Start - 1}
		}
		var sites []abi.Addr
		for i := range cut + 1 {
			sites = append(sites, fn.Start+abi.Addr(i))
		}
		windows, refusals := Analyze(fn, sites, &Facts{TrapsHandled: facts&8 != 0, SlowEntries: facts&16 != 0,
			FaultsDefault: facts&32 != 0, FaultsMapped: facts&64 != 0})
		if n := siteCount(windows); n+len(refusals) != len(sites) {
			t.Fatalf("%d sites, %d of them in %d windows, %d refusals", len(sites), n, len(windows), len(refusals))
		}
		for i, w := range windows {
			if i > 0 && w.Start < windows[i-1].End() || w.Len < 1 || w.Len > MaxLen || w.End() > fn.Start+abi.Addr(len(code)) {
				t.Fatalf("window %v to %v", w.Start, w.End())
			}
			checkWindow(t, w)
		}
	})
}

func siteCount(windows []*Window) int {
	n := 0
	for _, w := range windows {
		n += len(w.Sites)
	}
	return n
}

// checkWindow checks what holds for every window.
func checkWindow(t *testing.T, w *Window) {
	t.Helper()
	end := 0
	for _, in := range w.Insts {
		if in.Off != end {
			t.Fatalf("an instruction at offset %d, the last one ended at %d", in.Off, end)
		}
		end += int(in.Len)
		if _, err := reloc.Size(in.Inst); err != nil && !isBreakpointPad(in) && !reloc.CanEmulate(in.Inst) {
			t.Fatal(err)
		}
	}
	for i, s := range w.Sites {
		if i > 0 && s.Inst <= w.Sites[i-1].Inst || s.Inst > len(w.Insts) {
			t.Fatalf("sites %+v", w.Sites)
		}
		if s.Inst < len(w.Insts) && s.Addr != w.Start+abi.Addr(w.Insts[s.Inst].Off) || s.Inst == len(w.Insts) && s.Addr != w.End() {
			t.Fatalf("site %v is not instruction %d of the window at %v", s.Addr, s.Inst, w.Start)
		}
	}
	runsOut := len(w.Insts) == 0 || w.Insts[len(w.Insts)-1].Branch.Falls()
	if end != w.Len && !w.Bare && (end > w.Len || runsOut) || len(w.Old) != w.Len {
		t.Fatalf("%d bytes of instructions in a window of %d", end, w.Len)
	}
	space := NewSpace(SpaceConfig{Maps: []Mapping{{Range: w.Range()}}})
	at, refusal := space.Pick(w, w.RelocatedSize())
	if refusal != nil {
		return
	}
	a := asm.New(at)
	next := 0
	pairs, err := w.Emit(a, func(i int) error {
		if i != next {
			t.Fatalf("programs of site %d where those of %d belong", i, next)
		}
		next++
		return nil
	})
	if err != nil || next != len(w.Sites) {
		t.Fatalf("picked %v: %v; %d of %d sites emitted", at, err, next, len(w.Sites))
	}
	checkPairs(t, w, pairs)
	if code, err := a.Bytes(); err != nil || len(code) != w.RelocatedSize() {
		t.Fatalf("%d bytes, %v; want %d", len(code), err, w.RelocatedSize())
	}
	if w.Boosted || w.Bare || w.Cave != 0 {
		return // their jumps are TestLinked's matter
	}
	if w.NeedsBoard() {
		if at, refusal = space.PickBoard(w, BoardSize); refusal != nil {
			return
		}
	}
	p, err := w.Patch(at, make([]abi.Addr, len(w.Guests))...)
	if err != nil {
		t.Fatal(err)
	}
	for _, off := range w.Boundaries() {
		if !slices.Contains(Traps[:], p.New[off]) {
			t.Fatalf("offset %d of %x", off, p.New)
		}
	}
}

// checkPairs: without programs between them, each instruction is where the
// window's layout says.
func checkPairs(t *testing.T, w *Window, pairs []PCPair) {
	t.Helper()
	for _, p := range pairs {
		i := w.instAt(p.Orig)
		switch {
		case p.Pushed:
			continue
		case i < 0 || p.Moved != p.Entry || p.Moved-pairs[0].Moved != abi.Addr(w.Insts[i].Moved):
			t.Fatalf("pair %v of the window at %v", p, w.Start)
		}
	}
}

// FuzzPick gives Pick maps made of pairs of page numbers.
func FuzzPick(f *testing.F) {
	f.Add(uint8(1), uint16(200), []byte{0, 1, 0, 2, 0, 9, 0, 12})
	f.Fuzz(func(t *testing.T, shape uint8, size uint16, raw []byte) {
		fn := function(shapes[int(shape)%len(shapes)])
		windows, _ := Analyze(fn, []abi.Addr{fn.Start}, &easy)
		w, n := windows[0], int(size)+jmpLen
		var maps []Mapping
		for ; len(raw) >= 4; raw = raw[4:] {
			at := base.PageDown() - 1<<31 + abi.Addr(binary.LittleEndian.Uint16(raw))<<16
			maps = append(maps, mapping(at, at+abi.Addr(binary.LittleEndian.Uint16(raw[2:])+1)<<16, ""))
		}
		s := NewSpace(SpaceConfig{Maps: maps})
		at, refusal := s.Pick(w, n)
		if refusal != nil {
			return
		}
		got := abi.Range{Start: at, End: at + abi.Addr(n)}
		if !w.Allows(at) || got.Start < w.Reach().Start || got.End > w.Reach().End {
			t.Fatalf("%v is not allowed", at)
		}
		for _, m := range maps {
			if m.Range.Overlaps(s.Regions()[0]) {
				t.Fatalf("region %v overlaps %v", s.Regions()[0], m.Range)
			}
		}
	})
}
