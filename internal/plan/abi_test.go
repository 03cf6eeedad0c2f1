package plan

import (
	"testing"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	insn "trapless/internal/insn/x86"
)

// swept makes functions of codes in hex, one behind the other, of which the
// first one begins at base, and reads them all. Each is 32 bytes long, the rest
// of it no-ops.
func swept(codes ...string) ([]*Func, *Sweep) {
	const size = 32
	var text []byte
	var starts []abi.Addr
	var funcs []*Func
	for i, code := range codes {
		f := function(code)
		f.Start += abi.Addr(i * size)
		starts = append(starts, f.Start)
		text = append(text, f.Code...)
		for len(text) < (i+1)*size {
			text = append(text, 0x90)
		}
		funcs = append(funcs, f)
	}
	s := NewSweep(starts, abi.Range{Start: base, End: base + abi.Addr(len(text))}, false, nil)
	s.Read(base, text)
	s.Finish()
	s.Settle(s.NoReturn, func(abi.Addr) bool { return true })
	for _, f := range funcs {
		f.Sweep, f.NoReturn = s, s.NoReturn
	}
	return funcs, s
}

// TestFlagsAtCallsAndReturns: a function at 0x00, its callee at 0x20, and
// another one at 0x40 that calls the first.
func TestFlagsAtCallsAndReturns(t *testing.T) {
	const (
		caller = "e8bbffffff 85c0 7400 c3" // calls the first; tests what it returns
		plain  = "4885ff 7400 c3"          // sets flags before it reads them
	)
	for _, row := range []struct {
		name, code, callee, caller string
		site                       int
		live                       bool
	}{
		{"at a return", "31c0 c3", plain, caller, 2, false},
		{"flags are a result", "31c0 c3", plain, "e8bbffffff 7200 c3", 2, true},
		{"behind a jump", "31c0 c3", plain, "e8bbffffff eb01 90 0f92c0 c3", 2, true},
		{"behind moves and a jump", "31c0 c3", plain, "e8bbffffff 89c7 eb01 90 85c0 7400 c3", 2, false},
		{"on one of two ways", "31c0 c3", plain, "e8bbffffff e302 85c0 7400 c3", 2, true},
		{"one flag is left", "31c0 c3", plain, "e8bbffffff ffc8 7400 7200 c3", 2, true},
		{"the others are not", "31c0 c3", plain, "e8bbffffff ffc8 7400 c3", 2, false},
		{"into a call", "e81b000000 c3", plain, caller, 0, false},
		{"a callee that reads", "e81b000000 c3", "7200 c3", caller, 0, true},
		{"a callee that saves them", "e81b000000 c3", "9c 9d c3", caller, 0, true},
		{"a callee that passes them on", "e81b000000 c3", "e91b000000", "7200 c3", 0, true},
		{"a call of the middle", "e81c000000 c3", plain, caller, 0, true},
		{"a tail jump", "e91b000000", plain, caller, 0, false},
		{"a tail jump to a reader", "e91b000000", "0f92c0 c3", caller, 0, true},
		{"an indirect call", "ffd0 c3", plain, caller, 0, false},
		{"an indirect call, and there are readers", "ffd0 c3", "7200 c3", caller, 0, true},
		{"behind a call", "e81b000000 c3", plain, "e8bbffffff 7200 c3", 5, true},
		{"a call that does not return", "e81b000000", plain, caller, 0, false},
	} {
		funcs, _ := swept(row.code, row.callee, row.caller)
		b := read(funcs[0])
		i, ok := b.find(row.site)
		if !ok {
			t.Fatalf("%s: no instruction at %d", row.name, row.site)
		}
		if regs, flags := b.liveAt(i); (flags != 0) != row.live || regs != allGPRs {
			t.Errorf("%s: flags %v, registers %v", row.name, flags, regs)
		}
	}
}

// TestFlagsBehindDataDoNotCount: what looks like a call between functions is none.
func TestFlagsBehindDataDoNotCount(t *testing.T) {
	_, s := swept("31c0 c3", "e8dbffffff 7200 c3")
	if !s.flagsLeft() {
		t.Error("not seen")
	}
	s = NewSweep([]abi.Addr{base}, abi.Range{Start: base, End: base + 32}, false, nil)
	s.Read(base, unhex("31c0 c3 e8f8ffffff 7200"))
	s.Finish()
	s.Settle(nil, func(a abi.Addr) bool { return a < base+3 })
	if s.flagsLeft() {
		t.Error("seen")
	}
	f := function("31c0 c3")
	s.Crossings = []Crossing{{base + 3, base + 1, Jump}}
	s.Settle(nil, func(a abi.Addr) bool { return a < base+3 })
	s.Enter(f)
	if f.Taken = append(f.Taken, base+2); len(f.Inbound) > 0 || read(f).isTwofold(0) {
		t.Errorf("a jump in data makes code ambiguous: %v", f.Inbound)
	}
}

// TestGoConvention: what ABIInternal leaves dead.
func TestGoConvention(t *testing.T) {
	without := func(rs ...asm.Reg) asm.RegSet { return allGPRs &^ asm.Regs(rs...) }
	for _, row := range []struct {
		name, code string
		site       int
		regs       asm.RegSet
		flags      insn.Flags
	}{
		{"a return", "c3", 0, without(asm.RDX, asm.R12, asm.R13), 0},
		{"a call", "e800100000 c3", 0, without(asm.R12, asm.R13), 0},
		{"a tail jump", "e900100000", 0, allGPRs, insn.StatusFlags},
		{"behind a call", "e800100000 7200 c3", 5, without(asm.RDX, asm.R12, asm.R13), insn.CF},
		{"a call keeps what it may keep", "e800100000 4d89e5 c3", 0, without(asm.R13), 0},
	} {
		f := function(row.code)
		f.Go = true
		b := read(f)
		i, _ := b.find(row.site)
		if regs, flags := b.liveAt(i); regs != row.regs || flags != row.flags {
			t.Errorf("%s: %v, flags %v; want %v, flags %v", row.name, regs, flags, row.regs, row.flags)
		}
		f.Asm = true
		if regs, flags := read(f).liveAt(i); regs != allGPRs || row.name != "behind a call" && flags != insn.StatusFlags {
			t.Errorf("%s, in assembly: %v, flags %v", row.name, regs, flags)
		}
	}
}

// TestFunctionsThatDoNotReturn: by what is behind their calls, and by having no end.
func TestFunctionsThatDoNotReturn(t *testing.T) {
	for _, row := range []struct {
		name string
		code []string // the second one is asked for
		ends bool
	}{
		{"a call is the last instruction", []string{"e81b000000", "c3"}, true},
		{"something follows", []string{"e81b000000 c3", "c3"}, false},
		{"one label behind a call", []string{"90909090909090909090909090909090909090909090909090 9090 e800000000", "c3"}, false},
		{"two of them", []string{"90909090909090909090909090909090909090909090909090 9090 e800000000", "c3",
			"90909090909090909090909090909090909090909090909090 9090 e8c0ffffff", "c3"}, true},
		{"a loop without end", []string{"c3", "0f05 ebfc"}, true},
		{"a trap", []string{"c3", "31c0 0f0b"}, true},
		{"a tail jump", []string{"c3", "ebdf"}, false},
		{"a breakpoint may be stepped over", []string{"c3", "31c0 cc"}, false},
		{"the end falls through", []string{"c3", "0f05"}, false},
	} {
		_, s := swept(row.code...)
		ends := false
		for _, a := range s.NoReturn {
			ends = ends || a == base+32
		}
		if ends != row.ends {
			t.Errorf("%s: %v", row.name, s.NoReturn)
		}
	}
}
