// Package bench measures what a hit costs: how much longer a call takes because it is probed. The caller
// says in which ways to probe (Variant); the package runs the program busy with and without, in rounds in
// which the variants take turns, and reports medians.
//
// It knows neither scripts nor sessions. Times are CPU time of the calling threads, so that a machine with
// other work, or fewer CPUs than threads, distorts them little.
package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"trapless/internal/bench/busy"
)

// Variant is one way of probing a function of the program busy.
type Variant struct {
	Name     string
	Threads  int    // that call at the same time
	Function string // one of the program's: "work", "work_push" ...
	Keys     int    // how many values the first argument takes, evenly; 0: five, unevenly
	Rounds   int    // in how many rounds it takes part; 0: in all
	Batch    uint64 // the most calls of a thread in a row, after which Armed.Drain is called; 0: no limit
	// Arm probes the function in a process that makes no calls meanwhile. An error skips the variant; its
	// text is the reason that the report gives.
	Arm func(pid int) (Armed, error)
}

// Armed is a probe in place.
type Armed struct {
	Hits   func() (uint64, error) // how often the probe was hit since Arm; nil if it does not count
	Drain  func() error           // waits until what hits have written is consumed; nil if they write nothing
	Disarm func() error
}

// Options say how long to measure.
type Options struct {
	Variants []Variant
	Rounds   int           // of which the median is reported; 0: 5
	Slice    time.Duration // how long each thread calls, each time; 0: 20 ms
	Log      func(format string, args ...any)
}

// Run measures. A variant that cannot be armed is skipped and reported as such; a variant whose probe
// counts wrong, or does not come off, is an error.
func Run(ctx context.Context, o Options) (*Report, error) {
	o = o.withDefaults()
	dir, err := os.MkdirTemp("", "trapless-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program, err := busy.Build(ctx, dir)
	if err != nil {
		return nil, err
	}
	samples := make([][]sample, len(o.Variants))
	reasons := make([]error, len(o.Variants))
	for round := range o.Rounds {
		o.Log("round %d of %d", round+1, o.Rounds)
		for i := range o.Variants {
			v := &o.Variants[i]
			if reasons[i] != nil || v.Rounds != 0 && round >= v.Rounds {
				continue
			}
			s, err := measure(ctx, program, v, o.Slice)
			var skip *skipError
			switch {
			case errors.As(err, &skip):
				reasons[i] = skip.reason
			case ctx.Err() != nil:
				return nil, ctx.Err()
			case err != nil:
				return nil, fmt.Errorf("%s with %d threads: %w", v.Name, v.Threads, err)
			default:
				samples[i] = append(samples[i], s)
			}
		}
	}
	return newReport(o.Variants, samples, reasons), nil
}

func (o Options) withDefaults() Options {
	if o.Rounds == 0 {
		o.Rounds = 5
	}
	if o.Slice == 0 {
		o.Slice = 20 * time.Millisecond
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	return o
}

// skipError carries why a variant could not be armed.
type skipError struct{ reason error }

func (e *skipError) Error() string { return e.reason.Error() }

// sample is one measurement, in ns for each call.
type sample struct{ base, probed float64 }

// measure takes a process of its own for each sample, so that nothing an earlier one left behind counts.
// The same process runs unprobed before and after: a drift of the clock speed cancels out.
func measure(ctx context.Context, program string, v *Variant, slice time.Duration) (s sample, err error) {
	p, err := busy.Start(ctx, program, v.Threads)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if err := p.Keys(v.Keys); err != nil {
		return s, err
	}
	before, _, err := timed(p, v, slice, nil)
	if err != nil {
		return s, err
	}
	s.probed, err = probed(p, v, slice)
	if err != nil {
		return s, err
	}
	after, _, err := timed(p, v, slice, nil)
	s.base = (before + after) / 2
	return s, err
}

func probed(p *busy.Process, v *Variant, slice time.Duration) (float64, error) {
	armed, err := v.Arm(p.Pid())
	if err != nil {
		return 0, &skipError{err}
	}
	ns, calls, err := timed(p, v, slice, armed.Drain)
	if err == nil && armed.Hits != nil {
		var hits uint64
		if hits, err = armed.Hits(); err == nil && hits != calls {
			err = fmt.Errorf("%d calls were counted as %d", calls, hits)
		}
	}
	return ns, errors.Join(err, armed.Disarm())
}

// The first calls of a timing warm up and tell how many make a slice.
const (
	warmUp   = 1000
	maxCalls = 1 << 30

	maxBatches = 300
)

// timed calls the variant's function for about a slice on each thread. It returns the CPU time of one call
// in ns, and how many calls it made in all.
func timed(p *busy.Process, v *Variant, slice time.Duration, drain func() error) (ns float64, calls uint64, err error) {
	first, err := p.Run(v.Function, v.Threads, warmUp)
	if err != nil {
		return 0, 0, err
	}
	calls = first.Calls
	each := max(float64(first.CPU)/float64(first.Calls), 0.1)
	n := min(max(uint64(float64(slice)/each), warmUp), maxCalls)
	batch := n
	if v.Batch != 0 {
		batch = min(n, v.Batch)
		n = min(n, maxBatches*batch)
	}
	var sum busy.Run
	for ; n >= batch; n -= batch {
		if drain != nil {
			if err := drain(); err != nil {
				return 0, 0, err
			}
		}
		run, err := p.Run(v.Function, v.Threads, batch)
		if err != nil {
			return 0, 0, err
		}
		sum.CPU, sum.Calls = sum.CPU+run.CPU, sum.Calls+run.Calls
	}
	return float64(sum.CPU) / float64(sum.Calls), calls + sum.Calls, nil
}
