package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"trapless"
)

type traceFlags struct {
	pid      int
	command  string
	expr     string
	duration time.Duration
	format   string
	verbose  bool
	breaks   bool
}

func newTrace() *cobra.Command {
	var f traceFlags
	c := &cobra.Command{
		Use:   "trace {-p PID | -c 'CMD'} {-e SCRIPT | FILE} [PARAM...]",
		Short: "run a probe script on a process",
		Long: `Runs a script in the bpftrace language on a running process (-p) or on a new one
(-c). At the end, which comes with Ctrl-C, --duration, exit() or the end of the
process, the probes are taken out again and the script's maps are printed.`,
		Example: `  trapless trace -p 1234 -e 'uprobe:/usr/bin/python3.11:PyObject_Malloc { @[arg0] = count(); }'
  trapless trace -p 1234 --duration 5s -e 'uprobe:libc:mem* /arg2 > 4096/ { @[arg2] = count(); }'
  trapless trace -c './server --port 1' -e 'uprobe:./server:handle+12 { @ = count(); }'
  trapless trace -p 1234 -f json count.bt`,
		RunE: func(c *cobra.Command, args []string) error { return trace(c.Context(), &f, args) },
	}
	fl := c.Flags()
	fl.IntVarP(&f.pid, "pid", "p", 0, "probe this process")
	fl.StringVarP(&f.command, "cmd", "c", "", "start this command and probe it from its first instruction of main")
	fl.StringVarP(&f.expr, "execute", "e", "", "the script itself instead of a file")
	fl.DurationVar(&f.duration, "duration", 0, "end after this time, for example 5s")
	fl.StringVarP(&f.format, "format", "f", "text", "print as text or as json, one object a line")
	fl.BoolVar(&f.breaks, "breakpoints", false, "allow a breakpoint where no jump is possible; it kills a thread that blocks SIGTRAP")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "say on standard error what is done, with the pauses of the target")
	return c
}

func trace(ctx context.Context, f *traceFlags, args []string) error {
	name, src, params, err := f.script(args)
	if err != nil {
		return err
	}
	script, err := trapless.Compile(name, src, params...)
	if err != nil {
		return err
	}
	return inWorker(ctx, func() error { return f.trace(ctx, script) })
}

// trace runs a compiled script, in the worker.
func (f *traceFlags) trace(ctx context.Context, script *trapless.Script) error {
	for _, w := range script.Warnings() {
		fmt.Fprintln(os.Stderr, w)
	}
	o := trapless.Options{Output: os.Stdout, JSON: f.format == "json", Warn: warn, Breakpoints: f.breaks}
	if f.verbose {
		o.Log = warn
	}
	return f.run(ctx, script, o)
}

func (f *traceFlags) run(ctx context.Context, script *trapless.Script, o trapless.Options) error {
	if f.pid != 0 {
		s, err := trapless.Attach(ctx, f.pid, script, o)
		if err != nil {
			return err
		}
		return errors.Join(f.watch(ctx, s), s.Close(), scriptStatus(s))
	}
	argv, err := splitCommand(f.command)
	if err != nil {
		return usageError{err}
	}
	s, err := trapless.Start(ctx, argv, script, o)
	if err != nil {
		return err
	}
	err = f.watch(ctx, s)
	return errors.Join(err, s.End(endTime), s.Close(), scriptStatus(s))
}

// watch runs the session for as long as it was asked to, from when the probes
// are in place.
func (f *traceFlags) watch(ctx context.Context, s *trapless.Session) error {
	if stop, err := s.Serve(); err == nil {
		defer stop()
	} else if f.verbose {
		warn("'trapless status' and 'trapless ctl' cannot reach this session: %v", err)
	}
	if f.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.duration)
		defer cancel()
	}
	return s.Run(ctx)
}

// endTime is how long a command that we started may take to end at SIGTERM.
const endTime = 5 * time.Second

// scriptStatus is the script's own exit status, from exit(STATUS).
func scriptStatus(s *trapless.Session) error {
	if n := s.Status(); n != 0 {
		return statusError(n)
	}
	return nil
}

// script returns the script's name, text and positional parameters.
func (f *traceFlags) script(args []string) (name, src string, params []string, err error) {
	switch {
	case f.pid != 0 && f.command != "":
		return "", "", nil, usageError{errors.New("-p and -c exclude each other")}
	case f.pid == 0 && f.command == "":
		return "", "", nil, usageError{errors.New("no target: give -p PID or -c 'CMD'")}
	case f.pid < 0:
		return "", "", nil, usageError{fmt.Errorf("-p %d is no process id", f.pid)}
	case f.duration < 0:
		return "", "", nil, usageError{fmt.Errorf("--duration %s is negative", f.duration)}
	case f.format != "text" && f.format != "json":
		return "", "", nil, usageError{fmt.Errorf("-f %s: the formats are text and json", f.format)}
	case f.expr != "":
		return "-e", f.expr, args, nil
	case len(args) == 0:
		return "", "", nil, usageError{errors.New("no script: give -e 'SCRIPT' or a file")}
	}
	text, err := os.ReadFile(args[0])
	return args[0], string(text), args[1:], err
}

func warn(format string, args ...any) { fmt.Fprintf(os.Stderr, "trapless: "+format+"\n", args...) }
