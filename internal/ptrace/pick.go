package ptrace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"trapless/internal/abi"
	"trapless/internal/proc"
	"trapless/internal/unix"
)

// fitness says how well a stopped thread can run injected code.
type fitness uint8

const (
	unfit   fitness = iota
	idle            // in a call that only the kernel restarts faithfully, see picked.prepare
	asleep          // in a call that is restarted by making it again
	running         // not in a call that is restarted
)

// picked is a stopped thread that is going to run injected code.
type picked struct {
	th   *Thread
	fit  fitness
	orig Regs // what it had, and gets back when a signal comes
}

const (
	patience  = 100 * time.Millisecond // before an idle thread is taken
	idleTime  = 5 * time.Second        // for which a process that was found idle is taken to be so
	pickTime  = 3 * time.Second        // before there is none
	pickStop  = 10 * time.Millisecond  // for one thread to stop, at first; twice as long in each round
	stopMost  = 500 * time.Millisecond // but at most: it may wait for a processor, on a busy machine
	pickFirst = 64                     // threads tried in a round
)

// pick stops a thread that can run injected code and holds it. Of a stopped
// group it takes the fittest thread. Of a running group it tries one thread
// after the other, those first that look as if they ran.
func (g *Group) pick(ctx context.Context, check func(*Thread) error) (*picked, error) {
	if g.over != nil {
		return nil, g.over
	}
	p := &picker{g: g, check: check, stop: pickStop}
	if g.mode == modeHold {
		return p.amongStopped()
	}
	if g.mode != modeRun {
		return nil, refuse(g.PID, ReasonRunning, "it is not attached")
	}
	started := time.Now()
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		takeIdle := time.Since(started) > patience || time.Since(g.idleAt) < idleTime
		c, err := p.round(ctx, takeIdle)
		if c != nil && c.fit == idle {
			g.idleAt = time.Now()
		}
		if c != nil || err != nil {
			return c, err
		}
		if p.refused > 0 && p.refused == p.assessed {
			return nil, p.none() // it would be the same again
		}
		if deadlineBefore(ctx, wait) {
			return nil, refuse(g.PID, ReasonBusy, "there was not enough time left to find a thread that can run injected code; try again")
		}
		if time.Since(started) > pickTime {
			return nil, p.none()
		}
		p.stop = min(2*p.stop, stopMost)
		g.runFor(ctx, wait)
		if g.over != nil {
			return nil, g.over
		}
	}
}

type picker struct {
	g     *Group
	check func(*Thread) error

	stop   time.Duration // how long one thread is waited for
	why    string        // the last thread could not be used
	fatal  error         // a refusal that another thread might not give
	killed bool          // a thread was killed while it was stopped

	assessed, refused int // threads in this round
}

// refuse takes down that a thread is not let run the code, whatever it does.
func (p *picker) refuse(err error) {
	p.fatal = err
	p.refused++
}

func (p *picker) none() error {
	if p.killed {
		_ = p.g.collect(time.Now().Add(time.Second)) // the exits are on their way
	}
	switch {
	case p.g.over != nil:
		return p.g.over
	case p.fatal != nil:
		return p.fatal
	}
	return refuse(p.g.PID, ReasonNoThread, "no thread can run injected code now, the last one tried: %s; try again when it is busier", cmp.Or(p.why, "it does not stop"))
}

func (p *picker) amongStopped() (*picked, error) {
	var best *picked
	for _, th := range p.g.list() {
		if th.state == stateStopped && th.kind == GroupStop {
			return nil, stoppedBySignal(p.g.PID, th.sig)
		}
		p.await(th) // a signal may just have sent it on
		c := p.assess(th)
		if c != nil && (best == nil || c.fit > best.fit) {
			best = c
		}
		if best != nil && best.fit == running {
			break
		}
	}
	if best == nil {
		return nil, p.none()
	}
	best.th.hold = true
	return best, nil
}

func stoppedBySignal(pid, sig int) error {
	return refuse(pid, ReasonStopped, "a signal stopped it (signal %d); continue it first: kill -CONT %d", sig, pid)
}

// round tries each thread once.
func (p *picker) round(ctx context.Context, takeIdle bool) (*picked, error) {
	p.assessed, p.refused = 0, 0
	for _, th := range p.candidates(takeIdle) {
		if ctx.Err() != nil {
			return nil, nil
		}
		th.hold = true
		th.interrupt()
		p.await(th)
		if th.state == stateStopped && th.kind == GroupStop {
			th.unhold()
			return nil, stoppedBySignal(p.g.PID, th.sig)
		}
		c := p.assess(th)
		if c != nil && (c.fit > idle || takeIdle) {
			return c, nil
		}
		th.unhold()
		if p.g.over != nil {
			return nil, p.g.over
		}
	}
	return nil, nil
}

// await waits for a held thread's stop.
func (p *picker) await(th *Thread) {
	until := time.Now().Add(p.stop)
	for nap := minNap; th.state == stateRunning && time.Now().Before(until); nap = min(2*nap, maxNap) {
		p.g.t.pump()
		if th.state == stateRunning {
			unix.Nap(nap)
		}
	}
}

// candidates orders the threads by what they seem to be doing, so that as few
// as possible are disturbed for nothing.
func (p *picker) candidates(takeIdle bool) []*Thread {
	list := p.g.list()
	list = list[:min(len(list), pickFirst)]
	rank := make(map[*Thread]int, len(list))
	list = slices.DeleteFunc(list, func(th *Thread) bool {
		if !p.mayRun(th) {
			return true
		}
		if th.state == stateListening {
			return false // its stop is the answer
		}
		nr, ok := proc.CurrentCall(th.PID, th.TID)
		switch {
		case !ok || nr < 0:
			rank[th] = 0
		case eintrCalls[uint64(nr)] == "" && !maskCalls[uint64(nr)]:
			rank[th] = 1
		default:
			rank[th] = 2
			return !takeIdle && !mayRestart(uint64(nr))
		}
		return false
	})
	slices.SortStableFunc(list, func(a, b *Thread) int { return cmp.Compare(rank[a], rank[b]) })
	return list
}

// maskCalls end with ERESTARTNOHAND when they are interrupted.
var maskCalls = map[uint64]bool{
	34:  true, // pause
	130: true, // rt_sigsuspend
	270: true, // pselect6
	271: true, // ppoll
	23:  true, // select
}

// mayRestart: these return EINTR only with a timeout set on a socket.
func mayRestart(nr uint64) bool {
	switch nr {
	case 0, 1, 19, 20, 40, 42, 43, 44, 45, 46, 47, 275, 288, 299, 307:
		return true
	}
	return false
}

// Bits of Regs that assess looks at.
const (
	userCS64 = 0x33 // __USER_CS (arch/x86/include/asm/segment.h)
	flagTF   = 1 << 8
)

// mayRun leaves out the threads of another process that shares the memory: its
// descriptors and signal actions are its own.
func (p *picker) mayRun(th *Thread) bool {
	return th.PID == p.g.PID && (p.g.only == 0 || p.g.only == th.TID)
}

// assess says whether a stopped thread can run injected code.
func (p *picker) assess(th *Thread) *picked {
	if !p.mayRun(th) {
		return nil
	}
	p.assessed++
	if th.state != stateStopped {
		p.why = fmt.Sprintf("%v does not stop", th)
		return nil
	}
	if th.kind != Interrupted {
		p.why = fmt.Sprintf("%v is %v", th, th.kind)
		return nil
	}
	r, err := th.readRegs()
	if err != nil {
		p.why, p.killed = err.Error(), true
		return nil
	}
	fit, why := p.fitness(th, &r)
	if th.state != stateStopped {
		p.killed = true
	}
	if fit == unfit {
		p.why = fmt.Sprintf("%v %s", th, why)
		return nil
	}
	if err := p.check(th); err != nil {
		p.refuse(err)
		return nil
	}
	return &picked{th, fit, r}
}

func (p *picker) fitness(th *Thread, r *Regs) (fitness, string) {
	pc := abi.Addr(r.RIP)
	switch {
	case r.CS != userCS64:
		return unfit, "runs 32-bit code"
	case r.EFlags&flagTF != 0:
		return unfit, "single-steps itself"
	case p.g.special(pc):
		return unfit, "is in the vDSO or in injected code"
	}
	if in, err := th.inRseq(pc); err != nil {
		if errors.Is(err, ErrKernel) {
			p.refuse(err)
		}
		return unfit, err.Error()
	} else if in {
		return unfit, "is in a restartable sequence"
	}
	switch on, err := unix.PtraceUserDispatch(th.TID); {
	case on:
		p.refuse(refuse(p.g.PID, ReasonDispatch, "%v catches its system calls itself (syscall user dispatch)", th))
		return unfit, "uses syscall user dispatch"
	case err != nil && !errors.Is(err, syscall.EIO) && !errors.Is(err, syscall.EINVAL):
		return unfit, err.Error() // EIO, EINVAL: a kernel that cannot say, before 6.4
	}
	if !inCall(r) {
		return running, ""
	}
	fit := running
	switch int64(r.RAX) {
	case errRESTARTSYS, errRESTARTNOINTR, errRESTARTBLOCK:
		fit = asleep
	case errRESTARTNOHAND:
		fit = idle
	case errINTR:
		if !leaksEINTR(r) {
			return running, "" // its own EINTR: it is over
		}
		fit = idle
	}
	if fit != running && !p.g.atSyscall(pc) {
		return unfit, "is in a system call that was not made by a syscall instruction"
	}
	return fit, ""
}

func (g *Group) atSyscall(pc abi.Addr) bool {
	var b [syscallInsnLen]byte
	return g.mem.read(b[:], pc-syscallInsnLen) == nil && b == [...]byte{0x0f, 0x05}
}

// special reports whether a PC is in the vDSO, whose code the kernel may treat
// specially, or in our own injected code.
func (g *Group) special(pc abi.Addr) bool {
	if g.home != nil && g.home.Contains(pc) {
		return true
	}
	if g.vdso.End == 0 {
		g.vdso = abi.Range{Start: 1, End: 1}
		if maps, err := proc.ReadMaps(g.PID); err == nil {
			for i := range maps {
				if maps[i].Path == "[vdso]" {
					g.vdso = maps[i].Range
				}
			}
		}
	}
	return g.vdso.Contains(pc) || pc >= vsyscallPage
}

const vsyscallPage = 0xffffffffff600000

// then are the registers with which injected code has to end.
func (p *picked) then() Regs {
	r := p.orig
	if p.fit == running {
		return r
	}
	r.RIP -= syscallInsnLen
	if int64(r.RAX) == errRESTARTBLOCK {
		r.RAX = sysRestartSyscall
	} else {
		r.RAX = r.OrigRAX
	}
	return r
}

// prepare makes a thread in a call that only the kernel restarts faithfully fit
// for having the call made again.
//
// While it sleeps in such a call, a thread can have another signal mask than its
// own; the kernel puts its own back on the way out, but delivers signals first.
// A signal that the call waits for could thus be delivered in injected code, and
// the call, made again, would wait for it in vain. With its own mask the signal
// stays pending until the call is made again, and interrupts it as it should.
//
// The order matters, as we may die in between: first the result that makes the
// kernel restart the call, then the mask, then (in execute) the registers.
func (p *picked) prepare() error {
	if p.fit != idle {
		return nil
	}
	th := p.th
	mask, err := unix.PtraceSigMask(th.TID)
	if err != nil {
		return th.lost(err)
	}
	if err := unix.PtraceSetRAX(th.TID, noHandlerResult); err != nil {
		return th.lost(err)
	}
	Step()
	p.orig.RAX = noHandlerResult
	th.regs = nil
	err = unix.PtraceSetSigMask(th.TID, mask)
	Step()
	return th.lost(err)
}
