package ptrace

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"trapless/internal/abi"
	"trapless/internal/unix"
)

// BenchmarkPause measures for how long a target of many threads, all of which
// compute, is stopped: the time from the first request to stop to the last
// continuation.
func BenchmarkPause(b *testing.B) {
	for _, threads := range []string{"1", "16", "100", "1000"} {
		for _, realtime := range []bool{true, false} {
			b.Run(fmt.Sprintf("threads=%s/realtime=%v", threads, realtime), func(b *testing.B) {
				tg := start(b, build(b, "ptrace_life.c"), "threads", threads)
				tr := tracer(b)
				if ok, why := tr.Realtime(); !ok && realtime {
					b.Skip(why)
				}
				if !realtime {
					check(b, tr.do(unix.SetOrdinary))
				}
				ctx := context.Background()
				g, err := tr.Seize(ctx, tg.pid)
				check(b, err)
				g.SetMaxPause(10 * time.Second)
				for b.Loop() {
					check(b, g.Stop(ctx))
					check(b, g.Resume())
					time.Sleep(5 * time.Millisecond)
				}
				p := g.Pauses()
				slices.Sort(p)
				b.ReportMetric(float64(p[len(p)/2].Microseconds()), "µs/median")
				b.ReportMetric(float64(p[len(p)-1].Microseconds()), "µs/max")
				check(b, g.Detach(ctx))
			})
		}
	}
}

// BenchmarkRun measures one blob of one system call.
func BenchmarkRun(b *testing.B) {
	for _, what := range []string{"spin", "sleep"} {
		b.Run(what, func(b *testing.B) {
			tg := start(b, build(b, "ptrace_life.c"), what)
			ctx := context.Background()
			g, err := tracer(b).Seize(ctx, tg.pid)
			check(b, err)
			_, err = g.Foothold(ctx, 0, abi.PageSize)
			check(b, err)
			var blob Blob
			blob.Call(sysGetpid)
			for b.Loop() {
				_, err := g.Run(ctx, &blob)
				check(b, err)
			}
			check(b, g.Detach(ctx))
		})
	}
}

// BenchmarkAttach measures Seize and Detach of a process of 100 threads.
func BenchmarkAttach(b *testing.B) {
	tg := start(b, build(b, "ptrace_life.c"), "threads", "100")
	ctx := context.Background()
	g, err := tracer(b).Seize(ctx, tg.pid)
	check(b, err)
	for b.Loop() {
		check(b, g.Detach(ctx))
		check(b, g.Seize(ctx))
	}
	check(b, g.Detach(ctx))
}
