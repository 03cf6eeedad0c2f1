package x86

import (
	"encoding/binary"
	"fmt"
	"testing"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/arena"
	"trapless/internal/bpf"
)

// twoNumbers writes an event of the first two arguments.
func twoNumbers(t testing.TB) *bpf.Verified {
	return trusted(t, &bpf.Program{Name: "event", Insns: bpfasm.Instructions{
		bpf.LoadArg(bpfasm.R3, bpfasm.R1, 0), bpf.LoadArg(bpfasm.R4, bpfasm.R1, 1),
		bpfasm.StoreMem(bpfasm.R10, -16, bpfasm.R3, bpfasm.DWord), bpfasm.StoreMem(bpfasm.R10, -8, bpfasm.R4, bpfasm.DWord),
		bpf.LoadRing(bpfasm.R1), bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R2, -16), bpfasm.Mov.Imm(bpfasm.R3, 16), bpfasm.Mov.Imm(bpfasm.R4, 0),
		bpf.Call(bpf.HelperRingbufOutput), bpfasm.Mov.Imm(bpfasm.R0, 0), bpfasm.Return()}})
}

// produce lets threads write events while they are consumed, and returns how many
// were and in how many nanoseconds they were written. Each has its key in it.
func (h *harness) produce(t testing.TB, threads, each uint64) (consumed, took uint64) {
	t.Helper()
	const keys = 1000
	a := arena.New(h.arena, h.env.Layout)
	done := make(chan uint64)
	go func() {
		done <- h.do(request{Op: opLoop, Entry: uint64(entryBase), Threads: threads, Iterations: each, Keys: keys}).Result
	}()
	last := make([]uint64, 1<<h.env.Layout.SlotBits) // of each slot: others may be late, for nobody waits for them here
	wrong := 0
	count := func(r *arena.Record) {
		if len(r.Payload) != 16 || binary.LittleEndian.Uint64(r.Payload) >= keys || r.TSC < last[r.Slot] {
			wrong++
		}
		last[r.Slot] = r.TSC
		consumed++
	}
	for over := false; !over; {
		select {
		case took = <-done:
			over = true
		default:
		}
		a.Each(over, count)
	}
	if wrong != 0 || a.Losses().Corrupt != 0 {
		t.Errorf("%d records are wrong or come before older ones of the same thread, %d cannot be read", wrong, a.Losses().Corrupt)
	}
	return consumed, took
}

// Two threads write at full speed. What was written and not read is counted.
func TestRingLossesAreCounted(t *testing.T) {
	for _, ring := range []uint64{1 << 12, 1 << 16, 1 << 20} {
		const threads, each = 2, 500_000
		h := newHarness(t, arenaNear, abi.Config{Threads: 4, RingSize: ring})
		h.install(entrySite, twoNumbers(t))
		got, _ := h.produce(t, threads, each)
		_, lost := h.ringTotals()
		if got+lost != threads*each {
			t.Errorf("ring of %d bytes: %d read, %d lost, of %d", ring, got, lost, threads*each)
		}
		t.Logf("ring of %d bytes: %d read, %d lost", ring, got, lost)
	}
}

// BenchmarkRing measures two threads that write events at full speed, and one
// goroutine that reads them.
func BenchmarkRing(b *testing.B) {
	for _, threads := range []uint64{1, 2} {
		b.Run(fmt.Sprint("producers=", threads), func(b *testing.B) {
			h := newHarness(b, arenaNear, abi.Config{Threads: 4, RingSize: 1 << 20})
			h.install(entrySite, twoNumbers(b))
			b.ResetTimer()
			got, took := h.produce(b, threads, uint64(b.N))
			all := float64(threads) * float64(b.N)
			b.ReportMetric(float64(got)/float64(took)*1e3, "Mread/s")
			b.ReportMetric(all/float64(took)*1e3, "Mwritten/s")
			b.ReportMetric(100*(1-float64(got)/all), "%lost")
		})
	}
	b.Run("consumer alone", func(b *testing.B) {
		h := newHarness(b, arenaNear, abi.Config{Threads: 4, RingSize: 1 << 20})
		h.install(entrySite, twoNumbers(b))
		a := arena.New(h.arena, h.env.Layout)
		n := 0
		for n < b.N {
			b.StopTimer()
			h.do(request{Op: opLoop, Entry: uint64(entryBase), Threads: 2, Iterations: 30_000})
			b.StartTimer()
			a.Each(true, func(*arena.Record) { n++ })
		}
		b.ReportMetric(float64(b.Elapsed())/float64(n), "ns/event")
	})
}
