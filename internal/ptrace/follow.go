package ptrace

import (
	"context"
	"time"

	"trapless/internal/proc"
	"trapless/internal/unix"
)

// A tracer that follows stays attached: the kernel attaches it to each process that
// one of its threads makes, before that has run an instruction, and stops a thread
// that has replaced its program. Both are handed out as groups of their own, held. If
// the tracer dies, they run on; no breakpoint is used.
//
// A child that shares the memory of its parent (vfork, posix_spawn) belongs to the
// parent's group until it calls execve. While a thread waits for it, it is not held,
// and so not the group.

// Newborn is a process that a followed one has made, or the program that one has
// become.
type Newborn struct {
	*Group
	Exec bool // it is a program that has not run yet: see Ready
	Late bool // it runs, and is not followed any more, because nobody has asked for it in time

	since time.Time
}

// bornTime is how long a newborn is held that nobody asks for. Tests make it shorter.
var bornTime = 20 * time.Second

// letLateGo lets those newborns go that have been held for too long: who would ask for
// them may be busy, or never come.
func (t *Tracer) letLateGo() {
	for i := range t.born {
		if n := &t.born[i]; !n.Late && time.Since(n.since) > bornTime {
			n.Late = true
			n.startDetach()
		}
	}
}

// Follow says whether groups that are attached from now on are followed. When it is
// switched off, those that nobody has asked for are let go.
func (t *Tracer) Follow(on bool) {
	_ = t.do(func() error {
		t.follow = on
		if !on {
			for _, n := range t.born {
				n.startDetach()
			}
			t.born = nil
		}
		return nil
	})
}

// Births has something after processes were born that Born has not returned yet.
func (t *Tracer) Births() <-chan struct{} { return t.births }

// Born returns what was born since the last time. Each group is stopped until
// Resume or Detach, but for those that are Late.
func (t *Tracer) Born() []Newborn {
	var out []Newborn
	_ = t.do(func() error {
		t.pump()
		out, t.born = t.born, nil
		return nil
	})
	return out
}

// options are those that threads are attached with.
func (t *Tracer) options() int {
	if t.follow {
		return seizeOptions | unix.OptTraceVfork
	}
	return seizeOptions
}

// bear makes a group of a process that the kernel has attached us to, at its first
// stop.
func (t *Tracer) bear(pid int, ws unix.WaitStatus) bool {
	if !t.follow {
		return false
	}
	st, err := proc.ReadStatus(pid, pid)
	if err != nil || st.Tgid != pid {
		return false
	}
	t.deliver(pid, false).stopped(ws)
	return true
}

// rebear makes a group of a program that a process has just become.
func (t *Tracer) rebear(pid int) {
	th := t.deliver(pid, true)
	th.state, th.kind = stateStopped, Interrupted
}

func (t *Tracer) deliver(pid int, exec bool) *Thread {
	g := t.newGroup(pid)
	g.mode, g.newborn = modeHold, true
	g.procs[pid] = true
	th := g.adopt(pid, pid)
	t.born = append(t.born, Newborn{Group: g, Exec: exec, since: time.Now()})
	select {
	case t.births <- struct{}{}:
	default:
	}
	return th
}

// Ready prepares a newborn for injected code. A program that has just begun runs on
// through the system calls of its dynamic loader until that has mapped what the
// program needs and set the thread pointer.
func (n *Newborn) Ready(ctx context.Context) error {
	g := n.Group
	return g.t.do(func() (err error) {
		th := g.threads[g.PID]
		if g.over != nil || th == nil {
			return refuse(g.PID, ReasonGone, "it ended")
		}
		if g.mem, err = openMem(g); err != nil || !n.Exec {
			return err
		}
		th.hold, th.watched = true, true
		defer func() { th.hold, th.watched = false, false }()
		return g.awaitThreadPointer(ctx, th)
	})
}
