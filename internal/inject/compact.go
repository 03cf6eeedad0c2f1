package inject

import "errors"

// A session that arms and disarms, or registers and unregisters, over and over writes
// an entry for each patch each time. When there is no room left, the entries of
// patches that are there move to where those of others were, in their order, and what
// becomes free is used again. A tracer may die in between: then an entry is there
// twice, and undoing it twice is undoing it once.

// place writes entries of patches, all behind those that are pending, because they may
// depend on them, and returns their numbers.
func (j *journal) place(es []entry) ([]int, error) {
	n := min(len(es), len(j.spare))
	at := append([]int(nil), j.spare[:n]...)
	for i := range es[n:] {
		at = append(at, len(j.entries)+i)
	}
	if err := j.append(es[n:]...); err != nil {
		return nil, err
	}
	j.spare = j.spare[n:]
	for i, k := range at[:n] {
		if err := j.rewrite(k, es[i]); err != nil {
			return nil, err
		}
	}
	return at, nil
}

// rewrite writes an entry over number i, which is undone.
func (j *journal) rewrite(i int, e entry) error {
	state := e.state
	e.state = stateUndone
	if err := j.mem.WriteAt(e.appendTo(nil), j.at(i)); err != nil {
		return err
	}
	j.entries[i] = e
	return j.setState(i, state)
}

// compact moves the entries of patches together and says where each is now that was
// moved.
func (j *journal) compact() (moved map[int]int, err error) {
	var places []int
	for i := range j.entries {
		if j.entries[i].kind == entryPatch {
			places = append(places, i)
		}
	}
	moved = map[int]int{}
	next := 0
	for _, i := range places {
		if j.entries[i].state != statePending {
			continue
		}
		if to := places[next]; to != i {
			if err := errors.Join(j.rewrite(to, j.entries[i]), j.setState(i, stateUndone)); err != nil {
				return nil, err
			}
			moved[i] = to
		}
		next++
	}
	j.spare = places[next:]
	return moved, nil
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
	at, err := t.journal.place(es)
	if errors.Is(err, errJournalFull) {
		var moved map[int]int
		if moved, err = t.journal.compact(); err != nil {
			return err
		}
		for _, d := range t.detours {
			if to, ok := moved[d.entry]; ok {
				d.entry = to
			}
		}
		at, err = t.journal.place(es)
	}
	if err != nil {
		return err
	}
	for i, d := range ds {
		d.entry = at[i]
	}
	return nil
}
