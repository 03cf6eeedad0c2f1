package x86

import (
	"math/rand/v2"
	"testing"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// countAt is @[key] = count().
func countAt(t testing.TB, key int64) *bpf.Verified {
	return verified(t, bpfasm.Instructions{
		bpfasm.LoadImm(bpfasm.R3, key, bpfasm.DWord),
		bpfasm.StoreMem(bpfasm.R10, -8, bpfasm.R3, bpfasm.DWord),
	}, cell(mapKeyed, -8), increment())
}

// TestGatesOfPrograms opens and closes the gates of a site and of its programs:
// just those run that are open, and nobody else notices.
func TestGatesOfPrograms(t *testing.T) {
	const siteGate = codeBase + 64
	r := rand.New(rand.NewPCG(5, 6))
	for range 20 {
		site := randomSite(r)
		n := 1 + r.IntN(4)
		progs := []*bpf.Verified{}
		site.Gate = siteGate
		for i := range n {
			progs = append(progs, countAt(t, int64(1000+i)))
			site.Gates = append(site.Gates, siteGate+1+abi.Addr(i))
		}
		if r.IntN(2) == 0 { // one without any effect, which no gate has to keep from running
			at := r.IntN(n + 1)
			progs = append(progs[:at:at], append([]*bpf.Verified{verified(t, returnZero)}, progs[at:]...)...)
			site.Gates = append(site.Gates[:at:at], append([]abi.Addr{siteGate + 60}, site.Gates[at:]...)...)
		}
		h := newHarness(t, arenaNear, testConfig)
		h.install(site, progs...)
		want := uint64(0)
		for range 60 {
			open := byte(r.IntN(4))
			h.code[64] = min(open, 1)
			for i := range n {
				h.code[65+i] = byte(r.IntN(2))
				if open != 0 {
					want += uint64(h.code[65+i])
				}
			}
			rq := randomRun(r)
			rp := h.do(rq)
			if err := rp.check(&rq, site); err != nil {
				t.Fatalf("%+v: %v", site, err)
			}
			if got := h.sum(mapKeyed); got != want {
				t.Fatalf("%d programs: counted %d, not %d", len(progs), got, want)
			}
		}
	}
}

// TestGatesOfNothing: programs without an effect need no gate.
func TestGatesOfNothing(t *testing.T) {
	h := newHarness(t, arenaNear, testConfig)
	none := verified(t, returnZero)
	site := Site{LiveRegs: allRegs, FlagsLive: true, Gate: codeBase, Gates: []abi.Addr{codeBase + 1, codeBase + 2}}
	a := asm.New(entryBase)
	if _, err := Emit(a, []*bpf.Verified{none, none}, site, h.env); err != nil || a.Len() != 0 {
		t.Errorf("%d bytes, %v", a.Len(), err)
	}
}

// TestHitsOfPrograms: each program counts its runs, and those in which an event
// was lost, in the thread's own slot.
func TestHitsOfPrograms(t *testing.T) {
	c := testConfig
	c.Probes = 5
	r := rand.New(rand.NewPCG(7, 8))
	for range 10 {
		h := newHarness(t, arenaNear, c)
		site := randomSite(r)
		site.Gate = codeBase + 64
		site.Gates = []abi.Addr{codeBase + 65, codeBase + 66, codeBase + 67}
		site.Hits = []int{4, 2, -1}
		h.install(site, countAt(t, 1), event(t), countAt(t, 2))
		var want [5]uint64
		events := uint64(0)
		for range 1200 { // so many that bytes carry
			h.code[64] = 1
			for i := range 3 {
				h.code[65+i] = byte(r.IntN(2))
			}
			want[4] += uint64(h.code[65])
			want[2] += uint64(h.code[66])
			events += uint64(h.code[66])
			rq := randomRun(r)
			rp := h.do(rq)
			if err := rp.check(&rq, site); err != nil {
				t.Fatalf("%+v: %v", site, err)
			}
		}
		slot := h.slotOf(h.tp)
		if slot < 0 {
			t.Fatal("the thread has no slot")
		}
		l := h.env.Layout
		for probe, n := range want {
			byte, sum := h.arena[h.slotBase(slot)+l.Hits+uint64(probe)], h.word(l.HitSums+8*uint64(probe))
			if got := sum + uint64(byte); got != n || n > abi.HitCarry && sum == 0 {
				t.Errorf("probe %d: %d + %d hits, want %d", probe, sum, byte, n)
			}
			missed := h.word(l.Missed + 8*uint64(probe))
			if drops := h.word(h.slotBase(slot) + abi.SlotDrops); probe == 2 && missed != drops || probe != 2 && missed != 0 {
				t.Errorf("probe %d: %d missed; of %d events %d were dropped", probe, missed, events, drops)
			}
		}
	}
}
