package bpf

import (
	"encoding/binary"

	"trapless/internal/abi"
)

// keyWords is a key as the words that hold it.
func keyWords(key []byte) []uint64 {
	words := make([]uint64, (len(key)+7)/8)
	for i, b := range key {
		words[i/8] |= uint64(b) << (i % 8 * 8)
	}
	return words
}

// wordBytes is the opposite.
func wordBytes(words []uint64) []byte {
	var b []byte
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// find finds the position of a key, or enters the key if asked to.
func (x *run) find(ml *abi.MapLayout, key []byte, enter bool) (pos uint64, ok bool) {
	switch {
	case !ml.IsHash():
		pos = uint64(binary.LittleEndian.Uint32(key))
		return pos, pos < uint64(ml.MaxEntries)
	case ml.IsTable():
		panic("BUG: bpf: a table is searched like a directory")
	case ml.KeyWords() == 1:
		return x.findShort(ml, keyWords(key)[0], enter)
	}
	return x.findLong(ml, keyWords(key), enter)
}

// probe calls try for each directory position that a key with this hash may
// have, until it is decided. Else the map is full for the key.
func (x *run) probe(ml *abi.MapLayout, hash uint64, enter bool, try func(pos uint64) (found, over bool)) (uint64, bool) {
	pos := hash >> (64 - ml.DirBits)
	for range min(abi.ProbeLimit, 1<<ml.DirBits) {
		found, over := try(pos)
		if found || over {
			return pos, found
		}
		pos = (pos + 1) & (1<<ml.DirBits - 1)
	}
	if enter {
		addWord(x.Arena, abi.HdrDrops, 1)
	}
	return 0, false
}

// enter counts a new key and reports whether the map has room for it.
func (x *run) enter(ml *abi.MapLayout) bool {
	if addWord(x.Arena, ml.Used, 1) < uint64(ml.MaxEntries) {
		return true
	}
	x.leave(ml)
	addWord(x.Arena, abi.HdrDrops, 1)
	return false
}

func (x *run) leave(ml *abi.MapLayout) { addWord(x.Arena, ml.Used, ^uint64(0)) }

// claim puts word into an empty directory position: it is then ours (found),
// or the map is full (over), or another thread was faster (neither).
func (x *run) claim(ml *abi.MapLayout, pos, word uint64) (found, over bool) {
	if !x.enter(ml) {
		return false, true
	}
	if swapWord(x.Arena, ml.Dir+8*pos, 0, word) {
		return true, false
	}
	x.leave(ml)
	return false, false
}

// findShort finds a key of up to 8 bytes.
func (x *run) findShort(ml *abi.MapLayout, key uint64, enter bool) (uint64, bool) {
	mask := uint64(int64(ml.KeyMask))
	if key == mask {
		pos := uint64(1) << ml.DirBits
		if loadWord(x.Arena, ml.Dir+8*pos) != 0 || !enter {
			return pos, loadWord(x.Arena, ml.Dir+8*pos) != 0
		}
		found, over := x.claim(ml, pos, 1)
		return pos, found || !over
	}
	return x.probe(ml, key*abi.HashMul, enter, func(pos uint64) (found, over bool) {
		if loadWord(x.Arena, ml.Dir+8*pos) == 0 {
			if !enter {
				return false, true
			}
			if found, over = x.claim(ml, pos, key^mask); found || over {
				return found, over
			}
		}
		return loadWord(x.Arena, ml.Dir+8*pos) == key^mask, false
	})
}

// findLong finds a key of several words.
func (x *run) findLong(ml *abi.MapLayout, words []uint64, enter bool) (uint64, bool) {
	hash := abi.HashKey(words)
	word := uint64(0) // the directory word of the node that holds the key, once there is one
	return x.probe(ml, hash, enter, func(pos uint64) (found, over bool) {
		if loadWord(x.Arena, ml.Dir+8*pos) == 0 {
			if !enter {
				return false, true
			}
			if word == 0 {
				if word = x.newNode(ml, words, hash); word == 0 {
					return false, true
				}
			}
			if found, over = x.claim(ml, pos, word); found || over {
				return found, over
			}
		}
		return x.holds(ml, loadWord(x.Arena, ml.Dir+8*pos), words, hash), false
	})
}

// newNode writes a key into a node and returns the word that names it, or 0
// when there is none left.
func (x *run) newNode(ml *abi.MapLayout, words []uint64, hash uint64) uint64 {
	if loadWord(x.Arena, ml.Used) >= uint64(ml.MaxEntries) {
		addWord(x.Arena, abi.HdrDrops, 1)
		return 0
	}
	n := addWord(x.Arena, ml.Nodes, 1)
	if n >= uint64(ml.NodeCount) {
		addWord(x.Arena, abi.HdrDrops, 1)
		return 0
	}
	for i, w := range words {
		storeWord(x.Arena, nodeWord(ml, n, i), w)
	}
	return hash>>32<<32 | (n + 1)
}

// nodeWord is where word i of the key in a node lies in the arena.
func nodeWord(ml *abi.MapLayout, n uint64, i int) uint64 {
	return ml.Nodes + 8 + 8*(n*uint64(ml.KeyWords())+uint64(i))
}

// holds reports whether a directory word names a node with the key.
func (x *run) holds(ml *abi.MapLayout, word uint64, words []uint64, hash uint64) bool {
	n := uint64(uint32(word)) - 1
	if word>>32 != hash>>32 || n >= uint64(ml.NodeCount) {
		return false
	}
	for i, w := range words {
		if loadWord(x.Arena, nodeWord(ml, n, i)) != w {
			return false
		}
	}
	return true
}

// valueAt is where the value at a position lies in the arena.
func (m *Machine) valueAt(ml *abi.MapLayout, pos uint64) uint64 {
	if ml.Shared() {
		return ml.Value(pos)
	}
	return m.cellAt(ml, m.Slot, pos)
}

// cellAt is the same of a slot.
func (m *Machine) cellAt(ml *abi.MapLayout, slot int, pos uint64) uint64 {
	return m.Layout.Slots + uint64(slot)<<m.Layout.StrideShift + ml.Cells + pos*uint64(ml.Stride())
}

// lookup is map_lookup_elem: the position of the entry that a key has.
func (x *run) lookup(ml *abi.MapLayout, key []byte) (uint64, bool) {
	switch {
	case ml.IsTable():
		return x.table(ml, key).lookup()
	case ml.Kind == abi.PerThread:
		return 0, loadWord(x.Arena, x.valueAt(ml, 0)-8) == keyWords(key)[0]|abi.ThreadKey
	}
	return x.find(ml, key, false)
}

// Flags of map_update_elem, and what it and map_delete_elem may return besides
// 0 (include/uapi/linux/bpf.h, include/uapi/asm-generic/errno-base.h).
const (
	bpfNoExist = 1
	bpfExist   = 2

	errNoEnt  = -2
	errTooBig = -7
	errExist  = -17
	errInval  = -22
)

// update is map_update_elem.
func (x *run) update(ml *abi.MapLayout, key, value []byte, flags uint64) int64 {
	switch {
	case flags > bpfExist:
		return errInval
	case ml.IsTable():
		return x.table(ml, key).update(value, flags)
	case ml.Kind == abi.PerThread:
		return x.updateThread(ml, keyWords(key)[0]|abi.ThreadKey, value, flags)
	case !ml.IsHash():
		return x.updateArray(ml, key, value, flags)
	}
	pos, ok := x.find(ml, key, false)
	switch {
	case ok && flags == bpfNoExist:
		return errExist
	case !ok && flags == bpfExist:
		return errNoEnt
	case !ok:
		if pos, ok = x.find(ml, key, true); !ok {
			return errTooBig
		}
	}
	x.putValue(ml, pos, value)
	return 0
}

func (x *run) updateArray(ml *abi.MapLayout, key, value []byte, flags uint64) int64 {
	pos, ok := x.find(ml, key, false)
	switch {
	case !ok:
		return errTooBig
	case flags == bpfNoExist:
		return errExist
	}
	x.putValue(ml, pos, value)
	return 0
}

// updateThread is map_update_elem of a PerThread map. An entry that a thread has left
// that has ended, or that several threads without slots would share, is lost.
func (x *run) updateThread(ml *abi.MapLayout, key uint64, value []byte, flags uint64) int64 {
	old := loadWord(x.Arena, x.valueAt(ml, 0)-8)
	switch {
	case flags == bpfExist && old != key:
		return errNoEnt
	case flags == bpfNoExist && old == key:
		return errExist
	case old != 0 && old != key:
		addWord(x.Arena, abi.HdrDrops, 1)
	}
	x.putValue(ml, 0, value)
	storeWord(x.Arena, x.valueAt(ml, 0)-8, key)
	return 0
}

// putValue replaces a value.
func (x *run) putValue(ml *abi.MapLayout, pos uint64, value []byte) {
	at := x.valueAt(ml, pos)
	copy(x.Arena[at:at+uint64(ml.ValueSize)], value)
}

// remove is map_delete_elem.
func (x *run) remove(ml *abi.MapLayout, key []byte) int64 {
	if ml.Kind == abi.PerThread {
		if _, ok := x.lookup(ml, key); !ok {
			return errNoEnt
		}
		storeWord(x.Arena, x.valueAt(ml, 0)-8, 0)
		return 0
	}
	if !ml.IsTable() {
		return errInval
	}
	return x.table(ml, key).remove()
}
