package bpf

import (
	"encoding/binary"

	"trapless/internal/abi"
)

// findCell finds the position of a key's cell, or enters the key.
func (x *run) findCell(ml *abi.MapLayout, key []byte) (pos uint64, ok bool) {
	switch {
	case ml.Kind == abi.PerSlotArray:
		pos = uint64(binary.LittleEndian.Uint32(key))
		return pos, pos < uint64(ml.MaxEntries)
	case ml.KeySize == 8:
		return x.findShort(ml, binary.LittleEndian.Uint64(key))
	}
	return x.findLong(ml, key)
}

// probe calls try for each directory position that a key with this hash may
// have, until it is decided. Else the map is full for the key.
func (x *run) probe(ml *abi.MapLayout, hash uint64, try func(pos uint64) (found, over bool)) (uint64, bool) {
	pos := hash >> (64 - ml.DirBits)
	for range min(abi.ProbeLimit, 1<<ml.DirBits) {
		found, over := try(pos)
		if found || over {
			return pos, found
		}
		pos = (pos + 1) & (1<<ml.DirBits - 1)
	}
	addWord(x.Arena, abi.HdrDrops, 1)
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

// findShort finds or enters a key of 8 bytes.
func (x *run) findShort(ml *abi.MapLayout, key uint64) (uint64, bool) {
	mask := uint64(int64(ml.KeyMask))
	if key == mask {
		pos := uint64(1) << ml.DirBits
		if loadWord(x.Arena, ml.Dir+8*pos) != 0 {
			return pos, true
		}
		found, over := x.claim(ml, pos, 1)
		return pos, found || !over
	}
	return x.probe(ml, key*abi.HashMul, func(pos uint64) (found, over bool) {
		if loadWord(x.Arena, ml.Dir+8*pos) == 0 {
			if found, over = x.claim(ml, pos, key^mask); found || over {
				return found, over
			}
		}
		return loadWord(x.Arena, ml.Dir+8*pos) == key^mask, false
	})
}

// findLong finds or enters a key of several words.
func (x *run) findLong(ml *abi.MapLayout, key []byte) (uint64, bool) {
	words := make([]uint64, len(key)/8)
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(key[8*i:])
	}
	hash := abi.HashKey(words)
	word := uint64(0) // the directory word of the node that holds the key, once there is one
	return x.probe(ml, hash, func(pos uint64) (found, over bool) {
		if loadWord(x.Arena, ml.Dir+8*pos) == 0 {
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
		storeWord(x.Arena, ml.Nodes+8+n*uint64(ml.KeySize)+uint64(8*i), w)
	}
	return hash>>32<<32 | (n + 1)
}

// holds reports whether a directory word names a node with the key.
func (x *run) holds(ml *abi.MapLayout, word uint64, words []uint64, hash uint64) bool {
	n := uint64(uint32(word)) - 1
	if word>>32 != hash>>32 || n >= uint64(ml.NodeCount) {
		return false
	}
	for i, w := range words {
		if loadWord(x.Arena, ml.Nodes+8+n*uint64(ml.KeySize)+uint64(8*i)) != w {
			return false
		}
	}
	return true
}
