package session

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"trapless/internal/abi"
	"trapless/internal/arena"
	"trapless/internal/bpf"
	"trapless/internal/inject"
	"trapless/internal/lang"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
	"trapless/internal/unix"
)

// Attach starts a session on a running process. On an error the process is as it
// was.
func Attach(ctx context.Context, pid int, c Config) (*Session, error) {
	s, err := newSession(c)
	if err != nil {
		return nil, err
	}
	s.PID = pid
	if err := s.attachTo(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// attachTo attaches to the running process that the session is for.
func (s *Session) attachTo(ctx context.Context) error {
	if err := proc.Check(s.PID); err != nil {
		return err
	}
	if st, err := proc.ReadStat(s.PID, s.PID); s.config.Follow && err == nil && st.PPid == os.Getpid() {
		return fmt.Errorf("process %d: %w", s.PID, ErrOwnChild)
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
	if err := s.launch(ctx, cmd); err != nil {
		return nil, err
	}
	return s, nil
}

// launch starts the program that the session is for.
func (s *Session) launch(ctx context.Context, cmd *ptrace.Command) error {
	var err error
	if s.tracer, err = ptrace.Start(); err != nil {
		return err
	}
	s.tracer.Follow(s.config.Follow)
	within, cancel := context.WithTimeout(ctx, s.timeout())
	defer cancel()
	if s.group, err = s.tracer.Launch(within, cmd); err != nil {
		return errors.Join(err, s.Close())
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
		return errors.Join(err, s.Close())
	}
	return nil
}

// kill ends a program that we started and that nobody wants any more.
func (s *Session) kill() {
	if s.launched {
		_ = s.group.Signal(syscall.SIGKILL) // it may have ended
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
	windows := s.registry.windows()
	s.config.Log("planned %d windows for %d sites in %.1f ms", windows, len(s.registry.sites), ms1(time.Since(began)))
	return s.checkRefusals(windows)
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
	s.registry.tell(s.refused)
	return nil
}

// tell warns of refusals, of each once, wherever its library may be next.
func (r *registry) tell(refused []Refused) {
	anywhere := func(one Refused) Refused { one.Detail = ""; return one }
	fresh := slices.DeleteFunc(slices.Clone(refused), func(one Refused) bool { return r.told[anywhere(one)] })
	for i, one := range fresh {
		r.told[anywhere(one)] = true
		switch {
		case i < maxWarnings:
			r.warn("%s is not probed: %s: %s", one.Name, one.Reason, one.Detail)
		case i == maxWarnings:
			r.warn("... and %d more sites are not probed", len(fresh)-i)
		}
	}
}

const maxWarnings = 10

// start prepares the target, runs BEGIN, arms, and lets the target go.
func (s *Session) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout())
	defer cancel()
	var err error
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

// ownName is the tracer's name, as the kernel would have it.
func ownName() string {
	const size = 15 // TASK_COMM_LEN without the zero byte
	name := filepath.Base(os.Args[0])
	return name[:min(len(name), size)]
}

// begin makes the machine for the programs that run here, and runs BEGIN.
func (s *Session) begin() error {
	pid := uint32(os.Getpid())
	s.machine = &bpf.Machine{Arena: s.arena.Mem(), Layout: s.arena.Layout(), Slot: abi.SlotTracer, Fuel: ownFuel,
		TGID: pid, TID: pid, UIDGID: uint64(os.Getgid())<<32 | uint64(os.Getuid()), Comm: ownName(), Now: unix.Monotonic, Event: s.ownEvent, Entries: s.ownEntries}
	s.arena.Publish(s.clock, arena.ReadClock())
	s.publishUnwind()
	s.publishProcess()
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
	if s.verbose {
		s.registry.logDetours()
	}
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
