package ptrace

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"trapless/internal/abi"
	"trapless/internal/unix"
)

// Injected code completes by itself. It makes its system calls, publishes their
// results, restores every register by mov immediate and jumps to where the
// thread was interrupted. So at every instant the thread would find its way
// without us: before its registers are set nothing has happened; afterwards the
// code runs to its end whether or not a tracer is attached. Only one thread runs
// it, and the kernel continues that thread when the tracer dies.
//
// A living tracer makes it better: it stops the thread before the code returns and
// gives it back the registers that it had, so that the thread goes on in the very
// system call that it was in, and has done nothing of its own meanwhile.
//
// Three things could go wrong:
//
//   - A signal that arrives meanwhile would interrupt injected code, and its
//     handler would see a strange PC. At the stop for its delivery the thread gets
//     back the registers that it had, in the very system call that it was in, and
//     then the signal. How far the code got follows from its PC; the rest is run
//     later. Without a tracer the handler runs and returns into injected code.
//   - A thread in a system call that is to be restarted gets a PC before the
//     syscall instruction instead, since only the kernel can restart a call.
//   - A thread in a call that changes the signal mask for its duration (ppoll,
//     epoll_pwait) first gets its own mask back, so that the signals it waits for
//     stay pending until the call is made again and then interrupt it.

// CallError says that a system call of a blob did not return what was expected.
// The calls after it were not made.
type CallError struct {
	Index  int    // of the call in the blob
	Number uint64 // of the system call
	Result uint64
}

func (e *CallError) Error() string {
	if n := int64(e.Result); n < 0 && n > -4096 {
		return fmt.Sprintf("injected system call %d: %v", e.Number, syscall.Errno(-n))
	}
	return fmt.Sprintf("injected system call %d returned %#x", e.Number, e.Result)
}

// Unwrap is the error number, for errors.Is(err, syscall.ENOMEM) and the like.
func (e *CallError) Unwrap() error {
	if n := int64(e.Result); n < 0 && n > -4096 {
		return syscall.Errno(-n)
	}
	return nil
}

// Run makes one thread of the target perform the calls of a blob and returns
// their results, negative error numbers included, as the kernel returned them. A
// result that does not meet its Expect ends the run with a *CallError.
//
// The group may run or be stopped; in both cases only one thread is interrupted,
// and afterwards the group is what it was before. It needs a foothold. When it
// fails because the context ended or the process was stopped, calls may have
// been made; their results are returned beside the error, and Missing for those
// that were not.
func (g *Group) Run(ctx context.Context, b *Blob) (results []uint64, err error) {
	err = g.t.do(func() error {
		results, err = g.run(ctx, b)
		return g.verdict(err)
	})
	return results, err
}

// Missing is the result of a call that was not made.
const Missing = notRun

func (g *Group) run(ctx context.Context, b *Blob) ([]uint64, error) {
	if g.home == nil {
		panic("BUG: Run without a foothold")
	}
	if len(b.calls) > maxCalls {
		panic("BUG: a blob of too many calls")
	}
	b.stays, b.pause = g.dependent(), lingers
	if g.newborn {
		b.pause = staysBorn
	}
	results := make([]uint64, len(b.calls))
	for i := range results {
		results[i] = notRun
	}
	for first := 0; first < len(b.calls); {
		n, err := g.runSome(ctx, b, first, results)
		for i := first; i < first+n; i++ {
			if c := &b.calls[i]; c.expect && results[i] != c.want {
				return results, &CallError{i, c.nr, results[i]}
			}
		}
		if err != nil {
			return results, err
		}
		first += n
	}
	return results, nil
}

// runSome runs as many calls as fit into a slot, from number first on, until
// they are made or a signal comes. It stores their results and says how many
// there are.
func (g *Group) runSome(ctx context.Context, b *Blob, first int, results []uint64) (int, error) {
	slot, err := g.home.free(g)
	if err != nil {
		return 0, err
	}
	room := g.home.slot(slot)
	p, err := g.pick(ctx, func(th *Thread) error { return th.checkCalls(b.calls[first:], room.Start) })
	if err != nil {
		return 0, err
	}
	defer p.th.unhold()
	run := rand.Uint64() | 1
	then := p.then()
	prog, err := b.compile(room.Start, int(room.Len()), g.home.mailbox, run, first, results, &then)
	if err != nil {
		return 0, err
	}
	if err := g.home.arm(g, slot, prog.code, len(b.calls)); err != nil {
		return 0, err
	}
	if err := p.prepare(); err != nil {
		return 0, err
	}
	entry := p.orig
	entry.RIP = uint64(room.Start)
	mail := func() bool { return g.home.word(g, mailDone) == run }
	inside, err := g.execute(ctx, p, room, room.Start+abi.Addr(prog.tail), &entry, mail)
	if p.th.state == stateRunning {
		return 0, err // it is in there still; the slot stays armed for good
	}
	if err := g.home.disarm(g, slot); err != nil {
		return 0, err
	}
	if inside == nil && err == nil && !mail() {
		return 0, refuse(g.PID, ReasonGone, "%v was killed in injected code", p.th)
	}
	n, last := len(prog.marks), (*uint64)(nil)
	if inside != nil {
		n, last = prog.done(int(inside.RIP-uint64(room.Start)), inside)
	}
	for i := range n {
		results[first+i] = g.home.word(g, mailResults+8*(first+i))
	}
	if last != nil {
		results[first+n] = *last
		n++
	}
	return n, err
}

// execute sets a held thread going in code that leads back to where it was, and
// returns when the thread is stopped again: with nil when it is out of the code,
// else with the registers that it had in it; it then has those of before. From
// tail on the code does nothing but return. done says cheaply whether it is worth
// looking.
func (g *Group) execute(ctx context.Context, p *picked, code abi.Range, tail abi.Addr, entry *Regs, done func() bool) (inside *Regs, err error) {
	th := p.th
	entry.OrigRAX = NoSyscall // else the kernel would mend a result that is none
	if err := th.writeRegs(entry); err != nil {
		return nil, err
	}
	th.watched = true
	defer func() { th.watched = false }()
	th.cont()
	nap, started := minNap, time.Now()
	for {
		g.t.pump()
		switch {
		case g.over != nil:
			return nil, g.over
		case th.state == stateGone:
			return nil, nil // it left the code and then ended
		case th.state == stateStopped:
			r, err := th.readRegs()
			if err != nil {
				return nil, err
			}
			if !code.Contains(abi.Addr(r.RIP)) {
				return nil, nil
			}
			if th.kind == Interrupted && abi.Addr(r.RIP) >= tail {
				return &r, th.writeRegs(&p.orig)
			}
			if th.kind != Interrupted || ctx.Err() != nil {
				return &r, g.putBack(ctx, p)
			}
			th.cont()
		case !th.asked && (done() || time.Since(started) > time.Millisecond || ctx.Err() != nil):
			th.interrupt()
		case ctx.Err() != nil && time.Since(started) > time.Second:
			return nil, fmt.Errorf("process %d: %v does not come out of injected code: %w", g.PID, th, ctx.Err())
		}
		unix.Nap(nap)
		nap = min(nap*5/4, maxNap)
	}
}

// putBack gives a thread that was caught in injected code the registers that it
// had before.
func (g *Group) putBack(ctx context.Context, p *picked) error {
	if err := p.th.writeRegs(&p.orig); err != nil {
		return err
	}
	if p.th.kind == GroupStop {
		return refuse(g.PID, ReasonStopped, "a signal stopped it (signal %d) while injected code ran; continue it first: kill -CONT %d", p.th.sig, g.PID)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("process %d: running injected code: %w", g.PID, ctx.Err())
	}
	return nil
}

// cont continues a held thread as it is: its registers have just been set.
func (th *Thread) cont() {
	th.state = stateRunning
	_ = unix.PtraceCont(th.TID, th.pending())
	Step()
	th.left()
}

// unhold ends what pick began.
func (th *Thread) unhold() {
	th.hold = false
	if th.state == stateStopped {
		th.settle()
	}
}

// word reads a word of the mailbox; 0 when that fails, since then the thread is
// looked at, which tells why.
func (h *home) word(g *Group, off int) uint64 {
	var b [8]byte
	if g.mem.read(b[:], h.mailbox+abi.Addr(off)) != nil {
		return 0
	}
	return binary.LittleEndian.Uint64(b[:])
}
