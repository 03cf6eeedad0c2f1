package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"trapless"
	"trapless/internal/bench"
)

func newBench() *cobra.Command {
	var asJSON bool
	var rounds int
	var slice time.Duration
	var only []string
	var scale scaleFlags
	c := &cobra.Command{
		Use:   "bench",
		Short: "measure what a hit costs here, beside the kernel's uprobes",
		Long: `Measures how much longer a call takes because it is probed, on a program that
trapless compiles for it (a C compiler is needed): a bare jump, a count, a count
by argument, a histogram, the latency of a call, an event of two numbers and a count
by a string of 15 letters (in the program's data, on the heap, on the stack), with
one thread and with two; a bare jump at a call that stays one (direct, or through
memory) and at one that is too short for that; the kernel's uprobes at a push, a
5-byte nop and a mov; and, where it is installed, bpftrace at the same jobs. All
take turns in one run; medians are reported.

With --probes it measures what many probes in one process take instead: to
register and to remove them, the pauses, the memory, and a hit with all of them in
place beside one with a single probe. The process is a program of so many functions
with threads at work in them, or any other one (-p, with --functions).`,
		Example: `  trapless bench
  trapless bench --json --rounds 9
  trapless bench --probes 40000 --threads 50
  trapless bench --probes 1 -p 1234 --functions '_ZN2v8*'`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if rounds < 1 || slice <= 0 {
				return usageError{error: errors.New("--rounds and --slice have to be positive")}
			}
			if scale.probes > 0 {
				return scale.run(c.Context(), rounds, asJSON)
			}
			r, err := bench.Run(c.Context(), bench.Options{
				Variants: selected(benchVariants(c.Context()), only), Rounds: rounds, Slice: slice, Log: progress,
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
	c.Flags().IntVar(&scale.probes, "probes", 0, "measure so many probes in one process")
	c.Flags().IntVar(&scale.threads, "threads", 50, "with --probes: threads at work meanwhile")
	c.Flags().IntVarP(&scale.pid, "pid", "p", 0, "with --probes: measure in this process")
	c.Flags().StringVar(&scale.functions, "functions", "*", "with -p: the functions of its program to probe")
	c.Flags().IntVar(&rounds, "rounds", 7, "take the median of so many rounds")
	c.Flags().StringSliceVar(&only, "only", nil, "only variants with these names")
	c.Flags().DurationVar(&slice, "slice", 30*time.Millisecond, "how long each measurement lasts")
	return c
}

// job is something that a probe does.
type job struct {
	name, function string
	offset         int
	body           string
	keys           int
	exit           string // what a return probe does
	batch          uint64 // see bench.Variant
	events         bool
	bpftrace       bool // it is compared with bpftrace
}

// A ring holds this many events of two numbers, and more.
const eventBatch = 1000

var jobs = []job{
	{name: "jump", function: "work_push"},
	{name: "count", function: "work_push", body: "@ = count();", bpftrace: true},
	{name: "keyed", function: "work_push", body: "@[arg0] = count();", bpftrace: true},
	{name: "keyed-1000", function: "work_push", body: "@[arg0] = count();", keys: 1000, bpftrace: true},
	{name: "hist", function: "work_push", body: "@ = hist(arg1);", bpftrace: true},
	{name: "latency", function: "work_push", body: "@start[tid] = nsecs;", exit: "@ = hist(nsecs - @start[tid]); delete(@start[tid]);", bpftrace: true},
	{name: "event", function: "work_push", body: `printf("%d %d\n", arg0, arg1);`, batch: eventBatch, events: true, bpftrace: true},
	{name: "string-static", function: "name_static", body: "@[str(arg0)] = count();"},
	{name: "string-heap", function: "name_heap", body: "@[str(arg0)] = count();"},
	{name: "string-stack", function: "name_stack", body: "@[str(arg0)] = count();", bpftrace: true},
	{name: "call", function: "work_call", offset: directCall},
	{name: "call-memory", function: "work_call_memory", offset: memoryCall},
	{name: "call-register", function: "work_call_register", offset: registerCall},
}

// benchVariants are trapless's own ways of probing, then the kernel's and bpftrace's.
func benchVariants(ctx context.Context) []bench.Variant {
	var all []bench.Variant
	for _, threads := range []int{1, 2} {
		var theirs []bench.Variant
		for _, j := range jobs {
			v := bench.Variant{Name: j.name, Threads: threads, Function: j.function, Keys: j.keys, Batch: j.batch,
				Arm: func(pid int) (bench.Armed, error) { return armScript(ctx, pid, &j) }}
			all = append(all, v)
			if j.bpftrace {
				theirs = append(theirs, bench.Bpftrace(v, j.script("uprobe:$FUNCTION", "uretprobe:$FUNCTION"), j.counts()))
			}
		}
		all = append(append(all, bench.Uprobes(threads)...), theirs...)
	}
	return all
}

// selected are the variants with some names, or all.
func selected(all []bench.Variant, names []string) []bench.Variant {
	if len(names) == 0 {
		return all
	}
	return slices.DeleteFunc(all, func(v bench.Variant) bool { return !slices.Contains(names, v.Name) })
}

// script is the job for one probe, or two.
func (j *job) script(entry, exit string) string {
	s := entry + " { " + j.body + " }"
	if j.exit != "" {
		s += " " + exit + " { " + j.exit + " }"
	}
	return s
}

// counts reports whether the map @ counts the hits.
func (j *job) counts() bool { return strings.Contains(j.body, "count()") }

// Offsets of the calls in the functions that make one.
const (
	directCall   = 17
	memoryCall   = 17
	registerCall = 23
)

// armScript probes a function in a process of the program busy.
func armScript(ctx context.Context, pid int, j *job) (bench.Armed, error) {
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return bench.Armed{}, err
	}
	function := fmt.Sprintf("%q:%s", exe, bench.Probed(j.function))
	script, err := trapless.Compile("bench", j.script(fmt.Sprintf("uprobe:%s+%d", function, j.offset), "uretprobe:"+function))
	if err != nil {
		return bench.Armed{}, err
	}
	events := uint64(0)
	s, err := trapless.Attach(ctx, pid, script, trapless.Options{Warn: warn, Output: eventCounter{&events}})
	if err != nil {
		return bench.Armed{}, err
	}
	armed := bench.Armed{Disarm: s.Close}
	switch {
	case j.counts():
		armed.Hits = func() (uint64, error) { return total(s) }
	case j.events:
		armed.Drain = func() error { s.Poll(); return nil }
		armed.Hits = func() (uint64, error) { s.Poll(); return events, nil }
	}
	return armed, nil
}

// eventCounter counts lines.
type eventCounter struct{ n *uint64 }

func (c eventCounter) Write(b []byte) (int, error) {
	*c.n += uint64(bytes.Count(b, []byte("\n")))
	return len(b), nil
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

func isTerminal(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0
}
