package session

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"trapless/internal/arena"
	"trapless/internal/bpf"
	"trapless/internal/inject"
	"trapless/internal/lang"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
	"trapless/internal/unix"
)

// How often the arena and the target are looked at.
const (
	pollEvents = 2 * time.Millisecond   // with events to come
	pollQuiet  = 20 * time.Millisecond  // without
	pollTimers = 100 * time.Microsecond // at most, for short intervals
	pollHealth = 250 * time.Millisecond // whether the target is still what it was
	clockTime  = time.Second            // for the programs' clock to be published again
	coverTime  = 2 * time.Second        // for a change of its signal actions
)

// Run polls the target until the context ends, a program calls exit(), or the
// target ends. Then it takes the probes out, runs END and prints the maps.
func (s *Session) Run(ctx context.Context) (err error) {
	// Whatever goes wrong in here, the target is restored first.
	defer func() {
		if p := recover(); p != nil {
			_ = s.Close() // nobody holds the lock any more
			panic(p)
		}
	}()
	s.poll(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.over()
	}
	if s.family != nil {
		s.family.end()
	}
	err = errors.Join(s.disarm(), s.disarmMembers()) // what was counted is printed even if that fails
	s.drain(true)
	if eerr := s.runKind(lang.End); eerr != nil {
		return errors.Join(err, eerr)
	}
	s.tellRemarks(time.Time{}, true)
	if s.config.Script.PrintMapsOnExit {
		s.check(s.config.Sink.End())
		for i, m := range s.config.Script.Maps {
			if !m.Hidden {
				s.printMap(i, 0, 0)
			}
		}
	}
	if o := s.config.Object; o != nil {
		s.check(o.End(s.arena.Raw))
	}
	s.reportLosses()
	return errors.Join(err, s.failed)
}

// check ends the session at the first error of the sink: nobody reads on.
func (s *Session) check(err error) {
	if err != nil && s.failed == nil {
		s.failed, s.stopped = fmt.Errorf("writing the output: %w", err), true
	}
}

// stalled reports whether the output takes no more at the moment.
func (s *Session) stalled() bool {
	if s.config.Stalled == nil {
		return false
	}
	stalled, err := s.config.Stalled()
	s.check(err)
	return stalled
}

// poller is when something is to be looked at again.
type poller struct {
	timers               []*timer
	health, clock, cover time.Time
}

func (s *Session) poll(ctx context.Context) {
	period := pollQuiet
	if len(s.config.Script.Actions) > 0 || s.config.RingSize > 0 {
		period = pollEvents
	}
	start := time.Now()
	p := poller{newTimers(s.config.Script, start), start.Add(pollHealth), start.Add(clockTime), start}
	for _, t := range p.timers {
		period = max(pollTimers, min(period, t.every))
	}
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	var births <-chan struct{}
	if s.family != nil {
		births = s.tracer.Births()
	}
	for s.look(&p, time.Now()) {
		select {
		case <-ctx.Done():
			return
		case a := <-s.arrivals():
			s.mu.Lock()
			s.welcome(ctx, a)
			s.mu.Unlock()
		case <-ticker.C:
		case <-births:
		}
	}
}

// Poll handles the events that programs have written so far. Run does so by itself.
func (s *Session) Poll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	for range 2 { // the first look finds the newest ones, the second one takes them
		s.drain(false)
	}
}

// look does what is due and reports whether the session goes on.
func (s *Session) look(p *poller, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.closed || s.target != nil && !s.armed {
		return false
	}
	stalled := s.stalled()
	if !stalled {
		s.drain(false)
		s.tellRemarks(now, false)
	}
	if s.arena.Stopped() {
		s.stopped = true
		return false
	}
	if s.family != nil {
		s.family.look()
	}
	alive := s.target == nil || s.target.Mem().Alive()
	if !alive && (s.family == nil || !s.family.lives()) {
		s.config.Log("process %d has ended, or runs another program", s.PID)
		return false
	}
	if s.gathers() {
		s.lookAtMembers(now)
	}
	if !stalled {
		s.runTimers(p.timers, now)
	}
	if now.After(p.clock) {
		p.clock = now.Add(clockTime)
		s.arena.Publish(s.clock, arena.ReadClock())
		s.publishProcess()
	}
	if s.fleet != nil || !alive {
		return !s.stopped
	}
	if s.target == nil {
		return !s.stopped && len(p.timers) > 0 && (s.PID == 0 || !ended(s.PID))
	}
	return s.lookAtTarget(p, now)
}

// lookAtTarget looks whether the target is still what it was, and reports whether
// the session goes on.
func (s *Session) lookAtTarget(p *poller, now time.Time) bool {
	due := now.After(p.health)
	if err := s.lookAtLibraries(due); err != nil {
		if gone(err) {
			return true // the next look will show
		}
		s.config.Log("following the libraries: %v", err)
	}
	if due {
		p.health = now.Add(pollHealth)
		if same, err := s.group.Same(); err == nil && !same {
			s.config.Log("process %d runs another program", s.PID)
			return false
		}
		if !s.healthy() {
			return false
		}
	}
	if !now.Before(p.cover) {
		p.cover = now.Add(pollQuiet)
		return s.covered() && !s.stopped
	}
	return !s.stopped
}

// healthy looks at what the probes depend on and the target, or another tracer,
// may change. If it says false, the probes have to be taken out.
func (s *Session) healthy() bool {
	if !s.target.HandlersStand() {
		s.config.Warn("process %d changed what it does at SIGTRAP, SIGILL or a fault; the probes depend on that and are taken out", s.PID)
		return false
	}
	at, stands, reverted := s.target.TextStands()
	if !stands {
		s.config.Warn("process %d: somebody changed a byte of the probe at %s, by a kernel uprobe or a debugger; its end would break the function there, so the probes are taken out", s.PID, at)
		return false
	}
	if err := s.putBack(reverted); err != nil {
		s.config.Log("following the libraries: %v", err) // the next look will show
	}
	return s.filtersAllow()
}

// filtersAllow asks new seccomp filters of the target about the system calls of the
// programs. If it says false, one of them might kill a thread.
func (s *Session) filtersAllow() bool {
	if s.target.FiltersStand() {
		return true
	}
	err := s.attachedFor(func(ctx context.Context) error { return s.target.AskFilters(ctx) })
	switch {
	case err == nil:
		s.config.Log("process %d has a new seccomp filter, which lets pass what the programs do", s.PID)
	case errors.Is(err, proc.ErrTraced), errors.Is(err, ptrace.ErrStopped), gone(err):
		s.config.Log("%v", err) // the next look will show
	default:
		s.config.Warn("process %d has a new seccomp filter; the probes are taken out: %v", s.PID, err)
		return false
	}
	return true
}

// putBack patches again where the original text has come back.
func (s *Session) putBack(reverted []*inject.Detour) error {
	if len(reverted) == 0 {
		return nil
	}
	return errors.Join(s.registry.reverted(reverted), s.apply(context.Background()))
}

// covered puts our handlers before those of faults that the target has installed
// since the probes came, which would be told the addresses of moved instructions. If
// it says false, that is not possible, and the probes have to be taken out.
func (s *Session) covered() bool {
	signals := s.target.Exposed()
	if len(signals) == 0 {
		return true
	}
	err := s.attachedFor(func(ctx context.Context) error { return s.target.Cover(ctx, signals) })
	switch {
	case err == nil:
		s.config.Log("process %d has begun to handle signals %v; its handlers are told the original addresses of moved instructions", s.PID, signals)
	case errors.Is(err, proc.ErrTraced), errors.Is(err, ptrace.ErrStopped), gone(err):
		s.config.Log("%v", err) // the next look will show
	default:
		s.config.Warn("process %d has begun to handle signals %v, which the probes depend on; they are taken out: %v", s.PID, signals, err)
		return false
	}
	return true
}

// attachedFor attaches for a short change.
func (s *Session) attachedFor(f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), coverTime)
	defer cancel()
	if err := s.reach(ctx); err != nil {
		return err
	}
	err := f(ctx)
	err = errors.Join(err, s.letGo(ctx))
	s.notePauses()
	return err
}

// timer is an interval probe.
type timer struct {
	probe int
	every time.Duration
	next  time.Time
}

func newTimers(script *lang.Script, now time.Time) []*timer {
	var out []*timer
	for i := range script.Probes {
		if script.Probes[i].Kind != lang.Interval {
			continue
		}
		for _, a := range script.Probes[i].Attach {
			out = append(out, &timer{i, a.Every, now.Add(a.Every)})
		}
	}
	return out
}

// runTimers runs the intervals that are due. One that was missed is not made up
// for, but for the next one's time.
func (s *Session) runTimers(timers []*timer, now time.Time) {
	for _, t := range timers {
		if s.stopped || now.Before(t.next) {
			continue
		}
		for !now.Before(t.next) {
			t.next = t.next.Add(t.every)
		}
		if err := s.runOwn(t.probe); err != nil {
			s.config.Warn("interval: %v", err)
		}
	}
}

// runKind runs the programs of BEGIN or END.
func (s *Session) runKind(k lang.ProbeKind) error {
	for i := range s.config.Script.Probes {
		if s.config.Script.Probes[i].Kind != k || s.stopped && k == lang.Begin {
			continue
		}
		if err := s.runOwn(i); err != nil {
			return err
		}
	}
	return nil
}

// runOwn runs a program of the tracer.
func (s *Session) runOwn(i int) error {
	s.pull()
	s.machine.CPU, s.machine.Node = unix.CPU()
	err := s.machine.Run(s.programs[i], nil)
	s.push()
	return err
}

// drain handles the events that are due.
func (s *Session) drain(all bool) {
	if s.gathers() {
		s.drainMembers(all)
		return
	}
	s.arena.Each(all, s.record)
}

// record handles a record of the ring, which it does not keep.
func (s *Session) record(r *arena.Record) {
	switch {
	case r.Map == arena.TraceMap:
		s.trace(r.Payload)
	case s.config.Object != nil:
		kept := *r
		kept.Payload = bytes.Clone(r.Payload)
		s.check(s.config.Object.Record(kept))
	default:
		s.event(r.Payload)
	}
}

// trace tells what a program wrote by trace_printk.
func (s *Session) trace(payload []byte) {
	text, err := bpf.FormatTrace(payload)
	if err != nil {
		s.config.Warn("%v: the target wrote over its ring", err)
		return
	}
	if o := s.config.Object; o != nil {
		s.check(o.Print(text))
		return
	}
	s.config.Warn("%s", strings.TrimSuffix(text, "\n"))
}

// ownEvent takes an event of a program that runs in the tracer. Events of the
// target that came before it are handled first.
func (s *Session) ownEvent(payload []byte) bool {
	s.event(payload)
	return true
}

func (s *Session) event(payload []byte) {
	a, values, err := s.config.Script.Event(payload)
	if err != nil {
		s.config.Warn("%v: the target wrote over its ring", err)
		return
	}
	switch {
	case a.Kind == lang.AddPoint:
		s.addPoint(a, values, payload)
	case s.parent != nil:
		for i := range values {
			s.lookUp(&values[i])
		}
		s.parent.act(a, values)
	default:
		s.act(a, values)
	}
}

func (s *Session) printMap(i int, top, div uint32) {
	if s.failed == nil {
		m := s.config.Script.Maps[i]
		m.Names = s.lookUp
		s.check(s.config.Sink.PrintMap(&m, s.entries(i), top, div))
	}
}

// Entries is what map number i holds for the script, or held at Close. Without a
// script, it tells nothing then.
func (s *Session) Entries(i int) []arena.Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		if s.last == nil {
			return nil
		}
		return slices.Clone(s.last[i])
	}
	return s.entries(i)
}

func (s *Session) entries(i int) []arena.Entry {
	m := &s.config.Script.Maps[i]
	switch m.Agg {
	case lang.Plain:
	case lang.TSeries:
		return s.series[i].entries(m)
	default:
		return s.views[i].see(s.all(i))
	}
	s.pull()
	all := s.arena.Entries(i)
	switch {
	case len(m.Keys) == 0 && all[0].Value[0] == 0: // it was not assigned
		return nil
	}
	return all
}

// ownEntries are the entries of map number i for a program that runs here.
func (s *Session) ownEntries(i int) []bpf.MapEntry {
	words := func(w []uint64) []byte {
		var b []byte
		for _, v := range w {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		return b
	}
	var out []bpf.MapEntry
	for _, e := range s.entries(i) {
		out = append(out, bpf.MapEntry{Key: words(e.Key), Value: words(e.Value)})
	}
	return out
}

// reportLosses says what was lost, if anything.
func (s *Session) reportLosses() {
	l := s.allLosses()
	if l.Updates > 0 {
		s.config.Warn("Map full; can't update element. Try increasing max_map_keys config or manually setting the max entries in a map declaration e.g. `let @a = hash(5000)`")
	}
	for _, loss := range []struct {
		n    uint64
		what string
	}{
		{l.Events, "events were lost because a thread's ring was full"},
		{l.Runs, "runs of a program were lost because another one was under way in a signal handler, or the thread had no slot"},
		{l.Updates, "updates of maps were lost"},
		{l.Corrupt, "events were lost because the target wrote over its ring"},
	} {
		if loss.n > 0 {
			s.config.Warn("%d %s", loss.n, loss.what)
		}
	}
}
