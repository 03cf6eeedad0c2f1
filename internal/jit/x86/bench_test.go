package x86

import (
	"fmt"
	"testing"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// BenchmarkHit measures calls of an empty function with and without a probe at
// its entry. The cost of a probe is the difference to "unprobed"; what a jump
// to a detour and back costs by itself is in "bare".
func BenchmarkHit(b *testing.B) {
	entry := Site{LiveRegs: allRegs &^ asm.Regs(asm.RAX, asm.R10, asm.R11)}
	busy := Site{LiveRegs: allRegs, FlagsLive: true, RedZoneLive: true}
	big := testConfig
	big.RingSize = 1 << 20
	for _, c := range []struct {
		name   string
		site   Site
		keys   uint64
		counts int // the map that counts hits, or -1
		make   func(testing.TB) []*bpf.Verified
		thread ThreadPointer
	}{
		{"unprobed", entry, 1, -1, nil, SelfPointer},
		{"bare", entry, 1, -1, func(testing.TB) []*bpf.Verified { return nil }, SelfPointer},
		{"count", entry, 1, mapCount, func(t testing.TB) []*bpf.Verified { return []*bpf.Verified{count(t)} }, SelfPointer},
		{"count-fsbase", entry, 1, mapCount, func(t testing.TB) []*bpf.Verified { return []*bpf.Verified{count(t)} }, FSBase},
		{"count-live-fsbase", busy, 1, mapCount, func(t testing.TB) []*bpf.Verified { return []*bpf.Verified{count(t)} }, FSBase},
		{"count-live", busy, 1, mapCount, func(t testing.TB) []*bpf.Verified { return []*bpf.Verified{count(t)} }, SelfPointer},
		{"count-displaced", entry, 1, mapCount, func(t testing.TB) []*bpf.Verified { return []*bpf.Verified{count(t)} }, SelfPointer},
		{"count-shared", entry, 1, mapCount, func(t testing.TB) []*bpf.Verified { return []*bpf.Verified{count(t)} }, SelfPointer},
		{"keyed-hot", entry, 1, mapKeyed, func(t testing.TB) []*bpf.Verified { return []*bpf.Verified{keyed(t, mapKeyed)} }, SelfPointer},
		{"keyed-live", busy, 1, mapKeyed, func(t testing.TB) []*bpf.Verified { return []*bpf.Verified{keyed(t, mapKeyed)} }, SelfPointer},
		{"keyed-1000", entry, 1000, mapKeyed, func(t testing.TB) []*bpf.Verified { return []*bpf.Verified{keyed(t, mapKeyed)} }, SelfPointer},
		{"pairs-100", entry, 100, mapPairs, func(t testing.TB) []*bpf.Verified { return []*bpf.Verified{paired(t)} }, SelfPointer},
		{"event", entry, 1, -1, func(t testing.TB) []*bpf.Verified { return []*bpf.Verified{event(t)} }, SelfPointer},
	} {
		for _, threads := range []uint64{1, 2} {
			b.Run(fmt.Sprintf("%s/threads=%d", c.name, threads), func(b *testing.B) {
				h := newThreadHarness(b, arenaNear, big, c.thread)
				h.put(entryBase, h.probed(c.site, c.make))
				rq := request{Op: opLoop, Entry: uint64(entryBase), Threads: threads, Iterations: uint64(b.N), Keys: c.keys}
				switch c.name {
				case "count-displaced":
					h.freeEach(8)
				case "count-shared":
					h.freeEach(1 << 20)
				}
				b.ResetTimer()
				took := uint64(0)
				if c.name == "event" {
					took = h.inBatches(rq)
				} else {
					took = h.do(rq).Result
				}
				if m := c.counts; m >= 0 && h.sum(m) != uint64(b.N)*threads {
					b.Errorf("counted %d of %d hits", h.sum(m), uint64(b.N)*threads)
				}
				if n := h.recorded(); c.name == "event" && n != uint64(b.N)*threads {
					b.Errorf("recorded %d of %d events", n, uint64(b.N)*threads)
				}
				b.ReportMetric(float64(took)/float64(b.N), "ns/hit")
			})
		}
	}
}

// probed is a function of one instruction and a return, and at its entry a
// jump to a detour with the programs.
func (h *harness) probed(site Site, progs func(testing.TB) []*bpf.Verified) []byte {
	a := asm.New(entryBase)
	if progs == nil {
		a.Nop(5)
		a.Ret()
		code, _ := a.Bytes()
		return code
	}
	detour, back := a.NewLabel(), a.NewLabel()
	a.Jmp(detour)
	a.Bind(back)
	a.Ret()
	a.Align(64)
	a.Bind(detour)
	d, err := Emit(a, progs(h.t), site, h.env)
	if err != nil {
		h.t.Fatal(err)
	}
	a.Nop(5)
	a.Jmp(back)
	d.EmitCold(a)
	code, err := a.Bytes()
	if err != nil {
		h.t.Fatal(err)
	}
	return code
}

// inBatches does the hits of a request in portions that fit a ring of 1 MB,
// which it empties in between, and returns the nanoseconds that they took.
func (h *harness) inBatches(rq request) (took uint64) {
	for left := rq.Iterations; left > 0; left -= rq.Iterations {
		rq.Iterations = min(left, 30_000)
		took += h.do(rq).Result
		for i := range 1 << h.env.Layout.SlotBits {
			base := h.slotBase(i)
			h.putWord(base+abi.SlotRingTail, h.word(base+abi.SlotRingHead))
		}
	}
	return took
}
