package ptrace

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"trapless/internal/proc"
	"trapless/internal/unix"
)

// Tracer is the thread that makes every ptrace call. Its methods may be called
// from any goroutine; they queue up.
type Tracer struct {
	calls chan call
	quit  chan struct{}
	ended chan struct{}

	tid      int   // of the thread
	realtime error // why it has no real-time priority

	seizing atomic.Int64 // when the PTRACE_SEIZE began that is under way, in ns; 0 for none

	// Owned by the tracer's goroutine.
	threads map[int]*Thread          // every thread that we are attached to, by id
	strays  map[int]bool             // attached by the kernel, to be let go at the first stop
	groups  map[*Group]struct{}      // with threads attached
	exits   map[int]*unix.WaitStatus // of children made by Launch, nil while they run
	follow  bool                     // what followed processes make and become is kept
	born    []Newborn                // that nobody has asked for yet

	births chan struct{} // has something when born may have
}

type call struct {
	f    func() error
	done chan<- result
}

type result struct {
	err   error
	panic any
}

// Intervals at which an idle tracer looks for stops. A signal to an attached
// thread waits for us that long, so we do not stay attached without need.
const (
	pumpBusy = 200 * time.Microsecond // threads are attached and run
	pumpSlow = 10 * time.Millisecond  // only dead leaders and the like are left
)

// Start starts the tracer's thread.
func Start() (*Tracer, error) {
	t := &Tracer{
		calls:   make(chan call),
		quit:    make(chan struct{}),
		ended:   make(chan struct{}),
		threads: map[int]*Thread{},
		strays:  map[int]bool{},
		groups:  map[*Group]struct{}{},
		exits:   map[int]*unix.WaitStatus{},
		births:  make(chan struct{}, 1),
	}
	ready := make(chan struct{})
	go t.main(ready)
	<-ready
	return t, nil
}

// Close detaches from everything and ends the thread. Threads that do not stop
// within a moment are let go by the kernel when the thread ends.
func (t *Tracer) Close() {
	select {
	case <-t.ended:
		return
	default:
	}
	_ = t.do(func() error { t.releaseAll(); return nil })
	select {
	case <-t.quit:
	default:
		close(t.quit)
	}
	<-t.ended
}

// Realtime reports whether the thread has a real-time priority, and if not, why.
func (t *Tracer) Realtime() (ok bool, why string) {
	if t.realtime != nil {
		return false, fmt.Sprintf("SCHED_FIFO is not permitted (%v): stops of a busy target take longer; become root or give trapless CAP_SYS_NICE", t.realtime)
	}
	return true, ""
}

// main is the tracer's goroutine. It never unlocks its thread, so the thread
// ends with it and the kernel lets go of whatever is still attached.
func (t *Tracer) main(ready chan<- struct{}) {
	runtime.LockOSThread()
	defer close(t.ended)
	t.tid = unix.Gettid()
	t.realtime = unix.SetRealtime()
	_ = unix.SetTimerSlack(time.Microsecond) // a shorter nap is all that is lost
	close(ready)
	timer := time.NewTimer(time.Hour)
	for {
		if d := t.interval(); d > 0 {
			timer.Reset(d)
		} else {
			timer.Stop()
		}
		select {
		case c := <-t.calls:
			c.done <- t.guarded(c.f)
		case <-timer.C:
			t.pump()
			t.letLateGo()
		case <-t.quit:
			return
		}
	}
}

func (t *Tracer) interval() time.Duration {
	if len(t.strays) > 0 {
		return pumpBusy
	}
	d := time.Duration(0)
	for _, th := range t.threads {
		if th.state != stateZombie {
			return pumpBusy
		}
		d = pumpSlow
	}
	return d
}

// guarded runs a call. A panic is a bug of ours, and the target shall not pay
// for it: every thread is let go before the caller learns of it.
func (t *Tracer) guarded(f func() error) (r result) {
	defer func() {
		if p := recover(); p != nil {
			func() {
				defer func() { _ = recover() }() // letting go is best effort now
				t.releaseAll()
			}()
			r = result{panic: p}
		}
	}()
	return result{err: f()}
}

// fault, when set, is called at every instant at which it could matter that the
// tracer dies. Tests let it die there.
var fault func()

// AtSteps has f called at these instants. It is for tests.
func AtSteps(f func()) { fault = f }

// Step marks such an instant.
func Step() {
	if fault != nil {
		fault()
	}
}

// Do runs f on the tracer's thread, and with its priority: while a target is
// stopped, what is done to it should not wait for a processor. Methods of the
// tracer and of its groups may be called in f.
func (t *Tracer) Do(f func() error) error { return t.do(f) }

// do runs f on the tracer's thread.
func (t *Tracer) do(f func() error) error {
	if unix.Gettid() == t.tid {
		return f()
	}
	done := make(chan result, 1)
	select {
	case t.calls <- call{f, done}:
	case <-t.ended:
		return refuse(0, ReasonClosed, "the tracer was closed")
	}
	r := <-done
	if r.panic != nil {
		panic(r.panic)
	}
	return r.err
}

// stuckSeize is how long a PTRACE_SEIZE takes that waits for an execve.
const stuckSeize = 2 * time.Millisecond

// rescue watches over the attaching to a process until the function that it
// returns is called.
//
// A thread in execve waits until all other threads of its process are gone. One
// that we are attached to is gone only when we have taken note of its death. But
// PTRACE_SEIZE of a thread that is left waits for the end of the execve
// (kernel/ptrace.c, cred_guard_mutex): the process would hang for ever, and so
// would we. Another thread of ours can take note in our stead.
func (t *Tracer) rescue(pid int) (end func()) {
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(stuckSeize)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			since := t.seizing.Load()
			if since == 0 || time.Now().UnixNano()-since < stuckSeize.Nanoseconds() {
				continue
			}
			tids, _ := proc.Threads(pid)
			for _, tid := range tids {
				st, err := proc.ReadStat(pid, tid)
				if err == nil && st.Dead() && tid != pid {
					unix.ReapThread(tid)
				}
			}
		}
	}()
	return func() {
		close(quit)
		<-ended
	}
}

// releaseTime bounds how long Close waits for threads to stop so that their
// interrupted system calls can be mended.
const releaseTime = 200 * time.Millisecond

func (t *Tracer) releaseAll() {
	until := time.Now().Add(releaseTime)
	for g := range t.groups {
		g.startDetach()
	}
	for g := range t.groups {
		g.awaitDetach(until)
	}
}
