package ptrace

import (
	"context"
	"fmt"
	"time"

	"trapless/internal/abi"
	"trapless/internal/proc"
	"trapless/internal/unix"
)

// Adopt attaches to a process that somebody else has started and that waits in the middle of execve, lets it go
// by calling let, and stops it at the new program's entry point, as Launch does. Until Resume or Detach the
// program dies with us: it could not go on past the breakpoint at its entry.
func (t *Tracer) Adopt(ctx context.Context, pid int, let func() error) (*Group, error) {
	var g *Group
	err := t.do(func() (err error) {
		g, err = t.adopt(ctx, pid, let)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("process %d, which was just started: %w", pid, err)
	}
	return g, nil
}

func (t *Tracer) adopt(ctx context.Context, pid int, let func() error) (*Group, error) {
	g := t.newGroup(pid)
	g.options = seizeOptions | unix.OptExitKill
	g.mode, g.procs[pid] = modeRun, true
	if err := unix.PtraceSeize(pid, g.options); err != nil {
		return nil, err
	}
	th := g.adopt(pid, pid)
	th.hold, th.watched = true, true
	err := let()
	if err == nil {
		err = g.awaitExec(ctx, th)
	}
	if err == nil {
		g.mem, err = openMem(g)
	}
	if err == nil {
		err = g.enter(ctx, th)
	}
	th.hold, th.watched = false, false
	if err != nil {
		g.abandon()
		return nil, err
	}
	return g, nil
}

// awaitExec waits for the stop at the end of execve. A stop of any other kind is the delivery of a signal, before.
func (g *Group) awaitExec(ctx context.Context, th *Thread) error {
	for {
		if err := g.awaitStop(ctx, th); err != nil {
			return err
		}
		if th.kind == Interrupted {
			return nil
		}
		th.resume()
	}
}

// enter lets the new program run to its entry point, and on until it has a thread pointer.
func (g *Group) enter(ctx context.Context, th *Thread) error {
	aux, err := proc.Auxv(g.PID)
	if err != nil {
		return err
	}
	entry := abi.Addr(aux[atEntry])
	var old [1]byte
	if err := g.mem.ReadAt(old[:], entry); err != nil {
		return err
	}
	if err := g.runTo(ctx, entry); err != nil {
		_ = g.mem.writeText(old[:], entry) // it may have ended
		return err
	}
	th.hold, th.watched = true, true
	if err := g.awaitThreadPointer(ctx, th); err != nil {
		return err
	}
	return g.stop(ctx, false)
}

// AdoptTime is how long a process that is adopted may take to its entry point.
const AdoptTime = 5 * time.Second
