package ptrace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"trapless/internal/abi"
	"trapless/internal/proc"
	"trapless/internal/unix"
)

// Regs are the general registers of a thread.
type Regs = unix.Regs

// NoSyscall is Regs.OrigRAX of a thread that is not in a system call.
const NoSyscall = unix.NoSyscall

// StopKind says what a stopped thread is stopped by.
type StopKind uint8

const (
	NotStopped  StopKind = iota
	Interrupted          // by us, or it was just born
	Signal               // a signal is about to be delivered
	GroupStop            // the process is stopped by a signal (SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU)
)

func (k StopKind) String() string {
	return [...]string{"running", "stopped by the tracer", "at the delivery of a signal", "stopped by a signal"}[k]
}

type threadState uint8

const (
	stateRunning   threadState = iota
	stateStopped               // it waits for us; requests are possible
	stateListening             // in a group-stop, after PTRACE_LISTEN; requests are not possible
	stateZombie                // a leader that ended before its process
	stateGone                  // dead or let go
)

// Thread is a thread of a group. The methods are to be used while the group is
// stopped; else they return ErrRunning.
type Thread struct {
	TID int
	PID int // of its process, which differs within a group whose processes share memory

	g         *Group
	state     threadState
	kind      StopKind
	sig       int   // the signal to be delivered (Signal) or that stopped it (GroupStop)
	hold      bool  // keep it stopped although its group runs
	vfork     bool  // a thread of the group waits for it in vfork(2), and cannot stop before it is gone
	watched   bool  // whoever holds it looks at its signals first
	asked     bool  // PTRACE_INTERRUPT was sent and no stop seen since
	afterStop bool  // it comes out of a group-stop: the kernel's own EINTR rules apply
	regs      *Regs // as read during this stop
}

func (th *Thread) String() string { return fmt.Sprintf("thread %d", th.TID) }

// Kind says what the thread is stopped by.
func (th *Thread) Kind() StopKind {
	kind := NotStopped
	_ = th.g.t.do(func() error {
		if th.state == stateStopped {
			kind = th.kind
		}
		return nil
	})
	return kind
}

// Signal is the signal that is about to be delivered to the thread, 0 if none is.
func (th *Thread) Signal() int {
	sig := 0
	_ = th.g.t.do(func() error {
		if th.state == stateStopped && th.kind == Signal {
			sig = th.sig
		}
		return nil
	})
	return sig
}

// Regs reads the registers. In a system call, RIP is behind the syscall
// instruction and OrigRAX is not NoSyscall.
func (th *Thread) Regs() (r Regs, err error) {
	err = th.g.t.do(func() error {
		r, err = th.readRegs()
		return err
	})
	return r, err
}

// SigMask reads the set of blocked signals; see unix.PtraceSigMask.
func (th *Thread) SigMask() (set proc.SigSet, err error) {
	err = th.g.t.do(func() error {
		if th.state != stateStopped {
			return th.notStopped()
		}
		m, err := unix.PtraceSigMask(th.TID)
		set = proc.SigSet(m)
		return th.lost(err)
	})
	return set, err
}

// SetRegs writes the registers. When RIP changes, it refuses like SetPC.
func (th *Thread) SetRegs(r Regs) error {
	return th.g.t.do(func() error {
		old, err := th.readRegs()
		if err != nil {
			return err
		}
		if r.RIP != old.RIP {
			if err := th.checkMove(&old); err != nil {
				return err
			}
		}
		return th.writeRegs(&r)
	})
}

// SetPC moves a thread that runs in user space. It refuses with ErrInCall when
// the thread is in a system call that will be restarted (the kernel would
// subtract from the new PC), and with ErrRseq when it is in a restartable
// sequence (leaving it without its abort handler would break its promise).
func (th *Thread) SetPC(to abi.Addr) error {
	return th.g.t.do(func() error {
		r, err := th.readRegs()
		if err != nil {
			return err
		}
		if err := th.checkMove(&r); err != nil {
			return err
		}
		r.RIP = uint64(to)
		return th.writeRegs(&r)
	})
}

func (th *Thread) checkMove(r *Regs) error {
	if restarts(r) || leaksEINTR(r) {
		return refuse(th.PID, ReasonInCall, "%v is in system call %d, which is about to be restarted", th, r.OrigRAX)
	}
	in, err := th.inRseq(abi.Addr(r.RIP))
	if err != nil {
		return err
	}
	if in {
		return refuse(th.PID, ReasonRseq, "%v is in a restartable sequence at %#x", th, r.RIP)
	}
	return nil
}

func (th *Thread) notStopped() error {
	switch th.state {
	case stateZombie, stateGone:
		return refuse(th.PID, ReasonGone, "%v has ended", th)
	}
	return refuse(th.PID, ReasonRunning, "%v is running", th)
}

// lost translates the error of a request to a thread that we saw stop: it can
// only have been killed meanwhile.
func (th *Thread) lost(err error) error {
	if errors.Is(err, syscall.ESRCH) {
		th.state = stateRunning // until its exit is reported
		return refuse(th.PID, ReasonGone, "%v was killed", th)
	}
	if err != nil {
		return fmt.Errorf("process %d: %v: %w", th.PID, th, err)
	}
	return nil
}

func (th *Thread) readRegs() (Regs, error) {
	if th.state != stateStopped {
		return Regs{}, th.notStopped()
	}
	if th.regs == nil {
		r, err := unix.PtraceRegs(th.TID)
		if err != nil {
			return Regs{}, th.lost(err)
		}
		th.regs = &r
	}
	return *th.regs, nil
}

func (th *Thread) writeRegs(r *Regs) error {
	if th.state != stateStopped {
		return th.notStopped()
	}
	if err := unix.PtraceSetRegs(th.TID, r); err != nil {
		return th.lost(err)
	}
	Step()
	c := *r
	th.regs = &c
	return nil
}

// Layout of struct rseq and struct rseq_cs (include/uapi/linux/rseq.h).
const (
	rseqCS       = 8 // in struct rseq: u64 address of the struct rseq_cs
	rseqCSStart  = 8 // in struct rseq_cs: u64 start_ip
	rseqCSLength = 16
	rseqCSSize   = 32
)

// inRseq reports whether an address lies in the restartable sequence that the
// thread has announced. The kernel forgets an announced sequence lazily, so the
// pointer alone says nothing.
func (th *Thread) inRseq(pc abi.Addr) (bool, error) {
	conf, err := unix.PtraceRseq(th.TID)
	if err != nil {
		if errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EINVAL) {
			return false, refuse(th.PID, ReasonKernel, "restartable sequences cannot be seen before Linux 5.13")
		}
		return false, th.lost(err)
	}
	if conf.Area == 0 {
		return false, nil
	}
	var word [8]byte
	if err := th.g.mem.read(word[:], abi.Addr(conf.Area)+rseqCS); err != nil {
		return false, fmt.Errorf("process %d: the rseq area of %v: %w", th.PID, th, err)
	}
	cs := abi.Addr(binary.LittleEndian.Uint64(word[:]))
	if cs == 0 {
		return false, nil
	}
	var desc [rseqCSSize]byte
	if err := th.g.mem.read(desc[:], cs); err != nil {
		return false, fmt.Errorf("process %d: the rseq section of %v: %w", th.PID, th, err)
	}
	start := abi.Addr(binary.LittleEndian.Uint64(desc[rseqCSStart:]))
	length := binary.LittleEndian.Uint64(desc[rseqCSLength:])
	return uint64(pc-start) < length, nil
}

// interrupt asks a running thread to stop, or one that is stopped to stop again
// as soon as it goes on. Any stop fulfils the request (kernel/signal.c,
// ptrace_stop).
func (th *Thread) interrupt() {
	switch th.state {
	case stateZombie, stateGone:
		return
	case stateListening:
		th.state = stateRunning
	}
	// ESRCH: it is dying, and its exit will be reported.
	_ = unix.PtraceInterrupt(th.TID)
	th.asked = true
	Step()
}

// resume lets a stopped thread go on, attached.
func (th *Thread) resume() {
	if th.state != stateStopped {
		return
	}
	if th.kind != GroupStop {
		th.mend()
	}
	th.state = stateRunning
	switch th.kind {
	case GroupStop:
		th.afterStop = true
		if unix.PtraceListen(th.TID) == nil {
			th.state = stateListening
		}
	default:
		_ = unix.PtraceCont(th.TID, th.pending()) // ESRCH: it was killed
	}
	Step()
	th.left()
}

// detach lets a stopped thread go for good. In a group-stop it stays stopped.
func (th *Thread) detach() {
	if th.state != stateStopped {
		return
	}
	if th.kind != GroupStop {
		th.mend()
	}
	err := unix.PtraceDetach(th.TID, th.pending())
	Step()
	th.left()
	if err != nil {
		// It was killed: its exit will be reported.
		th.state = stateRunning
		return
	}
	th.drop()
}

// pending is the signal that a continued thread gets.
func (th *Thread) pending() int {
	if th.kind == Signal {
		return th.sig
	}
	return 0
}

func (th *Thread) left() {
	if th.kind == Interrupted {
		th.afterStop = false
	}
	th.kind, th.sig, th.regs = NotStopped, 0, nil
}

// drop forgets a thread that is dead or let go.
func (th *Thread) drop() {
	th.state = stateGone
	delete(th.g.t.threads, th.TID)
	delete(th.g.threads, th.TID)
	if len(th.g.threads) == 0 {
		delete(th.g.t.groups, th.g)
	}
}
