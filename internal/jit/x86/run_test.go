package x86

import (
	"math/rand/v2"
	"testing"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
)

func TestCountRuns(t *testing.T) {
	for _, at := range []abi.Addr{arenaNear, arenaFar, arenaLow} {
		for _, site := range []Site{
			{LiveRegs: allRegs},
			{LiveRegs: allRegs, FlagsLive: true},
			{LiveRegs: allRegs, RedZoneLive: true},
			{LiveRegs: allRegs, RedZoneLive: true, FlagsLive: true},
			{LiveRegs: allRegs &^ asm.Regs(asm.RAX, asm.R11), FlagsLive: true},
			{},
		} {
			h := newHarness(t, at, testConfig)
			h.install(site, count(t))
			r := rand.New(rand.NewPCG(1, 2))
			for range 100 {
				rq := randomRun(r)
				rp := h.do(rq)
				if err := rp.check(&rq, site); err != nil {
					t.Fatal(err)
				}
			}
			slot := h.slotOf(h.tp)
			if slot < abi.SlotFirst {
				t.Fatalf("the thread has slot %d", slot)
			}
			if n := h.word(h.slotBase(slot) + h.mapLayout(mapCount).Cells); n != 100 {
				t.Errorf("counted %d of 100", n)
			}
			h.openGate(false)
			rq := randomRun(r)
			rp := h.do(rq)
			if err := rp.check(&rq, site); err != nil {
				t.Error(err)
			}
			if n := h.word(h.slotBase(slot) + h.mapLayout(mapCount).Cells); n != 100 {
				t.Errorf("counted %d behind a closed gate", n)
			}
		}
	}
}
