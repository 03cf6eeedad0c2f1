package ptrace

import (
	"syscall"

	"trapless/internal/proc"
	"trapless/internal/unix"
)

// pump answers every stop and exit that is waiting to be seen.
func (t *Tracer) pump() {
	for {
		tid, ws, err := unix.WaitTracee(-1)
		if err != nil || tid == 0 {
			return
		}
		if th := t.threads[tid]; th != nil && th.state == stateStopped && ws.Stopped() {
			return // at the delivery of a signal, being watched
		}
		t.handle(tid, ws)
	}
}

// poll asks after one thread.
func (th *Thread) poll() (changed bool) {
	tid, ws, err := unix.WaitTracee(th.TID)
	switch {
	case err != nil:
		// ECHILD: no thread of ours has this id any more, because the thread has
		// called execve and got the id of the leader.
		th.drop()
		st, err := proc.ReadStatus(th.PID, th.PID)
		if err == nil && st.TracerPid == th.g.t.tid && th.g.t.threads[th.PID] == nil {
			th.g.adopt(th.PID, th.PID).asked = th.asked
		}
		th.g.checkOver()
		return true
	case tid == 0:
		return false
	}
	th.g.t.handle(tid, ws)
	return true
}

func (t *Tracer) handle(tid int, ws unix.WaitStatus) {
	th := t.threads[tid]
	switch {
	case ws.Exited() || ws.Signaled():
		if _, launched := t.exits[tid]; launched {
			t.exits[tid] = &ws
		}
		delete(t.strays, tid)
		if th != nil {
			th.drop()
			th.g.checkOver()
		}
	case !ws.Stopped():
	case th == nil:
		t.handleStray(tid, ws)
	default:
		th.stopped(ws)
	}
}

// recover notices a stop that was never reported: when the target is a child of
// our own process and another of our threads waits for its exit, the kernel may
// hand the report to that thread.
func (th *Thread) recover() {
	info, err := unix.PtraceSigInfo(th.TID)
	if err != nil {
		return // it runs, or stops just now
	}
	status := uint32(info.Code)<<8 | 0x7f
	trap := int32(syscall.SIGTRAP)
	if ev := info.Code >> 8; ev != unix.EventStop && !(ev > 0 && info.Signo == trap && info.Code&0xff == trap) {
		// The siginfo of a signal about to be delivered.
		status = uint32(info.Signo)<<8 | 0x7f
	}
	if th.poll(); th.state == stateRunning {
		th.stopped(unix.WaitStatus(status))
	}
}

// checkOver notices that a group has no process any more.
func (g *Group) checkOver() {
	if len(g.threads) == 0 {
		g.end(refuse(g.PID, ReasonGone, "it ended"))
	}
}

func (g *Group) end(why error) {
	if g.over == nil && g.mode != modeDetach && g.mode != modeDetached {
		g.over = why
	}
	if len(g.threads) == 0 {
		g.mode = modeDetached
		g.notePause()
	}
}

// handleStray deals with a thread or child that the kernel attached for us and
// whose maker's event we have not seen, or not yet.
func (t *Tracer) handleStray(tid int, ws unix.WaitStatus) {
	if !t.strays[tid] {
		if g, pid := t.owner(tid); g != nil {
			g.adopt(pid, tid).stopped(ws)
			return
		}
		if t.bear(tid, ws) {
			return
		}
	}
	sig := 0
	if eventOf(ws) == 0 {
		sig = int(ws.StopSignal())
	}
	_ = unix.PtraceDetach(tid, sig)
	delete(t.strays, tid)
}

// owner finds the group whose memory a new thread or child shares.
func (t *Tracer) owner(tid int) (*Group, int) {
	st, err := proc.ReadStatus(tid, tid)
	if err != nil {
		return nil, 0
	}
	for g := range t.groups {
		if g.procs[st.Tgid] {
			return g, st.Tgid
		}
	}
	if !proc.HasMemory(tid) {
		return nil, 0
	}
	for g := range t.groups {
		for _, th := range g.threads {
			// One that is dying has no memory any more; ask the others.
			if same, err := unix.SameMemory(th.TID, tid); err == nil && same {
				g.procs[st.Tgid] = true
				return g, st.Tgid
			}
		}
	}
	return nil, 0
}

func eventOf(ws unix.WaitStatus) int { return int(uint32(ws) >> 16) }

// stopped takes note of a stop and does what the group's mode says.
func (th *Thread) stopped(ws unix.WaitStatus) {
	th.state, th.regs, th.asked = stateStopped, nil, false
	sig := int(ws.StopSignal())
	switch eventOf(ws) {
	case 0:
		th.kind, th.sig = Signal, sig
	case unix.EventStop:
		th.kind, th.sig = Interrupted, 0
		if syscall.Signal(sig) != syscall.SIGTRAP {
			th.kind, th.sig = GroupStop, sig
			break
		}
		// At once, so that it holds even if the tracer dies before it resumes
		// the thread.
		th.mend()
	case unix.EventClone, unix.EventFork, unix.EventVfork:
		th.madeChild(eventOf(ws) == unix.EventVfork)
		return
	case unix.EventExec:
		th.execed()
		return
	default:
		th.kind, th.sig = Interrupted, 0
	}
	th.settle()
}

func (th *Thread) settle() {
	switch {
	case th.g.mode == modeDetach || th.g.mode == modeDetached:
		th.detach()
	case th.vfork:
		th.resume()
	case th.watched:
	case th.g.mode == modeRun && !th.hold:
		th.resume()
	case th.kind == Signal:
		// It is not kept here but before the first instruction of the handler:
		// should we die, the kernel must not think that we have the signal.
		th.interrupt()
		th.resume()
	}
}

// madeChild: the thread is inside the call that makes a thread or a child. It
// is no place to keep it, since its registers are not those of user space yet;
// so it is sent on, to stop again before it returns.
func (th *Thread) madeChild(vfork bool) {
	t := th.g.t
	msg, err := unix.PtraceEventMsg(th.TID)
	if child := int(msg); err == nil && child != 0 && t.threads[child] == nil {
		if g, pid := t.owner(child); g != nil {
			g.adopt(pid, child)
		} else if st, err := proc.ReadStatus(child, child); err == nil && st.TracerPid == t.tid {
			if !t.follow {
				t.strays[child] = true // else its own stop was seen before this one
			}
			th.g.childLeft(child)
		}
	}
	if child := t.threads[int(msg)]; vfork && child != nil && child.g == th.g {
		child.vfork = true
		if child.state == stateStopped {
			child.settle()
		}
	}
	th.kind = Interrupted
	switch {
	case th.g.mode == modeDetach:
		th.detach()
		return
	case th.g.mode == modeHold || th.hold:
		th.interrupt()
	}
	th.resume()
}

// execed: the process has left its address space. All its other threads are
// dead, and this one has got the id of the leader; whatever was known of both is
// void.
func (th *Thread) execed() {
	g := th.g
	if g.sameImage(th) {
		th.kind = Interrupted
		th.settle()
		return
	}
	for _, other := range g.threads {
		if other != th && other.PID == th.PID {
			other.drop()
		}
	}
	delete(g.procs, th.PID)
	th.kind = Interrupted
	if g.t.follow {
		th.drop()
		g.t.rebear(th.PID)
	} else {
		_ = unix.PtraceDetach(th.TID, 0)
		th.drop()
	}
	if th.PID == g.PID {
		g.end(refuse(g.PID, ReasonExec, "it replaced itself by execve"))
	} else {
		g.checkOver()
	}
}

// sameImage reports whether the execve that a thread has just finished made the
// address space that the group stands for: we attached in the middle of it.
func (g *Group) sameImage(th *Thread) bool {
	if th.PID != g.PID || g.mem == nil {
		return th.PID == g.PID
	}
	if !g.mem.Alive() {
		return false
	}
	for _, other := range g.threads {
		if other.PID != th.PID {
			same, err := unix.SameMemory(other.TID, th.TID)
			return err == nil && same
		}
	}
	return true
}
