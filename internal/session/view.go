package session

import (
	"encoding/binary"
	"slices"

	"trapless/internal/arena"
)

// view is how the script sees a map. Cells in the arena only ever grow, because
// a reset from outside would race with the thread that owns them and lose a
// count. So clear() and zero() remember what there was, and it is subtracted.
//
// An entry is there if any word but the one that only grows has changed since
// the last clear. That one word is set to zero in the arena instead; a thread
// that is about to raise it at that moment may still do so.
type view struct {
	maxWord int // abi.MapSpec.MaxWord
	base    map[string][]uint64
	kept    map[string]bool // keys that stay although they have no value: zero()
}

func keyOf(e *arena.Entry) string {
	var b []byte
	for _, k := range e.Key {
		b = binary.LittleEndian.AppendUint64(b, k)
	}
	return string(b)
}

// see returns the entries that the script sees.
func (v *view) see(all []arena.Entry) []arena.Entry {
	out := make([]arena.Entry, 0, len(all))
	for _, e := range all {
		key := keyOf(&e)
		e.Value = slices.Clone(e.Value)
		for i, b := range v.base[key] {
			if i == 0 || i != v.maxWord {
				e.Value[i] -= b
			}
		}
		if v.updated(e.Value) || v.kept[key] {
			out = append(out, e)
		}
	}
	return out
}

func (v *view) updated(value []uint64) bool {
	for i, w := range value {
		if w != 0 && (i == 0 || i != v.maxWord) {
			return true
		}
	}
	return false
}

// clear removes all entries.
func (v *view) clear(all []arena.Entry) {
	v.kept = nil
	v.rebase(all)
}

// zero sets all values to zero and keeps the keys.
func (v *view) zero(all []arena.Entry) {
	kept := map[string]bool{}
	for _, e := range v.see(all) {
		kept[keyOf(&e)] = true
	}
	v.kept = kept
	v.rebase(all)
}

// remove removes the entries that match says.
func (v *view) remove(all []arena.Entry, match func(*arena.Entry) bool) {
	for _, e := range all {
		if !match(&e) {
			continue
		}
		if v.base == nil {
			v.base = map[string][]uint64{}
		}
		v.base[keyOf(&e)] = e.Value
		delete(v.kept, keyOf(&e))
	}
}

func (v *view) rebase(all []arena.Entry) {
	v.base = make(map[string][]uint64, len(all))
	for _, e := range all {
		v.base[keyOf(&e)] = e.Value
	}
}
