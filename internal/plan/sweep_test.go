package plan

import (
	"slices"
	"testing"

	"trapless/internal/abi"
)

// TestSweep: what leads from one function into others. They begin at 0x00, 0x20
// and 0x40.
func TestSweep(t *testing.T) {
	const first, second, third = base, base + 0x20, base + 0x40
	for _, row := range []struct {
		name, code string // of the second function
		want       []Crossing
		called     bool // the first one
		taken      bool
	}{
		{name: "nothing", code: "31c0 c3"},
		{name: "a call", code: "e8dbffffff c3", called: true},
		{name: "a call into a function", code: "e8ddffffff c3", want: []Crossing{{second, first + 2, Call}}},
		{name: "a jump in place of a return", code: "ebde", want: []Crossing{{second, first, Jump}}},
		{name: "a conditional jump into a function", code: "7422 c3", want: []Crossing{{second, third + 4, Jump}}},
		{name: "a jump inside", code: "eb00 31c0 c3"},
		{name: "an address", code: "488d05d9ffffff c3", taken: true},
		{name: "an address in a function", code: "488d05dfffffff c3", want: []Crossing{{second, first + 6, Address}}},
		{name: "an address outside", code: "488d0500001000 c3"},
		{name: "behind bytes that are no code", code: "0606 ebde", want: []Crossing{{second + 2, first + 2, Jump}}},
	} {
		_, s := swept("31c0 31c9 31d2 c3", row.code, "31c0 31c9 31d2 c3")
		if !slices.Equal(s.Crossings, row.want) || s.Called(first) != row.called || s.Taken(first) != row.taken {
			t.Errorf("%s: %+v, called %v, taken %v", row.name, s.Crossings, s.Called(first), s.Taken(first))
		}
	}
}

func TestStraight(t *testing.T) {
	for code, want := range map[string]bool{
		"31c0 c3": true, "ff2500100000": true, "ffe0": false, "ff24c500100000": false, "06 c3": false,
		"31c0 90909090909090909090909090909090909090909090909090909090 48b8": false, // it runs into the next one
	} {
		_, s := swept("c3", code, "c3")
		if got := s.Straight(abi.Range{Start: base + 32, End: base + 64}); got != want || !s.Straight(abi.Range{Start: base, End: base + 32}) {
			t.Errorf("%s: %v", code, got)
		}
		if s.Straight(abi.Range{Start: base, End: base + 96}) != want || s.Straight(abi.Range{Start: base + 1, End: base + 32}) {
			t.Errorf("%s: of all functions, or of none", code)
		}
	}
}

// TestStubsAreOfOtherModules: a jump to a stub is no jump into this module's code.
func TestStubsAreOfOtherModules(t *testing.T) {
	code := abi.Range{Start: base, End: base + 0x40}
	for _, stubs := range [][]abi.Range{nil, {{Start: base, End: base + 0x10}}} {
		s := NewSweep([]abi.Addr{base + 0x20}, code, false, stubs)
		s.Read(base+0x20, unhex("ebe0"))
		s.Finish()
		if (len(s.Crossings) == 0) != (stubs != nil) || s.flagsInto(base+2) != (stubs == nil) {
			t.Errorf("stubs %v: %v", stubs, s.Crossings)
		}
	}
}

// TestSweepOfFixedAddresses: constants may be addresses.
func TestSweepOfFixedAddresses(t *testing.T) {
	const at abi.Addr = 0x401000
	for _, fixed := range []bool{true, false} {
		s := NewSweep([]abi.Addr{at, at + 8}, abi.Range{Start: at, End: at + 64}, fixed, nil)
		s.Read(at, unhex("31c0 31c9 31d2 90 c3 b804104000 48c7c000104000 c3"))
		s.Finish()
		want := []Crossing{{at + 8, at + 4, Value}}
		if !fixed {
			want = nil
		}
		if !slices.Equal(s.Crossings, want) || s.Taken(at) != fixed {
			t.Errorf("fixed %v: %+v, taken %v", fixed, s.Crossings, s.Taken(at))
		}
		f := &Func{Name: "f", Start: at, Code: unhex("31c0 31c9 31d2 90 c3")}
		s.Enter(f)
		if fixed != slices.Equal(f.Taken, []abi.Addr{at + 4}) || len(f.Inbound) != 0 {
			t.Errorf("fixed %v: %v, %v", fixed, f.Taken, f.Inbound)
		}
	}
}
