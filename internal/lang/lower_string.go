package lang

import (
	"encoding/binary"

	"github.com/cilium/ebpf/asm"
)

// Strings that are read at run time lie on the stack, with zero bytes behind
// them: in events, in keys, or for a comparison.

// commSize is the size of a thread's name with its zero byte (TASK_COMM_LEN of
// include/linux/sched.h).
const commSize = 16

// readsString reports whether an expression is a string that a helper reads.
func readsString(x expr) bool {
	switch x := x.(type) {
	case *nameExpr:
		return x.name == builtinComm
	case *callExpr:
		return x.name == builtinComm || x.name == "str" && !x.con.known
	}
	return false
}

// putString writes a string into size bytes of the stack, a multiple of 8, of
// which it and its zero byte take no more than limit.
func (l *lowerer) putString(off int16, size, limit int, x expr) {
	if con := x.base().con; con.known {
		for i, w := range textWords(con.s[:min(len(con.s), limit-1)], size) {
			l.storeWord(off+int16(8*i), w)
		}
		return
	}
	if call, ok := x.(*callExpr); ok && call.name == "str" {
		r, release := l.operand(call.args[0])
		l.mov(asm.R3, r)
		release()
		limit = min(limit, int(b2t(x).Len))
		if len(call.args) == 2 {
			limit = min(limit, int(call.args[1].base().con.u)+1)
		}
		kept := limit &^ 7 // the helper fills the rest of what it is given by zeros
		l.clear(off+int16(kept), size-kept)
		l.stackAddr(asm.R1, off)
		l.movImm(asm.R2, uint64(limit))
		l.helper(asm.FnProbeReadUserStr)
		return
	}
	l.clear(off, size)
	l.stackAddr(asm.R1, off)
	l.movImm(asm.R2, uint64(min(limit, commSize)))
	l.helper(asm.FnGetCurrentComm)
}

func (l *lowerer) clear(off int16, size int) {
	for i := 0; i < size; i += 8 {
		l.storeImm(off+int16(i), 0)
	}
}

func (l *lowerer) storeWord(off int16, w uint64) {
	if small(w) {
		l.storeImm(off, int32(w))
		return
	}
	l.movImm(asm.R0, w)
	l.store(off, asm.R0)
}

// textWords are the words of a text, filled up with zeros.
func textWords(s string, size int) []uint64 {
	b := make([]byte, size)
	copy(b, s)
	words := make([]uint64, size/8)
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return words
}

// compareStrings makes h 1 if the first n bytes of two strings are equal, or if
// they are not, as equal says, else 0. One of them is known. Of the other no
// more is read than tells.
func (l *lowerer) compareStrings(x, y expr, n int, equal bool, h home) {
	if x.base().con.known {
		x, y = y, x
	}
	want := y.base().con.s
	want = want[:min(len(want), n)]
	limit := len(want) + 2 // one byte more, and the zero byte that the helper makes of the last one
	if n <= len(want) {
		limit = n + 1
	}
	size := (limit + 7) &^ 7
	off := l.push(size)
	l.putString(off, size, limit, x)
	done := l.newLabel()
	l.setConst(h, b2u(!equal))
	for i, w := range textWords(want, size) {
		l.load(asm.R1, off+int16(8*i))
		if small(w) {
			l.jumpImm(asm.JNE, asm.R1, int32(w), done)
		} else {
			l.movImm(asm.R2, w)
			l.jumpReg(asm.JNE, asm.R1, asm.R2, done)
		}
	}
	l.setConst(h, b2u(equal))
	l.bind(done)
}
