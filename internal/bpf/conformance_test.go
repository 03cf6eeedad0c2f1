package bpf

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/testkit/conformance"
)

// conformanceProgram is the program of a case of the conformance suite.
func conformanceProgram(t testing.TB, c *conformance.Case) *Program {
	t.Helper()
	insns, err := asm.AppendInstructions(nil, bytes.NewReader(c.Code), binary.LittleEndian, "linux")
	if err != nil {
		t.Fatalf("%s: %v", c.Name, err)
	}
	return &Program{Name: c.Name, Input: Input{Memory: true, Size: len(c.Memory)}, Insns: insns}
}

// TestConformance verifies and interprets the suite's cases. An engine that returns 0 for
// every program passes those that expect 0, so their number is told too.
func TestConformance(t *testing.T) {
	l, err := abi.NewLayout(abi.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	m := &Machine{Arena: make([]byte, l.Size), Layout: l, Now: func() uint64 { return 1 }}
	cases := conformance.Load(t)
	passed, zero := 0, 0
	for _, c := range cases {
		if c.Error == "" && c.Result == 0 {
			zero++
		}
		v, err := Verify(conformanceProgram(t, &c))
		if err != nil {
			t.Error(err)
			continue
		}
		got, err := m.RunMemory(v, bytes.Clone(c.Memory))
		if err != nil || got != c.Result {
			t.Errorf("%s: %#x, not %#x, %v", c.Name, got, c.Result, err)
			continue
		}
		passed++
	}
	t.Logf("interpreter: %d of %d cases pass; one that always returns 0 would pass %d", passed, len(cases), zero)
}
