// Command trapless puts probes into running processes.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"trapless/internal/diag"
	"trapless/internal/torture"
)

// Exit statuses. A target that ends is no failure of trapless's.
const (
	exitOK     = 0
	exitFailed = 1 // with one line on standard error that says why and what to do
	exitUsage  = 2
)

// usageError marks errors in the words of the command itself. Help, if any, is what
// is said besides.
type usageError struct {
	error
	help string
}

// statusError ends the command with a script's own exit status.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// traceName is the name by which the program is 'trapless trace': a link of that name is
// used where an alias is not, by sudo and by scripts that begin with #!.
const traceName = "bpftrace"

func main() {
	torture.Worker() // if this process is one
	os.Exit(run(os.Args[1:]))
}

// endSignals end a session in order. Further ones change nothing: a session that
// is being taken down shall not be killed in the middle of it.
var endSignals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP}

func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), endSignals...)
	defer stop()
	// A closed pipe is an error to be handled in order. Were it left to its
	// default, it would kill us with probes in place.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	root := newRoot()
	root.SetArgs(args)
	if filepath.Base(os.Args[0]) == traceName {
		root.SetArgs(append([]string{"trace"}, args...))
	}
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	var status statusError
	if errors.As(err, &status) {
		return int(status)
	}
	printError(err)
	var usage usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailed
}

// printError writes what is wrong, in bpftrace's form: "ERROR: text" and "HINT: text",
// each of a line, and for what is wrong in a script its place there.
func printError(err error) {
	var inScript diag.List
	if errors.As(err, &inScript) {
		_ = diag.WriteText(os.Stderr, inScript) // there is nowhere else to say so
		return
	}
	for _, e := range apart(err) {
		fmt.Fprintf(os.Stderr, "ERROR: %v\n", e)
	}
	var usage usageError
	if errors.As(err, &usage) && usage.help != "" {
		fmt.Fprintln(os.Stderr, usage.help)
	}
}

// apart are the errors that were joined.
func apart(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok || strings.Count(err.Error(), "\n") == 0 {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, apart(e)...)
	}
	return all
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "trapless",
		Short: "dynamic probes for running processes that jump instead of trap",
		Long: `trapless puts probes into running, unmodified Linux processes. A probed
instruction becomes a jump to generated code that runs the probe's program: a hit
costs a few nanoseconds, and nothing traps.`,
		Example: `  trapless trace -p 1234 -e 'uprobe:libc:malloc { @[arg0] = count(); }'
  trapless trace -c 'ls -l' -e 'uprobe:libc:malloc { @ = count(); }'
  trapless clean -p 1234`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{error: fmt.Errorf("unknown command %q; see 'trapless --help'", args[0])}
			}
			return nil
		},
		RunE:              func(c *cobra.Command, _ []string) error { return c.Help() },
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usageError{error: fmt.Errorf("%w; see '%s --help'", err, c.CommandPath())}
	})
	root.AddCommand(newTrace(), newRun(), newStatus(), newCtl(), newTorture(), newClean(), newBench(), newDemo(), newCoverage())
	return root
}

// noArgs refuses positional arguments as a usage error.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{error: fmt.Errorf("'%s' takes no argument %q; see '%s --help'", c.CommandPath(), args[0], c.CommandPath())}
	}
	return nil
}
