package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"trapless"
	"trapless/internal/bench"
)

func newBench() *cobra.Command {
	var asJSON bool
	var rounds int
	var slice time.Duration
	c := &cobra.Command{
		Use:   "bench",
		Short: "measure what a hit costs here, beside the kernel's uprobes",
		Long: `Measures how much longer a call takes because it is probed, on a program that
trapless compiles for it (a C compiler is needed): a bare jump, a count, a count
by argument, with one thread and with two; a bare jump at a call that stays one
(direct, or through memory) and at one that is too short for that; and the
kernel's uprobes at a push, a 5-byte nop and a mov. All take turns in one run;
medians are reported.`,
		Example: `  trapless bench
  trapless bench --json --rounds 9`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if rounds < 1 || slice <= 0 {
				return usageError{errors.New("--rounds and --slice have to be positive")}
			}
			r, err := bench.Run(c.Context(), bench.Options{
				Variants: benchVariants(c.Context()), Rounds: rounds, Slice: slice, Log: progress,
			})
			if err != nil {
				return err
			}
			if asJSON {
				return r.WriteJSON(os.Stdout)
			}
			return r.WriteText(os.Stdout)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	c.Flags().IntVar(&rounds, "rounds", 7, "take the median of so many rounds")
	c.Flags().DurationVar(&slice, "slice", 30*time.Millisecond, "how long each measurement lasts")
	return c
}

// benchVariants are trapless's own ways of probing, then the kernel's.
func benchVariants(ctx context.Context) []bench.Variant {
	var all []bench.Variant
	for _, threads := range []int{1, 2} {
		for _, v := range []struct {
			name, function string
			offset         int
			body           string
			keys           int
		}{
			{"jump", "work_push", 0, "", 0},
			{"count", "work_push", 0, "@ = count();", 0},
			{"keyed", "work_push", 0, "@[arg0] = count();", 0},
			{"keyed-1000", "work_push", 0, "@[arg0] = count();", 1000},
			{"call", "work_call", directCall, "", 0},
			{"call-memory", "work_call_memory", memoryCall, "", 0},
			{"call-register", "work_call_register", registerCall, "", 0},
		} {
			all = append(all, bench.Variant{
				Name: v.name, Threads: threads, Function: v.function, Keys: v.keys,
				Arm: func(pid int) (bench.Armed, error) { return armScript(ctx, pid, v.function, v.offset, v.body) },
			})
		}
		all = append(all, bench.Uprobes(threads)...)
	}
	return all
}

// Offsets of the calls in the functions that make one.
const (
	directCall   = 17
	memoryCall   = 17
	registerCall = 23
)

// armScript probes a function in a process of the program busy.
func armScript(ctx context.Context, pid int, function string, offset int, body string) (bench.Armed, error) {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return bench.Armed{}, err
	}
	script, err := trapless.Compile("bench", fmt.Sprintf("uprobe:%q:%s+%d { %s }", exe, function, offset, body))
	if err != nil {
		return bench.Armed{}, err
	}
	s, err := trapless.Attach(ctx, pid, script, trapless.Options{Warn: warn})
	if err != nil {
		return bench.Armed{}, err
	}
	armed := bench.Armed{Disarm: s.Close}
	if body != "" {
		armed.Hits = func() (uint64, error) { return total(s) }
	}
	return armed, nil
}

// total is the sum of all counts.
func total(s *trapless.Session) (uint64, error) {
	entries, err := s.Map("@")
	var n uint64
	for _, e := range entries {
		n += uint64(e.Value)
	}
	return n, err
}

// progress writes to standard error when that is a terminal.
func progress(format string, args ...any) {
	if isTerminal(os.Stderr) {
		fmt.Fprintf(os.Stderr, "trapless: "+format+"\n", args...)
	}
}
