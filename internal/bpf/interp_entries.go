package bpf

import (
	"bytes"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

// MapEntry is an entry of a map with its value over all threads.
type MapEntry struct{ Key, Value []byte }

// errNoEntries says that a machine has no Entries.
const errNoEntries = "the machine knows the maps of its own thread alone"

// entriesHelper is HelperMapNext or HelperMapRead.
func (x *run) entriesHelper(h *Helper) (uint64, error) {
	m, err := x.mapArg(asm.R1)
	if err != nil {
		return 0, err
	}
	if x.Entries == nil {
		return 0, x.fail(ErrInvalid, errNoEntries)
	}
	ml := &x.Layout.Maps[m]
	if h.ID == HelperMapNext {
		return x.mapNext(m, ml)
	}
	key, err := x.bytes(x.r[asm.R2], ml.KeySize, false)
	if err != nil {
		return 0, err
	}
	value, err := x.bytes(x.r[asm.R3], ml.ValueSize, true)
	if err != nil {
		return 0, err
	}
	clear(value)
	for _, e := range x.Entries(m) {
		if len(e.Key) == 0 || bytes.Equal(e.Key[:min(len(e.Key), len(key))], key) {
			copy(value, e.Value)
			return 1, nil
		}
	}
	return 0, nil
}

// mapNext copies the next entry. The upper half of the state is the number of the
// list of entries, from 1 on, the lower half how many of them were copied.
func (x *run) mapNext(m int, ml *abi.MapLayout) (uint64, error) {
	state := x.r[asm.R2]
	if state == 0 {
		x.lists = append(x.lists, x.Entries(m))
		state = uint64(len(x.lists)) << 32
	}
	n, i := state>>32, state&(1<<32-1)
	key, err := x.bytes(x.r[asm.R3], ml.KeySize, true)
	if err != nil {
		return 0, err
	}
	value, err := x.bytes(x.r[asm.R4], ml.ValueSize, true)
	if err != nil {
		return 0, err
	}
	clear(key)
	clear(value)
	if n > uint64(len(x.lists)) || i >= uint64(len(x.lists[n-1])) {
		if n <= uint64(len(x.lists)) {
			x.lists[n-1] = nil
		}
		return 0, nil
	}
	e := x.lists[n-1][i]
	copy(key, e.Key)
	copy(value, e.Value)
	return state + 1, nil
}
