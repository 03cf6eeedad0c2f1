package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"trapless"
	"trapless/internal/bench"
	"trapless/internal/bench/busy"
)

func newDemo() *cobra.Command {
	var seconds int
	c := &cobra.Command{
		Use:   "demo",
		Short: "show trapless at work on a busy process of its own",
		Long: `Compiles and starts a program whose threads call a function as fast as they can
and check every result, attaches to it as to any process, counts the function's
calls by argument, measures what a hit costs beside a kernel uprobe, detaches,
and lets the program say whether all its results were right.`,
		Example: `  trapless demo`,
		Args:    noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if seconds < 1 {
				return usageError{error: errors.New("--seconds has to be positive")}
			}
			return demo(c.Context(), seconds)
		},
	}
	c.Flags().IntVar(&seconds, "seconds", 3, "how long to count")
	return c
}

func demo(ctx context.Context, seconds int) (err error) {
	dir, err := os.MkdirTemp("", "trapless-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program, err := busy.Build(ctx, dir)
	if err != nil {
		return err
	}
	threads := runtime.NumCPU()
	p, err := busy.Start(ctx, program, threads)
	if err != nil {
		return err
	}
	fmt.Printf("Process %d runs %d threads that call work(key, size, sum) and check every result.\n", p.Pid(), threads)
	err = errors.Join(demoLive(ctx, p, program, threads, seconds), demoExact(ctx, p, program, threads))
	if err == nil {
		err = demoCost(ctx)
	}
	counts, cerr := p.Counts("work")
	if err = errors.Join(err, cerr, p.Close()); err != nil {
		return err
	}
	fmt.Printf("\nThe process has ended by itself: all of its %d results were right.\n", counts.Calls)
	return nil
}

// demoLive counts for some seconds while the threads are at it.
func demoLive(ctx context.Context, p *busy.Process, program string, threads, seconds int) error {
	if err := p.Spin("work", threads); err != nil {
		return err
	}
	src := fmt.Sprintf("uprobe:%q:work { @calls[arg0] = count(); }\ninterval:s:1 { print(@calls); clear(@calls); }", program)
	fmt.Printf("Attaching to it while it runs; calls by key, each second:\n\n    %s\n\n", src)
	script, err := trapless.Compile("demo", src)
	if err != nil {
		return err
	}
	s, err := trapless.Attach(ctx, p.Pid(), script, trapless.Options{Output: os.Stdout, Warn: warn})
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+demoSlack)
	defer cancel()
	err = errors.Join(s.Run(within), s.Close())
	for _, pause := range s.Pauses() {
		fmt.Printf("The process was stopped for %.2f ms.\n", float64(pause.Microseconds())/1000)
	}
	_, serr := p.Stop()
	return errors.Join(err, serr)
}

// demoSlack lets the last second be printed.
const demoSlack = 200 * time.Millisecond

// demoExact compares a count with the process's own.
func demoExact(ctx context.Context, p *busy.Process, program string, threads int) error {
	script, err := trapless.Compile("demo", fmt.Sprintf("uprobe:%q:work { @ = count(); }", program))
	if err != nil {
		return err
	}
	s, err := trapless.Attach(ctx, p.Pid(), script, trapless.Options{Warn: warn})
	if err != nil {
		return err
	}
	run, err := p.Run("work", threads, demoCalls)
	if err != nil {
		return errors.Join(err, s.Close())
	}
	n, err := total(s)
	if err := errors.Join(err, s.Close()); err != nil {
		return err
	}
	if n != run.Calls {
		return fmt.Errorf("trapless counted %d calls, the process %d", n, run.Calls)
	}
	fmt.Printf("\nThen it made %d calls, and trapless counted %d.\n", run.Calls, n)
	return nil
}

const demoCalls = 5_000_000 // on each thread

// demoCost measures a count beside a kernel uprobe.
func demoCost(ctx context.Context) error {
	fmt.Printf("\nWhat a hit costs, measured in turns:\n\n")
	var variants []bench.Variant
	for _, v := range benchVariants(ctx) {
		if v.Name == "count" || v.Name == "keyed" || v.Name == bench.Reference {
			variants = append(variants, v)
		}
	}
	r, err := bench.Run(ctx, bench.Options{Variants: variants, Rounds: 3, Log: progress})
	if err != nil {
		return err
	}
	return r.WriteText(os.Stdout)
}
