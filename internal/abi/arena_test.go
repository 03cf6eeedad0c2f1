package abi

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

var testSpecs = []MapSpec{
	{Name: "one", Kind: PerSlotArray, KeySize: 4, ValueSize: 8, MaxEntries: 1},
	{Name: "array", Kind: PerSlotArray, KeySize: 4, ValueSize: 16, MaxEntries: 9},
	{Name: "short", Kind: PerSlotHash, KeySize: 8, ValueSize: 24, MaxEntries: 100},
	{Name: "long", Kind: PerSlotHash, KeySize: 24, ValueSize: 8, MaxEntries: 1},
	{Name: "thread", Kind: PerThread, KeySize: 8, ValueSize: 8, MaxEntries: 1},
	{Name: "table", Kind: Hash, KeySize: 5, ValueSize: 12, MaxEntries: 7},
	{Name: "long table", Kind: LRUHash, KeySize: 20, ValueSize: 8, MaxEntries: 8},
}

// area is a part of the arena that must not overlap another.
type area struct {
	name       string
	start, end uint64
}

func areas(l *Layout) []area {
	out := []area{
		{"header", 0, HeaderSize},
		{"journal", l.Journal, l.Journal + l.JournalSize},
		{"thread pointers", l.TPTable, l.TPTable + 8<<l.SlotBits},
		{"slots", l.Slots, l.Slots + 1<<(l.SlotBits+l.StrideShift)},
		{"slot words", l.Slots, l.Slots + SlotCells},
	}
	out[3].start = l.Slots + 1<<l.StrideShift // the first slot is listed in parts
	for _, m := range l.Maps {
		if m.IsTable() {
			n := uint64(m.Positions())
			out = append(out, area{m.Name, m.State(0), m.State(n)}, area{m.Name + " used", m.Used, m.Used + 8}, area{m.Name + " hand", m.Hand, m.Hand + 8})
			continue
		}
		cells := l.Slots + m.Cells
		if m.Kind == PerThread {
			out = append(out, area{m.Name + " key", cells - 8, cells})
		}
		out = append(out, area{m.Name + " cells", cells, cells + uint64(m.ValueSize*m.Positions())})
		if m.Kind == PerSlotHash {
			out = append(out, area{m.Name + " directory", m.Dir, m.Dir + uint64(8*m.Positions())}, area{m.Name + " used", m.Used, m.Used + 8})
		}
		if m.NodeCount != 0 {
			out = append(out, area{m.Name + " nodes", m.Nodes, m.Nodes + 8 + uint64(m.NodeCount*m.KeySize)})
		}
	}
	if l.Probes != 0 {
		n := uint64(l.Probes)
		out = append(out, area{"hits", l.Slots + l.Hits, l.Slots + l.Hits + n}, area{"sums", l.HitSums, l.HitSums + 8*n}, area{"missed", l.Missed, l.Missed + 8*n})
	}
	if l.RingSize != 0 {
		out = append(out, area{"ring", l.Slots + l.RingOff, l.Slots + l.RingOff + l.RingSize})
	}
	return out
}

func TestLayoutHasRoomForEverything(t *testing.T) {
	for _, c := range []Config{
		{},
		{Threads: 1, Maps: testSpecs},
		{Threads: 1000, Maps: testSpecs, RingSize: 1 << 16, JournalSize: 5000, Probes: 40000},
		{Threads: 3, Maps: testSpecs[:1], RingSize: PageSize},
	} {
		l, err := NewLayout(c)
		if err != nil {
			t.Fatal(err)
		}
		if 1<<l.SlotBits < 2*c.Threads+SlotFirst {
			t.Errorf("%d slots for %d threads", 1<<l.SlotBits, c.Threads)
		}
		parts := areas(l)
		slices.SortFunc(parts, func(a, b area) int { return int(int64(a.start) - int64(b.start)) })
		for i, p := range parts {
			if i > 0 && p.start < parts[i-1].end {
				t.Errorf("%+v: %v and %v overlap", c, parts[i-1], p)
			}
			if p.start%8 != 0 || p.end > l.Size {
				t.Errorf("%+v: %v of %d bytes", c, p, l.Size)
			}
		}
		if again, _ := NewLayout(c); fmt.Sprint(*again) != fmt.Sprint(*l) {
			t.Error("the same configuration gives another layout")
		}
	}
}

func TestLayoutRefuses(t *testing.T) {
	spec := func(f func(*MapSpec)) Config {
		s := testSpecs[2]
		f(&s)
		return Config{Maps: []MapSpec{s}}
	}
	for name, c := range map[string]Config{
		"ring":          {RingSize: 5000},
		"small ring":    {RingSize: 1024},
		"no entries":    spec(func(s *MapSpec) { s.MaxEntries = 0 }),
		"no value":      spec(func(s *MapSpec) { s.ValueSize = 0 }),
		"large value":   spec(func(s *MapSpec) { s.ValueSize = MaxValue + 1 }),
		"no key":        spec(func(s *MapSpec) { s.KeySize = 0 }),
		"stacks":        spec(func(s *MapSpec) { s.Kind = StackTrace }),
		"too large":     spec(func(s *MapSpec) { s.Kind, s.ValueSize, s.MaxEntries = Hash, MaxValue, 1<<20 }),
		"large key":     spec(func(s *MapSpec) { s.KeySize = 72 }),
		"large entry":   spec(func(s *MapSpec) { s.Kind, s.ValueSize = Hash, MaxTableValue+1 }),
		"no kind":       spec(func(s *MapSpec) { s.Kind = 0 }),
		"key of arrays": spec(func(s *MapSpec) { s.Kind = PerSlotArray }),
	} {
		if _, err := NewLayout(c); !errors.Is(err, ErrLayout) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestHashKey(t *testing.T) {
	for _, w := range []uint64{0, 1, 0x123456789abcdef0, 1<<64 - 1} {
		if got := HashKey([]uint64{w}); got != w*HashMul {
			t.Errorf("hash of %#x is %#x, not the product", w, got)
		}
	}
	if HashKey([]uint64{1, 2}) == HashKey([]uint64{2, 1}) {
		t.Error("the order of words does not matter")
	}
}

// TestRoomForHits: a probe takes a byte of each slot, and two words that all threads
// share, whatever else there is.
func TestRoomForHits(t *testing.T) {
	const probes = 40_000
	l, err := NewLayout(Config{Threads: 50, Maps: testSpecs, Probes: probes, RingSize: PageSize})
	if err != nil {
		t.Fatal(err)
	}
	if n := l.RingOff - l.Hits; n < probes || n > probes+PageSize {
		t.Errorf("%d bytes of each slot for %d probes", n, probes)
	}
	if n := l.Slots - l.HitSums; n < 16*probes || n > 16*probes+2*PageSize {
		t.Errorf("%d bytes for the sums of %d probes", n, probes)
	}
}
