package inject

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"trapless/internal/abi"
	"trapless/internal/plan"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
)

// handlerState is what is known of the signal handlers.
type handlerState struct {
	copies [dataBlocks]handlerCopy // zero until they are placed
	block  int                     // number of the copy that is used, and of its block in the data page
	tables [2]abi.Addr
}

// handlerCopy is where a copy of the handlers lies.
type handlerCopy struct{ data, handler, restorer abi.Addr }

// current is the copy that is used.
func (h *handlerState) current() *handlerCopy { return &h.copies[h.block] }

// armTries bounds how often Arm lets the target run on because a thread stands
// where it cannot be moved, in a restartable sequence for example.
const armTries = 50

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

// prepareHandlers writes the handlers and the pair tables of the detours that
// there are. One that was refused must not be in them: what stands at its window
// is somebody else's.
func (t *Target) prepareHandlers(ctx context.Context) error {
	space, err := t.newSpace()
	if err != nil {
		return err
	}
	b := &builder{Target: t, space: space}
	if err := b.placeHandlers(ctx); err != nil {
		return err
	}
	for i, pairs := range [][]pair{b.boundaries(), b.faults()} {
		table := encodeTable(pairs)
		if _, b.handlers.tables[i], err = b.put(ctx, keyTable, func(*Region, abi.Addr) ([]byte, error) { return table, nil }); err != nil {
			return err
		}
	}
	return nil
}

// boundaries says where a thread goes on that arrives at an instruction inside a
// window, or at a window that is about to be patched.
func (t *Target) boundaries() []pair {
	var out []pair
	for _, d := range t.detours {
		for _, p := range d.pairs {
			if p.Entry != 0 {
				out = append(out, pair{p.Orig, p.Entry}) // a hit where a site is, as if the jump were there
			}
		}
	}
	return out
}

// faults says which instruction a moved one is.
func (t *Target) faults() []pair {
	var out []pair
	for _, d := range t.detours {
		for _, p := range d.pairs {
			to := p.Orig
			if p.Pushed {
				to |= pushedFlag
			}
			out = append(out, pair{p.Moved, to})
		}
	}
	return out
}

// Arm applies the detours that were placed and opens the gates. It stops all
// threads and leaves them stopped: the caller resumes or detaches them, and one
// stop less is an interrupted system call less. It refuses single sites whose
// text is not what it was when they were planned. When it fails nothing is
// applied and the threads run.
func (t *Target) Arm(ctx context.Context) ([]*plan.Refusal, error) {
	if len(t.detours) == 0 {
		return nil, nil
	}
	refusals, err := t.checkText()
	if err != nil {
		return nil, err
	}
	if err := t.prepareHandlers(ctx); err != nil {
		return nil, err
	}
	for try := 0; ; try++ {
		if err := t.group.Stop(ctx); err != nil {
			return nil, err
		}
		more, err := t.armStopped(ctx)
		refusals = append(refusals, more...)
		if err == nil {
			t.armed = true
			return refusals, nil
		}
		err = errors.Join(err, t.revert(), t.group.Resume())
		again := errors.Is(err, ptrace.ErrRseq) || errors.Is(err, ptrace.ErrInCall)
		if !again || try == armTries || ctx.Err() != nil {
			return refusals, err
		}
		time.Sleep(time.Millisecond)
	}
}

func (t *Target) armStopped(ctx context.Context) ([]*plan.Refusal, error) {
	refusals, err := t.checkText()
	if err != nil {
		return nil, err
	}
	if len(refusals) != 0 { // it has changed since Arm looked before
		if err := t.prepareHandlers(ctx); err != nil {
			return refusals, err
		}
	}
	if err := t.pointTables(); err != nil {
		return refusals, err
	}
	if err := t.checkThreadPointers(); err != nil {
		return refusals, err
	}
	if err := t.installActions(ctx, t.neededSignals()); err != nil {
		return refusals, err
	}
	if err := t.moveThreads(); err != nil {
		return refusals, err
	}
	for _, d := range t.detours {
		if err := t.apply(d); err != nil {
			return refusals, err
		}
	}
	return refusals, t.openGates(true)
}

// pointTables tells the handlers where their tables are, and the counter of traps.
func (t *Target) pointTables() error {
	data, tables := t.handlers.current().data, t.handlers.tables
	if err := t.mem.WriteAt(words([]uint64{uint64(t.arenaBase + abi.HdrTraps)}), data+dataTraps); err != nil {
		return err
	}
	return t.mem.WriteAt(words([]uint64{uint64(tables[0]), uint64(tables[1])}), data+dataBoundaries)
}

// apply journals one patch and writes it.
func (t *Target) apply(d *Detour) error {
	e := entry{kind: entryPatch, state: statePending, a: uint64(d.patch.Addr), b: uint64(len(d.patch.New)), c: uint64(d.At)}
	copy(e.old[:], d.patch.Old)
	copy(e.new[:], d.patch.New)
	if err := t.journal.append(e); err != nil {
		return err
	}
	d.entry = len(t.journal.entries) - 1
	return writeText(t.mem, d.patch.Addr, d.patch.Old, d.patch.New)
}

// checkText drops the detours whose window does not hold, byte for byte, what
// was planned and what the file holds: another tracer has a breakpoint there,
// or the target changes its own text. Those that need a dropped one go too.
func (t *Target) checkText() ([]*plan.Refusal, error) {
	maps, err := proc.ReadMaps(t.PID)
	if err != nil {
		return nil, err
	}
	var refusals []*plan.Refusal
	var good []*Detour
	dropped := map[*plan.Window]bool{}
	for _, d := range t.detours { // what others need comes first
		cur := make([]byte, d.extent())
		text, err := t.files.read(maps, d.patch.Addr, len(cur))
		if err == nil {
			err = t.mem.ReadAt(cur, d.patch.Addr)
		}
		var refusal *plan.Refusal
		switch {
		case errors.Is(err, ErrText):
			refusal = refuseText(d, "%v", err)
		case err != nil:
			return nil, err
		case !bytes.HasPrefix(cur, d.patch.Old) || !bytes.Equal(text, cur):
			refusal = refuseText(d, "memory holds % x there and the file % x: a breakpoint of another tracer, or code that changes itself", cur, text)
		case dropped[d.Window.Host] || slices.ContainsFunc(d.Window.Behind, func(w *plan.Window) bool { return dropped[w] }):
			refusal = refuseText(d, "its jump needs bytes of another window, which hold something else than the file")
		default:
			good = append(good, d)
			continue
		}
		dropped[d.Window] = true
		if len(d.Window.Sites) > 0 {
			refusals = append(refusals, refusal)
		}
	}
	t.detours = good
	return refusals, nil
}

// ModifiedText is the reason of a refusal that only the live text can give.
const ModifiedText plan.Reason = "modified-text"

func refuseText(d *Detour, format string, args ...any) *plan.Refusal {
	return &plan.Refusal{Site: d.Window.Site, Reason: ModifiedText, Detail: fmt.Sprintf(format, args...)}
}

// neededSignals are the signals of which some window needs the handlers: the
// traps if a window has an inside, the faults if a moved instruction may fault
// and the target would look at the address.
func (t *Target) neededSignals() []int {
	var inside bool
	for _, d := range t.detours {
		inside = inside || len(d.Window.Insts) > 1 || d.Window.Boosted || !onePage(d.patch.Addr, len(d.patch.New))
	}
	fault := t.mayFault()
	var need []int
	for _, sig := range handledSignals {
		isTrap := sig == sigILL || sig == sigTRAP
		if isTrap && inside || !isTrap && fault && !t.Disposition(sig).Default {
			need = append(need, sig)
		}
	}
	return need
}

// checkThreadPointers makes sure that %fs:0 tells threads apart: that it is the
// thread pointer itself (the x86-64 TLS ABI), and which threads share one.
func (t *Target) checkThreadPointers() error {
	threads, err := t.group.Stopped()
	if err != nil {
		return err
	}
	seen := map[uint64]bool{}
	for _, th := range threads {
		tp := th.Regs.FSBase
		var word [8]byte
		if err := t.mem.ReadAt(word[:], abi.Addr(tp)); err != nil || binary.LittleEndian.Uint64(word[:]) != tp {
			return fmt.Errorf("process %d: thread-pointer: %%fs:0 of thread %d is not the thread pointer %#x, as the ABI has it; it is not a program with a usual C library",
				t.PID, th.TID, tp)
		}
		if seen[tp] && !t.arena.ShareTP(tp) {
			return fmt.Errorf("process %d: thread-pointer: more than %d thread pointers are shared by several threads", t.PID, abi.SharedTPs)
		}
		seen[tp] = true
	}
	return nil
}

// moveThreads moves threads that stand inside a window to the same instruction
// in its detour, and to the programs before it.
func (t *Target) moveThreads() error {
	inside := map[abi.Addr]abi.Addr{}
	for _, d := range t.detours {
		for _, p := range d.pairs {
			if p.Orig != d.Window.Start && p.Entry != 0 && !d.Window.Boosted {
				inside[p.Orig] = p.Entry
			}
		}
	}
	threads, err := t.group.Stopped()
	if err != nil {
		return err
	}
	for _, th := range threads {
		if to, ok := inside[abi.Addr(th.Regs.RIP)]; ok {
			if err := th.SetPC(to); err != nil {
				return err
			}
		}
	}
	return nil
}

// revert takes back what a failed Arm did. All threads are stopped.
func (t *Target) revert() error {
	err := t.restoreAll()
	_, aerr := t.returnActions(context.Background(), t.journal, true)
	return errors.Join(err, aerr)
}

// restoreAll takes all patches out, as far as it can. All threads are stopped,
// so that the mappings, which take long to read, stay what they are.
func (t *Target) restoreAll() error {
	maps, err := proc.ReadMaps(t.PID)
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range slices.Backward(t.detours) { // a patch may depend on earlier ones
		if d.entry >= 0 {
			errs = append(errs, t.restore(maps, d))
		}
	}
	return errors.Join(errs...)
}

// restore takes one patch out. Text that is not ours any more is left alone.
func (t *Target) restore(maps proc.Maps, d *Detour) error {
	e := &t.journal.entries[d.entry]
	if _, err := t.unpatch(maps, e); err != nil {
		return err
	}
	err := t.journal.setState(d.entry, stateUndone)
	d.entry = -1
	return err
}

// CloseGates keeps programs from starting. Those that run end by themselves;
// Disarm waits for them.
func (t *Target) CloseGates() error { return t.openGates(false) }

// Abandon is for a target that could not be disarmed: it closes the gates, as far
// as they can be reached, and says in the journal that nobody is at work there
// any more, so that a later tracer may take over. The group need not be attached.
func (t *Target) Abandon() error {
	if !t.mem.Alive() {
		return nil
	}
	return errors.Join(t.openGates(false), t.journal.setTracer(0, 0))
}

// disarmTries bounds how often Disarm waits for threads to leave the detours:
// for a millisecond, then twice as long each time, because every look stops them
// all, and a thread that was preempted inside needs a processor to get out.
const disarmTries = 10

// Disarm closes the gates, restores the text, waits until no thread is in a
// detour, and gives the signal actions back. Precondition: the group is attached.
// It works on a target that a signal has stopped, too; only the signal actions
// stay then, because no code can be run in it: see ActionsLeft. The threads are
// stopped when it returns.
func (t *Target) Disarm(ctx context.Context) error {
	if !t.mem.Alive() {
		return nil
	}
	if err := t.openGates(false); err != nil {
		return err
	}
	if err := t.group.StopEvenStopped(ctx); err != nil {
		return err
	}
	errs := []error{t.restoreAll()}
	quiet, err := t.quiesce(ctx)
	errs = append(errs, err)
	if quiet {
		if _, err = t.returnActions(ctx, t.journal, true); !errors.Is(err, ptrace.ErrStopped) {
			errs = append(errs, err)
		}
	}
	t.armed = false
	return errors.Join(append(errs, t.journal.setTracer(0, 0))...)
}

// ActionsLeft reports whether our signal handlers stand before the target's own
// ones, whatever became of the patches. They do no harm, and the next tracer
// takes them out.
func (t *Target) ActionsLeft() bool {
	return t.journal != nil && slices.ContainsFunc(t.journal.entries, func(e entry) bool {
		return e.kind == entryAction && e.state == statePending
	})
}

// quiesce lets threads that are in a detour run until they have left it. It is
// called, and returns, with all threads stopped, and reports whether it came to
// that: a thread that a signal stopped may stay inside.
func (t *Target) quiesce(ctx context.Context) (bool, error) {
	for try := range disarmTries {
		inside, err := t.inDetours()
		if err != nil || !inside {
			return err == nil, err
		}
		if err := t.group.Resume(); err != nil {
			return false, err
		}
		time.Sleep(time.Millisecond << try)
		if err := t.group.StopEvenStopped(ctx); err != nil {
			return false, err
		}
	}
	return false, nil
}

// inDetours reports whether a thread's program counter lies in a region.
func (t *Target) inDetours() (bool, error) {
	threads, err := t.group.Stopped()
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(threads, func(th ptrace.Stopped) bool {
		at := abi.Addr(th.Regs.RIP)
		return t.regionOf(at) != nil || t.onBoard(at)
	}), nil
}

// Disposition is what the target does at a signal.
type Disposition struct{ Default, Ignored bool }

// Disposition reads the disposition of a signal. When it cannot be read the
// answer is that the target handles the signal.
func (t *Target) Disposition(sig int) Disposition {
	tid, err := proc.LiveThread(t.PID)
	if err != nil {
		return Disposition{}
	}
	st, err := proc.ReadStatus(t.PID, tid)
	if err != nil {
		return Disposition{}
	}
	caught, ignored := st.Caught.Has(sig), st.Ignored.Has(sig)
	return Disposition{Default: !caught && !ignored, Ignored: ignored}
}

// HandlersStand reports whether the target still has handlers for the signals
// that the patches need. It cannot see whether they are ours.
func (t *Target) HandlersStand() bool {
	if !t.armed {
		return true
	}
	for _, e := range t.journal.entries {
		if e.kind == entryAction && e.state == statePending {
			if d := t.Disposition(int(e.a)); d.Default || d.Ignored {
				return false
			}
		}
	}
	return true
}

// looks bounds how many patches TextStands reads each time.
const looks = 1024

// TextStands reports whether the patches are as they were written, and if not,
// one in which a single byte differs. So do kernel uprobes and debuggers write
// their breakpoints; when they take them out again, they put back one byte of the
// original, between bytes of the jump: the target would run nonsense. Of many
// patches it looks at some each time, in turn.
func (t *Target) TextStands() (abi.Addr, bool) {
	for range min(looks, len(t.detours)) {
		t.looked = (t.looked + 1) % len(t.detours)
		d := t.detours[t.looked]
		want := slices.Concat(d.patch.New, d.Window.Tail())
		cur := make([]byte, len(want))
		if !t.armed || t.mem.ReadAt(cur, d.patch.Addr) != nil {
			continue // a library was unloaded
		}
		if different(cur, want) == 1 && !bytes.Equal(cur[:len(d.patch.Old)], d.patch.Old) {
			return d.patch.Addr, false
		}
	}
	return 0, true
}

// different is the number of bytes in which texts of equal length differ.
func different(a, b []byte) (n int) {
	for i := range a {
		if a[i] != b[i] {
			n++
		}
	}
	return n
}

// Exposed are the signals of faults that the target has come to handle since the
// patches were applied, while instructions that may fault are moved: its handler
// would be told their address in the detour.
func (t *Target) Exposed() (signals []int) {
	if !t.armed || !t.mayFault() {
		return nil
	}
	for _, sig := range handledSignals {
		isTrap := sig == sigILL || sig == sigTRAP
		if d := t.Disposition(sig); !isTrap && !d.Default && !d.Ignored && !t.installed(sig) {
			signals = append(signals, sig)
		}
	}
	return signals
}

// installed reports whether our action for a signal was put before the target's.
func (t *Target) installed(sig int) bool {
	return slices.ContainsFunc(t.journal.entries, func(e entry) bool {
		return e.kind == entryAction && e.state == statePending && e.a == uint64(sig)
	})
}

// Cover puts our handlers before those of exposed signals. Precondition: the
// group is attached. The threads are stopped when it returns without an error.
func (t *Target) Cover(ctx context.Context, signals []int) error {
	if err := t.group.Stop(ctx); err != nil {
		return err
	}
	return t.installActions(ctx, signals)
}

// mayFault reports whether a moved instruction may fault.
func (t *Target) mayFault() bool {
	return slices.ContainsFunc(t.detours, func(d *Detour) bool {
		return slices.ContainsFunc(d.Window.Insts, func(in plan.Inst) bool { return in.Effects().CanFault() })
	})
}

// Detours are the detours that are placed.
func (t *Target) Detours() []*Detour { return t.detours }
