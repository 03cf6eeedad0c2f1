package plan

import (
	"encoding/hex"
	"slices"
	"strings"
	"testing"

	"trapless/internal/abi"
)

const base abi.Addr = 0x555555001000

// easy are the facts of an ordinary C program with trap handlers in place.
var easy = Facts{FaultsDefault: true, TrapsHandled: true, Costliest: Earlier}

// unhex reads bytes; blanks separate instructions.
func unhex(s string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

// function makes a function of code in hex; what follows a bar is padding.
func function(code string) *Func {
	body, pad, _ := strings.Cut(code, "|")
	return &Func{Name: "f", Start: base, Code: unhex(body), Pad: unhex(pad), Entry: true}
}

// row is one site of a function and what becomes of it.
type row struct {
	name, code string
	site       abi.Addr // from the function's start
	facts      Facts
	tactic     Tactic // empty: refused
	len        int
	reason     Reason
	detail     string // part of the refusal's
}

func (r row) check(t *testing.T, f *Func) {
	t.Helper()
	windows, refusals := Analyze(f, []abi.Addr{f.Start + r.site}, &r.facts)
	windows = slices.DeleteFunc(windows, func(w *Window) bool { return len(w.Sites) == 0 })
	switch {
	case r.tactic != "" && (len(windows) != 1 || len(refusals) != 0):
		t.Errorf("%s: no window: %v", r.name, refusals)
	case r.tactic != "":
		if w := windows[0]; w.Tactic != r.tactic || w.Len != r.len || w.Site != f.Start+r.site {
			t.Errorf("%s: %s of %d bytes at %v", r.name, w.Tactic, w.Len, w.Site)
		}
	case len(refusals) != 1 || len(windows) != 0:
		t.Errorf("%s: no refusal", r.name)
	case refusals[0].Reason != r.reason || !strings.Contains(refusals[0].Detail, r.detail):
		t.Errorf("%s: %v", r.name, refusals[0])
	}
}

func TestTactics(t *testing.T) {
	for _, r := range []row{
		{name: "one long instruction", code: "b801000000 c3", tactic: Single, len: 5},
		{name: "longer than a jump", code: "48b80000000000000000 c3", tactic: Single, len: 10},
		{name: "a prologue", code: "55 4889e5 4883ec10 c3", tactic: Multiple, len: 8},
		{name: "endbr64 and push", code: "f30f1efa 55 c3 | 90", tactic: Multiple, len: 5},
		{name: "in the middle", code: "55 4889e5 b801000000 c3", site: 4, tactic: Single, len: 5},
		{name: "a direct call", code: "e800010000 c3", tactic: Single, len: 5},
		{name: "a call with prefix", code: "67e800010000 c3", tactic: Single, len: 6},
		{name: "a tail jump", code: "e900010000", tactic: Single, len: 5},
		{name: "a jump to a stub", code: "ff2500010000", tactic: Single, len: 6},
		{name: "ret and no-ops", code: "c3 | 0f1f4000", tactic: Multiple, len: 5},
		{name: "ret and a long no-op", code: "c3 | 660f1f840000000000", tactic: Multiple, len: 10},
		{name: "ret and breakpoints", code: "c3 | cccccccccccc", tactic: Multiple, len: 5},
		{name: "ret inside, then alignment", code: "eb05 c3 0f1f4000 31c0 c3", site: 2, tactic: Multiple, len: 5},
		{name: "pop and ret", code: "5b c3 | 909090", tactic: Multiple, len: 5},
		{name: "a short branch moves", code: "7405 4889e5 c3 9090909090 c3", tactic: Multiple, len: 5},
	} {
		r.facts = easy
		r.check(t, function(r.code))
	}
}

func TestRefusals(t *testing.T) {
	for _, r := range []row{
		{name: "no code", code: "", reason: NoCode},
		{name: "before it", code: "90 c3", site: ^abi.Addr(0), reason: OutsideFunction},
		{name: "behind it", code: "90 c3", site: 2, reason: OutsideFunction},
		{name: "inside an instruction", code: "b801000000 c3", site: 2, reason: NotABoundary,
			detail: "starts at 0x555555001000; the next one starts at 0x555555001005"},
		{name: "behind bytes that are no code", code: "55 06 4889e5 4889e5 c3", site: 2, reason: Undecodable, detail: "beyond 0x555555001001"},
		{name: "bytes that are no code", code: "55 06 4889e5 c3", reason: Undecodable},
		{name: "cut off", code: "55 4889", reason: Undecodable},
		{name: "too short", code: "c3", reason: TooShort},
		{name: "next function", code: "31c0 c3 | 55", reason: TooShort, detail: "no padding"},
		{name: "too little padding", code: "c3 | 9090", reason: TooShort},
		{name: "runs past its end", code: "55 90", reason: TooShort, detail: "run past"},
		{name: "syscall", code: "b827000000 0f05 c3", site: 5, reason: SyscallInside},
		{name: "syscall inside", code: "4889c8 0f05 c3", reason: SyscallInside},
		{name: "call inside", code: "50 e800000000 c3", reason: CallInside},
		{name: "indirect call", code: "ff5008 c3", reason: CallInside},
		{name: "privileged", code: "ec 90909090 c3", reason: Immovable, detail: "privileged"},
		{name: "breakpoint", code: "cc 90909090 c3", reason: Immovable},
		{name: "ud2 inside", code: "90 0f0b 909090", reason: Immovable},
		{name: "a function may begin", code: "eb0d 909090 b801000000 b801000000 c3 | 9090909090", site: 15, reason: TooShort},
		{name: "the padding is entered", code: "c3 90 90 90 90 ebfb", reason: TooShort, detail: "a jump leads to"},
	} {
		r.facts = easy
		r.check(t, function(r.code))
	}
}

func TestFaults(t *testing.T) {
	load, div, store := "488b4708 90 c3", "48f7f1 9090 c3", "55 4889e5 48c74424f800000000 c3"
	for _, r := range []row{
		{name: "load", code: load, reason: Faults, detail: "mov at 0x555555001000 may fault"},
		{name: "load, default", code: load, facts: Facts{FaultsDefault: true, Costliest: Earlier}, tactic: Multiple, len: 5},
		{name: "load, mapped", code: load, facts: Facts{FaultsMapped: true, Costliest: Earlier}, tactic: Multiple, len: 5},
		{name: "division", code: div, reason: Faults},
		{name: "the window ends before it", code: "b801000000 488b00 c3", tactic: Single, len: 5},
		{name: "store", code: store, site: 4, reason: Faults},
		{name: "lea is no access", code: "488d442408 c3", tactic: Single, len: 5},
		{name: "push", code: "55 4889e5 4883ec10 c3", tactic: Multiple, len: 8},
	} {
		r.facts.TrapsHandled = true
		r.check(t, function(r.code))
	}
}

func TestEntries(t *testing.T) {
	noTraps := Facts{FaultsDefault: true, Costliest: Earlier}
	const (
		forward  = "eb02 9090 4889e5 4889ec c3"  // to 4
		internal = "7401 90 4889e5 c3 9090"      // over the no-op, to 3
		loop     = "90 4889e5 4889ec 75f8 c3"    // from 7 to 1
		loopSite = "4889e5 4889ec 75f8 c3"       // from 6 to 0
		lock     = "7401 f0480fb10f 9090 c3"     // behind the lock prefix
		leaIn    = "488d0502000000 9090 9090 90" // of 9
		endbr    = "90 f30f1efa c3"
		jmpReg   = "55 4889e5 4883ec10 4801c0 ffe0"
		table    = "55 4889e5 4883ec10 ff24c500100000"
		viaGOT   = "55 4889e5 4883ec10 ff2500100000"
	)
	slow := easy
	slow.SlowEntries = true
	for _, r := range []row{
		{name: "forward into it", code: forward, site: 2, facts: easy, reason: JumpInside},
		{name: "forward into it, slow", code: forward, site: 2, facts: slow, tactic: Multiple, len: 5},
		{name: "forward into it, no traps", code: forward, site: 2, facts: noTraps, reason: JumpInside},
		{name: "forward to its start", code: forward, site: 4, facts: noTraps, tactic: Multiple, len: 6},
		{name: "from inside to inside", code: internal, facts: noTraps, tactic: Multiple, len: 6},
		{name: "a loop inside", code: loop, facts: slow, reason: JumpInside, detail: "closes a loop at 0x555555001001"},
		{name: "a loop to the site", code: loopSite, facts: noTraps, tactic: Multiple, len: 6},
		{name: "behind a lock prefix", code: lock, site: 2, facts: easy, reason: AmbiguousCode},
		{name: "an address taken", code: leaIn, site: 7, facts: slow, tactic: Multiple, len: 5},
		{name: "an address taken, no traps", code: leaIn, site: 7, facts: noTraps, tactic: Earlier, len: 8},
		{name: "endbr64 inside", code: endbr, facts: slow, tactic: Multiple, len: 5},
		{name: "endbr64 inside, no traps", code: endbr, facts: noTraps, reason: JumpInside, detail: "endbr64"},
		{name: "an indirect jump", code: jmpReg, facts: easy, tactic: Multiple, len: 8},
		{name: "an indirect jump, no traps", code: jmpReg, facts: noTraps, reason: IndirectJump},
		{name: "a table of addresses, which data hold, no traps", code: table, facts: noTraps, tactic: Multiple, len: 8},
		{name: "a single has no inside", code: table, site: 8, facts: noTraps, tactic: Single, len: 7},
		{name: "a tail jump through memory", code: viaGOT, facts: noTraps, tactic: Multiple, len: 8},
	} {
		f := function(r.code)
		f.InboundKnown = true
		r.check(t, f)
	}
}

func TestInboundEntries(t *testing.T) {
	code := "55 4889e5 4883ec10 c3"
	noTraps := Facts{FaultsDefault: true, Costliest: Earlier}
	f := function(code)
	row{name: "unknown, no traps", facts: noTraps, reason: IndirectJump, detail: "outside of f"}.check(t, f)
	f.InboundKnown = true
	row{name: "known", facts: noTraps, tactic: Multiple, len: 8}.check(t, f)
	f.Inbound = []abi.Addr{base + 4}
	row{name: "into it, no traps", facts: noTraps, reason: JumpInside}.check(t, f)
	slow := easy
	slow.SlowEntries = true
	row{name: "into it", facts: easy, reason: JumpInside}.check(t, f)
	row{name: "into it, slow", facts: slow, tactic: Multiple, len: 8}.check(t, f)
	f.Inbound = []abi.Addr{base + 2}
	row{name: "into an instruction", facts: easy, reason: AmbiguousCode}.check(t, f)
	f.Inbound = []abi.Addr{base, base + 8, base + 200}
	row{name: "elsewhere", facts: noTraps, tactic: Multiple, len: 8}.check(t, f)
}

func TestSlowEntriesAreNamed(t *testing.T) {
	f := function("eb02 9090 4889e5 4889ec c3")
	f.Inbound = []abi.Addr{base + 4, base + 3}
	windows, _ := Analyze(f, []abi.Addr{base + 2}, &Facts{TrapsHandled: true, SlowEntries: true, FaultsDefault: true, Costliest: Earlier})
	if want := []abi.Addr{base + 3, base + 4}; len(windows) != 1 || !slices.Equal(windows[0].Slow, want) {
		t.Errorf("%+v", windows)
	}
}

func TestBlockedSignals(t *testing.T) {
	for _, name := range []string{"__clone", "start_thread", "__GI_abort", "execve@@GLIBC_2.2.5", "__spawni_child.isra.0", "runtime.mstart1"} {
		f := function("55 4889e5 4883ec10 b801000000 488b8700010000 e800000000 c3")
		f.Name = name
		row{name: name, facts: easy, reason: BlockedSignals}.check(t, f)
		row{name: name + ", single", site: 8, facts: easy, tactic: Single, len: 5}.check(t, f)
		row{name: name + ", single that faults", site: 13, facts: easy, tactic: Single, len: 7}.check(t, f)
		row{name: name + ", call", site: 20, facts: easy, tactic: Single, len: 5}.check(t, f)
		f.Name, f.Aliases = "f", []string{"g", name}
		row{name: "alias of " + name, facts: easy, reason: BlockedSignals}.check(t, f)
	}
}

func TestNoTouch(t *testing.T) {
	facts := easy
	facts.NoTouch = []NoTouch{
		{abi.Range{Start: base + 4, End: base + 5}, RSeq, "a restartable sequence"},
		{abi.Range{Start: base + 20, End: base + 30}, Blacklisted, "the signal trampoline"},
	}
	f := function("55 4889e5 4883ec10 4889e5 b801000000 48b80000000000000000 c3 | 9090909090")
	row{name: "overlap at the end", facts: facts, reason: RSeq, detail: "a restartable sequence"}.check(t, f)
	row{name: "just behind", site: 11, facts: facts, tactic: Single, len: 5}.check(t, f)
	row{name: "overlap at the start", site: 16, facts: facts, reason: Blacklisted}.check(t, f)
}

func TestEntryAndRedZone(t *testing.T) {
	f := function("55 4889e5 4883ec10 b801000000 e800000000 c3")
	windows, _ := Analyze(f, []abi.Addr{base, base + 8, base + 13}, &easy)
	got := [][3]bool{}
	for _, w := range windows {
		got = append(got, [3]bool{w.AtEntry, w.RedZoneLive, w.Call})
	}
	want := [][3]bool{{true, false, false}, {false, true, false}, {false, false, true}}
	if !slices.Equal(got, want) {
		t.Errorf("entry, red zone, call: %v", got)
	}
	for _, code := range []string{"4889c8 ffc9 75f9 c3", "4889c8 ffc9 90 ffe0"} {
		windows, _ = Analyze(function(code), []abi.Addr{base}, &easy)
		if !windows[0].AtEntry || !windows[0].RedZoneLive {
			t.Errorf("%s: a loop to the entry may use the red zone", code)
		}
	}
	f.Entry = false
	windows, _ = Analyze(f, []abi.Addr{base}, &easy)
	if windows[0].AtEntry || !windows[0].RedZoneLive {
		t.Error("a label was taken for an entry")
	}
}

func TestRefusalReads(t *testing.T) {
	_, refusals := Analyze(function("c3"), []abi.Addr{base}, &easy)
	const want = "no probe at 0x555555001000: too-short: there are 1 bytes up to 0x555555001001, " +
		"where the code ends and no padding follows; a jump needs 5"
	if got := refusals[0].Error(); got != want {
		t.Errorf("%s", got)
	}
}
