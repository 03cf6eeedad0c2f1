package inject

import (
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"trapless/internal/abi"
)

// tableMemory is the annex of a test.
const (
	tableBase = abi.Addr(0x7000_0000_0000)
	tableRoom = 8 << 20
)

func testTables(mem movedMemory) *tables {
	next := tableBase + abi.PageSize
	return &tables{mem: mem, dir: tableBase, alloc: func(_ context.Context, size uint64) (abi.Addr, error) {
		at := next
		next += abi.Addr(size+7) &^ 7
		return at, nil
	}}
}

// lookUp searches as the handlers do, in the memory alone.
func lookUp(mem movedMemory, kind tableKind, from abi.Addr) (abi.Addr, bool) {
	u64 := func(at abi.Addr) uint64 { return binary.LittleEndian.Uint64(mem.fakeMemory[at-mem.base:]) }
	for i := range u64(tableBase + dirCount) {
		e := tableBase + dirFirst + abi.Addr(i*uint64(dirEntry))
		table := abi.Addr(u64(e + 8 + 8*abi.Addr(kind)))
		if u64(e) != uint64(from)>>32 || table == 0 {
			continue
		}
		for at := uint64(uint32(from)) * tableHashMul >> 32; ; at++ {
			w := u64(table + tableFirst + abi.Addr(8*(at&u64(table+tableMask))))
			if w == 0 {
				return 0, false
			}
			if uint32(w) == uint32(from) {
				return from + abi.Addr(w>>32) - 1<<31, true
			}
		}
	}
	return 0, false
}

// TestTables enters, sets and takes back random pairs, near each other and as far
// apart as jumps reach, and looks all of them up after each step.
func TestTables(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	mem := movedMemory{make(fakeMemory, tableRoom), tableBase}
	ts := testTables(mem)
	want := [tableKinds]map[abi.Addr]abi.Addr{{}, {}, {}}
	stretches := []abi.Addr{0x400000, 0x5555_5555_4000, 0x5555_ffff_ff00, 0x7fff_f000_0000}
	for range 60 {
		var pairs []pair
		for range 1 + r.IntN(400) {
			from := stretches[r.IntN(len(stretches))] + abi.Addr(r.IntN(1<<14))
			d := r.Int64N(math.MaxInt32) - math.MaxInt32/2
			if r.IntN(2) == 0 {
				d *= 2
			}
			pairs = append(pairs, pair{from, from + abi.Addr(d)})
		}
		kind := tableKind(r.IntN(int(tableKinds)))
		if err := ts.enter(t.Context(), kind, pairs); err != nil {
			t.Fatal(err)
		}
		if err := ts.publish(); err != nil {
			t.Fatal(err)
		}
		for _, p := range pairs {
			if _, have := want[kind][p.from]; kind != boundaryTable {
				want[kind][p.from] = p.to
			} else if !have {
				want[kind][p.from] = p.from
			}
		}
		if kind == boundaryTable {
			some := pairs[:r.IntN(len(pairs))]
			if err := ts.set(some); err != nil {
				t.Fatal(err)
			}
			for _, p := range some {
				want[kind][p.from] = p.to
			}
		}
		checkTables(t, mem, want)
	}
	again := testTables(mem)
	if err := again.adopt(func(at abi.Addr, size uint64) bool {
		return at >= tableBase && at+abi.Addr(size) <= tableBase+tableRoom
	}); err != nil {
		t.Fatal(err)
	}
	for from := range want[boundaryTable] {
		want[boundaryTable][from] = from
	}
	checkTables(t, mem, want)
	for _, p := range []pair{{0x400000, 0x400100}, {0x5555_5555_4000, 0x5555_0000_0000}} {
		if err := again.enter(t.Context(), boundaryTable, []pair{p}); err != nil {
			t.Fatal(err)
		}
		if err := again.set([]pair{p}); err != nil {
			t.Fatal(err)
		}
		want[boundaryTable][p.from] = p.to
	}
	if err := again.publish(); err != nil {
		t.Fatal(err)
	}
	checkTables(t, mem, want)
}

func checkTables(t *testing.T, mem movedMemory, want [tableKinds]map[abi.Addr]abi.Addr) {
	t.Helper()
	for kind := range tableKinds {
		for from, to := range want[kind] {
			if got, ok := lookUp(mem, kind, from); !ok || got != to {
				t.Fatalf("kind %d: %v leads to %v, %v, not to %v", kind, from, got, ok, to)
			}
			if _, known := want[kind][from+1<<32]; known {
				continue
			}
			if got, ok := lookUp(mem, kind, from+1<<32); ok {
				t.Fatalf("kind %d: %v, which nobody entered, leads to %v", kind, from+1<<32, got)
			}
		}
	}
}

// TestTablesOfAnyContent: whatever a target has written over its annex, a tracer
// that takes it over neither fails nor trusts it.
func TestTablesOfAnyContent(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		mem := movedMemory{make(fakeMemory, 64<<10), tableBase}
		inside := func(at abi.Addr, size uint64) bool {
			return at >= tableBase && uint64(at-tableBase) <= uint64(len(mem.fakeMemory)) && size <= uint64(len(mem.fakeMemory))-uint64(at-tableBase)
		}
		for i := 0; i < len(mem.fakeMemory); i += 8 {
			w := []uint64{0, 1, 63, 127, uint64(tableBase) + uint64(r.IntN(1<<16)), r.Uint64()}[r.IntN(6)]
			binary.LittleEndian.PutUint64(mem.fakeMemory[i:], w)
		}
		ts := testTables(mem)
		if err := ts.adopt(inside); err != nil {
			t.Fatal(err)
		}
		for _, s := range ts.stretches {
			for _, table := range s.kinds {
				if table != nil && !inside(table.at, uint64(tableFirst+8*len(table.words))) {
					t.Fatal("a table was taken over that lies outside")
				}
			}
		}
	}
}

// A thread has met one of our bytes if its program counter is at it or, after int3,
// behind it; also when what was there was taken out.
func TestTrapped(t *testing.T) {
	mem := movedMemory{make(fakeMemory, tableRoom), tableBase}
	ts := testTables(mem)
	const at = abi.Addr(0x5555_5555_4000)
	if ts.trapped(at) || (*tables)(nil).trapped(at) {
		t.Error("trapped without any table")
	}
	for _, kind := range []tableKind{boundaryTable, faultTable} {
		from := at + 0x100*abi.Addr(kind)
		if err := ts.enter(t.Context(), kind, []pair{{from, from + 0x1000}}); err != nil {
			t.Fatal(err)
		}
		for d, want := range map[abi.Addr]bool{0: true, 1: true, 2: false, ^abi.Addr(0): false, 1 << 32: false} {
			if got := ts.trapped(from + d); got != (want && kind == boundaryTable) {
				t.Errorf("kind %d, %#x from it: %v", kind, d, got)
			}
		}
	}
}
