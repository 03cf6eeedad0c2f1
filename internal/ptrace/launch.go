package ptrace

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	"trapless/internal/abi"
	"trapless/internal/proc"
	"trapless/internal/unix"
)

// Command is a program to launch.
type Command struct {
	Path  string   // of the executable
	Args  []string // with the program's name first
	Env   []string
	Dir   string     // "" for ours
	Files []*os.File // standard input, output, error, and more
	Sys   *syscall.SysProcAttr
}

// launching is what has to be undone at the program's entry point.
type launching struct {
	entry abi.Addr
	old   byte
}

const atEntry = 9 // AT_ENTRY (getauxval(3))

const breakpoint = 0xcc // int3

// Launch starts a program and stops it at its entry point: the dynamic loader is
// done and main has not begun. One that is linked statically is stopped a little
// later, when it has set its thread pointer. Every thread of the returned group is stopped.
// Should the tracer die before Resume or Detach, the program is killed, because
// nobody would know what became of it; afterwards it does not depend on us.
//
// The program is a child of this process. Wait for it with Group.Wait.
func (t *Tracer) Launch(ctx context.Context, c *Command) (*Group, error) {
	var g *Group
	err := t.do(func() (err error) {
		g, err = t.launch(ctx, c)
		return err
	})
	return g, err
}

func (t *Tracer) launch(ctx context.Context, c *Command) (*Group, error) {
	pid, err := t.forkStopped(c)
	if err != nil {
		return nil, err
	}
	t.exits[pid] = nil
	g := t.newGroup(pid)
	if err = proc.Check(pid); err == nil {
		err = g.runToEntry(ctx)
	}
	if err != nil {
		_ = unix.Kill(pid, int(syscall.SIGKILL))
		for until := time.Now().Add(killTime); (t.threads[pid] != nil || t.exits[pid] == nil) && time.Now().Before(until); {
			t.pump()
			unix.Nap(maxNap)
		}
		delete(t.exits, pid)
		return nil, fmt.Errorf("starting %s: %w", c.Path, err)
	}
	return g, nil
}

// killTime bounds how long the end of a program is waited for that was killed.
const killTime = time.Second

// forkStopped makes a child that has called execve and is stopped before its
// first instruction.
//
// Between fork and execve only PTRACE_TRACEME can be asked for, but a thread
// traced that way knows no PTRACE_INTERRUPT. So it is let go again with a SIGSTOP
// and seized while it is stopped.
func (t *Tracer) forkStopped(c *Command) (int, error) {
	sys := syscall.SysProcAttr{}
	if c.Sys != nil {
		sys = *c.Sys
	}
	sys.Ptrace = true
	files := make([]uintptr, len(c.Files))
	for i, f := range c.Files {
		files[i] = ^uintptr(0)
		if f != nil {
			files[i] = f.Fd()
		}
	}
	_ = unix.SetTimerSlack(0) // a child inherits it
	pid, err := syscall.ForkExec(c.Path, c.Args, &syscall.ProcAttr{Dir: c.Dir, Env: c.Env, Files: files, Sys: &sys})
	_ = unix.SetTimerSlack(time.Microsecond)
	if err != nil {
		return 0, fmt.Errorf("starting %s: %w", c.Path, err)
	}
	for {
		tid, ws, err := unix.WaitTracee(pid)
		switch {
		case err != nil:
			return 0, fmt.Errorf("starting %s: %w", c.Path, err)
		case tid == 0:
			unix.Nap(maxNap)
		case !ws.Stopped():
			return 0, fmt.Errorf("starting %s: it ended at once (%v)", c.Path, ws)
		case ws.StopSignal() != syscall.SIGTRAP:
			_ = unix.PtraceCont(pid, int(ws.StopSignal()))
		default:
			return pid, unix.PtraceDetach(pid, int(syscall.SIGSTOP))
		}
	}
}

func (g *Group) runToEntry(ctx context.Context) error {
	g.options |= unix.OptExitKill
	if err := g.seize(ctx); err != nil {
		return err
	}
	th := g.threads[g.PID]
	if th == nil {
		return refuse(g.PID, ReasonGone, "it ended")
	}
	th.hold, th.watched = true, true
	defer func() { th.hold, th.watched = false, false }()
	aux, err := proc.Auxv(g.PID)
	if err != nil {
		return err
	}
	if err := g.awaitEntry(ctx, th, abi.Addr(aux[atEntry])); err != nil {
		return err
	}
	if err := g.awaitThreadPointer(ctx, th); err != nil {
		return err
	}
	return g.stop(ctx, false)
}

// RunTo lets a launched program, which was not resumed since, run on to an instruction that its first thread
// comes to, and stops all threads there. Those who launch a program whose runtime system must have begun use
// it. On an error the program may stand anywhere.
func (g *Group) RunTo(ctx context.Context, addr abi.Addr) error {
	return g.t.do(func() error { return g.runTo(ctx, addr) })
}

func (g *Group) runTo(ctx context.Context, addr abi.Addr) error {
	th := g.threads[g.PID]
	if th == nil || !g.dependent() {
		return refuse(g.PID, ReasonGone, "it was not launched, or ended")
	}
	var old [1]byte
	if err := g.mem.ReadAt(old[:], addr); err != nil {
		return err
	}
	th.hold, th.watched = true, true
	defer func() { th.hold, th.watched = false, false }()
	g.launching = &launching{entry: addr, old: old[0]}
	defer func() { g.launching = nil }()
	if err := g.mem.writeText([]byte{breakpoint}, addr); err != nil {
		return err
	}
	g.resume()
	th.resume()
	for {
		if err := g.awaitStop(ctx, th); err != nil {
			return err
		}
		r, err := th.readRegs()
		if err != nil {
			return err
		}
		if th.kind == Signal && syscall.Signal(th.sig) == syscall.SIGTRAP && r.RIP == uint64(addr)+1 {
			if err := g.atEntry(th, &r); err != nil {
				return err
			}
			break
		}
		th.resume()
	}
	if err := g.awaitStop(ctx, th); err != nil {
		return err
	}
	return g.stop(ctx, false)
}

// awaitThreadPointer lets a statically linked program, which has no loader, run
// on through its first system calls until it has set its thread pointer
// (arch_prctl(2), ARCH_SET_FS), so that code may rely on that from the beginning.
func (g *Group) awaitThreadPointer(ctx context.Context, th *Thread) error {
	for {
		if err := g.awaitStop(ctx, th); ctx.Err() != nil {
			return refuse(g.PID, ReasonNoThread, "it sets no thread pointer, so it is not a program with a usual C library: %v", err)
		} else if err != nil {
			return err
		}
		r, err := th.readRegs()
		if err != nil {
			return err
		}
		trap := th.kind == Signal && syscall.Signal(th.sig) == syscall.SIGTRAP
		if trap {
			th.sig = 0 // the stop at a system call
		}
		switch {
		case r.FSBase == 0:
			th.state = stateRunning
			_ = unix.PtraceSyscall(th.TID, th.pending()) // ESRCH: it was killed
			th.left()
		case th.kind == Signal:
			th.interrupt()
			th.resume()
		default:
			return nil
		}
	}
}

// awaitStop waits for the next stop of a thread that is watched.
func (g *Group) awaitStop(ctx context.Context, th *Thread) error {
	for nap := minNap; ; nap = min(2*nap, maxNap) {
		g.t.pump()
		switch {
		case g.over != nil || th.state == stateGone:
			return cmp.Or(g.over, refuse(g.PID, ReasonGone, "it ended before its main function"))
		case ctx.Err() != nil:
			return ctx.Err()
		case th.state == stateStopped:
			return nil
		}
		unix.Nap(nap)
	}
}

// awaitEntry lets the program run from its SIGSTOP to its entry point.
func (g *Group) awaitEntry(ctx context.Context, th *Thread, entry abi.Addr) error {
	g.launching = &launching{entry: entry}
	defer func() { g.launching = nil }()
	continued := false
	for {
		g.t.pump()
		switch {
		case g.over != nil || th.state == stateGone:
			return cmp.Or(g.over, refuse(g.PID, ReasonGone, "it ended before its entry point"))
		case ctx.Err() != nil:
			return ctx.Err()
		case th.state == stateListening && !continued:
			th.interrupt() // its stop was seen, and answered, before it was held
			continue
		case th.state != stateStopped:
			unix.Nap(maxNap)
			continue
		}
		if !continued && th.kind == GroupStop {
			var old [1]byte
			if err := g.mem.ReadAt(old[:], entry); err != nil {
				return err
			}
			g.launching.old = old[0]
			if err := g.mem.writeText([]byte{breakpoint}, entry); err != nil {
				return err
			}
			continued = true
			_ = unix.Kill(g.PID, int(syscall.SIGCONT))
		}
		r, err := th.readRegs()
		if err != nil {
			return err
		}
		switch {
		case th.kind == Signal && syscall.Signal(th.sig) == syscall.SIGTRAP && r.RIP == uint64(entry)+1:
			return g.atEntry(th, &r)
		case th.kind == Signal && syscall.Signal(th.sig) == syscall.SIGCONT:
			th.sig = 0 // ours
		}
		th.resume()
	}
}

func (g *Group) atEntry(th *Thread, r *Regs) error {
	if err := g.mem.writeText([]byte{g.launching.old}, g.launching.entry); err != nil {
		return err
	}
	r.RIP--
	th.sig = 0 // the trap was ours
	if err := th.writeRegs(r); err != nil {
		return err
	}
	// No code can be run at the delivery of a signal, so on to the next stop, which
	// comes before the first instruction.
	th.interrupt()
	th.resume()
	return nil
}

// childLeft takes the breakpoint at the entry point out of a child that was
// forked before it was reached; it would not survive it.
func (g *Group) childLeft(pid int) {
	if g.launching == nil {
		return
	}
	if f, err := os.OpenFile(proc.Path(pid, "mem"), os.O_RDWR, 0); err == nil {
		_, _ = f.WriteAt([]byte{g.launching.old}, int64(g.launching.entry))
		_ = f.Close()
	}
}

// dependent reports whether the program was launched and not let go yet: it dies
// with us.
func (g *Group) dependent() bool { return g.options&unix.OptExitKill != 0 }

// dropExitKill makes a launched program independent of us.
func (g *Group) dropExitKill() {
	g.newborn = false
	if !g.dependent() {
		return
	}
	g.options &^= unix.OptExitKill
	for _, th := range g.threads {
		if th.state == stateStopped {
			_ = unix.PtraceSetOptions(th.TID, g.options)
		}
	}
}

// Signal sends a signal to a launched program. It fails with ErrGone when the program has
// ended and was waited for: its number may be another process's by then.
func (g *Group) Signal(sig syscall.Signal) error {
	return g.t.do(func() error {
		status, launched := g.t.exits[g.PID]
		if !launched {
			panic("BUG: Signal for a process that was not launched")
		}
		if status != nil {
			return refuse(g.PID, ReasonGone, "it ended")
		}
		return unix.Kill(g.PID, int(sig))
	})
}

// Wait waits until a launched program has ended and returns its status.
func (g *Group) Wait(ctx context.Context) (ws syscall.WaitStatus, err error) {
	for wait := time.Millisecond; ; wait = min(2*wait, 20*time.Millisecond) {
		done := false
		err := g.t.do(func() error {
			s, launched := g.t.exits[g.PID]
			if !launched {
				panic("BUG: Wait for a process that was not launched")
			}
			if s == nil && g.t.threads[g.PID] == nil {
				pid, ws, err := unix.WaitChild(g.PID)
				if err != nil {
					return fmt.Errorf("process %d: waiting: %w", g.PID, err)
				}
				if pid == g.PID && !ws.Stopped() && !ws.Continued() {
					s = &ws
					g.t.exits[g.PID] = s
				}
			}
			if s != nil {
				ws, done = syscall.WaitStatus(*s), true
			}
			return nil
		})
		if done || err != nil {
			return ws, err
		}
		select {
		case <-ctx.Done():
			return ws, ctx.Err()
		case <-time.After(wait):
		}
	}
}
