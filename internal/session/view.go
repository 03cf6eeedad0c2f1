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
// The first word of every value counts how often it was updated: an entry is
// there if that has changed since the last clear.
type view struct {
	base map[string][]uint64
	kept map[string]bool // keys that stay although they have no value: zero()
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
			e.Value[i] -= b
		}
		if e.Value[0] != 0 || v.kept[key] {
			out = append(out, e)
		}
	}
	return out
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

func (v *view) rebase(all []arena.Entry) {
	v.base = make(map[string][]uint64, len(all))
	for _, e := range all {
		v.base[keyOf(&e)] = e.Value
	}
}
