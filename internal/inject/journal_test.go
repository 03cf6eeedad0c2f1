package inject

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"trapless/internal/abi"
	"trapless/internal/plan"
)

// fakeMemory is an arena at address 0.
type fakeMemory []byte

func (m fakeMemory) ReadAt(p []byte, at abi.Addr) error  { copy(p, m[at:]); return nil }
func (m fakeMemory) WriteAt(p []byte, at abi.Addr) error { copy(m[at:], p); return nil }

// TestJournalOfAnySize: what a target writes into the header of its journal makes
// no tracer take memory for it.
func TestJournalOfAnySize(t *testing.T) {
	const huge = 1 << 46               // a sparse file may be as large
	for _, words := range [][3]uint64{ // count, offset, size
		{huge / entrySize, 0, huge},
		{maxEntries + 1, abi.PageSize, huge},
		{math.MaxUint64, abi.PageSize, huge},
		{1, huge + 1, 0},
		{1, huge, entrySize},
		{2, abi.PageSize, 2*entrySize - 1},
		{1, math.MaxUint64, math.MaxUint64},
	} {
		mem := make(fakeMemory, abi.HeaderSize)
		put := func(off, v uint64) { binary.LittleEndian.PutUint64(mem[abi.HdrJournal+off:], v) }
		put(jrnCount, words[0])
		put(jrnOffset, words[1])
		put(jrnSize, words[2])
		if _, _, err := openJournal(mem, 0, huge); err == nil || !strings.Contains(err.Error(), "does not make sense") {
			t.Errorf("count %#x, offset %#x, size %#x: %v", words[0], words[1], words[2], err)
		}
	}
}

// TestJournalStaysReadable: no tracer writes a journal that another one would not
// read, and so not undo.
func TestJournalStaysReadable(t *testing.T) {
	mem := make(fakeMemory, abi.HeaderSize)
	j := &journal{mem: mem, size: math.MaxUint64, entries: make([]entry, maxEntries-1)}
	if err := j.append(entry{}, entry{}); !errors.Is(err, errJournalFull) {
		t.Errorf("%v with one entry too many", err)
	}
}

// TestCarriedPieces: however many pieces there are, those that go into the next
// journal fit, cover all that was used, and lie in one region each.
func TestCarriedPieces(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		regions := []entry{{kind: entryRegion, a: 0x10000000, b: regionSize}, {kind: entryRegion, a: 0x10000000 + regionSize, b: regionSize / 2}}
		j := &journal{entries: regions}
		n := 1 + r.IntN(2000)
		for range n {
			in := regions[r.IntN(2)]
			size := uint64(1 + r.IntN(4096))
			j.entries = append(j.entries, entry{kind: entryPlacement, a: in.a + r.Uint64N(in.b-size), b: size, c: 7}, entry{kind: entryPatch})
		}
		room := 4 + r.IntN(1000)
		got := (&previous{journal: j}).carried(room)
		if len(got) > room {
			t.Fatalf("%d entries for %d", len(got), room)
		}
		within := func(e entry, all []entry, kind entryKind) bool {
			for _, o := range all {
				if o.kind == kind && o.a <= e.a && e.a+e.b <= o.a+o.b {
					return true
				}
			}
			return false
		}
		for _, e := range j.entries {
			if e.kind == entryPlacement && !within(e, got, entryPlacement) {
				t.Fatalf("%#x of %d bytes is not covered", e.a, e.b)
			}
		}
		for _, e := range got {
			if e.kind == entryPlacement && !within(e, regions, entryRegion) {
				t.Fatalf("%#x of %#x bytes lies in no region", e.a, e.b)
			}
			if len(j.entries) < room && e.c == 0 && e.kind == entryPlacement {
				t.Fatal("a piece was joined although there was room")
			}
		}
	}
}

// TestJournalCompacts puts patches in and takes them out in any order, in a journal
// with room for little more than are there at once. What is there is in the journal
// at every moment, behind what was there before.
func TestJournalCompacts(t *testing.T) {
	const most, room = 10, 24
	r := rand.New(rand.NewPCG(3, 4))
	mem := make(fakeMemory, abi.HeaderSize+room*entrySize)
	j, err := newJournal(mem, 0, &abi.Layout{Journal: abi.HeaderSize, JournalSize: room * entrySize}, 0, []entry{{kind: entryRegion, a: 1 << 20, b: regionSize}})
	if err != nil {
		t.Fatal(err)
	}
	target := &Target{journal: j}
	for step := range 2000 {
		if len(target.detours) < most && r.IntN(2) == 0 {
			var ds []*Detour
			for range 1 + r.IntN(most-len(target.detours)) {
				ds = append(ds, &Detour{patch: plan.Patch{Addr: abi.Addr(step), Old: []byte{1}, New: []byte{2}}})
			}
			if err := target.announce(ds); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
			target.detours = append(target.detours, ds...)
		} else if n := len(target.detours); n > 0 {
			i := r.IntN(n)
			if err := target.withdraw(target.detours[i]); err != nil {
				t.Fatal(err)
			}
			target.detours = slices.Delete(target.detours, i, i+1)
		}
		read, _, err := openJournal(mem, 0, uint64(len(mem)))
		if err != nil {
			t.Fatal(err)
		}
		var got, want []uint64
		for _, e := range read.entries[1:] {
			if e.kind != entryPatch {
				t.Fatalf("step %d: an entry of kind %d", step, e.kind)
			}
			if e.state == statePending {
				got = append(got, e.a)
			}
		}
		for _, d := range target.detours {
			want = append(want, uint64(d.patch.Addr))
		}
		if !slices.Equal(got, want) || read.entries[0].kind != entryRegion {
			t.Fatalf("step %d: the journal has %v, there are %v", step, got, want)
		}
	}
}
