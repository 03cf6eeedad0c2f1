package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"trapless"
)

type runFlags struct {
	traceFlags
	attach  []string
	set     []string
	records []string
	json    bool
}

func newRun() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run {-p PID | -c 'CMD'} OBJECT.bpf.o",
		Short: "run the programs of a BPF object file on a process",
		Long: `Runs the uprobe and uretprobe programs of a BPF object file, as clang makes it for
the kernel, inside a running process (-p) or a new one (-c). They are put where their
sections say, SEC("uprobe//bin/bash:readline") for instance, or where --attach says.
Records of rings and lines of trace_printk are printed as they come. At the end,
which comes with Ctrl-C, --duration or the end of the process, the programs are taken
out again and their maps and global variables are printed; elements of arrays that
are zero are left out, and values of which each CPU has its own are added up.`,
		Example: `  trapless run -p 1234 counts.bpf.o
  trapless run -p 1234 --attach printret=uretprobe:/bin/bash:readline --records events=str_t bashreadline.bpf.o
  trapless run -p 1234 --set threshold=100 slow.bpf.o
  trapless run -c './server --port 1' --json latency.bpf.o`,
		RunE: func(c *cobra.Command, args []string) error { return f.run(c.Context(), args) },
	}
	fl := c.Flags()
	fl.StringVarP(&f.pidText, "pid", "p", "", "probe this process")
	fl.StringVarP(&f.command, "cmd", "c", "", "start this command and probe it from its first instruction of main")
	fl.StringArrayVar(&f.attach, "attach", nil, "PROGRAM=PROBE: put a program at a probe, as in scripts, instead of where its section says; may be repeated")
	fl.StringArrayVar(&f.set, "set", nil, "VARIABLE=VALUE: give a global variable another value before the programs run")
	fl.StringArrayVar(&f.records, "records", nil, "RING=STRUCT: print the records of a ring as this structure of the file's")
	fl.DurationVar(&f.duration, "duration", 0, "end after this time, for example 5s")
	fl.BoolVar(&f.json, "json", false, "print one JSON object a line")
	fl.BoolVar(&f.breaks, "breakpoints", false, "allow a breakpoint where no jump is possible; it kills a thread that blocks SIGTRAP")
	fl.StringVarP(&f.output, "output", "o", "", "print to this file")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "do not tell how many probes there are")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "say on standard error what is done, with the pauses of the target")
	return c
}

func (f *runFlags) run(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return usageError{error: fmt.Errorf("expected one BPF object file, not %d; see 'trapless run --help'", len(args))}
	}
	f.format, f.buffer = "text", "line"
	if f.json {
		f.format = "json"
	}
	if err := f.check(); err != nil {
		return err
	}
	if f.pid == 0 && f.command == "" {
		return usageError{error: errors.New("no target: give -p PID or -c 'CMD'")}
	}
	o, err := f.options()
	if err != nil {
		return err
	}
	programs, err := trapless.LoadObject(args[0], o)
	if err != nil {
		return err
	}
	if err := placed(programs); err != nil {
		return err
	}
	return inWorker(ctx, func() error { return f.trace(ctx, programs) })
}

// placed tells which programs are not put anywhere, and is an error if that is all
// of them.
func placed(programs *trapless.Script) error {
	left, all := programs.Unattached(), programs.Programs()
	if len(left) == 0 {
		return nil
	}
	text := fmt.Sprintf("where these programs are to be put is not said: %s; use --attach NAME=uprobe:PATH:FUNCTION", strings.Join(left, ", "))
	if len(left) == len(all) {
		return usageError{error: errors.New(text)}
	}
	if os.Getenv(workerVar) == "" { // the worker has the same to say
		warn("%s", text)
	}
	return nil
}

// options reads what is said beside the object file.
func (f *runFlags) options() (trapless.ObjectOptions, error) {
	o := trapless.ObjectOptions{Attach: map[string][]string{}, Set: map[string]string{}, Records: map[string]string{}}
	for _, flag := range []struct {
		name, form string
		all        []string
		take       func(name, value string)
	}{
		{"attach", "PROGRAM=PROBE, as count=uprobe:libc:malloc", f.attach, func(n, v string) { o.Attach[n] = append(o.Attach[n], v) }},
		{"set", "VARIABLE=VALUE, as threshold=100", f.set, func(n, v string) { o.Set[n] = v }},
		{"records", "RING=STRUCT, as events=event", f.records, func(n, v string) { o.Records[n] = v }},
	} {
		for _, text := range flag.all {
			name, value, ok := strings.Cut(text, "=")
			if !ok || name == "" || value == "" {
				return o, usageError{error: fmt.Errorf("--%s %s: expected %s", flag.name, text, flag.form)}
			}
			flag.take(name, value)
		}
	}
	return o, nil
}
