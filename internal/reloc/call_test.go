package reloc

import (
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestEmulateCall(t *testing.T) {
	for _, row := range []struct{ name, from, to string }{
		{"direct", "e800000000", "ff3505000000 e9" + rel(here+5, there+11) + " quad"},
		{"register", "41ffd3", "ff3503000000 41ffe3 quad"},
		{"memory", "ff5008", "ff7008 488d642408 ff3503000000 ff6008 quad"},
		{"stack", "ff542408", "ff742408 488d642408 ff3507000000 ffa42410000000 quad"},
		{"stack without displacement", "ff1424", "ff3424 488d642408 ff3507000000 ffa42408000000 quad"},
		{"stack with an index", "42ff54e408", "42ff74e408 488d642408 ff3508000000 42ffa4e410000000 quad"},
		{"r12", "41ff542408", "41ff742408 488d642408 ff3505000000 41ff642408 quad"},
		{"rip", "ff1500000000", "ff35" + rel(here+6, there+6) + " 488d642408 ff3506000000 ff25" + rel(here+6, there+23) + " quad"},
		{"notrack", "3effd0", "ff3503000000 3effe0 quad"},
	} {
		code := unhex(t, row.from)
		in := decode(t, code)
		want := unhex(t, strings.ReplaceAll(strings.TrimSuffix(row.to, "quad"), " ", ""))
		ret := uint64(here) + uint64(len(code))
		for range 8 {
			want = append(want, byte(ret))
			ret >>= 8
		}
		got, err := EmulateCall(in, code, here, there)
		if err != nil || hex.EncodeToString(got) != hex.EncodeToString(want) {
			t.Errorf("%s: %x, %v; want %x", row.name, got, err, want)
		}
		if n := EmulateCallSize(in); n != len(got) {
			t.Errorf("%s: size %d, not %d", row.name, n, len(got))
		}
		if jmp, err := CalleeJump(in, code, here, there); err != nil || len(jmp) != CalleeJumpSize(in) {
			t.Errorf("%s: jump %x, %v", row.name, jmp, err)
		}
	}
	for _, no := range []string{"ffd4", "ff5424f8", "67ffd0", "66ffd0", "ff18", "ffe0", "0f05"} {
		code := unhex(t, no)
		in := decode(t, code)
		if in.AddrSize == 4 && !in.HasMem() {
			continue // without a memory operand it means nothing
		}
		if got, err := EmulateCall(in, code, here, there); err == nil || CanEmulate(in) {
			t.Errorf("%s: %x", no, got)
		}
	}
}

// TestEmulatedCallsRunTheSame executes the calls of real code, and what stands
// for them elsewhere, in the same random states.
func TestEmulatedCallsRunTheSame(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	seen := map[string]bool{}
	var twins []twin
	for _, s := range corpus(t, 1) {
		form := string(s.code[:min(int(s.in.Len), 4)])
		if !CanEmulate(s.in) || !runnable(s.in) || seen[form] {
			continue
		}
		seen[form] = true
		for range 20 {
			if w, ok := newTwin(r, s); ok {
				lead(r, &w)
				twins = append(twins, w)
			}
		}
	}
	if len(seen) < 20 {
		t.Fatalf("only %d forms of calls were found", len(seen))
	}
	t.Logf("%d forms of calls", len(seen))
	compare(t, twins, 20)
}

// lead makes half of the calls lead to goals: through the registers, or through
// what lies at the stack pointer.
func lead(r *rand.Rand, w *twin) {
	if r.IntN(2) == 0 {
		return
	}
	for i := range w.was.Regs {
		if i == ctxRSP {
			continue
		}
		to := uint64(runGoal) + uint64(r.IntN(256))
		if w.in.HasMem() {
			to = w.was.Regs[ctxRSP] - uint64(int64(w.in.Disp))
		}
		w.was.Regs[i], w.is.Regs[i] = to, to
	}
}
