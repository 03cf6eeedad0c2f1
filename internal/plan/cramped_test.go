package plan

import (
	"testing"

	"trapless/internal/abi"
)

// TestCramped: which tactic comes out where no five bytes are.
func TestCramped(t *testing.T) {
	free := NewSpace(SpaceConfig{Maps: []Mapping{{Range: abi.Range{Start: base.PageDown(), End: base.PageDown() + abi.PageSize}}}})
	none := NewSpace(SpaceConfig{Maps: []Mapping{{Range: abi.Range{Start: lowest, End: highest}}}})
	handled := Facts{TrapsHandled: true, FaultsMapped: true, Breakpoints: true}
	roomy, full, noTraps, blocked := handled, handled, Facts{FaultsMapped: true, Space: none}, handled
	roomy.Space, full.Space = free, none
	shadow, careful := roomy, full
	careful.Breakpoints = false
	shadow.ShadowStack = true
	blocked.Blocked, blocked.Space = "thread 7 (worker)", none
	for _, r := range []row{
		{name: "five bytes", code: "4889f8 4889f9 c3", facts: roomy, tactic: Multiple, len: 6},
		{name: "a jump target behind it", code: "4889f8 4889f9 75fb c3", facts: roomy, tactic: Pun, len: 3},
		{name: "no free address, padding", code: "4889f8 4889f9 75fb c3 | 0f1f440000 cccccc", facts: full, tactic: Short, len: 3},
		{name: "no free address, instructions move out", code: "4889f8 4889f9 75fb 48b80000000000000000 c3", facts: full, tactic: Evict, len: 3},
		{name: "no free address, a return and padding too short for a cave", code: "48b80000000000000000 eb00 c3 | 6690", site: 12, facts: careful, tactic: Evict, len: 2},
		{name: "no free address at all", code: "4889f8 4889f9 75fb c3", facts: full, tactic: Trap, len: 3},
		{name: "no free address, no breakpoints", code: "4889f8 4889f9 75fb c3", facts: careful, reason: JumpInside, detail: "--breakpoints"},
		{name: "no room, no handlers", code: "4889f8 4889f9 75fb c3", facts: noTraps, reason: JumpInside},
		{name: "no room, blocked signals", code: "4889f8 4889f9 75fb c3", facts: blocked, reason: JumpInside},
		{name: "padding that is too far away", code: "4889f8 4889f9 75fb " + nops(130) + "c3 | cccccccccccc", facts: full, tactic: Trap, len: 3},
		{name: "an indirect call", code: "eb00 ffd0 eb00 c3", site: 2, facts: roomy, tactic: Pun, len: 2},
		{name: "an indirect call, shadow stack", code: "eb00 ffd0 eb00 c3", site: 2, facts: shadow, reason: CallInside},
		{name: "a longer one, shadow stack", code: "eb00 ff1500000000 eb00 c3", site: 2, facts: shadow, tactic: Single, len: 6},
		{name: "a call at a window's end", code: "4889f8 e800010000 c3", facts: full, tactic: Multiple, len: 8},
		{name: "one byte, the next function moves out", code: "c3", facts: roomy, tactic: Evict, len: 1},
		{name: "into breakpoints", code: "e800010000 90 | cccccccc", site: 5, facts: roomy, tactic: Multiple, len: 5},
		{name: "a system call", code: "eb00 0f05 eb00 c3", site: 2, facts: roomy, reason: SyscallInside},
	} {
		f := function(r.code)
		f.Next = &Func{Name: "next", Start: f.End() + abi.Addr(len(f.Pad)), Code: unhex("b801000000 c3"), Entry: true, InboundKnown: true}
		r.check(t, f)
	}
}

// TestCaveInOwnPadding: a short jump and its cave share the padding behind a return.
func TestCaveInOwnPadding(t *testing.T) {
	f := function("c3 | 662e0f1f840000000000 0f1f440000")
	f.Name = "_dl_relocate_static_pie" // where windows of several instructions are refused
	none := NewSpace(SpaceConfig{Maps: []Mapping{{Range: abi.Range{Start: lowest, End: highest}}}})
	facts := Facts{TrapsHandled: true, FaultsMapped: true, Space: none}
	row{name: "a return", facts: facts, tactic: Short, len: 2}.check(t, f)
	windows, _ := Analyze(f, []abi.Addr{f.Start}, &facts)
	if len(windows) != 2 || windows[0].Range().Overlaps(windows[1].Range()) {
		t.Errorf("windows %v and %v", windows[0].Range(), windows[len(windows)-1].Range())
	}
}

// TestLinkDropsOverlaps: windows that nobody has looked at together are not put in
// place together.
func TestLinkDropsOverlaps(t *testing.T) {
	f := function("b801000000 b802000000 c3")
	a, _ := Prepare(f, &easy).Alone(f.Start)
	b, _ := Prepare(f, &easy).Alone(f.Start)
	c, _ := Prepare(f, &easy).Alone(f.Start + 5)
	space := NewSpace(SpaceConfig{Maps: []Mapping{{Range: a.Range()}}})
	links, refusals := space.Link([]*Window{a, b, c}, func(*Window) abi.Addr { return f.Start + 1<<24 }, nil)
	if len(links) != 2 || len(refusals) != 1 || refusals[0].Reason != WindowOverlap {
		t.Errorf("%d links, %v", len(links), refusals)
	}
}

// nops is instructions of a byte each that a jump leads to, so that none of them
// can move out with its neighbour.
func nops(n int) (code string) {
	for range n / 2 {
		code += "75ff" // into itself
	}
	return code
}
