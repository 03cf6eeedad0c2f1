package bpf

import (
	"testing"

	"trapless/internal/testkit/conformance"
)

// TestConformanceIsVerified verifies the conformance suite's cases. All of them
// are valid programs.
func TestConformanceIsVerified(t *testing.T) {
	cases := conformance.Load(t)
	for _, c := range cases {
		if _, err := Verify(conformanceProgram(t, &c)); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
	t.Logf("%d cases", len(cases))
}
