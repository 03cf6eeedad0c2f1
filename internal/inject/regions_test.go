package inject

import (
	"testing"

	"trapless/internal/abi"
	"trapless/internal/plan"
	"trapless/internal/proc"
)

// TestRegionsAreNoHeap: a region that lies where the heap of a program would begin
// bears the heap's name. If the program has none, what is above stays free.
func TestRegionsAreNoHeap(t *testing.T) {
	maps := proc.Maps{
		{Range: abi.Range{Start: 0x400000, End: 0x640000}, Perm: proc.Read | proc.Exec, Path: "/program"},
		{Range: abi.Range{Start: 0x6577000, End: 0x74f4000}, Perm: proc.Read | proc.Exec, Path: "[heap]"},
	}
	none := func(abi.Range) bool { return false }
	for _, row := range []struct {
		traits Traits
		free   bool
	}{{Traits{NoBrk: true}, true}, {Traits{}, false}} {
		space := plan.NewSpace(plan.SpaceConfig{Maps: mappings(maps, row.traits, none)})
		if r := endsAtBoundary(space); r == nil != row.free {
			t.Errorf("%+v: %v", row.traits, r)
		}
	}
}

// endsAtBoundary plans a window whose jump ends at a boundary, so that there has to be
// room at certain addresses.
func endsAtBoundary(space *plan.Space) *plan.Refusal {
	f := &plan.Func{Name: "f", Start: 0x4f45e0, Code: []byte{0x48, 0x89, 0xf8, 0x90, 0xc3}, Entry: true}
	facts := &plan.Facts{TrapsHandled: true, FaultsMapped: true, Costliest: plan.Multiple, Space: space}
	if _, refusals := plan.Analyze(f, []abi.Addr{f.Start}, facts); len(refusals) > 0 {
		return refusals[0]
	}
	return nil
}

// TestRegionsAreSeen: a region of an earlier session that takes up all addresses that
// suit a window is room for it.
func TestRegionsAreSeen(t *testing.T) {
	region := &Region{Range: abi.Range{Start: 0x64f5000, End: 0x74f4000}}
	gates, code := region.data(), region.head().End
	for _, row := range []struct {
		name string
		code abi.Addr
		seen bool
	}{{"a region", code, true}, {"another head", code + abi.PageSize, false}} {
		maps := proc.Maps{
			{Range: abi.Range{Start: 0x400000, End: 0x640000}, Perm: proc.Read | proc.Exec, Path: "/program"},
			{Range: abi.Range{Start: region.Start, End: gates}, Perm: proc.Read | proc.Write},
			{Range: abi.Range{Start: gates, End: row.code}, Perm: proc.Read | proc.Write},
			{Range: abi.Range{Start: row.code, End: region.End}, Perm: proc.Read | proc.Exec},
			{Range: abi.Range{Start: 0x7600000, End: 0x7fff0000}, Perm: proc.Read | proc.Write, Path: "[heap]"},
		}
		space := plan.NewSpace(plan.SpaceConfig{Maps: mappings(maps, Traits{}, func(abi.Range) bool { return false })})
		found := regionsIn(maps)
		for _, r := range found {
			space.Adopt(r.Range, nil)
		}
		if r := endsAtBoundary(space); len(found) > 0 != row.seen || r == nil != row.seen {
			t.Errorf("%s: %d regions, %v", row.name, len(found), r)
		}
	}
}
