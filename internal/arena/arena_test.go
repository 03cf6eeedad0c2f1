package arena

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"trapless/internal/abi"
)

func testLayout(t testing.TB, ring uint64) *abi.Layout {
	t.Helper()
	l, err := abi.NewLayout(abi.Config{
		Threads: 4, RingSize: ring, JournalSize: abi.PageSize,
		Maps: []abi.MapSpec{
			{Name: "total", Kind: abi.PerSlotArray, KeySize: 4, ValueSize: 8, MaxEntries: 1},
			{Name: "one", Kind: abi.PerSlotHash, KeySize: 8, ValueSize: 8, MaxEntries: 64},
			{Name: "two", Kind: abi.PerSlotHash, KeySize: 16, ValueSize: 16, MaxEntries: 64},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func newArena(t testing.TB, ring uint64) *Arena {
	l := testLayout(t, ring)
	a := New(make([]byte, l.Size), l)
	a.Init(1)
	return a
}

// own gives slot i to a thread pointer.
func (a *Arena) own(i, tp uint64) { a.Store(a.layout.TPTable+8*i, tp) }

func (a *Arena) cell(slot uint64, m, pos, word int) uint64 {
	ml := &a.layout.Maps[m]
	return a.slot(slot) + ml.Cells + uint64(pos*ml.ValueSize+8*word)
}

func TestEntriesSumOverSlots(t *testing.T) {
	a := newArena(t, 0)
	a.own(7, 0x7000)
	a.own(9, 0x9000)
	for slot, n := range map[uint64]uint64{abi.SlotTracer: 1, abi.SlotShared: 10, 7: 100, 9: 1000, 11: 5000} {
		a.Store(a.cell(slot, 0, 0, 0), n)
	}
	// Slot 11 belongs to nobody: what it holds is not a count.
	if diff := cmp.Diff([]Entry{{Value: []uint64{1111}}}, a.Entries(0)); diff != "" {
		t.Error(diff)
	}
}

func TestMapsOfStacksHaveNoEntries(t *testing.T) {
	l, err := abi.NewLayout(abi.Config{Threads: 4, Maps: []abi.MapSpec{{Name: "stacks", Kind: abi.StackTrace, KeySize: 4, ValueSize: 8 * 127, MaxEntries: 1 << 14}}})
	if err != nil {
		t.Fatal(err)
	}
	a := New(make([]byte, l.Size), l)
	a.Init(1)
	if all := a.Entries(0); all != nil {
		t.Error(all)
	}
}

func TestMaxWordIsTheLargestOverSlots(t *testing.T) {
	l, err := abi.NewLayout(abi.Config{Threads: 4, Maps: []abi.MapSpec{{Name: "max", Kind: abi.PerSlotArray, KeySize: 4, ValueSize: 16, MaxEntries: 1, MaxWord: 1}}})
	if err != nil {
		t.Fatal(err)
	}
	a := New(make([]byte, l.Size), l)
	a.Init(1)
	a.own(7, 0x7000)
	for i, slot := range []uint64{abi.SlotTracer, abi.SlotShared, 7} {
		a.Store(a.cell(slot, 0, 0, 0), uint64(i+1))
		a.Store(a.cell(slot, 0, 0, 1), []uint64{5, ^uint64(0), 7}[i])
	}
	if diff := cmp.Diff([]Entry{{Value: []uint64{6, ^uint64(0)}}}, a.Entries(0)); diff != "" {
		t.Error(diff)
	}
	a.ResetMax(0)
	if diff := cmp.Diff([]Entry{{Value: []uint64{6, 0}}}, a.Entries(0)); diff != "" {
		t.Error(diff)
	}
}

func TestEntriesOfAHash(t *testing.T) {
	a := newArena(t, 0)
	m := &a.layout.Maps[1]
	mask := uint64(int64(m.KeyMask))
	a.Store(m.Dir+8*3, 42^mask)
	a.Store(m.Dir+8*5, 0^mask)
	a.Store(m.Dir+8<<m.DirBits, 1) // the key that equals the mask
	for i, pos := range []int{3, 5, 1 << m.DirBits} {
		a.Store(a.cell(abi.SlotShared, 1, pos, 0), uint64(i+1))
	}
	want := []Entry{
		{Key: []uint64{0}, Value: []uint64{2}},
		{Key: []uint64{42}, Value: []uint64{1}},
		{Key: []uint64{mask}, Value: []uint64{3}},
	}
	if diff := cmp.Diff(want, a.Entries(1)); diff != "" {
		t.Error(diff)
	}
}

func TestEntriesOfLongKeys(t *testing.T) {
	a := newArena(t, 0)
	m := &a.layout.Maps[2]
	a.Store(m.Nodes+8+2*16, 11)
	a.Store(m.Nodes+8+2*16+8, 12)
	a.Store(m.Dir+8*6, 0xabcd<<32|3)
	a.Store(m.Dir+8*7, uint64(m.NodeCount+1)) // out of range: ignored
	a.Store(a.cell(abi.SlotTracer, 2, 6, 0), 2)
	a.Store(a.cell(abi.SlotTracer, 2, 6, 1), ^uint64(4)) // -5
	want := []Entry{{Key: []uint64{11, 12}, Value: []uint64{2, ^uint64(4)}}}
	if diff := cmp.Diff(want, a.Entries(2)); diff != "" {
		t.Error(diff)
	}
}

// produce writes a record as target code does.
func (a *Arena) produce(slot, tsc uint64, payload ...uint64) bool {
	base := a.slot(slot)
	head, size := a.Load(base+abi.SlotRingHead), uint64(abi.RecPayload+8*len(payload))
	if head-a.Load(base+abi.SlotRingTail)+size > a.layout.RingSize {
		a.Store(base+abi.SlotDrops, a.Load(base+abi.SlotDrops)+1)
		return false
	}
	for i, w := range append([]uint64{size, tsc}, payload...) {
		a.Store(base+a.layout.RingOff+(head+8*uint64(i))&(a.layout.RingSize-1), w)
	}
	a.Store(base+abi.SlotRingHead, head+size)
	return true
}

func TestRingsMergeInTimeOrderWithoutLoss(t *testing.T) {
	a := newArena(t, abi.PageSize)
	slots := []uint64{2, 3, 5}
	for _, s := range slots {
		a.own(s, 0x1000*s)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var produced, dropped, got uint64
	last := uint64(0)
	consume := func(all bool) {
		for _, r := range a.Drain(all) {
			if r.TSC < last {
				t.Fatalf("record of %d after one of %d", r.TSC, last)
			}
			if v := binary.LittleEndian.Uint64(r.Payload); v != r.TSC {
				t.Fatalf("record of %d holds %d", r.TSC, v)
			}
			last = r.TSC
			got++
		}
	}
	for tsc := uint64(1); tsc < 20000; tsc++ {
		payload := make([]uint64, 1+rng.IntN(5))
		payload[0] = tsc
		if a.produce(slots[rng.IntN(len(slots))], tsc, payload...) {
			produced++
		} else {
			dropped++
		}
		if rng.IntN(200) == 0 {
			consume(false)
		}
	}
	consume(true)
	if got != produced || dropped == 0 || a.Losses().Events != dropped {
		t.Errorf("produced %d, consumed %d, dropped %d, counted as lost %d", produced, got, dropped, a.Losses().Events)
	}
}

func TestWatermarkHoldsBackTheNewest(t *testing.T) {
	a := newArena(t, abi.PageSize)
	a.own(2, 0x2000)
	a.own(3, 0x3000)
	a.produce(2, 100, 1)
	if got := a.Drain(false); len(got) != 0 {
		t.Fatalf("first drain returned %d records", len(got))
	}
	a.produce(3, 90, 2) // reserved earlier, published later
	got := a.Drain(false)
	if len(got) != 2 || got[0].TSC != 90 || got[1].TSC != 100 {
		t.Fatalf("got %v", got)
	}
}

// TestRecordsOfTheFuture: records whose time stamps a target has made up are not kept for ever.
func TestRecordsOfTheFuture(t *testing.T) {
	a := newArena(t, abi.PageSize)
	a.own(2, 0x2000)
	a.produce(2, 1, 1)
	a.Drain(false) // a mark is set
	got := 1
	for i := uint64(0); i < 1000; i++ {
		a.produce(2, 1<<63+i, i)
		got += len(a.Drain(false))
	}
	if kept := cap(a.rings[2].pending); kept > 2*abi.PageSize || got < 1000 {
		t.Errorf("%d records were handled, and %d bytes are kept", got, kept)
	}
	if n := a.Losses().Corrupt; n == 0 {
		t.Error("nobody is told of them")
	}
}

func TestMapRefusesAnArenaOfAnotherSize(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := Map(int(f.Fd()), testLayout(t, 0)); err == nil {
		t.Error("an empty file that cannot be sealed was mapped")
	}
}

// FuzzHostile scribbles over the arena; the tracer must survive whatever it reads.
func FuzzHostile(f *testing.F) {
	f.Add(uint64(1), []byte("\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Add(uint64(7), []byte{0x10, 0, 0, 0, 0, 0, 0, 0, 8})
	f.Fuzz(func(t *testing.T, seed uint64, data []byte) {
		a := newArena(t, abi.PageSize)
		rng := rand.New(rand.NewPCG(seed, 3))
		hot := []uint64{0, a.layout.TPTable, a.layout.Maps[1].Dir, a.layout.Maps[2].Dir, a.layout.Maps[2].Nodes, a.slot(2), a.slot(2) + a.layout.RingOff}
		a.own(2, 0x2000)
		for round := range 4 {
			for len(data) > 0 && round < 3 {
				n := min(len(data), 8)
				at := hot[rng.IntN(len(hot))] + uint64(rng.IntN(256))
				copy(a.mem[at:], data[:n])
				data = data[n:]
			}
			for m := range a.layout.Maps {
				a.Entries(m)
			}
			a.Drain(round%2 == 0)
			a.Losses()
		}
	})
}

func TestSharedValues(t *testing.T) {
	l, err := abi.NewLayout(abi.Config{Threads: 1, Maps: []abi.MapSpec{
		{Name: "a", Kind: abi.Array, KeySize: 4, ValueSize: 13, MaxEntries: 3},
		{Name: "h", Kind: abi.Hash, KeySize: 4, ValueSize: 8, MaxEntries: 4},
	}})
	if err != nil {
		t.Fatal(err)
	}
	a := New(make([]byte, l.Size), l)
	a.SetValue(0, 2, []byte("thirteen byte"))
	if got := string(a.Value(0, 2)); got != "thirteen byte" {
		t.Errorf("the value is %q", got)
	}
	if got := a.Entries(0); len(got) != 3 || got[2].Value[0] != 0x6e65657472696874 || got[1].Value[0] != 0 {
		t.Errorf("the array holds %x", got)
	}
	h := &l.Maps[1]
	a.Store(h.Word(3), 42)
	a.Store(h.Value(3), 7)
	a.Store(h.State(3), abi.StateNext|abi.PhaseDead)
	if got := a.Entries(1); len(got) != 0 {
		t.Errorf("an entry that was deleted shows: %v", got)
	}
	a.Store(h.State(3), abi.StateNext|abi.PhasePresent)
	if diff := cmp.Diff([]Entry{{Key: []uint64{42}, Value: []uint64{7}}}, a.Entries(1)); diff != "" {
		t.Error(diff)
	}
	if a.Clear(1); a.Load(h.State(3)) != abi.StateNext|abi.PhaseDead {
		t.Errorf("an entry that was cleared is %#x", a.Load(h.State(3)))
	}
}

// Records bear the number of their map, and may have any size.
func TestRecordsOfMaps(t *testing.T) {
	l, err := abi.NewLayout(abi.Config{Threads: 1, RingSize: abi.PageSize, Maps: []abi.MapSpec{{Name: "r", Kind: abi.RingBuf}}})
	if err != nil {
		t.Fatal(err)
	}
	a := New(make([]byte, l.Size), l)
	a.Init(1)
	a.own(2, 0x2000)
	base := a.slot(2)
	put := func(header uint64) {
		head := a.Load(base + abi.SlotRingHead)
		for i, w := range []uint64{header, 5, 0x0807060504030201} {
			a.Store(base+l.RingOff+head+uint64(8*i), w)
		}
		a.Store(base+abi.SlotRingHead, head+24)
	}
	put(24 | 1<<32 | 3<<48)
	put(24)
	put(24 | 2<<32) // there is no such map
	got := a.Drain(true)
	if len(got) != 2 || got[0].Map != 0 || len(got[0].Payload) != 5 || got[1].Map != -1 || len(got[1].Payload) != 8 {
		t.Errorf("got %+v", got)
	}
	if a.Losses().Corrupt != 1 {
		t.Errorf("%d records were corrupt, not 1", a.Losses().Corrupt)
	}
}

// A map of stacks has no entries: a session that adds up all maps of a process that has gone may ask for them.
func TestNoEntriesOfStacks(t *testing.T) {
	l, err := abi.NewLayout(abi.Config{Maps: []abi.MapSpec{{Kind: abi.StackTrace, KeySize: 4, ValueSize: 64, MaxEntries: 1 << 14}}})
	if err != nil {
		t.Fatal(err)
	}
	a := New(make([]byte, l.Size), l)
	a.Init(0)
	a.own(0, 1)
	if got := a.Entries(0); len(got) != 0 {
		t.Errorf("%d entries", len(got))
	}
}
