package inject

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"trapless/internal/abi"
	"trapless/internal/plan"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
)

// Change is a step that is taken while all threads are stopped: patches that are
// taken out, and others that are put in, which may overlap those. What patches
// depend on is put in before them, and taken out after them.
type Change struct{ Out, In []*Detour }

const (
	// sliceTime bounds how long threads are kept stopped for changes. Those that
	// are left get another stop. To stop 50 threads takes a millisecond or two,
	// and no pause shall last longer than five.
	sliceTime = 2 * time.Millisecond
	// stepTime is what it takes to write a patch and its boundaries, about.
	stepTime = 2 * time.Microsecond
	// sliceRest is how long the target runs between two stops.
	sliceRest = time.Millisecond
	// changeTries bounds how often the target is let run on because threads stand
	// where they cannot be moved, in a restartable sequence for example.
	changeTries = 50
	// undoTime bounds taking out what was put in when something fails.
	undoTime = 5 * time.Second
)

// Apply makes changes, in slices of a bounded pause; a group that is held, because
// it was launched, is not let run before all are made. A site whose text is not what
// it was when it was planned is refused. In the last stop, when all is in place,
// then is called, to let the threads go. When something fails, what Apply put in is
// taken out again, and the threads run.
//
// The programs of what is put in run once then has called UpdateGates for them,
// or the gates of all were opened.
func (t *Target) Apply(ctx context.Context, changes []Change, then func() error) ([]*plan.Refusal, error) {
	a := &application{Target: t, stop: t.group.Stop, held: t.group.Held(),
		finish: func(int) (bool, error) { return true, then() }}
	a.begin = func() error { return a.provide(ctx) }
	in, err := a.checkFiles(changes)
	if err != nil {
		return nil, err
	}
	if len(in) > 0 {
		if err := t.prepareHandlers(ctx, in); err != nil {
			return nil, err
		}
	}
	if err := t.announce(in); err != nil {
		return nil, err
	}
	defer func() { t.announced = nil }()
	a.signals = t.neededSignals(in)
	if err = a.run(ctx, changes); err != nil {
		err = errors.Join(err, a.undo(ctx))
	}
	for _, d := range in {
		if !d.inPlace && d.entry >= 0 {
			err = errors.Join(err, t.withdraw(d))
		}
	}
	return a.refusals, err
}

// takeOut takes patches out, the last one first, because it may depend on others,
// also those of a process that a signal has stopped. See application about begin
// and finish.
func (t *Target) takeOut(ctx context.Context, ds []*Detour, begin func() error, finish func(try int) (bool, error)) error {
	ds = slices.SortedFunc(slices.Values(ds), func(x, y *Detour) int { return y.entry - x.entry })
	changes := make([]Change, len(ds))
	for i := range ds {
		changes[i].Out = ds[i : i+1 : i+1]
	}
	a := &application{Target: t, stop: t.group.StopEvenStopped, begin: begin, finish: finish}
	return a.run(ctx, changes)
}

// withdraw says in the journal that a patch is not there.
func (t *Target) withdraw(d *Detour) error {
	err := t.journal.setState(d.entry, stateUndone)
	d.entry = -1
	return err
}

// neededSignals are the signals of which detours need the handlers: the traps if a
// window has an inside, the faults if a moved instruction may fault and the target
// would look at the address.
func (t *Target) neededSignals(ds []*Detour) []int {
	inside := slices.ContainsFunc(ds, (*Detour).traps)
	fault := slices.ContainsFunc(ds, (*Detour).mayFault)
	var need []int
	for _, sig := range handledSignals {
		isTrap := sig == sigILL || sig == sigTRAP
		if isTrap && inside || !isTrap && fault && !t.Disposition(sig).Default {
			need = append(need, sig)
		}
	}
	return need
}

// application is changes that are being made.
type application struct {
	*Target
	stop func(context.Context) error
	// begin is called in the first stop.
	begin func() error
	// finish is called with all threads stopped when no change is left. If it is
	// not done, the threads run for a while, and it is called again.
	finish func(try int) (done bool, err error)

	held     bool // there is no hurry
	begun    bool
	signals  []int // whose handlers the patches need
	put, out []*Detour
	refused  map[*plan.Window]bool
	waiting  map[*plan.Window]bool // in this stop
	refusals []*plan.Refusal
	threads  []ptrace.Stopped // by their program counters
	maps     *proc.Finder     // in this stop
	batch    batch            // in this stop
	busy     error            // why a change has to wait
}

// ModifiedText is the reason of a refusal that only the live text can give.
const ModifiedText plan.Reason = "modified-text"

func (a *application) refuse(d *Detour, format string, args ...any) {
	if a.refused == nil {
		a.refused = map[*plan.Window]bool{}
	}
	a.refused[d.Window] = true
	if len(d.Window.Sites) > 0 { // else it only makes room for others
		a.refusals = append(a.refusals, &plan.Refusal{Site: d.Window.Site, Reason: ModifiedText, Detail: fmt.Sprintf(format, args...)})
	}
}

// needs reports whether a window needs one of a set to be in place.
func (d *Detour) needs(set map[*plan.Window]bool) bool {
	return len(set) > 0 && (set[d.Window.Host] || slices.ContainsFunc(d.Window.Behind, func(w *plan.Window) bool { return set[w] }))
}

// checkFiles refuses what the file does not hold, byte for byte, as it was
// planned, and returns the rest of what is to be put in.
func (a *application) checkFiles(changes []Change) ([]*Detour, error) {
	var in []*Detour
	for _, c := range changes {
		in = append(in, c.In...)
	}
	if len(in) == 0 {
		return nil, nil
	}
	maps, err := proc.ReadMaps(a.PID)
	if err != nil {
		return nil, err
	}
	byAddr := slices.SortedFunc(slices.Values(in), func(x, y *Detour) int { return int(int64(x.patch.Addr - y.patch.Addr)) })
	blocks := blockReader{files: a.files, maps: maps}
	for _, d := range byAddr { // those that need a refused one are refused when their turn comes
		m := maps.Find(d.patch.Addr)
		if m != nil && d.text == (Text{}) {
			d.text = TextOf(m)
		}
		if !d.stands(m) {
			a.refuse(d, "what it was planned for is not mapped there any more")
			continue
		}
		text, err := blocks.read(d.patch.Addr, len(d.patch.Old))
		switch {
		case errors.Is(err, ErrText):
			a.refuse(d, "%v", err)
		case err != nil:
			return nil, err
		case !bytes.Equal(text, d.patch.Old):
			a.refuse(d, "the file holds % x there now instead of % x", text, d.patch.Old)
		}
	}
	return slices.DeleteFunc(in, func(d *Detour) bool { return a.refused[d.Window] }), nil
}

// run makes changes in as many stops as it takes.
func (a *application) run(ctx context.Context, todo []Change) error {
	for tries, finals := 0, 0; ; {
		left, done := todo, false
		err := a.group.Tracer().Do(func() (err error) {
			left, done, err = a.once(ctx, todo, tries, finals)
			return err
		})
		switch {
		case err != nil || done:
			return err
		case len(left) == 0 && len(todo) == 0:
			time.Sleep(sliceRest << finals)
			finals++
		case len(left) < len(todo):
			tries = 0
			time.Sleep(sliceRest)
		default:
			tries++
			time.Sleep(sliceRest)
		}
		todo = left
	}
}

// once stops the threads, makes some changes, and returns the others. The threads
// run afterwards, unless it is done: the end has a stop of its own if the changes
// have taken long.
func (a *application) once(ctx context.Context, todo []Change, tries, finals int) (left []Change, done bool, err error) {
	if err := a.stop(ctx); err != nil {
		return todo, false, err
	}
	until := time.Now().Add(sliceTime)
	left, err = a.slice(todo, until)
	if err == nil && len(left) == 0 && (a.held || len(todo) == 0 || time.Until(until) > sliceTime/2) {
		if err = a.setGates(a.out, false); err == nil {
			done, err = a.finish(finals)
		}
		a.out = nil
		if done && err == nil {
			return nil, true, nil
		}
	}
	if err == nil && tries == changeTries {
		err = a.busy
	}
	return left, false, errors.Join(err, a.group.Resume(), ctx.Err())
}

// slice makes as many changes as it has time for, with all threads stopped, and
// returns the others.
func (a *application) slice(todo []Change, until time.Time) (left []Change, err error) {
	a.waiting = map[*plan.Window]bool{}
	if !a.begun {
		if err := a.begin(); err != nil {
			return todo, err
		}
		a.begun = true
	}
	// Not before: code that was run in a thread may have sent it on, to a signal handler.
	if a.threads, err = a.group.Stopped(); err != nil {
		return todo, err
	}
	if a.maps, err = proc.NewFinder(a.PID); err != nil {
		return todo, err
	}
	defer a.maps.Close()
	slices.SortFunc(a.threads, func(x, y ptrace.Stopped) int { return int(int64(x.Regs.RIP - y.Regs.RIP)) })
	a.batch = batch{pages: map[abi.Addr][]byte{}}
	if left, err = a.stageAll(todo, until); err != nil {
		return left, err
	}
	return left, a.flush()
}

// stageAll makes as many changes as there is time for, but for what flush writes.
func (a *application) stageAll(todo []Change, until time.Time) (left []Change, err error) {
	for i := range todo {
		if i > 0 && !a.held && time.Now().Add(time.Duration(len(a.batch.steps))*stepTime).After(until) {
			return append(left, todo[i:]...), nil
		}
		err := a.change(&todo[i])
		switch {
		case errors.Is(err, ptrace.ErrRseq), errors.Is(err, ptrace.ErrInCall):
			a.busy = err
			left = append(left, todo[i])
			for _, d := range todo[i].In {
				a.waiting[d.Window] = true
			}
		case err != nil:
			return append(left, todo[i:]...), err
		}
	}
	return left, nil
}

// provide does in the first stop what patches depend on.
func (a *application) provide(ctx context.Context) error {
	if a.tables == nil { // nothing was ever put in
		return nil
	}
	threads, err := a.group.Stopped()
	if err != nil {
		return err
	}
	if err := a.checkThreadPointers(threads); err != nil {
		return err
	}
	if err := errors.Join(a.pointTables(), a.tables.publish()); err != nil {
		return err
	}
	return a.installActions(ctx, a.signals)
}

// change makes one change. It can be called again after an error.
func (a *application) change(c *Change) error {
	for _, d := range c.Out {
		if err := a.restore(d); err != nil {
			return err
		}
		a.out = append(a.out, d)
	}
	for _, d := range c.In {
		if a.refused[d.Window] || d.inPlace {
			continue
		}
		if d.needs(a.waiting) {
			return a.busy
		}
		if d.needs(a.refused) {
			a.refuse(d, "its jump needs bytes of another window, which hold something else than the file")
			continue
		}
		want := slices.Concat(d.patch.Old, d.Window.Tail())
		cur, err := a.read(d.patch.Addr, len(want))
		if err != nil {
			if !a.mem.Alive() {
				return err
			}
			a.refuse(d, "it is not mapped any more")
			continue
		}
		if !d.stands(a.maps.Find(d.patch.Addr)) {
			a.refuse(d, "what it was planned for is not mapped there any more")
			continue
		}
		if !bytes.Equal(cur, want) {
			a.refuse(d, "memory holds % x there and the file % x: a breakpoint of another tracer, or code that changes itself", cur, want)
			continue
		}
		if err := a.putIn(d); err != nil {
			return err
		}
	}
	return nil
}

// putIn writes one patch. Threads that stand inside its window are moved to the
// same instruction in the detour, and to the programs before it.
func (a *application) putIn(d *Detour) error {
	w := d.Window
	first := sort.Search(len(a.threads), func(i int) bool { return abi.Addr(a.threads[i].Regs.RIP) > w.Start })
	for _, th := range a.threads[first:] {
		pc := abi.Addr(th.Regs.RIP)
		if pc >= w.End() || w.Boosted {
			break
		}
		for _, p := range d.pairs {
			if p.Orig != pc || p.Entry == 0 {
				continue
			}
			if err := th.SetPC(p.Entry); err != nil {
				return err
			}
		}
	}
	return a.stage(textStep{d: d, cur: d.patch.Old, want: d.patch.New})
}

// enter notes that a patch is in.
func (a *application) enter(d *Detour) {
	d.inPlace = true
	d.index = len(a.detours)
	a.Target.detours = append(a.detours, d)
	a.put = append(a.put, d)
	if d.mayFault() {
		a.Target.faulting++
	}
}

func (t *Target) setBoundaries(pairs []pair) error {
	if len(pairs) == 0 {
		return nil
	}
	return t.tables.set(pairs)
}

// restore takes one patch out. Text that is not ours any more is left alone.
func (a *application) restore(d *Detour) error {
	if !d.inPlace {
		return nil
	}
	p, step := &d.patch, textStep{d: d, out: true}
	if cur, err := a.read(p.Addr, len(p.New)); err == nil { // else a library was unloaded
		want, ok := original(p.Addr, cur, p.Old, p.New)
		if ok && (d.stands(a.maps.Find(p.Addr)) || d.copied(cur)) {
			step.cur, step.want = bytes.Clone(cur), want
		}
	}
	return a.stage(step)
}

// copied reports whether text that is not the file's mapping any more is a copy of it
// with the patch, as a program has that moves itself to larger pages. A breakpoint
// alone says nothing; nothing else has a jump to the detour.
func (d *Detour) copied(cur []byte) bool {
	const certain = 4 // bytes
	return bytes.Equal(cur, d.patch.New) && different(d.patch.Old, d.patch.New) >= certain
}

// Forget is for detours whose text is not mapped any more: nothing is written
// there, and what may be loaded there next is not theirs.
func (t *Target) Forget(ds []*Detour) error {
	err := t.setGates(ds, false)
	return errors.Join(err, t.leave(slices.DeleteFunc(slices.Clone(ds), func(d *Detour) bool { return !d.inPlace })...))
}

// leave notes that patches are out.
func (t *Target) leave(ds ...*Detour) error {
	var pairs []pair
	for _, d := range ds {
		for _, p := range d.boundaries() {
			pairs = append(pairs, pair{p.from, p.from})
		}
	}
	errs := []error{t.setBoundaries(pairs)}
	for _, d := range ds {
		errs = append(errs, t.remove(d))
	}
	return errors.Join(errs...)
}

// remove takes a detour from those in place.
func (t *Target) remove(d *Detour) error {
	last := t.detours[len(t.detours)-1]
	t.detours[d.index], last.index = last, d.index
	t.detours = t.detours[:len(t.detours)-1]
	d.inPlace = false
	if d.mayFault() {
		t.faulting--
	}
	return t.withdraw(d)
}

// undo takes out what was put in, gives the signal actions back if nothing else is
// in place, and lets the threads run.
func (a *application) undo(ctx context.Context) error {
	if !a.mem.Alive() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	return a.takeOut(ctx, a.put, func() error { return nil }, func(try int) (bool, error) {
		inside, err := a.inDetours()
		if inside && try < disarmTries {
			return false, err
		}
		if len(a.detours) == 0 && !inside {
			_, aerr := a.returnActions(ctx, a.journal, true)
			err = errors.Join(err, aerr)
		}
		return true, errors.Join(err, a.group.Resume())
	})
}
