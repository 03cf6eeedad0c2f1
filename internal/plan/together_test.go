package plan

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
)

func TestEarlier(t *testing.T) {
	noTraps := Facts{FaultsDefault: true, Costliest: Earlier}
	for _, r := range []row{
		{name: "a return", code: "b801000000 c3", site: 5, facts: noTraps, tactic: Earlier, len: 6},
		{name: "a return behind short ones", code: "4889f8 5b 5d c3", site: 5, facts: easy, tactic: Earlier, len: 6},
		{name: "the nearest start", code: "90 4889f8 5b 5d c3", site: 6, facts: easy, tactic: Earlier, len: 6},
		{name: "not over a jump target", code: "eb02 90 90 5b 5d c3", site: 6, facts: easy, reason: TooShort},
		{name: "from a jump target", code: "eb02 90 90 4889f8 5b 5d c3", site: 9, facts: easy, tactic: Earlier, len: 6},
		{name: "not over a call", code: "e800010000 5b c3", site: 6, facts: easy, reason: TooShort},
		{name: "from behind a call", code: "e800010000 4883c408 c3", site: 9, facts: easy, tactic: Earlier, len: 5},
		{name: "not over a system call", code: "b83c000000 0f05 c3", site: 7, facts: easy, reason: TooShort},
		{name: "not from behind a jump", code: "b801000000 ebf9 c3", site: 7, facts: easy, reason: TooShort},
		{name: "past the site", code: "4889f8 5b 5d c3", site: 3, facts: easy, tactic: Earlier, len: 5},
		{name: "before a call", code: "4883ec08 53 e800010000", site: 4, facts: easy, tactic: Earlier, len: 5},
		{name: "too short before a call", code: "53 e800010000", site: 0, facts: easy, reason: CallInside},
		{name: "not over what may fault", code: "488b4708 c3", site: 4, facts: Facts{TrapsHandled: true, Costliest: Earlier}, reason: TooShort},
		{name: "unknown jumps, no traps", code: "5b 5b 4801c0 ffe0", site: 5, facts: noTraps, reason: TooShort},
	} {
		f := function(r.code)
		f.InboundKnown = true
		r.check(t, f)
	}
}

// TestEndOfAWindow: the programs of an instruction that cannot move run at the
// end of a window before it, if nothing else leads to it.
func TestEndOfAWindow(t *testing.T) {
	for _, r := range []row{
		{name: "an indirect call", code: "b801000000 ffd0 c3", site: 5, facts: easy, tactic: Earlier, len: 5},
		{name: "a call through memory", code: "4883ec08 90 ff5008 c3", site: 5, facts: easy, tactic: Earlier, len: 5},
		{name: "a system call", code: "b827000000 0f05 c3", site: 5, facts: easy, tactic: Earlier, len: 5},
		{name: "a trap", code: "90 b827000000 0f0b", site: 6, facts: easy, tactic: Earlier, len: 5},
		{name: "what may fault", code: "b827000000 f7f1 c3", site: 5, facts: Facts{TrapsHandled: true, Costliest: Earlier}, tactic: Earlier, len: 5},
		{name: "a jump target", code: "7405 b827000000 0f05 c3", site: 7, facts: easy, reason: SyscallInside},
		{name: "the jump lies in the window", code: "7403 4889c7 0f05 c3", site: 5, facts: easy, reason: SyscallInside},
		{name: "its address is taken", code: "488d0505000000 b827000000 0f05 c3", site: 12, facts: easy, reason: SyscallInside},
		{name: "an indirect jump", code: "b827000000 0f05 ffe0", site: 5, facts: easy, reason: SyscallInside},
		{name: "too short", code: "31c0 0f05 c3", site: 2, facts: easy, reason: SyscallInside},
	} {
		f := function(r.code)
		f.InboundKnown = true
		r.check(t, f)
		if r.tactic == "" {
			continue
		}
		if w, _ := Prepare(f, &r.facts).Alone(f.Start + r.site); w.End() != w.Site || w.Sites[0].Inst != len(w.Insts) {
			t.Errorf("%s: %+v", r.name, w.Sites)
		}
		f.InboundKnown = false
		if w, refusal := Prepare(f, &r.facts).Alone(f.Start + r.site); refusal == nil {
			t.Errorf("%s: a jump that is not known may lead to the end of the window at %v", r.name, w.Start)
		}
	}
}

// TestTogether: how sites of one function share windows.
func TestTogether(t *testing.T) {
	for _, row := range []struct {
		name, code string
		sites      []abi.Addr
		windows    string // start+length: sites/instructions ...
		refused    string
	}{
		{"apart", "55 4889e5 4883ec10 b801000000 c3", []abi.Addr{8, 0, 0}, "0+8:0/0 8+5:8/0", ""},
		{"in one", "55 4889e5 4883ec10 b801000000 c3", []abi.Addr{0, 4, 1}, "0+8:0/0,1/1,4/2", ""},
		{"behind a window", "b801000000 5b c3", []abi.Addr{0, 5, 6}, "0+7:0/0,5/1,6/2", ""},
		{"a window that ends at a call", "b801000000 ffd0 b801000000 c3", []abi.Addr{0, 5, 7}, "0+5:0/0,5/1 7+5:7/0", ""},
		{"made longer up to a call", "b801000000 5b ffd0 c3", []abi.Addr{0, 6}, "0+6:0/0,6/2", ""},
		{"nothing behind a call", "b801000000 ffd0 5b c3", []abi.Addr{5, 7}, "0+5:5/1", "too-short"},
		{"a direct call is not shared", "e800010000 5b c3", []abi.Addr{0, 5}, "0+5:0/0", "too-short"},
		{"a jump target splits", "eb05 b801000000 5b c3", []abi.Addr{2, 7}, "2+5:2/0", "too-short"},
		{"too long", "90 48b80000000000000000 48b90000000000000000 48ba0000000000000000 c3 | 55", []abi.Addr{0, 1, 11, 21, 31},
			"0+11:0/0,1/1 11+10:11/0 21+11:21/0,31/1", ""},
		{"the longest", "90 90 90 90 6666666666662e0f1f840000000000 5b5d 5b c3 | 55", []abi.Addr{0, 19, 22}, "0+23:0/0,19/5,22/8", ""},
		{"padding that stays", "eb00 c3 cccccccc 90", []abi.Addr{2, 3}, "2+5:2/0", "window-overlap"},
	} {
		f := function(row.code)
		f.InboundKnown = true
		var sites []abi.Addr
		for _, s := range row.sites {
			sites = append(sites, base+s)
		}
		windows, refusals := Analyze(f, sites, &easy)
		refused := ""
		for _, r := range refusals {
			refused += string(r.Reason)
		}
		if got := describe(windows); got != row.windows || refused != row.refused {
			t.Errorf("%s: %q, refused %q", row.name, got, refused)
		}
	}
}

func describe(windows []*Window) string {
	var out []string
	for _, w := range windows {
		s := fmt.Sprintf("%d+%d:", w.Start-base, w.Len)
		for i, site := range w.Sites {
			if i > 0 {
				s += ","
			}
			s += fmt.Sprintf("%d/%d", site.Addr-base, site.Inst)
		}
		out = append(out, s)
	}
	return fmt.Sprint(out)[1 : len(fmt.Sprint(out))-1]
}

// TestEmitRunsProgramsAtTheirSites: a program is four no-ops of two bytes, with
// the site's number.
func TestEmitRunsProgramsAtTheirSites(t *testing.T) {
	const at abi.Addr = base + 0x10000000
	for _, row := range []struct {
		name, code string
		sites      []abi.Addr
		want       string
		entries    []abi.Addr // of the pairs, from at
	}{
		{"each", "55 4889e5 4883ec10 c3", []abi.Addr{0, 1, 4},
			"b000 55 b001 4889e5 b002 4883ec10 e9f5ffffef", []abi.Addr{0, 3, 8}},
		{"the last", "4889f8 5b 5d c3", []abi.Addr{5}, "4889f8 5b 5d b000 c3", []abi.Addr{0, 3, 4, 5}},
		{"the end", "b827000000 0f05 c3", []abi.Addr{5}, "b827000000 b000 e9f9ffffef", []abi.Addr{0}},
		{"a branch ahead to a site", "7401 90 4889e5 c3 9090", []abi.Addr{0, 3},
			"b000 0f84 01000000 90 b001 4889e5 e9f3ffffef", []abi.Addr{0, 8, 9}},
		{"a branch back to a site", "90 4889e5 75fb c3", []abi.Addr{0, 1, 4},
			"b000 90 b001 4889e5 b002 0f85 f3ffffff e9f1ffffef", []abi.Addr{0, 3, 8}},
		{"a loop ahead to a site", "e202 90 90 90 c3", []abi.Addr{4}, "e202 eb05 e902000000 90 90 b000 90 e9f2ffffef", []abi.Addr{0, 9, 10, 11}},
	} {
		f := function(row.code)
		f.InboundKnown = true
		var sites []abi.Addr
		for _, s := range row.sites {
			sites = append(sites, base+s)
		}
		windows, refusals := Analyze(f, sites, &easy)
		if len(windows) != 1 {
			t.Errorf("%s: %s, %v", row.name, describe(windows), refusals)
			continue
		}
		a := asm.New(at)
		pairs, err := windows[0].Emit(a, func(i int) error { a.Raw(0xb0, byte(i)); return nil })
		code, asmErr := a.Bytes()
		if err != nil || asmErr != nil || !bytes.Equal(code, unhex(row.want)) {
			t.Errorf("%s: %x, %v, %v; want %s", row.name, code, err, asmErr, row.want)
		}
		var entries []abi.Addr
		for _, p := range pairs {
			entries = append(entries, p.Entry-at)
			if s := slices.Index(sites, p.Orig); s >= 0 && p.Moved != p.Entry+2 || s < 0 && p.Moved != p.Entry {
				t.Errorf("%s: pair %v", row.name, p)
			}
		}
		if !slices.Equal(entries, row.entries) {
			t.Errorf("%s: entries %v; want %v", row.name, entries, row.entries)
		}
	}
}

var errNoProgram = errors.New("no program")

func TestEmitStopsAtAnError(t *testing.T) {
	w := windowAt(t, "55 4889e5 4883ec10 c3", 0)
	if _, err := w.Emit(asm.New(base), func(int) error { return errNoProgram }); err != errNoProgram {
		t.Error(err)
	}
}
