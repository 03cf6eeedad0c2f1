package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"trapless"
)

func newTrace() *cobra.Command {
	var f traceFlags
	c := &cobra.Command{
		Use:   "trace [options] {-e SCRIPT | FILE | -} [PARAM...]",
		Short: "run a probe script",
		Long: `Runs a script in the bpftrace language on a running process (-p) or on a new one
(-c), or without both on all processes that have the files of its probes mapped or
begin to later. At the end, which comes with Ctrl-C, --duration, exit() or the end
of the process, the probes are taken out again and the script's maps are printed.

The options are those of bpftrace, so that 'alias bpftrace="trapless trace"' works.`,
		Example: `  trapless trace -p 1234 -e 'uprobe:/usr/bin/python3.11:PyObject_Malloc { @[arg0] = count(); }'
  trapless trace -p 1234 --duration 5s -e 'uprobe:libc:mem* /arg2 > 4096/ { @[arg2] = count(); }'
  trapless trace -c './server --port 1' -e 'uprobe:./server:handle+12 { @ = count(); }'
  trapless trace -p 1234 -f json count.bt
  trapless trace -l 'uprobe:/usr/bin/python3.11:PyObject_*'`,
		RunE: func(c *cobra.Command, args []string) error { return trace(c.Context(), &f, args) },
	}
	f.register(c)
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usageError{err, "\n" + c.UsageString()} })
	c.SetUsageTemplate("USAGE:\n  " + c.UseLine() + "\n" + usageTail)
	return c
}

// usageTail is the usage message behind its first line.
const usageTail = `
EXAMPLES:
{{.Example}}

OPTIONS:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}
`

func trace(ctx context.Context, f *traceFlags, args []string) error {
	if err := f.check(); err != nil {
		return err
	}
	switch {
	case f.version:
		fmt.Println("bpftrace v0.26, the language; the program is trapless")
		return nil
	case f.info:
		return printInfo(os.Stdout)
	case f.list:
		return f.listProbes(args)
	}
	script, err := f.compile(args)
	if err != nil || f.dryRun {
		return err
	}
	return inWorker(ctx, func() error { return f.trace(ctx, script) })
}

// trace runs a compiled script, in the worker.
func (f *traceFlags) trace(ctx context.Context, script *trapless.Script) error {
	if !f.noWarnings {
		for _, w := range script.Warnings() {
			fmt.Fprint(os.Stderr, w)
		}
	}
	out, err := f.openOutput()
	if err != nil {
		return err
	}
	o := trapless.Options{Output: out, Errors: stderr{out}, Stalled: out.stalled, JSON: f.format == "json", Warn: out.warn, Breakpoints: f.breaks, Hold: f.hold, Follow: f.follow, Unsafe: f.unsafe, NoWarnings: f.noWarnings}
	if f.noWarnings {
		o.Warn = nil
	}
	if f.verbose {
		o.Log = out.tell
	}
	return errors.Join(f.run(ctx, script, o, out), out.Close())
}

func (f *traceFlags) run(ctx context.Context, script *trapless.Script, o trapless.Options, out *output) error {
	s, err := f.start(ctx, script, o)
	if err != nil {
		return err
	}
	if !f.quiet {
		err = announce(o, out.to, s.Attached())
	}
	if os.Getenv(notifyVar) != "" {
		fmt.Println(notifyVar)
	}
	out.release()
	err = errors.Join(err, f.watch(ctx, s))
	if f.command != "" {
		err = errors.Join(err, s.End(endTime))
	}
	return errors.Join(err, s.Close(), scriptStatus(s))
}

// announce tells how many probes there are, as bpftrace does.
func announce(o trapless.Options, out io.Writer, n int) error {
	if o.JSON {
		_, err := fmt.Fprintf(out, "{\"type\": \"attached_probes\", \"count\": %d, \"data\": {\"probes\": %d}}\n", n, n)
		return err
	}
	noun := "probes"
	if n == 1 {
		noun = "probe"
	}
	fmt.Fprintf(os.Stderr, "Attached %d %s\n", n, noun)
	return nil
}

// notifyVar is set by bpftrace's runner of tests, which waits for it to be printed when the probes are in place.
const notifyVar = "__BPFTRACE_NOTIFY_PROBES_ATTACHED"

// start starts the session that the flags ask for.
func (f *traceFlags) start(ctx context.Context, script *trapless.Script, o trapless.Options) (*trapless.Session, error) {
	defer hurry()()
	switch {
	case f.pid != 0:
		return trapless.Attach(ctx, f.pid, script, o)
	case f.command != "":
		argv, err := splitCommand(f.command)
		if err != nil {
			return nil, usageError{error: err}
		}
		return trapless.Start(ctx, argv, script, o)
	case script.NeedsProcess():
		return trapless.Everywhere(ctx, script, o)
	}
	return trapless.Alone(script, o)
}

// watch runs the session for as long as it was asked to, from when the probes
// are in place.
func (f *traceFlags) watch(ctx context.Context, s *trapless.Session) error {
	if stop, err := s.Serve(); err == nil {
		defer stop()
	} else if f.verbose {
		tell("'trapless status' and 'trapless ctl' cannot reach this session: %v", err)
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

// warn tells what the user should know, tell what is done.
func warn(format string, args ...any) { say(os.Stderr, warning+format, args...) }
func tell(format string, args ...any) { say(os.Stderr, told+format, args...) }

const warning, told = "WARNING: ", "trapless: "

// say prints a line. Nobody can be told if that fails.
func say(w io.Writer, format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
