package bpf

import "trapless/internal/abi"

// table is a key in a map whose entries can be deleted. What it does is what the
// routines of package routine do, with the same effect on memory; others may be at
// work on the same table meanwhile.
type table struct {
	*run
	ml   *abi.MapLayout
	key  []uint64
	word uint64
}

// Bounds of what a table is searched for, so that time is bounded whatever the
// memory holds.
const (
	// TableRounds is how often an update begins again because others were
	// faster.
	TableRounds = 16
	// EvictSteps is at how many positions a full table is searched for an entry
	// to give up, in the first EvictPolite of which those that were used lately
	// are left alone.
	EvictSteps  = 512
	EvictPolite = 128
)

func (x *run) table(ml *abi.MapLayout, key []byte) *table {
	t := &table{run: x, ml: ml, key: keyWords(key)}
	if t.word = t.key[0]; len(t.key) > 1 {
		t.word = abi.HashKey(t.key)
	}
	return t
}

func phase(state uint64) uint64 { return state & abi.StatePhase }

func (t *table) state(pos uint64) uint64 { return loadWord(t.Arena, t.ml.State(pos)) }

func (t *table) swap(pos, old, now uint64) bool {
	return swapWord(t.Arena, t.ml.State(pos), old, now)
}

// path calls f for the positions where the key may lie, until that returns false.
func (t *table) path(f func(pos uint64) bool) {
	home := abi.HashKey(t.key) >> (64 - t.ml.DirBits)
	for i := range uint64(min(abi.ProbeLimit, 1<<t.ml.DirBits)) {
		if !f((home + i) & (1<<t.ml.DirBits - 1)) {
			return
		}
	}
}

// holds reports whether a position whose state was read has the key.
func (t *table) holds(pos, state uint64) bool {
	if loadWord(t.Arena, t.ml.Word(pos)) != t.word {
		return false
	}
	if len(t.key) == 1 {
		return true
	}
	for i, w := range t.key {
		if loadWord(t.Arena, t.ml.KeyWord(pos, i)) != w {
			return false
		}
	}
	return (t.state(pos)^state)&^(abi.StateNext-1) == 0
}

// find finds the entry of the key, or else a deleted one.
func (t *table) find() (pos, state uint64, ok bool) {
	t.path(func(p uint64) bool {
		s := t.state(p)
		if s == abi.PhaseEmpty {
			return false
		}
		if ph := phase(s); (ph == abi.PhasePresent || ph == abi.PhaseDead) && t.holds(p, s) {
			pos, state, ok = p, s, true
			return ph != abi.PhasePresent
		}
		return true
	})
	return pos, state, ok
}

func (t *table) lookup() (uint64, bool) {
	pos, state, ok := t.find()
	if !ok || phase(state) != abi.PhasePresent {
		return 0, false
	}
	t.use(pos)
	return pos, true
}

// use notes that an entry was used.
func (t *table) use(pos uint64) {
	if t.ml.Kind != abi.LRUHash {
		return
	}
	if s := t.state(pos); s&abi.StateUsed == 0 {
		t.swap(pos, s, s|abi.StateUsed)
	}
}

func (t *table) remove() int64 {
	pos, state, ok := t.find()
	for range abi.ProbeLimit {
		if !ok || phase(state) != abi.PhasePresent {
			break
		}
		if t.swap(pos, state, state&^(abi.StateNext-1)|abi.PhaseDead) {
			return 0
		}
		now := t.state(pos)
		ok = (now^state)&^(abi.StateNext-1) == 0
		state = now
	}
	return errNoEnt
}

func (t *table) update(value []byte, flags uint64) int64 {
	for range TableRounds {
		pos, state, ok := t.find()
		switch {
		case ok && phase(state) == abi.PhasePresent && flags == bpfNoExist:
			return errExist
		case ok && phase(state) == abi.PhasePresent:
			t.putValue(t.ml, pos, value)
			t.use(pos)
			return 0
		case flags == bpfExist:
			return errNoEnt
		case ok:
			ok = t.swap(pos, state, state&^(abi.StateNext-1)+abi.StateNext|abi.PhaseBusy)
			state = state&^(abi.StateNext-1) + abi.StateNext | abi.PhaseBusy
		default:
			if !t.reserve() {
				return t.full()
			}
			if pos, state, ok = t.take(); !ok {
				addWord(t.Arena, t.ml.Used, ^uint64(0))
				return t.full()
			}
		}
		if ok && t.enter(pos, state, value) {
			return 0
		}
	}
	return t.full()
}

func (t *table) full() int64 {
	addWord(t.Arena, abi.HdrDrops, 1)
	return errTooBig
}

// reserve counts one entry more, or makes another one give up its place.
func (t *table) reserve() bool {
	if addWord(t.Arena, t.ml.Used, 1) < uint64(t.ml.MaxEntries) {
		return true
	}
	addWord(t.Arena, t.ml.Used, ^uint64(0))
	for i := range EvictSteps {
		pos := addWord(t.Arena, t.ml.Hand, 1) & (1<<t.ml.DirBits - 1)
		s := t.state(pos)
		switch {
		case phase(s) == abi.PhaseDead:
		case phase(s) != abi.PhasePresent || t.ml.Kind != abi.LRUHash:
			continue
		case s&abi.StateUsed != 0 && i < EvictPolite:
			t.swap(pos, s, s&^abi.StateUsed)
			continue
		}
		if t.swap(pos, s, s&^(abi.StateNext-1)|abi.PhaseGone) {
			return true
		}
	}
	return false
}

// take makes a position the key's that has none.
func (t *table) take() (pos, state uint64, ok bool) {
	t.path(func(p uint64) bool {
		s := t.state(p)
		if s != abi.PhaseEmpty && phase(s) != abi.PhaseGone {
			return true
		}
		busy := s&^(abi.StateNext-1) + abi.StateNext | abi.PhaseBusy
		if ok = t.swap(p, s, busy); ok {
			pos, state = p, busy
		}
		return !ok
	})
	return pos, state, ok
}

// enter writes key and value to a position that is ours, and reports whether that
// has become the key's entry.
func (t *table) enter(pos, state uint64, value []byte) bool {
	storeWord(t.Arena, t.ml.Word(pos), t.word)
	if len(t.key) > 1 {
		for i, w := range t.key {
			storeWord(t.Arena, t.ml.KeyWord(pos, i), w)
		}
	}
	t.putValue(t.ml, pos, value)
	number := state &^ (abi.StateNext - 1)
	storeWord(t.Arena, t.ml.State(pos), number|abi.PhaseEntering)
	for at, s := pos, number|abi.PhaseEntering; ; {
		other, theirs, again := t.assist(at, s)
		if !again {
			break
		}
		at, s = other, theirs
	}
	if t.swap(pos, number|abi.PhaseRefused, number|abi.PhaseGone) {
		addWord(t.Arena, t.ml.Used, ^uint64(0))
		return false
	}
	return true
}

// assist makes what is at a position the key's entry unless there is another one.
// It returns one before it to go on with, if any.
func (t *table) assist(pos, state uint64) (other, theirs uint64, again bool) {
	refuse := func(p, s uint64) { t.swap(p, s, s&^(abi.StateNext-1)|abi.PhaseRefused) }
	passed, entry := false, false
	budget := 4 * abi.ProbeLimit
	t.path(func(p uint64) bool {
		if p == pos {
			passed = true
			return true
		}
		for ; budget > 0; budget-- {
			s := t.state(p)
			ph := phase(s)
			switch {
			case s == abi.PhaseEmpty:
				return false
			case ph != abi.PhaseEntering && ph != abi.PhasePresent && ph != abi.PhaseDead || !t.holds(p, s):
				return true
			case ph == abi.PhaseDead && t.swap(p, s, s&^(abi.StateNext-1)|abi.PhaseGone):
				addWord(t.Arena, t.ml.Used, ^uint64(0))
				return true
			case ph == abi.PhaseDead:
			case t.state(p) != s:
			case ph == abi.PhasePresent:
				refuse(pos, state)
				entry = true
				return false
			case !passed:
				refuse(pos, state)
				other, theirs, again = p, s, true
				return false
			default:
				if t.state(pos) == state {
					refuse(p, s)
				}
				return true
			}
		}
		return false
	})
	switch {
	case again || entry:
	case budget == 0:
		refuse(pos, state)
	default:
		t.swap(pos, state, state&^(abi.StateNext-1)|abi.PhasePresent)
	}
	return other, theirs, again
}
