package arena

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// word is the 8-byte aligned word at an offset of the arena.
func (a *Arena) word(off uint64) *uint64 {
	if off%8 != 0 {
		panic("BUG: arena word not aligned")
	}
	return (*uint64)(unsafe.Pointer(&a.mem[off : off+8][0]))
}

// Load reads the word at the offset atomically, with acquire order.
func (a *Arena) Load(off uint64) uint64 { return atomic.LoadUint64(a.word(off)) }

// Store writes the word at the offset atomically, with release order.
func (a *Arena) Store(off, v uint64) { atomic.StoreUint64(a.word(off), v) }

// swap replaces the word at the offset by v if it is old.
func (a *Arena) swap(off, old, v uint64) bool {
	return atomic.CompareAndSwapUint64(a.word(off), old, v)
}

func putWord(b []byte, v uint64) { binary.LittleEndian.PutUint64(b, v) }
