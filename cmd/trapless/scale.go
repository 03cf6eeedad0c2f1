package main

import (
	"context"
	"fmt"
	"os"

	"trapless"
	"trapless/internal/bench"
)

// scaleFlags are those of bench about many probes.
type scaleFlags struct {
	probes, threads, pid int
	functions            string
}

func (f *scaleFlags) run(ctx context.Context, rounds int, asJSON bool) error {
	r, err := bench.RunScale(ctx, bench.ScaleOptions{
		Probes: f.probes, Threads: f.threads, Rounds: rounds, PID: f.pid, Functions: f.functions,
		Arm: func(pid int, functions string) (bench.ManyArmed, error) { return armMany(ctx, pid, functions) },
	})
	if err != nil {
		return err
	}
	if asJSON {
		return r.WriteJSON(os.Stdout)
	}
	return r.WriteText(os.Stdout)
}

// armMany counts the calls of all functions that a pattern names.
func armMany(ctx context.Context, pid int, functions string) (bench.ManyArmed, error) {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return bench.ManyArmed{}, err
	}
	script, err := trapless.Compile("bench", fmt.Sprintf("uprobe:%q:%s { @ = count(); }", exe, functions))
	if err != nil {
		return bench.ManyArmed{}, err
	}
	calm := hurry()
	s, err := trapless.Attach(ctx, pid, script, trapless.Options{Warn: progress})
	calm()
	if err != nil {
		return bench.ManyArmed{}, err
	}
	var hits uint64
	return bench.ManyArmed{
		Sites: s.Sites(), Pauses: s.Pauses,
		Hits: func() (uint64, error) { return hits, nil },
		Disarm: func() error {
			ended, cancel := context.WithCancel(ctx)
			cancel()
			if err := s.Run(ended); err != nil { // it takes the probes out
				return err
			}
			if hits, err = total(s); err != nil {
				return err
			}
			return s.Close()
		},
	}, nil
}
