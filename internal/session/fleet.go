package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"trapless/internal/arena"
	"trapless/internal/inject"
	"trapless/internal/lang"
	"trapless/internal/ptrace"
)

// A session without a process of its own, for a script that has probes in files, probes
// all processes that have these files mapped, and those that begin to later. Such a
// process is a member: a session with an arena of its own, as one arena may not be
// shared between users. What the members hold is brought together here:
//
//   - aggregations are added up over all arenas when they are printed;
//   - entries that were assigned are carried between the arenas before a program of the
//     tracer runs or a map is printed (see share.go), so members see each other's
//     assignments late, and of two at the same time only one stays;
//   - events of all members are put in one order by their time stamps.
//
// The programs of the tracer run on the arena of the session itself.

// company is what a session and its members know of each other.
type company struct {
	fleet   *watcher        // of a session on all processes
	family  *family         // of a session that follows
	members []*Session      // their own locks are taken while that of the session is held
	past    [][]arena.Entry // what members that are gone have counted, by map
	losses  arena.Losses    // and lost
	added   []bool          // which maps programs add to, by map
	book    *stackBook      // names of what members have in keys

	greet  func(*Session) (leave func()) // is called for each member, nil for nobody
	leave  func()                        // of a member: it is called before it goes
	parent *Session                      // of a member
	known  []known                       // what the member and its parent had in common, by map
	pace   *poller                       // of a member
}

// gathers reports whether the session may have members.
func (c *company) gathers() bool { return c.fleet != nil || c.family != nil }

// arrivals are the processes that wait in execve; nil if nobody does.
func (c *company) arrivals() <-chan arrival {
	if c.fleet == nil {
		return nil
	}
	return c.fleet.arrivals
}

// join gives a new member what was assigned until now.
func (s *Session) join() {
	now := time.Now()
	s.pace = &poller{nil, now.Add(pollHealth), now.Add(clockTime), now}
	s.known = make([]known, len(s.config.Script.Maps))
	for i := range s.config.Script.Maps {
		if s.config.Script.Maps[i].Agg == lang.Plain {
			s.take(i, s.parent.arena.Entries(i))
		}
	}
}

// allLosses sums the losses over all arenas.
func (s *Session) allLosses() arena.Losses {
	sum := s.losses
	for _, o := range append([]*Session{s}, s.members...) {
		l := o.arena.Losses()
		sum.Events, sum.Runs, sum.Updates, sum.Corrupt = sum.Events+l.Events, sum.Runs+l.Runs, sum.Updates+l.Updates, sum.Corrupt+l.Corrupt
	}
	return sum
}

// Everywhere starts a session on all processes that have the script's files mapped.
func Everywhere(ctx context.Context, c Config) (*Session, error) {
	c.Follow = false // who has the files mapped is found anyway
	w, err := newWatcher(&c)
	if err != nil {
		return nil, err
	}
	s, err := newAlone(c)
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	s.fleet, s.past, s.added, s.book = w, make([][]arena.Entry, len(c.Script.Maps)), s.addedMaps(), newStackBook()
	if s.stopped {
		return s, nil
	}
	w.start(s.config.Log)
	for _, pid := range w.scan() {
		s.recruit(ctx, pid)
	}
	s.config.Log("probes are in place in %d processes; those that start are looked out for", len(s.members))
	return s, nil
}

// recruit makes a running process a member. One that cannot be probed is told once.
func (s *Session) recruit(ctx context.Context, pid int) {
	m, err := newSession(s.config)
	if err == nil {
		m.parent = s
		m.PID = pid
		err = m.attachTo(ctx)
	}
	s.admit(m, pid, err)
}

// admit takes a new member in, or says why it is none.
func (s *Session) admit(m *Session, pid int, err error) {
	switch {
	case err == nil:
		s.include(m)
		s.config.Log("process %d is probed at %d sites", pid, m.sites)
	case gone(err), errors.Is(err, errNotMapped), errors.Is(err, inject.ErrProbed):
		s.config.Log("process %d is not probed: %v", pid, err)
	default:
		s.config.Warn("process %d is not probed: %v", pid, err)
	}
}

// welcome makes a process that waits in execve a member before it runs, or notes one
// that does not wait.
func (s *Session) welcome(ctx context.Context, a arrival) {
	if !s.fleet.hold {
		s.fleet.starting[a.pid] = time.Now().Add(startTime)
		return
	}
	s.fleet.seen[a.pid] = looks
	ctx, cancel := context.WithTimeout(ctx, ptrace.AdoptTime)
	defer cancel()
	m, err := newSession(s.config)
	if err == nil {
		m.parent, m.PID = s, a.pid
		err = m.adopt(ctx, a)
	}
	a.let()
	s.admit(m, a.pid, err)
}

// adopt is Launch for a process that somebody else starts.
func (s *Session) adopt(ctx context.Context, a arrival) error {
	var err error
	if s.tracer, err = ptrace.Start(); err != nil {
		return err
	}
	if s.group, err = s.tracer.Adopt(ctx, s.PID, func() error { a.let(); return nil }); err != nil {
		return errors.Join(err, s.Close())
	}
	if err = s.awaitGo(ctx); err == nil {
		err = s.plan()
	}
	if err == nil {
		err = s.start(ctx)
	}
	if err != nil {
		return errors.Join(err, s.Close())
	}
	return nil
}

// Greet has f called for each member that there is and that comes; before the member goes,
// what f returned is called. nil ends it. f must not call the session.
func (s *Session) Greet(f func(member *Session) (leave func())) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.greet = f
	for _, m := range s.members {
		m.takeLeave()
		if f != nil {
			m.leave = f(m)
		}
	}
}

// include takes a member in.
func (s *Session) include(m *Session) {
	s.members = append(s.members, m)
	if s.greet != nil {
		m.leave = s.greet(m)
	}
}

// takeLeave is for a member that goes. Its own lock is not held.
func (s *Session) takeLeave() {
	if s.leave != nil {
		s.leave()
		s.leave = nil
	}
}

// lookAtMembers does what is due for the members, and takes in those that come.
func (s *Session) lookAtMembers(now time.Time) {
	var ended []*Session
	for _, m := range s.members {
		m.mu.Lock()
		if m.arena.Stopped() {
			s.stopped = true
		}
		if !m.armed || !m.target.Mem().Alive() || !m.lookAtTarget(m.pace, now) {
			ended = append(ended, m)
		}
		if now.After(m.pace.clock) {
			m.pace.clock = now.Add(clockTime)
			m.arena.Publish(m.clock, arena.ReadClock())
			m.publishProcess()
		}
		m.mu.Unlock()
	}
	for _, m := range ended {
		s.dismiss(m)
	}
	if s.fleet == nil {
		return
	}
	for _, pid := range s.fleet.started(now) {
		s.recruit(context.Background(), pid)
	}
	if !now.Before(s.fleet.next) {
		s.fleet.next = now.Add(scanTime)
		for _, pid := range s.fleet.scan() {
			s.recruit(context.Background(), pid)
		}
	}
}

// scanTime is how often it is looked for processes that map a file without executing it.
const scanTime = 300 * time.Millisecond

// dismiss keeps what a member has counted and lets go of it.
func (s *Session) dismiss(m *Session) {
	m.takeLeave()
	if err := m.disarm(); err != nil {
		s.config.Warn("%v", err)
	}
	s.drain(true)
	s.pull()
	for i := range s.config.Script.Maps {
		if s.config.Script.Maps[i].Agg != lang.Plain {
			s.past[i] = s.merge(i, [][]arena.Entry{s.past[i], s.entriesOf(m, i)})
		}
	}
	l, sum := m.arena.Losses(), &s.losses
	sum.Events, sum.Runs, sum.Updates, sum.Corrupt = sum.Events+l.Events, sum.Runs+l.Runs, sum.Updates+l.Updates, sum.Corrupt+l.Corrupt
	s.members = slices.DeleteFunc(s.members, func(o *Session) bool { return o == m })
	if err := m.Close(); err != nil {
		s.config.Log("process %d: %v", m.PID, err)
	}
}

// drainMembers handles the events of all members, and of a target of the session's
// own, in one order.
func (s *Session) drainMembers(all bool) {
	type event struct {
		of *Session
		r  arena.Record
	}
	var events []event
	from := s.members
	if s.family != nil {
		from = append([]*Session{s}, from...)
	}
	for _, m := range from {
		for _, r := range m.arena.Drain(all) {
			events = append(events, event{m, r})
		}
	}
	slices.SortStableFunc(events, func(a, b event) int {
		switch {
		case a.r.TSC < b.r.TSC:
			return -1
		case a.r.TSC > b.r.TSC:
			return 1
		}
		return 0
	})
	for _, e := range events {
		e.of.record(&e.r)
	}
}

// all are the entries of a map that is an aggregation, over all arenas.
func (s *Session) all(i int) []arena.Entry {
	own := s.arena.Entries(i)
	if !s.gathers() {
		return own
	}
	lists := [][]arena.Entry{own, s.past[i]}
	for _, m := range s.members {
		lists = append(lists, s.entriesOf(m, i))
	}
	return s.merge(i, lists)
}

// merge adds entries up, key by key.
func (s *Session) merge(i int, lists [][]arena.Entry) []arena.Entry {
	maxWord := s.config.Script.Maps[i].Spec.MaxWord
	at := map[string]int{}
	var out []arena.Entry
	for _, list := range lists {
		for _, e := range list {
			k, ok := at[keyOf(&e)]
			if !ok {
				at[keyOf(&e)] = len(out)
				e.Value = slices.Clone(e.Value)
				out = append(out, e)
				continue
			}
			for w, v := range e.Value {
				if w != 0 && w == maxWord {
					out[k].Value[w] = max(out[k].Value[w], v)
				} else {
					out[k].Value[w] += v
				}
			}
		}
	}
	return out
}

// resetMax does Arena.ResetMax in all arenas.
func (s *Session) resetMax(i int) {
	s.arena.ResetMax(i)
	for _, m := range s.members {
		m.arena.ResetMax(i)
	}
	if w := s.config.Script.Maps[i].Spec.MaxWord; w != 0 && s.gathers() {
		for _, e := range s.past[i] {
			e.Value[w] = 0
		}
	}
}

// disarmMembers takes the probes out of all members.
func (s *Session) disarmMembers() error {
	var all error
	for _, m := range s.members {
		m.takeLeave()
		if err := m.disarm(); err != nil {
			all = errors.Join(all, fmt.Errorf("process %d: %w", m.PID, err))
		}
	}
	return all
}

// closeMembers lets go of all members.
func (s *Session) closeMembers() error {
	var all error
	for _, m := range s.members {
		all = errors.Join(all, m.Close())
	}
	s.members = nil
	if s.fleet != nil {
		all = errors.Join(all, s.fleet.Close())
	}
	return all
}
