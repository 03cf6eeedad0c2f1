// Package session runs a script on a process: it resolves the script's probes,
// has the target prepared, armed and let go, polls what the programs leave in
// the arena, and takes everything out again.
//
// Attach or Launch returns a Session armed, with the target running untraced; Run
// returns when the script, the target or the context ends it; Close restores the
// target, whatever happened. Meanwhile the arena is read, and the probes may be
// changed (see control.go) from any goroutine. Results go to a Sink.
package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"trapless/internal/arena"
	"trapless/internal/bpf"
	"trapless/internal/inject"
	"trapless/internal/lang"
	"trapless/internal/ptrace"
	"trapless/internal/usdt"
)

// Sink takes a session's results, in their order. An error ends the session.
type Sink interface {
	// Printf prints values by an action's format; for PrintValue there is one.
	Printf(a *lang.Action, values []lang.Value) error
	// PrintMap prints a map: the last top entries, all if it is 0, with their
	// values divided by div. In the listing at the end div is 0.
	PrintMap(m *lang.Map, entries []arena.Entry, top, div uint32) error
	// PrintEntry prints the value of an entry alone.
	PrintEntry(m *lang.Map, cell []uint64) error
	// Text is what a printf of the values by the action's format would print.
	Text(a *lang.Action, values []lang.Value) string
	// Time is a time by a format of strftime(3).
	Time(format string, t time.Time) string
	// Say prints what time(), cat(), join() or system() came to.
	Say(a *lang.Action, text string) error
	// Report prints an error or a warning of a running script.
	Report(r *lang.Report) error
	// End comes before the listing of the maps at the end.
	End() error
}

// Config is what a session is made from.
type Config struct {
	Script *lang.Script
	Sink   Sink
	Warn   func(format string, args ...any) // what the user should know
	Log    func(format string, args ...any) // what is done; may be nil
	// Stalled: see trapless.Options; may be nil.
	Stalled func() (bool, error)
	// Breakpoints: see plan.Facts.
	Breakpoints bool
	Unsafe      bool // system() may run commands
	Hold        bool // programs that start are held until they are probed, see Everywhere

	// Object takes what programs of a BPF object file write; nil for a script.
	Object ObjectSink
	// RingSize is the size of each thread's ring in bytes, a power of two; 0 if the
	// script's actions decide.
	RingSize uint64
	// Contents are what maps hold before any program runs.
	Contents []Content
	// Follow: see family.
	Follow bool
}

// Session is a script on a process.
type Session struct {
	PID int

	// mu guards all that follows. Run holds it whenever it does something.
	mu       sync.Mutex
	config   Config
	verbose  bool            // somebody reads the log
	programs []*bpf.Verified // by probe
	tracer   *ptrace.Tracer
	group    *ptrace.Group
	target   *inject.Target // nil in a session on its own
	arena    *arena.Arena
	private  []byte // the arena's memory in a session on its own
	company
	launched bool
	traits   inject.Traits

	registry *registry
	watch    *loaderWatch      // of libraries; nil if none can matter
	views    []view            // by map
	series   []*timeSeries     // by map; nil where it is none
	symbols  *symbols          // of the target's code; nil before there is a target
	unwind   []arena.UnwindRow // the table of unwind rules, if programs ask for stacks
	machine  *bpf.Machine
	clock    *arena.Clock
	refused  []Refused
	remarks  remarks
	sites    int
	stopped  bool  // by exit()
	status   int   // that exit() was given
	failed   error // of the sink
	armed    bool
	closed   bool            // there is no arena any more
	last     [][]arena.Entry // what a script's maps held then
	within   time.Duration   // that a change may take, if it is set: for tests
	pauses   []time.Duration
}

// What is done to a target is given up after changeTime, and siteTime for each
// site: a busy machine may need a hundred times what a calm one does.
const (
	changeTime = 20 * time.Second
	siteTime   = time.Millisecond
)

// timeout is how long a change of the target may take.
func (s *Session) timeout() time.Duration {
	if s.within > 0 {
		return s.within
	}
	if s.registry == nil {
		return changeTime
	}
	return changeTime + time.Duration(max(len(s.registry.sites), s.sites))*siteTime
}

// ErrNothing: not one site could be probed.
var ErrNothing = errors.New("cannot be probed")

// ErrNoTarget: a script has probes in processes, and there is none.
var ErrNoTarget = errors.New("needs a process")

// ErrOwnChild: the process that is to be followed is a child of this one. The kernel tells a
// tracer of stops by the same calls as a parent of ends, and whichever thread waits, as
// os/exec's Wait does, gets the news that the other one needs.
var ErrOwnChild = errors.New("it is a child of this process, which would take what the kernel tells a tracer that stays attached; " +
	"let the session start it, or follow it from another process, for example by the trapless command")

// newSession verifies the programs: nothing that is not verified gets near a
// target.
func newSession(c Config) (*Session, error) {
	s := &Session{config: c, verbose: c.Log != nil, views: make([]view, len(c.Script.Maps)), clock: arena.NewClock(arena.ReadClock())}
	if s.config.Log == nil {
		s.config.Log = func(string, ...any) {}
	}
	s.series = newTimeSeries(c.Script)
	for i := range s.views {
		s.views[i].maxWord = c.Script.Maps[i].Spec.MaxWord
	}
	verified := map[*bpf.Program]*bpf.Verified{}
	for i := range c.Script.Probes {
		p := &c.Script.Probes[i]
		v := verified[p.Prog]
		if v == nil {
			var err error
			if v, err = usdt.Verify(p.Prog); err != nil {
				return nil, fmt.Errorf("program of %s: %w", p.Text, err)
			}
			verified[p.Prog] = v
		}
		s.programs = append(s.programs, v)
	}
	return s, nil
}

// Wait waits for the end of a program that Launch started. Call it after Run and
// before Close.
func (s *Session) Wait(ctx context.Context) (syscall.WaitStatus, error) {
	if !s.launched {
		panic("BUG: Wait for a process that was not launched")
	}
	return s.group.Wait(ctx)
}

// Signal sends a signal to a program that Launch started, unless it has ended. Call it
// before Close.
func (s *Session) Signal(sig syscall.Signal) error {
	if !s.launched {
		panic("BUG: Signal for a process that was not launched")
	}
	return s.group.Signal(sig)
}

// Sites is the number of sites that are probed.
func (s *Session) Sites() int { return s.sites }

// Status is what the script gave to exit().
func (s *Session) Status() int { return s.status }

// Pauses are the times for which the whole target was stopped, in order.
func (s *Session) Pauses() []time.Duration { return s.pauses }

// notePauses logs the pauses since the last time.
func (s *Session) notePauses() {
	all := s.group.Pauses()
	for _, p := range all[len(s.pauses):] {
		s.config.Log("the target was stopped for %.2f ms", ms1(p))
	}
	s.pauses = all
}

func ms1(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
