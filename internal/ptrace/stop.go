package ptrace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"trapless/internal/proc"
	"trapless/internal/unix"
)

const (
	firstPause = 20 * time.Millisecond // of the first attempt to stop all; the next are longer
	stuckTime  = 5 * time.Millisecond  // without progress, before the threads that lack are looked at
	minNap     = 15 * time.Microsecond
	maxNap     = 200 * time.Microsecond
)

// Stop stops every thread of the group. A thread that cannot stop, such as one
// that waits for its vfork child, makes it continue all, wait and try again,
// until the context ends; then the error is ErrBusy and names it. A process
// stopped by a signal is refused with ErrStopped. After an error all threads
// run, or are stopped as they were before.
func (g *Group) Stop(ctx context.Context) error {
	return g.t.do(func() error { return g.stop(ctx, false) })
}

// StopEvenStopped is Stop that also accepts threads stopped by a signal, so that
// text can be restored in a stopped process. Resume and Detach leave them
// stopped. No code can be injected meanwhile.
func (g *Group) StopEvenStopped(ctx context.Context) error {
	return g.t.do(func() error { return g.stop(ctx, true) })
}

func (g *Group) stop(ctx context.Context, evenStopped bool) error {
	switch g.mode {
	case modeHold:
		return nil
	case modeDetached, modeDetach:
		if g.over != nil {
			return g.over
		}
		return refuse(g.PID, ReasonRunning, "it is not attached")
	}
	limit := min(firstPause, g.maxPause)
	for {
		err := g.tryStop(ctx, limit, evenStopped)
		if err == nil || g.over != nil {
			return cmp.Or(g.over, err)
		}
		var busy *busyError
		if !errors.As(err, &busy) {
			g.resume()
			return err
		}
		if !g.runUntil(ctx, busy.asleep, limit) {
			return cmp.Or(g.over, refuse(g.PID, ReasonBusy, "%v; try again", err))
		}
		limit = min(2*limit, g.maxPause)
	}
}

// runUntil lets the group run until it is worth trying again: until one of the
// threads in uninterruptible sleep wakes up and stops, or, if there is none, for
// a while. It says whether there is time left to try.
func (g *Group) runUntil(ctx context.Context, asleep []*Thread, d time.Duration) bool {
	for _, th := range asleep {
		th.hold = true
	}
	g.resume()
	if len(asleep) == 0 {
		g.runFor(ctx, d)
		return !deadlineBefore(ctx, 0)
	}
	woken := func() bool {
		return slices.ContainsFunc(asleep, func(th *Thread) bool { return th.state != stateRunning })
	}
	for !woken() && ctx.Err() == nil && g.over == nil {
		g.t.pump()
		unix.Nap(maxNap)
	}
	again := woken() && ctx.Err() == nil && g.over == nil
	for _, th := range asleep {
		th.hold = false
		if !again && th.state == stateStopped {
			th.settle()
		}
	}
	return again
}

// deadlineBefore reports whether the context ends before d has passed.
func deadlineBefore(ctx context.Context, d time.Duration) bool {
	if ctx.Err() != nil {
		return true
	}
	until, ok := ctx.Deadline()
	return ok && time.Until(until) <= d
}

// runFor lets the group run for a while, attached.
func (g *Group) runFor(ctx context.Context, d time.Duration) {
	until := time.Now().Add(d)
	for time.Now().Before(until) && ctx.Err() == nil && g.over == nil {
		g.t.pump()
		unix.Nap(maxNap)
	}
}

// tryStop is one attempt. When it fails the caller resumes.
func (g *Group) tryStop(ctx context.Context, limit time.Duration, evenStopped bool) error {
	g.mode = modeHold
	g.heldSince = time.Now()
	until := g.heldSince.Add(limit)
	if d, ok := ctx.Deadline(); ok && d.Before(until) {
		until = d
	}
	g.interruptAll()
	for {
		if err := g.collect(until); err != nil {
			return err
		}
		if g.over != nil {
			return g.over
		}
		n, err := g.catchUp()
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
	}
	for _, th := range g.threads {
		if th.kind == GroupStop && !evenStopped {
			return refuse(g.PID, ReasonStopped, "a signal stopped it (signal %d); continue it first: kill -CONT %d", th.sig, g.PID)
		}
	}
	return nil
}

// catchUp attaches to threads that were born unseen, now that none can be.
func (g *Group) catchUp() (int, error) {
	n, err := g.seizeThreads()
	if err == nil && g.vforking {
		var m int
		m, err = g.seizeSharers()
		n += m
	}
	if n > 0 {
		g.interruptAll()
	}
	return n, err
}

func (g *Group) interruptAll() {
	for _, th := range g.threads {
		if th.state != stateStopped && !th.vfork {
			th.interrupt()
		}
	}
}

// busyError names the threads that did not stop.
type busyError struct {
	text   string
	asleep []*Thread // those in uninterruptible sleep
}

func (e *busyError) Error() string { return e.text }

// collect waits until no thread of the group runs, doing with those that stop
// what the group's mode says. A thread in uninterruptible sleep ends it early.
func (g *Group) collect(until time.Time) error {
	nap, last := minNap, time.Now()
	for {
		left, progress := g.pollRunning()
		if len(left) == 0 && len(g.t.strays) == 0 {
			return nil
		}
		now := time.Now()
		if progress {
			nap, last = minNap, now
			continue
		}
		g.t.pump()
		if now.Sub(last) > stuckTime {
			if asleep := g.examine(left); asleep != nil && g.mode == modeHold {
				return g.busy(left, asleep)
			}
			last = now
		}
		if now.After(until) {
			return g.busy(left, g.examine(left))
		}
		unix.Nap(nap)
		nap = min(nap*3/2, maxNap)
	}
}

// pollRunning asks after each running thread and returns those that still run.
func (g *Group) pollRunning() (left []*Thread, progress bool) {
	for _, th := range g.threads {
		if th.state != stateRunning {
			continue
		}
		if th.poll() {
			progress = true
		}
		if th.state == stateRunning && !(th.vfork && g.mode == modeHold) {
			left = append(left, th)
		}
	}
	return left, progress
}

// examine looks at why threads do not stop. Leaders that ended before their
// process report nothing, and cannot be let go, until the process ends. It
// returns the threads in uninterruptible sleep.
func (g *Group) examine(left []*Thread) (asleep []*Thread) {
	for _, th := range left {
		st, err := proc.ReadStat(th.PID, th.TID)
		switch {
		case err != nil || th.state != stateRunning:
		case st.Dead():
			if th.TID == th.PID {
				th.state = stateZombie
			}
		case st.State == proc.Tracing:
			th.recover()
		case st.State == proc.Disk:
			asleep = append(asleep, th)
		}
	}
	return asleep
}

// busy is nil when the threads have stopped by now.
func (g *Group) busy(left, asleep []*Thread) error {
	var names []string
	for _, th := range left {
		if th.state != stateRunning {
			continue
		}
		what := "gone"
		if st, err := proc.ReadStat(th.PID, th.TID); err == nil {
			what = st.State.String()
			if w := proc.WaitChannel(th.PID, th.TID); w != "" {
				what += " in " + w
			}
		}
		if len(names) == 3 {
			names = append(names, "...")
			break
		}
		names = append(names, fmt.Sprintf("%v (%s)", th, what))
	}
	if names == nil {
		return nil
	}
	return &busyError{strings.Join(names, ", ") + " did not stop in time", asleep}
}
