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
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"trapless/internal/abi"
	"trapless/internal/arena"
	"trapless/internal/bpf"
	"trapless/internal/diag"
	"trapless/internal/inject"
	"trapless/internal/lang"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
	"trapless/internal/unix"
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
	// Report prints what errorf() and warnf() say, or a warning of the language's
	// own, with the place in the script.
	Report(source *diag.Source, a *lang.Action, values []lang.Value) error
	// End comes before the listing of the maps at the end.
	End() error
}

// Config is what a session is made from.
type Config struct {
	Script *lang.Script
	Sink   Sink
	Warn   func(format string, args ...any) // what the user should know
	Log    func(format string, args ...any) // what is done; may be nil
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
	programs []*bpf.Verified // by probe
	tracer   *ptrace.Tracer
	group    *ptrace.Group
	target   *inject.Target // nil in a session on its own
	arena    *arena.Arena
	private  []byte // the arena's memory in a session on its own
	company
	launched bool
	pidfd    int
	traits   inject.Traits

	registry *registry
	watch    *loaderWatch      // of libraries; nil if none can matter
	views    []view            // by map
	symbols  *symbols          // of the target's code; nil before there is a target
	unwind   []arena.UnwindRow // the table of unwind rules, if programs ask for stacks
	machine  *bpf.Machine
	clock    *arena.Clock
	refused  []Refused
	sites    int
	stopped  bool  // by exit()
	status   int   // that exit() was given
	failed   error // of the sink
	armed    bool
	within   time.Duration // that a change may take, if it is set: for tests
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

// newSession verifies the programs: nothing that is not verified gets near a
// target.
func newSession(c Config) (*Session, error) {
	s := &Session{config: c, pidfd: -1, views: make([]view, len(c.Script.Maps)), clock: arena.NewClock(arena.ReadClock())}
	if s.config.Log == nil {
		s.config.Log = func(string, ...any) {}
	}
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

// Attach starts a session on a running process. On an error the process is as it
// was.
func Attach(ctx context.Context, pid int, c Config) (*Session, error) {
	for try := 1; ; try++ {
		s, err := attachOnce(ctx, pid, c)
		taken := errors.Is(err, syscall.EEXIST) && !slices.ContainsFunc(c.Script.Probes, func(p lang.Probe) bool { return p.Kind == lang.Begin })
		if err == nil || !taken || try == attachTries {
			return s, err
		}
	}
}

// attachTries bounds how often Attach starts anew because the target has mapped
// memory where a springboard was to lie. BEGIN must not run twice.
const attachTries = 3

func attachOnce(ctx context.Context, pid int, c Config) (*Session, error) {
	s, err := newSession(c)
	if err != nil {
		return nil, err
	}
	s.PID = pid
	return s, s.attachTo(ctx)
}

// attachTo attaches to the running process that the session is for.
func (s *Session) attachTo(ctx context.Context) error {
	if err := proc.Check(s.PID); err != nil {
		return err
	}
	if err := s.plan(); err != nil {
		return errors.Join(err, s.Close())
	}
	var err error
	if s.tracer, err = ptrace.Start(); err != nil {
		return errors.Join(err, s.Close())
	}
	s.tracer.Follow(s.config.Follow)
	ctx, cancel := context.WithTimeout(ctx, s.timeout())
	defer cancel()
	if s.group, err = s.tracer.Seize(ctx, s.PID); err != nil {
		return errors.Join(err, s.Close())
	}
	if err := s.start(ctx); err != nil {
		return errors.Join(err, s.Close())
	}
	return nil
}

// Launch starts a program and a session on it before its main function runs.
func Launch(ctx context.Context, cmd *ptrace.Command, c Config) (*Session, error) {
	s, err := newSession(c)
	if err != nil {
		return nil, err
	}
	if s.tracer, err = ptrace.Start(); err != nil {
		return nil, err
	}
	s.tracer.Follow(c.Follow)
	within, cancel := context.WithTimeout(ctx, s.timeout())
	defer cancel()
	if s.group, err = s.tracer.Launch(within, cmd); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.launched, s.PID = true, s.group.PID
	err = s.awaitGo(within)
	if err == nil {
		err = s.plan()
	}
	if err == nil {
		err = s.start(ctx)
	}
	if err != nil {
		s.kill()
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// kill ends a program that we started and that nobody wants any more.
func (s *Session) kill() {
	if s.launched {
		_ = syscall.Kill(s.PID, syscall.SIGKILL)
	}
}

// plan registers the script's probes and plans their windows from files alone.
func (s *Session) plan() error {
	var images *imageCache
	if s.config.Follow && s.parent == nil {
		s.follow()
	}
	if f := s.kin(); f != nil {
		images = f.images
	}
	ms, err := readModules(s.PID, images)
	if err != nil {
		return err
	}
	began := time.Now()
	if s.traits, err = ms.traits(); err != nil {
		ms.Close()
		return err
	}
	s.registry = newRegistry(ms, s.traits, s.config.Log, s.config.Warn)
	s.registry.missing = s.config.Script.Missing
	s.registry.breakpoints, s.registry.partial = s.config.Breakpoints, s.parent != nil
	if _, err := s.registry.add(s.patterns()); err != nil {
		return err
	}
	if err := s.watchLoader(); err != nil {
		return err
	}
	if err := s.readSymbols(); err != nil {
		return err
	}
	if err := s.registry.plan(); err != nil {
		return err
	}
	s.refused = s.registry.refused()
	s.config.Log("planned %d windows for %d sites in %.1f ms", s.registry.windows(), len(s.registry.sites), ms1(time.Since(began)))
	return s.checkRefusals(s.registry.windows())
}

// meant is an attach point as it stands for the first process of a family: one
// without a path means that one's program.
func (s *Session) meant(a *lang.AttachPoint) *lang.AttachPoint {
	if s.parent == nil || s.parent.family == nil || a.Path != "" {
		return a
	}
	first := *a
	first.Path = s.parent.family.exe
	return &first
}

// patterns are those of the script.
func (s *Session) patterns() []*pattern {
	var all []*pattern
	for i := range s.config.Script.Probes {
		p := &s.config.Script.Probes[i]
		for k := range p.Attach {
			if p.InTarget() {
				all = append(all, &pattern{probe: p, attach: s.meant(&p.Attach[k]), program: s.programs[i], index: i})
			}
		}
	}
	return all
}

// checkRefusals reports refusals; it is an error if nothing is left.
func (s *Session) checkRefusals(left int) error {
	if len(s.refused) == 0 {
		return nil
	}
	if left == 0 {
		r := s.refused[0]
		if len(s.refused) == 1 {
			return fmt.Errorf("%s %w: %s: %s", r.Name, ErrNothing, r.Reason, r.Detail)
		}
		return fmt.Errorf("%d sites %w; the first, %s: %s: %s", len(s.refused), ErrNothing, r.Name, r.Reason, r.Detail)
	}
	for i, r := range s.refused {
		if i == maxWarnings {
			s.config.Warn("... and %d more sites are not probed", len(s.refused)-i)
			break
		}
		s.config.Warn("%s is not probed: %s: %s", r.Name, r.Reason, r.Detail)
	}
	return nil
}

const maxWarnings = 10

// start prepares the target, runs BEGIN, arms, and lets the target go.
func (s *Session) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout())
	defer cancel()
	var err error
	if s.pidfd, err = unix.PidfdOpen(s.PID); err != nil {
		return fmt.Errorf("process %d: pidfd_open: %w", s.PID, err)
	}
	layout, err := s.layout(s.registry.windows())
	if err != nil {
		return err
	}
	if s.target, err = inject.Open(ctx, s.group, layout, s.traits); err != nil {
		return err
	}
	s.arena = s.target.Arena()
	if err := s.begin(); err != nil {
		return err
	}
	if !s.stopped {
		if err := s.arm(ctx); err != nil {
			return err
		}
	}
	err = s.letGo(ctx)
	s.notePauses()
	if err == nil {
		s.config.Log("%d probes are in place", s.sites)
	}
	if ok, why := s.tracer.Realtime(); !ok {
		s.config.Log("%s", why)
	}
	return err
}

// begin makes the machine for the programs that run here, and runs BEGIN.
func (s *Session) begin() error {
	pid := uint32(os.Getpid())
	s.machine = &bpf.Machine{Arena: s.arena.Mem(), Layout: s.arena.Layout(), Slot: abi.SlotTracer, Fuel: ownFuel,
		TGID: pid, TID: pid, UIDGID: uint64(os.Getgid())<<32 | uint64(os.Getuid()), Comm: "trapless", Now: unix.Monotonic, Event: s.ownEvent, Entries: s.ownEntries}
	s.arena.Publish(s.clock, arena.ReadClock())
	s.publishUnwind()
	for _, c := range s.config.Contents {
		if err := s.update(c.Map, c.Key, c.Value, 0); err != nil {
			return err
		}
	}
	if s.parent != nil {
		s.join()
		return nil
	}
	return s.runKind(lang.Begin)
}

// letGo lets the target run: untraced, unless it is followed.
func (s *Session) letGo(ctx context.Context) error {
	if s.config.Follow {
		return s.group.Resume()
	}
	return s.group.Detach(ctx)
}

// reach attaches to the target again after letGo.
func (s *Session) reach(ctx context.Context) error {
	if s.config.Follow && s.group.Attached() {
		return nil
	}
	return s.group.Seize(ctx)
}

// ownFuel is the fuel of a program that runs here, where it holds up nobody.
const ownFuel = 1 << 28

// arm puts the probes in place, opens the gates, and lets the target go.
func (s *Session) arm(ctx context.Context) error {
	s.registry.target, s.armed = s.target, true
	err := s.registry.apply(ctx, func() error {
		if err := s.target.OpenGates(); err != nil {
			return err
		}
		return s.letGo(ctx)
	})
	if err != nil {
		return err
	}
	if s.watch != nil && len(s.registry.refused()) > 0 { // perhaps because a library was just unloaded
		if _, err := s.registry.refresh(); err != nil {
			return err
		}
	}
	s.refused, s.sites = s.registry.refused(), s.registry.inPlace()
	s.registry.logDetours()
	return s.checkRefusals(s.sites)
}

// layout sizes the arena.
func (s *Session) layout(sites int) (*abi.Layout, error) {
	threads, err := proc.Threads(s.PID)
	if err != nil {
		return nil, err
	}
	c := abi.Config{Threads: len(threads), Probes: s.registry.counters.layOut(), Maps: s.maps(), JournalSize: journalBase, UnwindRows: s.roomForRules()}
	for need := uint64(sites) * journalPerSite; c.JournalSize < 2*need; {
		c.JournalSize *= 2
	}
	c.RingSize = s.config.RingSize
	if len(s.config.Script.Actions) > 0 {
		c.RingSize = max(c.RingSize, ringSize)
	}
	return abi.NewLayout(c)
}

// maps are those of the script, and ours.
func (s *Session) maps() []abi.MapSpec {
	if s.watch != nil {
		return s.watch.maps
	}
	return s.config.Script.MapSpecs()
}

const (
	journalBase    = 16 << 20 // bytes, for 100,000 probes that come later; pages that are not used cost nothing
	journalPerSite = 128
	ringSize       = 64 << 10 // bytes for each thread
)

// Wait waits for the end of a program that Launch started. Call it after Run and
// before Close.
func (s *Session) Wait(ctx context.Context) (syscall.WaitStatus, error) {
	if !s.launched {
		panic("BUG: Wait for a process that was not launched")
	}
	return s.group.Wait(ctx)
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

// Close takes everything out of the target and lets go of it. It is safe at any
// moment, also after an error, and does nothing the second time.
func (s *Session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.registry != nil {
		s.registry.Close()
	}
	if s.symbols != nil {
		s.symbols.Close()
	}
	if s.private != nil {
		err := errors.Join(s.closeMembers(), unix.Unmap(s.private))
		s.private, s.arena = nil, nil
		return err
	}
	if s.tracer == nil {
		return nil
	}
	err := s.disarm()
	if s.family != nil {
		s.family.end()
		err = errors.Join(err, s.closeMembers())
		s.family.images.Close()
	}
	if s.target != nil {
		err = errors.Join(err, s.target.Close())
	}
	if s.group != nil {
		ctx, cancel := context.WithTimeout(context.Background(), s.timeout())
		defer cancel()
		if derr := s.group.Detach(ctx); derr != nil && !gone(derr) {
			err = errors.Join(err, derr)
		}
		s.notePauses()
		_ = s.group.Close() // a descriptor for reading
	}
	if s.parent == nil || !s.follows() {
		s.tracer.Close()
	}
	s.tracer = nil
	if s.pidfd >= 0 {
		_ = unix.Close(s.pidfd)
	}
	return err
}

// gone reports whether an error says that the target has ended.
func gone(err error) bool {
	return errors.Is(err, ptrace.ErrGone) || errors.Is(err, ptrace.ErrExec) || errors.Is(err, proc.ErrNoProcess) || errors.Is(err, proc.ErrZombie)
}

// disarm attaches again and takes the probes out.
func (s *Session) disarm() error {
	if !s.armed {
		return nil
	}
	s.armed = false
	if !s.target.Mem().Alive() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout())
	defer cancel()
	err := s.attachAgain(ctx)
	if err == nil {
		err = s.target.Disarm(ctx, func() error { return s.group.Detach(ctx) })
	}
	if err == nil && s.target.ActionsLeft() && s.target.Mem().Alive() {
		s.config.Warn("process %d is stopped, so that its signal handlers could not be given back; they work, through trapless's, until 'trapless clean -p %d'", s.PID, s.PID)
	}
	if err != nil && gone(err) {
		return nil
	}
	if err != nil {
		// Nobody is at work on it any more, so that another tracer may be.
		err = fmt.Errorf("taking the probes out: %w; run: trapless clean -p %d", errors.Join(err, s.target.Abandon()), s.PID)
	}
	return err
}

// attachAgain attaches to a target that is armed. A process has one tracer at a
// time: another one, a debugger or a trapless that only looks, is waited for,
// with the gates closed meanwhile.
func (s *Session) attachAgain(ctx context.Context) error {
	if s.group.Held() {
		return nil // it was armed just now, and something failed before it was let go
	}
	if err := s.group.Detach(ctx); err != nil {
		return err
	}
	for told := false; ; {
		err := s.group.Seize(ctx)
		if !errors.Is(err, proc.ErrTraced) {
			return err
		}
		if !told {
			told = true
			s.config.Warn("%v; waiting for it before the probes can be taken out", err)
			if err := s.target.CloseGates(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(tracedPause):
		}
	}
}

// tracedPause is how often it is looked whether another tracer has left.
const tracedPause = 20 * time.Millisecond
