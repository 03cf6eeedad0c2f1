package inject

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"trapless/internal/abi"
	jit "trapless/internal/jit/x86"
	"trapless/internal/plan"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
)

// handlerState is what is known of the signal handlers.
type handlerState struct {
	copies [dataBlocks]handlerCopy // zero until they are placed
	block  int                     // number of the copy that is used, and of its block in the data page
}

// handlerCopy is where a copy of the handlers lies.
type handlerCopy struct{ data, handler, restorer abi.Addr }

// current is the copy that is used.
func (h *handlerState) current() *handlerCopy { return &h.copies[h.block] }

// placeHandlers writes all copies of the handlers into a region, before detours
// fill it. Nothing leads there yet.
func (b *builder) placeHandlers(ctx context.Context) error {
	for i := range b.handlers.copies {
		c := &b.handlers.copies[i]
		if c.handler != 0 {
			continue
		}
		if _, _, err := b.put(ctx, keyHandlers, func(r *Region, at abi.Addr) (code []byte, err error) {
			c.data = r.data() + abi.Addr(i*dataBlock)
			code, c.handler, c.restorer, err = handlerCode(at, c.data)
			return code, err
		}); err != nil {
			return err
		}
	}
	return nil
}

// prepareHandlers writes the handlers, and enters detours in the pair tables.
func (t *Target) prepareHandlers(ctx context.Context, ds []*Detour) error {
	space, err := t.freeSpace()
	if err != nil {
		return err
	}
	b := &builder{Target: t, space: space}
	if err := b.placeHandlers(ctx); err != nil {
		return err
	}
	if err := t.openTables(ctx); err != nil {
		return err
	}
	var pairs [tableKinds][]pair
	for _, d := range ds {
		pairs[boundaryTable] = append(pairs[boundaryTable], d.boundaries()...)
		pairs[faultTable] = append(pairs[faultTable], d.faults(false)...)
		pairs[pushedTable] = append(pairs[pushedTable], d.faults(true)...)
	}
	for kind := range tableKinds {
		if err := t.tables.enter(ctx, kind, pairs[kind]); err != nil {
			return err
		}
	}
	return nil
}

// boundaries says where a thread goes on that traps at a site, at an instruction
// inside the window, or at its start while it is being patched.
func (d *Detour) boundaries() (out []pair) {
	if !d.traps() {
		return nil
	}
	for _, p := range d.pairs {
		if p.Entry != 0 && (!d.Window.Boosted || d.isSite(p.Orig) || p.Orig == d.Window.Start) {
			out = append(out, pair{p.Orig, p.Entry}) // a hit where a site is, as if the jump were there
		}
	}
	return out
}

// traps reports whether a thread may trap at the patch: at an instruction inside,
// or at its start while it is written.
func (d *Detour) traps() bool {
	return len(d.Window.Insts) > 1 || d.Window.Boosted || !onePage(d.patch.Addr, len(d.patch.New))
}

// mayFault reports whether a moved instruction may fault.
func (d *Detour) mayFault() bool {
	return slices.ContainsFunc(d.Window.Insts, func(in plan.Inst) bool { return in.Effects().CanFault() })
}

// faults says which instruction a moved one is that may fault: a call that has
// pushed its return address, or any other.
func (d *Detour) faults(pushed bool) (out []pair) {
	for _, in := range d.Window.Insts {
		if !in.Effects().CanFault() {
			continue
		}
		for _, p := range d.pairs {
			if p.Orig == d.Window.Start+abi.Addr(in.Off) && p.Pushed == pushed {
				out = append(out, pair{p.Moved, p.Orig})
			}
		}
	}
	return out
}

// Arm puts detours in place, opens the gates and lets the threads go by then, which
// is called with all of them stopped. See Apply.
func (t *Target) Arm(ctx context.Context, ds []*Detour, then func() error) ([]*plan.Refusal, error) {
	changes := make([]Change, len(ds))
	for i := range ds {
		changes[i].In = ds[i : i+1 : i+1]
	}
	return t.Apply(ctx, changes, func() error {
		if err := t.OpenGates(); err != nil {
			return err
		}
		return then()
	})
}

// pointTables tells the handlers where their tables are, and the counter of traps.
func (t *Target) pointTables() error {
	data := t.handlers.current().data
	if err := t.mem.WriteAt(words([]uint64{uint64(t.arenaBase + abi.HdrTraps)}), data+dataTraps); err != nil {
		return err
	}
	return t.mem.WriteAt(words([]uint64{uint64(t.tables.dir)}), data+dataTables)
}

// checkThreadPointers makes sure that the thread pointer tells threads apart, as
// generated code reads it, and which threads share one.
func (t *Target) checkThreadPointers(threads []ptrace.Stopped) error {
	if err := t.checkThreadIDs(threads); err != nil {
		return err
	}
	seen := map[uint64]bool{}
	for _, th := range threads {
		tp := th.Regs.FSBase
		if err := t.checkThreadPointer(th.TID, tp); err != nil {
			return err
		}
		if seen[tp] && !t.arena.ShareTP(tp) {
			return fmt.Errorf("process %d: thread-pointer: more than %d thread pointers are shared by several threads", t.PID, abi.SharedTPs)
		}
		seen[tp] = true
	}
	return nil
}

// checkThreadPointer looks at one thread: where code reads fs:0, that has to be
// the thread pointer itself (the x86-64 TLS ABI).
func (t *Target) checkThreadPointer(tid int, tp uint64) error {
	if tp == 0 {
		return fmt.Errorf("process %d: thread-pointer: thread %d has none", t.PID, tid)
	}
	if t.Thread == jit.FSBase {
		return nil
	}
	var word [8]byte
	err := t.mem.ReadAt(word[:], abi.Addr(tp))
	if errors.Is(err, ptrace.ErrGone) {
		return err
	}
	if err != nil || binary.LittleEndian.Uint64(word[:]) != tp {
		return fmt.Errorf("process %d: thread-pointer: %%fs:0 of thread %d is not the thread pointer %#x, as the ABI has it; it is not a program with a usual C library",
			t.PID, tid, tp)
	}
	return nil
}

// Abandon is for a target that could not be disarmed: it closes the gates, as far
// as they can be reached, and says in the journal that nobody is at work there
// any more, so that a later tracer may take over. The group need not be attached.
func (t *Target) Abandon() error {
	if !t.mem.Alive() {
		return nil
	}
	return errors.Join(t.CloseGates(), t.journal.setTracer(0, 0))
}

// disarmTries bounds how often Disarm waits for threads to leave the detours:
// for a millisecond, then twice as long each time, because every look stops them
// all, and a thread that was preempted inside needs a processor to get out.
const disarmTries = 10

// Disarm closes the gates, for all sites at one moment, takes all patches out, waits until no thread is in a
// detour, gives the signal actions back, and lets the threads go by then, which is
// called with all of them stopped. Precondition: the group is attached. It works on
// a target that a signal has stopped, too; only the signal actions stay then,
// because no code can be run in it: see ActionsLeft.
func (t *Target) Disarm(ctx context.Context, then func() error) error {
	if !t.mem.Alive() {
		return nil
	}
	return t.takeOut(ctx, t.detours, t.CloseGates, func(try int) (bool, error) {
		inside, err := t.inDetours()
		if inside && try < disarmTries {
			return false, err
		}
		if err == nil && !inside {
			if _, err = t.returnActions(ctx, t.journal, true); errors.Is(err, ptrace.ErrStopped) {
				err = nil
			}
		}
		return true, errors.Join(err, t.SetSemaphores(nil), t.journal.setTracer(0, 0), then())
	})
}

// ActionsLeft reports whether our signal handlers stand before the target's own
// ones, whatever became of the patches. They do no harm, and the next tracer
// takes them out.
func (t *Target) ActionsLeft() bool {
	return t.journal != nil && slices.ContainsFunc(t.journal.actions, func(i int) bool {
		return t.journal.entries[i].state == statePending
	})
}

// inDetours reports whether a thread's program counter lies in a region, or a
// thread has met a byte of ours that traps and was not sent on by the handler yet.
func (t *Target) inDetours() (bool, error) {
	threads, err := t.group.Stopped()
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(threads, func(th ptrace.Stopped) bool {
		at := abi.Addr(th.Regs.RIP)
		return t.regionOf(at) != nil || t.onBoard(at) || t.tables.trapped(at) && trapPending(th.Thread)
	}), nil
}

// trapPending reports whether a trap signal waits for a thread, or is just being
// delivered. The text may be restored meanwhile, but whoever gets the signal has
// to know where it is from.
func trapPending(th *ptrace.Thread) bool {
	if sig := th.Signal(); sig == sigTRAP || sig == sigILL {
		return true
	}
	st, err := proc.ReadStatus(th.PID, th.TID)
	return err == nil && (st.Pending.Has(sigTRAP) || st.Pending.Has(sigILL))
}

// Detours are the detours that are in place.
func (t *Target) Detours() []*Detour { return t.detours }
