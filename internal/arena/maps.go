package arena

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"

	"trapless/internal/abi"
)

// Entry is one key of a map with its value over all slots: word by word the sum,
// or for the map's MaxWord the largest.
type Entry struct {
	Key   []uint64 // empty for a map of one cell
	Value []uint64
}

// Entries reads map number m. The order is that of the keys. Each word is read
// once and atomically; words of one value may be read at different moments.
func (a *Arena) Entries(m int) []Entry {
	ml := &a.layout.Maps[m]
	slots := a.slotsInUse()
	switch ml.Kind {
	case abi.PerThread:
		return a.threadEntries(ml, slots)
	case abi.StackTrace:
		return nil // it is asked by numbers
	}
	var out []Entry
	for pos := range ml.Positions() {
		key, ok := a.keyAt(ml, pos)
		if !ok {
			continue
		}
		value := a.merge(ml, pos, slots)
		if now, ok := a.keyAt(ml, pos); ok && slices.Equal(now, key) { // it may have got another entry meanwhile
			out = append(out, Entry{Key: key, Value: value})
		}
	}
	slices.SortFunc(out, func(x, y Entry) int { return slices.CompareFunc(x.Key, y.Key, cmp.Compare[uint64]) })
	return out
}

// threadEntries reads a PerThread map.
func (a *Arena) threadEntries(ml *abi.MapLayout, slots []uint64) (out []Entry) {
	for _, s := range slots {
		at := a.slot(s) + ml.Cells
		if key := a.Load(at - 8); key != 0 {
			out = append(out, Entry{Key: []uint64{key &^ abi.ThreadKey}, Value: []uint64{a.Load(at)}})
		}
	}
	slices.SortFunc(out, func(x, y Entry) int { return cmp.Compare(x.Key[0], y.Key[0]) })
	return out
}

// merge is the value at a position, over all slots unless it is shared.
func (a *Arena) merge(ml *abi.MapLayout, pos int, slots []uint64) []uint64 {
	value := make([]uint64, ml.Stride()/8)
	if ml.Shared() {
		for w := range value {
			value[w] = a.Load(ml.Value(uint64(pos)) + uint64(8*w))
		}
		return value
	}
	cell := ml.Cells + uint64(pos*ml.Stride())
	for _, s := range slots {
		for w := range value {
			v := a.Load(a.slot(s) + cell + uint64(8*w))
			if w != 0 && w == ml.MaxWord {
				value[w] = max(value[w], v)
			} else {
				value[w] += v
			}
		}
	}
	return value
}

// Clear removes all entries of a map whose values are assigned, not added up. Of an array
// all words become zero.
func (a *Arena) Clear(m int) {
	ml := &a.layout.Maps[m]
	switch ml.Kind {
	case abi.Array:
		a.Zero(m, 0)
		return
	case abi.PerThread:
		for _, s := range a.slotsInUse() {
			a.Store(a.slot(s)+ml.Cells-8, 0)
		}
		return
	}
	for pos := range uint64(ml.Positions()) {
		if s := a.Load(ml.State(pos)); s&abi.StatePhase == abi.PhasePresent {
			a.swap(ml.State(pos), s, s&^(abi.StateNext-1)|abi.PhaseDead) // else it has just changed
		}
	}
}

// Zero makes the words of all values zero, from a word on, of a map whose values
// are assigned.
func (a *Arena) Zero(m, from int) {
	ml := &a.layout.Maps[m]
	if ml.Kind == abi.PerThread {
		for _, s := range a.slotsInUse() {
			a.Store(a.slot(s)+ml.Cells, 0)
		}
		return
	}
	for pos := range ml.Positions() {
		if _, ok := a.keyAt(ml, pos); !ok {
			continue
		}
		for w := from; w < ml.Stride()/8; w++ {
			a.Store(ml.Value(uint64(pos))+uint64(8*w), 0)
		}
	}
}

// ResetMax makes the words of map number m that only grow zero. An update that
// is under way at that moment may still be seen afterwards.
func (a *Arena) ResetMax(m int) {
	ml := &a.layout.Maps[m]
	if ml.MaxWord == 0 {
		return
	}
	for _, s := range a.slotsInUse() {
		for pos := range ml.Positions() {
			if _, ok := a.keyAt(ml, pos); ok {
				a.Store(a.slot(s)+ml.Cells+uint64(pos*ml.Stride()+8*ml.MaxWord), 0)
			}
		}
	}
}

// keyAt returns the key at a directory position, if the position is occupied.
func (a *Arena) keyAt(ml *abi.MapLayout, pos int) ([]uint64, bool) {
	if !ml.IsHash() {
		if ml.MaxEntries == 1 {
			return nil, true
		}
		return []uint64{uint64(pos)}, true
	}
	if ml.IsTable() {
		return a.tableKey(ml, uint64(pos))
	}
	word := a.Load(ml.Dir + uint64(8*pos))
	mask := uint64(int64(ml.KeyMask))
	switch {
	case word == 0:
		return nil, false
	case ml.KeyWords() == 1 && pos == 1<<ml.DirBits:
		return []uint64{mask}, word == 1
	case ml.KeyWords() == 1:
		return []uint64{word ^ mask}, true
	}
	node := uint64(uint32(word)) - 1
	if node >= uint64(ml.NodeCount) {
		return nil, false
	}
	key := make([]uint64, ml.KeyWords())
	for i := range key {
		key[i] = a.Load(ml.Nodes + 8 + node*uint64(8*ml.KeyWords()) + uint64(8*i))
	}
	return key, true
}

// tableKey returns the key of a position of a table that has an entry.
func (a *Arena) tableKey(ml *abi.MapLayout, pos uint64) ([]uint64, bool) {
	state := a.Load(ml.State(pos))
	if state&abi.StatePhase != abi.PhasePresent {
		return nil, false
	}
	key := make([]uint64, ml.KeyWords())
	for i := range key {
		if key[i] = a.Load(ml.Word(pos)); len(key) > 1 {
			key[i] = a.Load(ml.KeyWord(pos, i))
		}
	}
	return key, (a.Load(ml.State(pos))^state)&^(abi.StateNext-1) == 0
}

// SetValue writes the value at a position of a map that all threads share, before
// any program runs. Precondition: the value has the map's value size.
func (a *Arena) SetValue(m, pos int, value []byte) {
	ml := &a.layout.Maps[m]
	if !ml.Shared() || len(value) != ml.ValueSize || pos < 0 || pos >= ml.Positions() {
		panic("BUG: arena: no such value")
	}
	copy(a.mem[ml.Value(uint64(pos)):], value)
}

// Value copies the value at a position of a map that all threads share, word by
// word.
func (a *Arena) Value(m, pos int) []byte { return a.rawValue(&a.layout.Maps[m], pos, 0) }

// Raw is an entry of a map as programs see it: its key, and its value, or where
// each slot has a value of its own those of the slots in use.
type Raw struct {
	Key    []byte
	Values [][]byte
}

// Raw reads map number m, in the order of its positions. Words of one value may be
// read at different moments.
func (a *Arena) Raw(m int) []Raw {
	ml := &a.layout.Maps[m]
	slots := a.slotsOf(ml)
	var out []Raw
	for pos := range ml.Positions() {
		if key, ok := a.rawKey(ml, pos); ok {
			out = append(out, a.rawAt(ml, pos, key, slots))
		}
	}
	return out
}

// RawOf is the entry of map number m that a key has.
func (a *Arena) RawOf(m int, key []byte) (Raw, bool) {
	ml := &a.layout.Maps[m]
	if !ml.IsHash() {
		pos := uint64(binary.LittleEndian.Uint32(key))
		if pos >= uint64(ml.Positions()) {
			return Raw{}, false
		}
		return a.rawAt(ml, int(pos), key, a.slotsOf(ml)), true
	}
	for pos := range ml.Positions() {
		if k, ok := a.rawKey(ml, pos); ok && bytes.Equal(k, key) {
			return a.rawAt(ml, pos, key, a.slotsOf(ml)), true
		}
	}
	return Raw{}, false
}

// slotsOf are the slots that have values of a map.
func (a *Arena) slotsOf(ml *abi.MapLayout) []uint64 {
	if ml.Shared() {
		return []uint64{abi.SlotShared}
	}
	return a.slotsInUse()
}

// rawKey is the key at a position, if there is one.
func (a *Arena) rawKey(ml *abi.MapLayout, pos int) ([]byte, bool) {
	if !ml.IsHash() {
		return binary.LittleEndian.AppendUint32(nil, uint32(pos)), true
	}
	words, ok := a.keyAt(ml, pos)
	if !ok {
		return nil, false
	}
	key := make([]byte, 0, 8*len(words))
	for _, w := range words {
		key = binary.LittleEndian.AppendUint64(key, w)
	}
	return key[:ml.KeySize], true
}

func (a *Arena) rawAt(ml *abi.MapLayout, pos int, key []byte, slots []uint64) Raw {
	r := Raw{Key: key}
	for _, s := range slots {
		r.Values = append(r.Values, a.rawValue(ml, pos, s))
	}
	return r
}

// rawValue copies the value at a position, word by word: of a slot, or the one
// that all threads share.
func (a *Arena) rawValue(ml *abi.MapLayout, pos int, slot uint64) []byte {
	var at uint64
	if ml.Shared() {
		at = ml.Value(uint64(pos))
	} else {
		at = a.slot(slot) + ml.Cells + uint64(pos*ml.Stride())
	}
	out := make([]byte, ml.Stride())
	for w := uint64(0); w < uint64(len(out)); w += 8 {
		putWord(out[w:], a.Load(at+w))
	}
	return out[:ml.ValueSize]
}
