package inject

import (
	"bytes"
	"context"
	"slices"

	"trapless/internal/abi"
	"trapless/internal/proc"
)

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
	for _, i := range t.journal.actions {
		if e := &t.journal.entries[i]; e.state == statePending {
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
// original, between bytes of the jump: the target would run nonsense. It also finds
// those that are gone, because their file was mapped anew at the same place. Of many
// patches it looks at some each time, in turn.
func (t *Target) TextStands() (at abi.Addr, stands bool, reverted []*Detour) {
	maps, err := proc.NewFinder(t.PID)
	if err != nil {
		return 0, true, nil // it has ended
	}
	defer maps.Close()
	for range min(looks, len(t.detours)) {
		t.looked = (t.looked + 1) % len(t.detours)
		d := t.detours[t.looked]
		want := slices.Concat(d.patch.New, d.Window.Tail())
		cur := make([]byte, len(want))
		if t.mem.ReadAt(cur, d.patch.Addr) != nil || bytes.Equal(cur, want) || !d.stands(maps.Find(d.patch.Addr)) {
			continue // if it does not stand, a library was unloaded
		}
		switch {
		case bytes.Equal(cur[:len(d.patch.Old)], d.patch.Old):
			reverted = append(reverted, d)
		case different(cur, want) == 1:
			return d.patch.Addr, false, nil
		}
	}
	return 0, true, reverted
}

// Reverted are those of some detours whose patches are not in the text, which has the
// original bytes.
func (t *Target) Reverted(ds []*Detour) []*Detour {
	var out []*Detour
	for _, d := range ds {
		cur := make([]byte, len(d.patch.New))
		if d.inPlace && t.mem.ReadAt(cur, d.patch.Addr) == nil && bytes.Equal(cur, d.patch.Old) && !bytes.Equal(cur, d.patch.New) {
			out = append(out, d)
		}
	}
	return out
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
	if t.faulting == 0 {
		return nil
	}
	tid, err := proc.LiveThread(t.PID)
	if err != nil {
		return nil
	}
	st, err := proc.ReadStatus(t.PID, tid)
	if err != nil {
		return nil
	}
	for _, sig := range handledSignals {
		if isTrap := sig == sigILL || sig == sigTRAP; !isTrap && st.Caught.Has(sig) && !t.installed(sig) {
			signals = append(signals, sig)
		}
	}
	return signals
}

// installed reports whether our action for a signal was put before the target's.
func (t *Target) installed(sig int) bool {
	return slices.ContainsFunc(t.journal.actions, func(i int) bool {
		e := &t.journal.entries[i]
		return e.state == statePending && e.a == uint64(sig)
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
