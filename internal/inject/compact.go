package inject

import (
	"errors"

	"trapless/internal/abi"
)

// A session that arms and disarms, or registers and unregisters, over and over writes
// an entry for each patch each time. When there is no room left, the entries that
// still say something are written anew, in their order, into the other half of the
// room, and then one word makes this half the journal. So a tracer may die at any
// moment.

// compact leaves out the entries of patches and semaphores that are undone, and says
// where each of the others is now.
func (j *journal) compact() (moved map[int]int, err error) {
	next := &journal{mem: j.mem, base: j.base, offset: j.offset, size: j.size}
	if j.start == 0 {
		next.start = (j.size / 2) &^ 7
	}
	var raw []byte
	moved = map[int]int{}
	for i := range j.entries {
		e := j.entries[i]
		if e.state == stateUndone && (e.kind == entryPatch || e.kind == entrySemaphore) {
			continue
		}
		raw = e.encode(raw)
		moved[i] = len(next.entries)
		next.add(e)
	}
	if err := j.mem.WriteAt(raw, next.base+abi.Addr(next.offset+next.start)); err != nil {
		return nil, err
	}
	if err := next.putUsed(); err != nil {
		return nil, err
	}
	*j = *next
	return moved, nil
}

// record writes entries into the journal and returns the number of the first one.
func (t *Target) record(es ...entry) (int, error) {
	n := len(t.journal.entries)
	err := t.journal.append(es...)
	if !errors.Is(err, errJournalFull) {
		return n, err
	}
	moved, err := t.journal.compact()
	if err != nil {
		return 0, err
	}
	for _, d := range t.detours {
		d.entry = moved[d.entry]
	}
	for _, d := range t.announced {
		if !d.inPlace && d.entry >= 0 {
			d.entry = moved[d.entry]
		}
	}
	for at, i := range t.semaphores {
		t.semaphores[at] = moved[i]
	}
	n = len(t.journal.entries)
	return n, t.journal.append(es...)
}

// announce writes patches into the journal before they are made.
func (t *Target) announce(ds []*Detour) error {
	es := make([]entry, len(ds))
	for i, d := range ds {
		e := &es[i]
		*e = entry{kind: entryPatch, state: statePending, a: uint64(d.patch.Addr), b: uint64(len(d.patch.New)), c: uint64(d.At)}
		copy(e.old[:], d.patch.Old)
		copy(e.new[:], d.patch.New)
	}
	first, err := t.record(es...)
	if err != nil {
		return err
	}
	for i, d := range ds {
		d.entry = first + i
	}
	t.announced = ds
	return nil
}
