package plan

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
)

// windowAt plans one site, which must work.
func windowAt(t *testing.T, code string, site abi.Addr) *Window {
	t.Helper()
	f := function(code)
	windows, refusals := Analyze(f, []abi.Addr{f.Start + site}, &easy)
	if len(windows) != 1 {
		t.Fatalf("%s: %v", code, refusals)
	}
	return windows[0]
}

func TestPatch(t *testing.T) {
	w := windowAt(t, "55 4889e5 4883ec10 c3", 0) // boundaries at 1 and 4
	detour := w.jumpBase() - 0x2a000000 + 0x1234cc
	p, err := w.Patch(detour)
	want := unhex("e9 cc3412d6 cccccc")
	if err != nil || p.Addr != base || !bytes.Equal(p.New, want) || !bytes.Equal(p.Old, unhex("55 4889e5 4883ec10")) {
		t.Errorf("%x, %v; want %x", p.New, err, want)
	}
	for _, bad := range []abi.Addr{detour + 1, detour + 1<<24, detour - 1<<40} {
		if p, err := w.Patch(bad); err == nil || w.Allows(bad) {
			t.Errorf("%v is allowed: %x", bad, p.New)
		}
	}
}

func TestPatchOfACall(t *testing.T) {
	w := windowAt(t, "666648e800010000 c3", 0)
	p, err := w.Patch(base + 0x1000)
	if want := unhex("666648e8f80f0000"); err != nil || !bytes.Equal(p.New, want) {
		t.Errorf("%x, %v; want %x", p.New, err, want)
	}
	if !w.Allows(base+8+math.MaxInt32) || w.Allows(base+8+math.MaxInt32+1) {
		t.Error("reach")
	}
}

// TestAllowsIsThePatch takes Traps as the definition and compares Allows with
// the bytes that the patch would write.
func TestAllowsIsThePatch(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, code := range []string{"55 4889e5 4883ec10 c3", "f30f1efa 55 c3", "9090909090 c3", "b801000000 c3", "90 0f1f4000 c3"} {
		w := windowAt(t, code, 0)
		for range 20000 {
			var rel [4]byte
			for i := range rel {
				rel[i] = byte(r.Uint32())
				if r.IntN(4) != 0 {
					rel[i] = Traps[r.IntN(len(Traps))]
				}
			}
			want := true
			for _, off := range w.Boundaries() {
				want = want && (off >= 5 || slices.Contains(Traps[:], rel[off-1]))
			}
			detour := w.jumpBase() + abi.Addr(int64(int32(binary.LittleEndian.Uint32(rel[:]))))
			if got := w.Allows(detour); got != want {
				t.Fatalf("%s: rel32 %x is allowed: %v", code, rel, got)
			}
		}
	}
}

// TestNextIsTheFirstAllowed compares the search with trying every address.
func TestNextIsTheFirstAllowed(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, code := range []string{"55 4889e5 4883ec10 c3", "9090 0f1f00 c3", "9090909090 c3", "b801000000 c3", "0f1f00 9090 c3"} {
		w := windowAt(t, code, 0)
		for range 300 {
			from := w.jumpBase() + abi.Addr(int64(int32(r.Uint32())))
			got, ok := w.next(from)
			if !ok {
				if w.Allows(from) {
					t.Fatalf("%s: nothing at or above %v", code, from)
				}
				continue
			}
			if got < from || !w.Allows(got) {
				t.Fatalf("%s: from %v to %v", code, from, got)
			}
			for a := from; a < got && a < from+1<<14; a++ {
				if w.Allows(a) {
					t.Fatalf("%s: from %v to %v, not %v", code, from, got, a)
				}
			}
		}
		lowest, ok := w.next(w.jumpBase() - 1<<40)
		if !ok || lowest < w.jumpBase()-1<<31 {
			t.Errorf("%s: the first address of all is %v", code, lowest)
		}
		if _, ok := w.next(w.jumpBase() + 1<<31); ok {
			t.Errorf("%s: an address beyond 2 GB", code)
		}
	}
}

func TestEmitRelocated(t *testing.T) {
	const at abi.Addr = base + 0x10000000
	rows := []struct{ name, code, want string }{
		{"plain", "55 4889e5 4883ec10 c3", "55 4889e5 4883ec10 e9fbffffef"},
		{"ends by itself", "5b c3 | 909090", "5b c3 90 90 90 e9fbffffef"},
		{"breakpoints stay", "5b c3 | cccccc", "5b c3"},
		{"rip-relative", "488b0510000000 c3", "488b05 100000f0 e9fbffffef"},
		{"branch out", "7405 4889e5 c3 9090909090 c3", "0f84 010000f0 4889e5 e9f7ffffef"},
		{"branch inside", "7401 90 4889e5 c3 9090", "0f84 01000000 90 4889e5 e9f7ffffef"},
		{"branch to the site", "4889e5 75fb 4889ec c3", "4889e5 0f85 f7ffffef e9f7ffffef"},
		{"call", "e800010000 c3", "e9000100f0 ff3505000000 e9f0ffffff 0510005555550000"},
		{"call through memory", "ff1500010000 c3", "ff25000100f0 ff3505000000 e9efffffff 0610005555550000"},
		{"tail jump", "e900010000", "e9000100f0"},
	}
	for _, row := range rows {
		w := windowAt(t, row.code, 0)
		a := asm.New(at)
		_, err := w.EmitRelocated(a)
		code, asmErr := a.Bytes()
		if err != nil || asmErr != nil || !bytes.Equal(code, unhex(row.want)) {
			t.Errorf("%s: %x, %v, %v; want %s", row.name, code, err, asmErr, row.want)
		}
		if w.RelocatedSize() != len(code) {
			t.Errorf("%s: size %d, emitted %d", row.name, w.RelocatedSize(), len(code))
		}
	}
}

func TestPCPairs(t *testing.T) {
	w := windowAt(t, "7401 90 4889e5 c3 9090", 0)
	const at abi.Addr = base + 0x10000000
	pairs, err := w.EmitRelocated(asm.New(at))
	want := []PCPair{{base, at, at, false}, {base + 2, at + 6, at + 6, false}, {base + 3, at + 7, at + 7, false}}
	if err != nil || !slices.Equal(pairs, want) {
		t.Errorf("%v, %v; want %v", pairs, err, want)
	}
}

// TestReach: what an instruction refers to limits where it may go, and there
// it can go.
func TestReach(t *testing.T) {
	for _, code := range []string{
		"488b0500000070 c3", // 1.75 GB above
		"488b0500000090 c3", // 1.75 GB below
		"e800000070 c3",
		"0f84000000 90 c3",
		"b801000000 c3",
	} {
		w := windowAt(t, code, 0)
		reach := w.Reach()
		for _, at := range []abi.Addr{reach.Start, reach.End - abi.Addr(w.RelocatedSize())} {
			a := asm.New(at)
			_, err := w.EmitRelocated(a)
			if _, asmErr := a.Bytes(); err != nil || asmErr != nil {
				t.Errorf("%s: at %v: %v, %v", code, at, err, asmErr)
			}
		}
		if reach.Len() < 1<<28 {
			t.Errorf("%s: only %v to %v", code, reach.Start, reach.End)
		}
	}
}

func TestEmitFailsOutOfReach(t *testing.T) {
	w := windowAt(t, "488b0500000070 c3", 0)
	if pairs, err := w.EmitRelocated(asm.New(w.Reach().Start - 1<<31)); err == nil {
		t.Error(pairs)
	}
}
