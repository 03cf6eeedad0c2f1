// Package trapless puts probes into running, unmodified Linux processes. A
// probed instruction becomes a jump to generated code that runs the probe's
// program; nothing traps on the way.
//
//	script, err := trapless.Compile("example", `uprobe:libc:malloc { @[arg0] = count(); }`)
//	...
//	s, err := trapless.Attach(ctx, pid, script, trapless.Options{Output: os.Stdout})
//	...
//	err = errors.Join(s.Run(ctx), s.Close())
//
// A target is never left half changed: what Attach returns is armed or was never
// touched, Close restores the text byte for byte, and a target whose tracer was
// killed runs on and is restored by Clean.
package trapless

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"trapless/internal/diag"
	"trapless/internal/export/text"
	"trapless/internal/inject"
	"trapless/internal/lang"
	"trapless/internal/object"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
	"trapless/internal/session"
	"trapless/internal/unix"
)

// Errors to compare with by errors.Is.
var (
	ErrNoProcess  = proc.ErrNoProcess  // there is no such process
	ErrPermission = proc.ErrPermission // the message says which capability or setting is missing
	ErrTraced     = proc.ErrTraced     // a debugger is attached
	ErrProbed     = inject.ErrProbed   // another trapless is at work on it
	ErrNothing    = session.ErrNothing // all sites were refused
)

// Script is a compiled script, or the programs of a BPF object (see LoadObject).
type Script struct {
	compiled *lang.Script
	object   *object.Object // nil for a script
}

// Compile compiles a script in the bpftrace language. name is what errors call
// it, params are $1, $2, ... The error lists everything that is wrong, each with
// its line and column.
func Compile(name, src string, params ...string) (*Script, error) {
	return CompileWith(name, src, CompileOptions{Params: params})
}

// CompileOptions are what a script's meaning depends on besides its text.
type CompileOptions struct {
	Params []string // $1, $2, ...
	Unsafe bool     // system() is no error
	Checks bool     // reads that fail, of maps and of memory, are told of when the script runs
	// Config are settings that precede those of the script, by their names.
	Config map[string]string

	// The process that is to be probed, or the program that will be started. Its debug information knows
	// types and parameters that the script does not declare. Without either, that of the files is read which
	// attach points name by a path.
	PID     int
	Program string

	Named map[string]string // the script's own options, which getopt() reads

	// DebugDirs are directories, or files, in which separate debug information is looked for, too, before the places
	// where distributions have it.
	DebugDirs []string

	// Clock is the map, as '@ts', that holds the time in nanoseconds which tseries() sees, for tests of scripts;
	// the real time if it is empty.
	Clock string
}

// CompileWith is Compile with more options.
func CompileWith(name, src string, o CompileOptions) (*Script, error) {
	options := lang.Options{Params: o.Params, Named: o.Named, Checks: o.Checks, Cgroup: proc.CgroupID, Kernel: proc.KernelSymbol, TAI: unix.TAIOffset(), Target: o.PID != 0 || o.Program != "", Config: o.Config, Clock: strings.TrimPrefix(o.Clock, "@")}
	options.Places = o.places
	types := o.types()
	defer types.Close()
	options.Types = types
	s, err := lang.Compile(src, name, options)
	if err != nil {
		return nil, err
	}
	if err := o.allows(s); err != nil {
		return nil, err
	}
	return &Script{compiled: s}, nil
}

// places are the single places that an attach point with a wildcard stands for, each with
// a name of its own.
func (o *CompileOptions) places(a *lang.AttachPoint) []lang.AttachPoint {
	var list strings.Builder
	if err := session.List(&list, a.Full(), session.ListOptions{PID: o.PID}); err != nil {
		return nil // it is told when it is attached
	}
	var out []lang.AttachPoint
	for line := range strings.Lines(list.String()) {
		points, err := lang.ParseAttach(strings.TrimSpace(line))
		if err != nil || len(points) != 1 || points[0].Wildcard {
			return nil
		}
		out = append(out, points...)
	}
	return out
}

// allows refuses what a script may only do with Unsafe.
func (o *CompileOptions) allows(s *lang.Script) error {
	c := diag.Collector{Source: s.Source}
	for _, a := range s.Actions {
		if a.Kind == lang.System && !o.Unsafe {
			c.Errorf(a.Span, "system() is an unsafe function being used in safe mode").Hint("--unsafe allows it")
		}
	}
	return c.Err()
}

// Filter drops the probes of which no attach point fits, but for begin and end.
func (s *Script) Filter(name *regexp.Regexp) {
	s.compiled.Probes = slices.DeleteFunc(s.compiled.Probes, func(p lang.Probe) bool {
		return p.Kind != lang.Begin && p.Kind != lang.End && !slices.ContainsFunc(p.Attach, func(a lang.AttachPoint) bool { return name.MatchString(a.Text) })
	})
}

// Listing is the eBPF of the script's programs, as text.
func (s *Script) Listing() string {
	var b strings.Builder
	for i := range s.compiled.Probes {
		p := &s.compiled.Probes[i]
		fmt.Fprintf(&b, "%s\n%v\n", p.Text, p.Prog.Insns)
	}
	return b.String()
}

// Warnings are remarks about what works, but probably not as meant, each with a line
// end, and of a script with the place in it.
func (s *Script) Warnings() []string {
	var out []string
	if s.object != nil {
		for _, r := range s.object.Remarks {
			out = append(out, "WARNING: "+r+"\n")
		}
		return out
	}
	for _, w := range s.compiled.Warnings {
		var b strings.Builder
		_ = diag.WriteText(&b, diag.List{w}) // a Builder fails never
		out = append(out, b.String())
	}
	return out
}

// Options are what a session is given besides its script.
type Options struct {
	Output io.Writer // what the script prints; nothing if nil
	Errors io.Writer // what errorf() and warnf() say, as text; Output if nil
	// Stalled reports that Output takes no more at the moment, for a Write that blocks
	// holds up everything else, or why it takes no more at all. As long as it does, no
	// events are handled, and lost when a thread's ring is full, and no interval runs.
	// It may be nil.
	Stalled func() (bool, error)
	JSON    bool // as one JSON object a line, as bpftrace's -f json
	Unsafe  bool // system() may run commands
	// NoWarnings keeps warnf() quiet.
	NoWarnings bool
	Warn       func(format string, args ...any) // what the user should know; may be nil
	Log        func(format string, args ...any) // what is done; may be nil
	// Breakpoints allows breakpoints at places where no jump is possible, and
	// where optimization is switched off. A thread that comes to one while it
	// blocks SIGTRAP is killed by the kernel.
	Breakpoints bool
	// Hold is for Everywhere: programs that start are held in execve until their
	// probes are in place, so that no call is missed. Until then, some milliseconds,
	// such a program depends on this process: it dies with it, and waits if this
	// process is stopped.
	Hold bool
	// Follow probes the processes that the process makes, from their first
	// instruction, and the programs that they become, where the script's patterns
	// match, before main; the maps are those of all together. The tracer stays attached
	// meanwhile: signals are delivered some tenths of a millisecond later, and no
	// debugger can attach. The probes that are changed at run time are the process's own;
	// those of the others are changed by Control. A child of this process can only be
	// followed if Start has started it: ErrOwnChild.
	Follow bool
}

// Session is a script at work on a process. Run and Close are called by one
// goroutine; its probes may be changed by any.
type Session struct {
	*session.Session
	script *Script
	child  *exec.Cmd // that Start started for a script without probes in it
}

// NeedsProcess reports whether the script has probes in processes. Without, it
// runs by Alone.
func (s *Script) NeedsProcess() bool { return session.NeedsProcess(s.compiled) }

// Alone starts a session without a process, for a script of BEGIN, END and
// intervals.
func Alone(s *Script, o Options) (*Session, error) {
	in, err := session.Alone(o.config(s))
	if err != nil {
		return nil, err
	}
	return &Session{Session: in, script: s}, nil
}

// Everywhere starts a session on all processes that have the script's files mapped, and
// on those that begin to later.
func Everywhere(ctx context.Context, s *Script, o Options) (*Session, error) {
	in, err := session.Everywhere(ctx, o.config(s))
	if err != nil {
		return nil, err
	}
	return &Session{Session: in, script: s}, nil
}

// Attach starts a session on a running process. When it fails, the process is as
// it was.
func Attach(ctx context.Context, pid int, s *Script, o Options) (*Session, error) {
	if !s.NeedsProcess() {
		return followed(pid, s, o)
	}
	in, err := session.Attach(ctx, pid, o.config(s))
	if err != nil {
		return nil, err
	}
	return &Session{Session: in, script: s}, nil
}

// Start starts a program, with our standard streams, and a session on it, which
// is in place before the program's main function runs.
func Start(ctx context.Context, argv []string, s *Script, o Options) (*Session, error) {
	if len(argv) == 0 {
		return nil, errors.New("no command")
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return nil, err
	}
	if !s.NeedsProcess() {
		return beside(path, argv, s, o)
	}
	cmd := &ptrace.Command{Path: path, Args: argv, Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}}
	in, err := session.Launch(ctx, cmd, o.config(s))
	if err != nil {
		return nil, err
	}
	return &Session{Session: in, script: s}, nil
}

// followed is a session that touches no process, but ends with one.
func followed(pid int, s *Script, o Options) (*Session, error) {
	if err := proc.Check(pid); err != nil {
		return nil, err
	}
	in, err := Alone(s, o)
	if err != nil {
		return nil, err
	}
	in.Follow(pid)
	return in, nil
}

// beside starts a program, and a session that touches no process.
func beside(path string, argv []string, s *Script, o Options) (*Session, error) {
	in, err := Alone(s, o)
	if err != nil {
		return nil, err
	}
	in.child = exec.Command(path)
	in.child.Args = argv
	in.child.Stdin, in.child.Stdout, in.child.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := in.child.Start(); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	in.Follow(in.child.Process.Pid)
	return in, nil
}

func (o Options) config(s *Script) session.Config {
	c := session.Config{Script: s.compiled, Warn: o.Warn, Log: o.Log, Breakpoints: o.Breakpoints, Hold: o.Hold, Follow: o.Follow, Unsafe: o.Unsafe}
	out := o.Output
	if out == nil {
		out = io.Discard
	}
	errs := o.Errors
	if errs == nil {
		errs = out
	}
	c.Sink = text.Plain{W: out, Errors: errs, Quiet: o.NoWarnings}
	c.Stalled = o.Stalled
	if o.JSON {
		c.Sink = text.JSON{W: out, Quiet: o.NoWarnings}
	}
	if c.Warn == nil {
		c.Warn = func(string, ...any) {}
	}
	if s.object != nil {
		o.configObject(&c, s.object)
	}
	return c
}

// Entry is an entry of a map: the parts of its key, and its value, which is of
// avg() and stats() the average, of hist() and lhist() how many values there were, of tseries()
// the latest one.
type Entry struct {
	Key   []uint64
	Value int64
}

// Map reads a map by its name, with the '@', ordered by key. After Close it tells what the
// map held then.
func (s *Session) Map(name string) ([]Entry, error) {
	for i := range s.script.compiled.Maps {
		m := &s.script.compiled.Maps[i]
		if m.Name != name {
			continue
		}
		var out []Entry
		for _, e := range s.Entries(i) {
			out = append(out, Entry{e.Key, int64(m.Value(e.Value))})
		}
		return out, nil
	}
	return nil, fmt.Errorf("the script has no map %s", name)
}

// End ends the program that Start started, if it is still running, by SIGTERM,
// and waits for it so long. Call it between Run and Close.
func (s *Session) End(within time.Duration) error {
	if s.child != nil {
		_ = s.child.Process.Signal(syscall.SIGTERM) // it may have ended
		kill := time.AfterFunc(within, func() { _ = s.child.Process.Kill() })
		defer kill.Stop()
		_ = s.child.Wait() // how it ended is its own affair
		return nil
	}
	_ = s.Signal(syscall.SIGTERM) // it may have ended
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if _, err := s.Wait(ctx); err != nil {
		return fmt.Errorf("process %d did not end at SIGTERM within %v; it runs on without probes", s.PID, within)
	}
	return nil
}

// Cleaned says what Clean took out.
type Cleaned = inject.Undone

// Clean takes out what a tracer that was killed left in a process.
func Clean(ctx context.Context, pid int) (Cleaned, error) {
	t, err := ptrace.Start()
	if err != nil {
		return Cleaned{}, err
	}
	defer t.Close()
	ctx, cancel := context.WithTimeout(ctx, cleanTime)
	defer cancel()
	g, err := t.Seize(ctx, pid)
	if err != nil {
		return Cleaned{}, err
	}
	r, err := inject.Clean(ctx, g)
	return r, errors.Join(err, g.Detach(ctx), g.Close())
}

const cleanTime = 20 * time.Second

// AttachPoints are those of the script, as they are written there.
func (s *Script) AttachPoints() []string {
	var out []string
	for i := range s.compiled.Probes {
		for _, a := range s.compiled.Probes[i].Attach {
			out = append(out, a.Text)
		}
	}
	return out
}

// List writes the probes that fit a pattern, one a line: TYPE:FILE:FUNCTION, in which
// '*' stands for any characters. With a process, files are those that it has mapped.
func List(w io.Writer, pattern string, o ListOptions) error { return session.List(w, pattern, o) }

// ListOptions say what List lists.
type ListOptions = session.ListOptions
