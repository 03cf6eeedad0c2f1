package x86

import (
	"testing"

	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// TestSizeOfACount bounds what a program that counts takes at each of its sites, in
// bytes: there may be 100,000 of them. The moved instructions and the jump back come
// on top.
func TestSizeOfACount(t *testing.T) {
	c := testConfig
	c.Probes = 40_000
	for name, test := range map[string]struct {
		site Site
		most int
	}{
		"entry": {Site{LiveRegs: allRegs &^ asm.Regs(asm.RAX, asm.R10, asm.R11)}, 192},
		"busy":  {Site{LiveRegs: allRegs, FlagsLive: true, RedZoneLive: true}, 256},
	} {
		h := newHarness(t, arenaFar, c)
		test.site.Gate, test.site.Hits = codeBase+64, []int{c.Probes - 1}
		a := asm.New(entryBase)
		d, err := Emit(a, []*bpf.Verified{count(t)}, test.site, h.env)
		if err != nil {
			t.Fatal(err)
		}
		d.EmitCold(a)
		if a.Len() > test.most {
			t.Errorf("%s: %d bytes, not at most %d", name, a.Len(), test.most)
		}
		t.Logf("%s: %d bytes", name, a.Len())
	}
}
