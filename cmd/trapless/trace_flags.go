package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"trapless"
	"trapless/internal/unix"
)

// traceFlags are the options of 'trapless trace'.
type traceFlags struct {
	pidText    string
	pid        int
	command    string
	expr       string
	duration   time.Duration
	format     string
	output     string
	buffer     string
	debug      []string
	filter     string
	verbose    bool
	quiet      bool
	noWarnings bool
	warnings   bool
	unsafe     bool
	breaks     bool
	hold       bool
	follow     bool
	list       bool
	info       bool
	version    bool
	dryRun     bool
	include    []string
	dirs       []string
	debuginfo  []string
	ignored    string
	mode       string
	usdtFile   bool
	test       bool
	bench      bool
}

func (f *traceFlags) register(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVarP(&f.pidText, "pid", "p", "", "probe this process")
	fl.StringVarP(&f.command, "cmd", "c", "", "start this command and probe it from its first instruction of main")
	fl.StringVarP(&f.expr, "execute", "e", "", "the script itself instead of a file")
	fl.BoolVarP(&f.list, "list", "l", false, "list the probes that fit a pattern, or those of a script")
	fl.DurationVar(&f.duration, "duration", 0, "end after this time, for example 5s")
	fl.StringVarP(&f.format, "format", "f", "text", "print as text or as json, one object a line")
	fl.StringVarP(&f.output, "output", "o", "", "print to this file")
	fl.StringVarP(&f.buffer, "buffer", "B", "line", "hold output back: line, full (until the end) or none")
	fl.BoolVarP(&f.quiet, "quiet", "q", false, "do not tell how many probes there are")
	fl.BoolVar(&f.unsafe, "unsafe", false, "allow system() and what else acts on the system")
	fl.BoolVarP(&f.warnings, "warnings", "k", false, "tell of reads that fail, of maps and of memory; else they are 0")
	fl.BoolVar(&f.noWarnings, "no-warnings", false, "print no warning")
	fl.BoolVarP(&f.verbose, "verbose", "v", false, "say on standard error what is done, with the pauses of the target")
	fl.StringSliceVarP(&f.debug, "debug", "d", nil, "print what a stage makes of the script: codegen (eBPF) or all")
	fl.BoolVar(&f.dryRun, "dry-run", false, "end when the script is compiled")
	fl.BoolVar(&f.info, "info", false, "tell what this system and this program can do")
	fl.BoolVarP(&f.version, "version", "V", false, "tell the version")
	fl.StringArrayVar(&f.include, "include", nil, "not available: declare the structures in the script")
	fl.StringArrayVarP(&f.dirs, "include-dir", "I", nil, "not available, as --include")
	fl.StringArrayVar(&f.debuginfo, "debuginfo", nil, "look for separate debug information in these directories (DIR:DIR), too")
	fl.StringVar(&f.filter, "probe-filter", "", "run only probes whose name fits this regular expression")
	fl.BoolVar(&f.breaks, "breakpoints", false, "allow a breakpoint where no jump is possible; it kills a thread that blocks SIGTRAP")
	fl.BoolVar(&f.hold, "hold", false, "without -p and -c: hold programs in execve until they are probed, so that no call is missed; until then they die with the tracer")
	fl.BoolVar(&f.follow, "follow", false, "probe the processes that it makes, too, and the programs that they become")
	fl.BoolVar(&f.usdtFile, "usdt-file-activation", false, "has no effect: semaphores are always raised by file")
	for _, name := range []string{"no-feature", "traceable-functions", "dwarf-pid"} {
		fl.StringVar(&f.ignored, name, "", "has no effect, for bpftrace's sake")
	}
	for _, name := range []string{"mode", "aot", "emit-elf", "emit-llvm"} {
		fl.StringVar(&f.mode, name, "", "not available")
		_ = fl.MarkHidden(name) // it is there
	}
	fl.BoolVar(&f.test, "test", false, "not available")
	fl.BoolVar(&f.bench, "bench", false, "not available")
	_, _ = fl.MarkHidden("test"), fl.MarkHidden("bench")
}

// check refuses what does not go together, and reads the process id.
func (f *traceFlags) check() error {
	switch {
	case f.pidText != "" && f.command != "":
		return usageError{error: errors.New("-p and -c exclude each other")}
	case f.duration < 0:
		return usageError{error: fmt.Errorf("--duration %s is negative", f.duration)}
	case f.format != "text" && f.format != "json":
		return usageError{error: fmt.Errorf("Invalid output format \"%s\"\nValid formats: 'text', 'json'", f.format)}
	case f.buffer != "line" && f.buffer != "full" && f.buffer != "none":
		return usageError{error: fmt.Errorf("-B must be either 'line', 'full', or 'none'")}
	case f.warnings && f.noWarnings:
		return usageError{error: errors.New("-k and --no-warnings exclude each other")}
	}
	if err := f.unavailable(); err != nil {
		return err
	}
	if f.pidText == "" {
		return nil
	}
	var err error
	f.pid, err = parsePID(f.pidText)
	return err
}

// unavailable refuses options of bpftrace's that mean nothing here.
func (f *traceFlags) unavailable() error {
	switch {
	case len(f.include)+len(f.dirs) > 0:
		return usageError{error: errors.New("headers are not read: declare the structures that they define in the script, or let the program's debug information tell")}
	case f.mode != "" || f.test || f.bench:
		return usageError{error: errors.New("--mode, --test, --bench, --aot and --emit-... are about bpftrace's own compiler; there is nothing like them here")}
	}
	return nil
}

// maxPID is the largest process id that Linux can give (PID_MAX_LIMIT of include/linux/threads.h).
const maxPID = 1 << 22

func parsePID(text string) (int, error) {
	n, err := strconv.ParseUint(text, 0, 64)
	digits := strings.TrimLeft(text, "0123456789")
	switch {
	case err != nil && digits == text:
		return 0, usageError{error: fmt.Errorf("Failed to parse pid: invalid integer: %s", text)}
	case err != nil:
		return 0, usageError{error: fmt.Errorf("Failed to parse pid: invalid trailing bytes: %s", text)}
	case n > maxPID:
		return 0, usageError{error: fmt.Errorf("Pid out of range: %d", n)}
	case n == 0:
		return 0, usageError{error: fmt.Errorf("-p %s is no process id", text)}
	}
	return int(n), nil
}

// compile reads and compiles the script.
func (f *traceFlags) compile(args []string) (*trapless.Script, error) {
	name, src, rest, err := f.source(args)
	if err != nil {
		return nil, err
	}
	params, named := splitOptions(rest)
	filter, err := regexp.Compile(f.filter)
	if err != nil {
		return nil, usageError{error: fmt.Errorf("Invalid --probe-filter regex '%s': %w", f.filter, err)}
	}
	options := trapless.CompileOptions{Params: params, Unsafe: f.unsafe, Checks: f.warnings, Config: environment(os.Environ()), PID: f.pid, Named: named, Clock: os.Getenv(clockVar), DebugDirs: f.debugDirs()}
	if argv, err := splitCommand(f.command); err == nil && len(argv) > 0 { // else the start of it will fail
		options.Program = argv[0]
	}
	script, err := trapless.CompileWith(name, src, options)
	if err != nil {
		return nil, err
	}
	if f.filter != "" {
		script.Filter(filter)
	}
	for _, stage := range f.debug {
		if stage != "codegen" && stage != "all" {
			return nil, usageError{error: fmt.Errorf("invalid option for -d: %s; there is codegen", stage)}
		}
		fmt.Print(script.Listing())
	}
	return script, nil
}

// debugDirs are the directories of --debuginfo.
func (f *traceFlags) debugDirs() []string {
	return strings.FieldsFunc(strings.Join(f.debuginfo, ":"), func(r rune) bool { return r == ':' })
}

// clockVar is how bpftrace's own tests tell which map holds the time that tseries() sees.
const clockVar = "BPFTRACE_DUMMY_TS_MAP"

// environment are the settings that variables of the environment say, BPFTRACE_MAX_STRLEN for
// max_strlen for instance, by their names.
func environment(variables []string) map[string]string {
	config := map[string]string{}
	for _, v := range variables {
		if rest, ok := strings.CutPrefix(v, "BPFTRACE_"); ok {
			name, value, _ := strings.Cut(rest, "=")
			config[strings.ToLower(name)] = value
		}
	}
	return config
}

// splitOptions separates the script's own options, --name=value, from its parameters.
func splitOptions(args []string) (params []string, named map[string]string) {
	named = map[string]string{}
	for _, a := range args {
		option, ok := strings.CutPrefix(a, "--")
		if !ok {
			params = append(params, a)
			continue
		}
		name, value, given := strings.Cut(option, "=")
		if !given {
			value = "true"
		}
		named[name] = value
	}
	return params, named
}

// readStdin reads a script from standard input, and lets the worker read it there again.
func readStdin() (string, error) {
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		return "", err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	os.Stdin = r
	go func() {
		_, _ = w.Write(text) // whoever reads it will miss what is missing
		w.Close()
	}()
	return string(text), nil
}

// source returns the script's name and text, and the arguments behind it.
func (f *traceFlags) source(args []string) (name, src string, rest []string, err error) {
	switch {
	case f.expr != "":
		return "stdin", f.expr, args, nil
	case len(args) == 0:
		return "", "", nil, usageError{error: errors.New("no script: give -e 'SCRIPT' or a file")}
	case args[0] == "-":
		text, err := readStdin()
		return "stdin", text, args[1:], err
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		var errno syscall.Errno
		errors.As(err, &errno)
		return "", "", nil, fmt.Errorf("failed to open file '%s': %s", args[0], unix.Strerror(int(errno)))
	}
	return args[0], string(text), args[1:], nil
}
