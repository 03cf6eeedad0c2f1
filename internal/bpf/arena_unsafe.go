package bpf

import (
	"sync/atomic"
	"unsafe"
)

// word64 is the aligned 64-bit word at off, which target code may change at any
// moment. Precondition: off is a multiple of 8; the bounds are checked here.
func word64(mem []byte, off uint64) *uint64 {
	_ = mem[off : off+8 : off+8]
	if off%8 != 0 {
		panic("BUG: bpf: arena word is not aligned")
	}
	return (*uint64)(unsafe.Pointer(&mem[off]))
}

func loadWord(mem []byte, off uint64) uint64 { return atomic.LoadUint64(word64(mem, off)) }
func storeWord(mem []byte, off, v uint64)    { atomic.StoreUint64(word64(mem, off), v) }
func addWord(mem []byte, off, v uint64) (old uint64) {
	return atomic.AddUint64(word64(mem, off), v) - v
}
func swapWord(mem []byte, off, old, v uint64) bool {
	return atomic.CompareAndSwapUint64(word64(mem, off), old, v)
}
