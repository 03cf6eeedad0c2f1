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
	for _, words := range [][3]uint64{ // bytes used, offset, size
		{math.MaxUint32, 0, huge},
		{entryLeast | 4<<32, abi.PageSize, entryLeast}, // that begin behind a word
		{maxJournal + 1, abi.PageSize, huge},
		{math.MaxUint64, abi.PageSize, huge},
		{1, huge + 1, 0},
		{1, huge, entryLeast},
		{2 * entryLeast, abi.PageSize, 2*entryLeast - 1},
		{entryLeast, 0, entryLeast}, // of kind 0
		{1, math.MaxUint64, math.MaxUint64},
	} {
		mem := make(fakeMemory, abi.HeaderSize)
		put := func(off, v uint64) { binary.LittleEndian.PutUint64(mem[abi.HdrJournal+off:], v) }
		put(jrnUsed, words[0])
		put(jrnOffset, words[1])
		put(jrnSize, words[2])
		if _, _, err := openJournal(mem, 0, huge); err == nil || !strings.Contains(err.Error(), "does not make sense") {
			t.Errorf("used %#x, offset %#x, size %#x: %v", words[0], words[1], words[2], err)
		}
	}
}

// TestJournalStaysReadable: no tracer writes a journal that another one would not
// read, and so not undo.
func TestJournalStaysReadable(t *testing.T) {
	mem := make(fakeMemory, abi.HeaderSize)
	j := &journal{mem: mem, size: math.MaxUint64, used: maxJournal - entryLeast}
	if err := j.append(entry{kind: entryRegion}, entry{kind: entryRegion}); !errors.Is(err, errJournalFull) {
		t.Errorf("%v with one entry too many", err)
	}
}

// TestJournalIsReadAsItWasWritten: all kinds of entries and states come back, and a
// journal of which a byte was changed is read or refused.
func TestJournalIsReadAsItWasWritten(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		mem := make(fakeMemory, 64<<10)
		l := &abi.Layout{Journal: abi.HeaderSize, JournalSize: 60 << 10}
		j, err := newJournal(l, []entry{{kind: entryBoard, a: 0x2000, b: 0x1000}, {kind: entryPlacement, a: 1, b: 2, c: 3}})
		if err != nil {
			t.Fatal(err)
		}
		if err := j.publish(mem, 0, 0x1000); err != nil {
			t.Fatal(err)
		}
		for range r.IntN(100) {
			e := entry{kind: entryKind(1 + r.IntN(int(entryKinds)-1)), state: statePending, a: r.Uint64(), b: uint64(r.Uint32())}
			if e.size() > entryLeast {
				e.c = r.Uint64()
			}
			switch e.kind {
			case entryAction:
				e.b = r.Uint64()
			case entryPatch:
				e.b = uint64(1 + r.IntN(maxWindow))
				for i := range e.b {
					e.old[i], e.new[i] = byte(r.Uint32()), byte(r.Uint32())
				}
			}
			if err := j.append(e); err != nil {
				t.Fatal(err)
			}
		}
		for range min(len(j.entries), 20) {
			if err := j.setState(r.IntN(len(j.entries)), stateUndone); err != nil {
				t.Fatal(err)
			}
		}
		again, _, err := openJournal(mem, 0, uint64(len(mem)))
		if err != nil || !slices.Equal(again.entries, j.entries) || !slices.Equal(again.actions, j.actions) || again.used != j.used {
			t.Fatalf("%v: %v instead of %v", err, again, j)
		}
		mem[r.IntN(int(abi.HeaderSize)+int(j.used))] ^= byte(1 + r.IntN(255))
		if _, _, err := openJournal(mem, 0, uint64(len(mem))); err != nil && !strings.Contains(err.Error(), "does not make sense") {
			t.Fatal(err)
		}
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
		got := (&previous{journal: j}).carried(24 * room)
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
	const most, room = 10, 1000 // in bytes: a half for the region and patches of 32 bytes
	r := rand.New(rand.NewPCG(3, 4))
	mem := make(fakeMemory, abi.HeaderSize+room)
	j, err := newJournal(&abi.Layout{Journal: abi.HeaderSize, JournalSize: room}, []entry{{kind: entryRegion, a: 1 << 20, b: regionSize}})
	if err != nil {
		t.Fatal(err)
	}
	if err := j.publish(mem, 0, 0); err != nil {
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
			for _, d := range ds {
				d.inPlace = true
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

// TestCompactionWhileChangesAreMade: the journal is compacted while patches are announced that are not in place yet.
// The entries that are withdrawn then are those of the patches that were refused.
func TestCompactionWhileChangesAreMade(t *testing.T) {
	const room = 1000
	mem := make(fakeMemory, abi.HeaderSize+room)
	j, err := newJournal(&abi.Layout{Journal: abi.HeaderSize, JournalSize: room}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := j.publish(mem, 0, 0); err != nil {
		t.Fatal(err)
	}
	target := &Target{journal: j}
	for range 5 { // what has been there before is left out later
		i, err := target.record(entry{kind: entrySemaphore, state: statePending, a: 1})
		if err != nil {
			t.Fatal(err)
		}
		if err := j.setState(i, stateUndone); err != nil {
			t.Fatal(err)
		}
	}
	put := &Detour{patch: plan.Patch{Addr: 1000, Old: []byte{1}, New: []byte{2}}}
	refused := &Detour{patch: plan.Patch{Addr: 2000, Old: []byte{1}, New: []byte{2}}}
	if err := target.announce([]*Detour{refused, put}); err != nil {
		t.Fatal(err)
	}
	put.inPlace, target.detours = true, []*Detour{put}
	start := j.start
	for a := uint64(2); target.journal.start == start; a++ {
		if _, err := target.record(entry{kind: entrySemaphore, state: statePending, a: a}); err != nil {
			t.Fatal(err)
		}
	}
	if err := target.withdraw(refused); err != nil {
		t.Fatal(err)
	}
	read, _, err := openJournal(mem, 0, uint64(len(mem)))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range read.entries {
		if undone := e.state == stateUndone; undone != (e.kind == entryPatch && e.a == 2000) {
			t.Errorf("the entry of kind %d at %d: undone %v", e.kind, e.a, undone)
		}
	}
}
