package ptrace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"trapless/internal/abi"
	"trapless/internal/proc"
	"trapless/internal/unix"
)

// groupMode says what happens to a thread of the group that stops.
type groupMode uint8

const (
	modeDetached groupMode = iota
	modeRun                // continue it
	modeHold               // keep it stopped
	modeDetach             // let it go
)

// Group is all threads that run in one address space: those of a process and of
// the processes that share its memory.
type Group struct {
	PID int

	t   *Tracer
	mem *Mem

	// Owned by the tracer's goroutine.
	threads   map[int]*Thread
	procs     map[int]bool // whose threads belong to the group
	mode      groupMode
	options   int
	over      error // why the group can do nothing any more
	vforking  bool  // a process that shares the memory was left alone as a vfork child
	home      *home
	launching *launching
	newborn   bool // it has not run since it was born
	vdso      abi.Range

	heldSince time.Time
	pauses    []time.Duration
	maxPause  time.Duration
	idleAt    time.Time // when an idle thread was last taken
	only      int       // the one thread that may run injected code, 0 for any
}

const seizeOptions = unix.OptTraceClone | unix.OptTraceFork | unix.OptTraceExec

// defaultMaxPause bounds how long Stop keeps threads stopped while it waits for
// the others.
const defaultMaxPause = 250 * time.Millisecond

// Seize attaches to every thread of a process, and of those that share its
// memory, without stopping any. It returns a *proc.Error for a process that
// cannot be traced.
func (t *Tracer) Seize(ctx context.Context, pid int) (*Group, error) {
	g := t.newGroup(pid)
	return g, g.Seize(ctx)
}

func (t *Tracer) newGroup(pid int) *Group {
	return &Group{PID: pid, t: t, options: t.options(), maxPause: defaultMaxPause,
		threads: map[int]*Thread{}, procs: map[int]bool{}}
}

// Seize attaches a group again after Detach. It fails with ErrGone or ErrExec
// when the address space that the group stood for has ended.
func (g *Group) Seize(ctx context.Context) error {
	for range seizeTries - 1 {
		err := g.trySeize(ctx)
		if !errors.Is(err, proc.ErrNoProcess) {
			return err
		}
		if _, err := proc.LiveThread(g.PID); err != nil {
			return err
		}
	}
	return g.trySeize(ctx)
}

// seizeTries is how often it is tried, when the thread whose files were read has
// ended meanwhile, but not the process.
const seizeTries = 3

func (g *Group) trySeize(ctx context.Context) error {
	if err := proc.CheckBut(g.PID, g.t.tid); err != nil {
		return err
	}
	return g.t.do(func() error {
		if g.mode == modeRun || g.mode == modeHold {
			panic("BUG: Seize of a group that is attached")
		}
		err := g.seize(ctx)
		if err != nil {
			g.abandon()
		}
		return err
	})
}

// abandon lets go of what a failed Seize had attached.
func (g *Group) abandon() {
	g.startDetach()
	g.awaitDetach(time.Now().Add(releaseTime))
}

func (g *Group) seize(ctx context.Context) error {
	g.mode, g.over = modeRun, nil
	clear(g.procs)
	g.procs[g.PID] = true
	if err := g.seizeEverything(ctx); err != nil {
		return err
	}
	if len(g.threads) == 0 {
		return refuse(g.PID, ReasonGone, "it ended")
	}
	if g.mem == nil {
		m, err := openMem(g)
		if err != nil {
			return err
		}
		g.mem = m
		g.awaitImage(ctx)
	}
	same, err := g.Same()
	if err == nil && !same {
		return refuse(g.PID, ReasonExec, "it is not the program any more that it was")
	}
	return err
}

// awaitImage waits for the end of an execve that we attached in the middle of:
// the new program is not mapped yet.
func (g *Group) awaitImage(ctx context.Context) {
	until := time.Now().Add(time.Second)
	for time.Now().Before(until) && ctx.Err() == nil && g.over == nil {
		maps, err := proc.ReadMaps(g.PID)
		if err != nil || slices.ContainsFunc(maps, func(m proc.Mapping) bool { return m.File() && m.Perm&proc.Exec != 0 }) {
			return
		}
		g.t.pump()
		unix.Nap(maxNap)
	}
}

// seizeRounds bounds how often listings are repeated. A process would have to
// make threads and children faster than they can be listed, and each of them not
// by a thread that we have seized.
const seizeRounds = 1000

func (g *Group) seizeEverything(ctx context.Context) error {
	defer g.t.rescue(g.PID)()
	for range seizeRounds {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("process %d: attaching to its threads: %w", g.PID, err)
		}
		n, err := g.seizeThreads()
		if err != nil {
			return err
		}
		m, err := g.seizeSharers()
		if err != nil {
			return err
		}
		if n+m == 0 && !g.dropReplaced() {
			return nil
		}
		g.t.pump()
	}
	return refuse(g.PID, ReasonBusy, "it makes threads faster than they can be attached to")
}

// dropReplaced forgets leaders that are not attached to any more, without a word: a
// thread that was not attached to yet has called execve and got the leader's id. It
// reports whether there was one.
func (g *Group) dropReplaced() (found bool) {
	for pid := range g.procs {
		th := g.threads[pid]
		if th == nil || th.state != stateRunning {
			continue
		}
		if st, err := proc.ReadStatus(pid, pid); err == nil && st.TracerPid != g.t.tid {
			th.drop()
			found = true
		}
	}
	return found
}

// seizeThreads lists the threads of the group's processes once and attaches to
// those that are new. Threads made by a seized thread are attached by the kernel.
func (g *Group) seizeThreads() (added int, err error) {
	for pid := range g.procs {
		tids, err := proc.Threads(pid)
		if err != nil {
			if pid == g.PID {
				return added, err
			}
			continue // a process that shared the memory has ended
		}
		for _, tid := range tids {
			ok, err := g.seizeThread(pid, tid)
			if err != nil {
				return added, err
			}
			if ok {
				added++
			}
		}
	}
	return added, nil
}

func (g *Group) seizeThread(pid, tid int) (added bool, err error) {
	if g.t.threads[tid] != nil {
		return false, nil
	}
	if st, err := proc.ReadStat(pid, tid); err != nil || st.Dead() || st.Worker() {
		// A worker of the kernel never runs code of the process, and a stop would
		// make the request that it works on fail with EINTR.
		return false, nil
	}
	for try := 0; ; try++ {
		g.t.seizing.Store(time.Now().UnixNano())
		err = unix.PtraceSeize(tid, g.options)
		g.t.seizing.Store(0)
		if err == nil && pid != g.PID && !g.sharesMemory(tid) {
			// It shared the memory when it was listed, and has called execve since.
			delete(g.procs, pid)
			g.t.strays[tid] = true
			_ = unix.PtraceInterrupt(tid) // ESRCH: it has ended meanwhile
			return false, nil
		}
		if err == nil {
			g.adopt(pid, tid)
			return true, nil
		}
		if errors.Is(err, syscall.ESRCH) {
			return false, nil
		}
		st, serr := proc.ReadStat(pid, tid)
		if serr != nil || st.Dead() {
			return false, nil
		}
		status, serr := proc.ReadStatus(pid, tid)
		switch {
		case serr != nil:
			return false, nil
		case status.TracerPid == g.t.tid:
			g.adopt(pid, tid) // by the kernel, for the thread that made it
			return true, nil
		case status.TracerPid != 0:
			return false, proc.TracedBy(pid, status.TracerPid)
		case try == 3:
			return false, fmt.Errorf("process %d: attaching to thread %d: %w", pid, tid, err)
		}
		// It was exiting, or its tracer left, between the two looks.
	}
}

// sharesMemory reports whether a thread runs in the group's address space.
func (g *Group) sharesMemory(tid int) bool {
	own, err := proc.LiveThread(g.PID)
	if err != nil {
		return false
	}
	same, err := unix.SameMemory(own, tid)
	return err == nil && same
}

func (g *Group) adopt(pid, tid int) *Thread {
	th := &Thread{TID: tid, PID: pid, g: g}
	g.threads[tid] = th
	g.t.threads[tid] = th
	g.t.groups[g] = struct{}{}
	delete(g.t.strays, tid)
	return th
}

// seizeSharers finds processes that share the memory. A vfork child is left
// alone: the thread that waits for it does not stop before it is gone, and an
// execve of a set-user-ID program would fail to raise its rights under us.
func (g *Group) seizeSharers() (added int, err error) {
	sharers, err := proc.Sharers(g.PID)
	if err != nil {
		return 0, err
	}
	g.vforking = false
	for _, pid := range sharers {
		if g.procs[pid] {
			continue
		}
		st, err := proc.ReadStat(pid, pid)
		if err != nil {
			continue
		}
		if g.procs[st.PPid] && proc.AwaitsVfork(st.PPid) {
			g.vforking = true
			continue
		}
		g.procs[pid] = true
		added++
	}
	return added, nil
}

// Threads lists the threads that are attached, in ascending order of their ids.
func (g *Group) Threads() []*Thread {
	var out []*Thread
	_ = g.t.do(func() error { out = g.list(); return nil })
	return out
}

func (g *Group) list() []*Thread {
	out := make([]*Thread, 0, len(g.threads))
	for _, th := range g.threads {
		if th.state != stateZombie {
			out = append(out, th)
		}
	}
	slices.SortFunc(out, func(a, b *Thread) int { return cmp.Compare(a.TID, b.TID) })
	return out
}

// Stopped is a thread that is stopped, with its registers.
type Stopped struct {
	*Thread
	Regs Regs
}

// Stopped reads the registers of all threads that are stopped, in ascending order
// of their ids: one request instead of one for each thread. Threads that were
// killed, or that a signal has stopped, are left out.
func (g *Group) Stopped() ([]Stopped, error) {
	var out []Stopped
	err := g.t.do(func() error {
		for _, th := range g.list() {
			r, err := th.readRegs()
			switch {
			case err == nil:
				out = append(out, Stopped{th, r})
			case !errors.Is(err, ErrGone) && !errors.Is(err, ErrRunning):
				return err
			}
		}
		return nil
	})
	return out, err
}

// Mem is the group's memory. It stays valid after Detach.
func (g *Group) Mem() *Mem { return g.mem }

// Tracer is the tracer that the group belongs to.
func (g *Group) Tracer() *Tracer { return g.t }

// SetMaxPause bounds how long Stop keeps threads stopped while it waits for the
// others; 250 ms unless set.
func (g *Group) SetMaxPause(d time.Duration) {
	_ = g.t.do(func() error { g.maxPause = d; return nil })
}

// Pauses are the times for which all of the group was stopped, each from the
// request to stop to the last thread's continuation, oldest first. Stops that
// were given up are among them: the target felt them too.
func (g *Group) Pauses() []time.Duration {
	var out []time.Duration
	_ = g.t.do(func() error { out = slices.Clone(g.pauses); return nil })
	return out
}

// Close closes the memory's descriptor. The group has to be detached.
func (g *Group) Close() error {
	return g.t.do(func() error {
		if g.mem == nil {
			return nil
		}
		m := g.mem
		g.mem = nil
		return m.f.Close()
	})
}

// Ended reports whether there is no process of the group any more, or it runs another
// program.
func (g *Group) Ended() bool {
	ended := false
	_ = g.t.do(func() error {
		g.t.pump()
		ended = g.over != nil || len(g.threads) == 0
		return nil
	})
	return ended
}

// Attached reports whether the group is attached.
func (g *Group) Attached() bool {
	attached := false
	_ = g.t.do(func() error { attached = g.mode == modeRun || g.mode == modeHold; return nil })
	return attached
}

// Held reports whether the group is stopped: by Stop, or because Launch left it so.
func (g *Group) Held() bool {
	held := false
	_ = g.t.do(func() error { held = g.mode == modeHold; return nil })
	return held
}

// Resume lets all threads go on. They stay attached, and every signal to them
// takes the way through the tracer, so Detach soon.
func (g *Group) Resume() error {
	return g.t.do(func() error {
		g.dropExitKill()
		g.resume()
		return g.over
	})
}

func (g *Group) resume() {
	if g.mode == modeHold {
		g.mode = modeRun
	}
	for _, th := range g.threads {
		if !th.hold {
			th.resume()
		}
	}
	g.notePause()
}

func (g *Group) notePause() {
	if !g.heldSince.IsZero() {
		g.pauses = append(g.pauses, time.Since(g.heldSince))
		g.heldSince = time.Time{}
	}
}

// Detach lets all threads go. A thread that does not stop for it before the
// context ends is let go as soon as it does, and ErrBusy names it; the others
// are free by then.
func (g *Group) Detach(ctx context.Context) error {
	return g.t.do(func() error {
		if g.mode == modeDetached {
			return nil
		}
		g.startDetach()
		until, ok := ctx.Deadline()
		if !ok {
			until = time.Now().Add(10 * time.Second)
		}
		return g.awaitDetach(until)
	})
}

func (g *Group) startDetach() {
	g.mode, g.newborn = modeDetach, false
	for _, th := range g.threads {
		th.hold = false
		if th.state == stateStopped {
			th.detach()
		} else {
			th.interrupt()
		}
	}
	g.notePause()
}

func (g *Group) awaitDetach(until time.Time) error {
	if err := g.collect(until); err != nil {
		return refuse(g.PID, ReasonBusy, "%v; it is let go as soon as it does", err)
	}
	g.mode = modeDetached // dead leaders may be left; they are seen off when the process ends
	return nil
}

// openMem opens the memory for the whole session.
func openMem(g *Group) (*Mem, error) {
	f, err := openMemory(g.PID, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	return &Mem{g: g, f: f}, nil
}

// openMemory opens the memory of a process through a thread that lives.
func openMemory(pid, flag int) (*os.File, error) {
	tid, err := proc.LiveThread(pid)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(proc.TaskPath(pid, tid, "mem"), flag, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil, refuse(pid, ReasonGone, "it ended")
	}
	if err != nil {
		return nil, fmt.Errorf("process %d: opening its memory: %w", pid, err)
	}
	return f, nil
}
