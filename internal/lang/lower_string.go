package lang

import (
	"encoding/binary"

	"github.com/cilium/ebpf/asm"
)

// Strings lie in memory of the program with zero bytes behind them up to a whole
// word, so that they can be compared word by word.

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

// textRoom is how many bytes textPlace has.
func textRoom(x expr) int { return b2t(x).Len }

// textPlace is where a text lies with zeros behind it.
func (l *lowerer) textPlace(x expr) place {
	_, raw := rawLen(x)
	if !raw && !liesInTarget(x) && !x.base().con.known {
		return l.locate(x)
	}
	p := l.newPlace(textRoom(x))
	l.into(x, p, b2t(x))
	return p
}

// compareKnown makes h 1 if the first n bytes of two strings are equal, or if
// they are not, as equal says, else 0. One of them is known. Of the other no
// more is read than tells.
func (l *lowerer) compareKnown(x, y expr, n int, equal bool, h home) {
	if x.base().con.known {
		x, y = y, x
	}
	want := string(untilZero([]byte(y.base().con.s)))
	whole := n > len(want)
	want = want[:min(len(want), n)]
	limit := len(want) + 2 // one byte more, and the zero byte that the helper makes of the last one
	if !whole {
		limit = n + 1
	}
	size := alignUp(limit, 8)
	done := l.newLabel()
	l.setConst(h, b2u(!equal))
	if len(want)+btoi(whole) > textRoom(x) { // it has no room for so much
		return
	}
	var p place
	if readsString(x) {
		p = l.newPlace(size)
		l.into(x, p, Type{Kind: String, Len: size})
		if call, ok := x.(*callExpr); !ok || call.name != builtinComm {
			l.cutText(p, limit)
		}
	} else {
		p = l.textPlace(x)
		size = min(size, textRoom(x))
	}
	l.compareBytes(p, want, len(want)+btoi(whole), size, done)
	l.setConst(h, b2u(equal))
	l.bind(done)
}

// compareBytes goes to differ unless the first n bytes at a place are those of a
// text with zeros behind it.
func (l *lowerer) compareBytes(p place, want string, n, size int, differ label) {
	base, off := l.access(p, asm.R5)
	for i, w := range textWords(want, size) {
		end := n - 8*i
		if end <= 0 {
			return
		}
		l.emit(asm.LoadMem(asm.R1, base, off+int16(8*i), asm.DWord))
		if end < 8 {
			l.movImm(asm.R2, 1<<(8*end)-1)
			l.aluReg(asm.And, asm.R1, asm.R2)
		}
		if small(w) {
			l.jumpImm(asm.JNE, asm.R1, int32(w), differ)
		} else {
			l.movImm(asm.R2, w)
			l.jumpReg(asm.JNE, asm.R1, asm.R2, differ)
		}
	}
}

// compareMemory compares values that no register holds.
func (l *lowerer) compareMemory(x, y expr, equal bool, h home) {
	a, b := b2t(x), b2t(y)
	if a.Kind == String && (x.base().con.known || y.base().con.known) {
		l.compareKnown(x, y, maxString, equal, h)
		return
	}
	if a.Kind == String {
		l.compareWords(l.textPlace(x), l.textPlace(y), min(a.Words(), b.Words()), equal, h)
		return
	}
	t, _ := promote(a, b)
	p, q := l.newPlace(8*t.Words()), l.newPlace(8*t.Words())
	l.into(x, p, t)
	l.into(y, q, t)
	l.compareWords(p, q, t.Words(), equal, h)
}

func (l *lowerer) compareWords(p, q place, words int, equal bool, h home) {
	done := l.newLabel()
	l.setConst(h, b2u(!equal))
	a, aOff := l.access(p, asm.R4)
	b, bOff := l.access(q, asm.R5)
	if words <= unrolledWords {
		for i := range words {
			l.emit(asm.LoadMem(asm.R0, a, aOff+int16(8*i), asm.DWord))
			l.emit(asm.LoadMem(asm.R1, b, bOff+int16(8*i), asm.DWord))
			l.jumpReg(asm.JNE, asm.R0, asm.R1, done)
		}
	} else {
		l.point(asm.R4, p)
		l.point(asm.R5, q)
		l.eachWord(words, func() {
			l.mov(asm.R2, asm.R4)
			l.aluReg(asm.Add, asm.R2, asm.R3)
			l.emit(asm.LoadMem(asm.R0, asm.R2, 0, asm.DWord))
			l.mov(asm.R2, asm.R5)
			l.aluReg(asm.Add, asm.R2, asm.R3)
			l.emit(asm.LoadMem(asm.R1, asm.R2, 0, asm.DWord))
			l.jumpReg(asm.JNE, asm.R0, asm.R1, done)
		})
	}
	l.setConst(h, b2u(equal))
	l.bind(done)
}

// byteAt loads a byte at pointer+index into dst.
func (l *lowerer) byteAt(dst, pointer, index asm.Register) {
	l.mov(dst, pointer)
	l.aluReg(asm.Add, dst, index)
	l.emit(asm.LoadMem(dst, dst, 0, asm.Byte))
}

// strncmp makes h 0 if the first n bytes of two texts are equal, else 1.
func (l *lowerer) strncmp(x, y expr, n int, h home) {
	if x.base().con.known || y.base().con.known {
		l.compareKnown(x, y, n, false, h)
		return
	}
	p, q := l.textPlace(x), l.textPlace(y)
	n = min(n, textRoom(x), textRoom(y))
	again, done := l.newLabel(), l.newLabel()
	equal := l.newLabel()
	l.setConst(h, 1)
	l.point(asm.R4, p)
	l.point(asm.R5, q)
	l.movImm(asm.R3, 0)
	l.bind(again)
	l.jumpImm(asm.JGE, asm.R3, int32(n), equal)
	l.byteAt(asm.R1, asm.R4, asm.R3)
	l.byteAt(asm.R2, asm.R5, asm.R3)
	l.jumpReg(asm.JNE, asm.R1, asm.R2, done)
	l.jumpImm(asm.JEq, asm.R1, 0, equal)
	l.aluImm(asm.Add, asm.R3, 1)
	l.jumpTo(again)
	l.bind(equal)
	l.setConst(h, 0)
	l.bind(done)
}

// memcmp makes h the difference of the first bytes that differ.
func (l *lowerer) memcmp(x, y expr, n int, h home) {
	p, q := l.newPlace(8*b2t(x).Words()), l.newPlace(8*b2t(y).Words())
	l.into(x, p, b2t(x))
	l.into(y, q, b2t(y))
	again, done := l.newLabel(), l.newLabel()
	l.point(asm.R4, p)
	l.point(asm.R5, q)
	l.movImm(asm.R3, 0)
	l.movImm(asm.R0, 0)
	l.bind(again)
	l.jumpImm(asm.JGE, asm.R3, int32(n), done)
	l.byteAt(asm.R0, asm.R4, asm.R3)
	l.byteAt(asm.R2, asm.R5, asm.R3)
	l.aluReg(asm.Sub, asm.R0, asm.R2)
	l.jumpImm(asm.JNE, asm.R0, 0, done)
	l.aluImm(asm.Add, asm.R3, 1)
	l.jumpTo(again)
	l.bind(done)
	l.setHome(h, asm.R0)
}

// strlen makes h the number of bytes before the first zero byte.
func (l *lowerer) strlen(x expr, h home) {
	p := l.textPlace(x)
	again, done := l.newLabel(), l.newLabel()
	l.point(asm.R4, p)
	l.movImm(asm.R3, 0)
	l.bind(again)
	l.jumpImm(asm.JGE, asm.R3, int32(textRoom(x)), done)
	l.byteAt(asm.R0, asm.R4, asm.R3)
	l.jumpImm(asm.JEq, asm.R0, 0, done)
	l.aluImm(asm.Add, asm.R3, 1)
	l.jumpTo(again)
	l.bind(done)
	l.setHome(h, asm.R3)
}

// strstr makes h the place of one text in another, -1 if it is not there.
//
//	r4 the text, r5 what is sought, r3 where in the text, r1 how far in the other
func (l *lowerer) strstr(x, y expr, h home) {
	p, q := l.textPlace(x), l.textPlace(y)
	outer, inner, next := l.newLabel(), l.newLabel(), l.newLabel()
	found, missing, done := l.newLabel(), l.newLabel(), l.newLabel()
	l.point(asm.R4, p)
	l.point(asm.R5, q)
	l.movImm(asm.R3, 0)
	l.bind(outer)
	l.movImm(asm.R1, 0)
	l.bind(inner)
	l.jumpImm(asm.JGE, asm.R1, int32(textRoom(y)), found)
	l.byteAt(asm.R0, asm.R5, asm.R1)
	l.jumpImm(asm.JEq, asm.R0, 0, found)
	l.mov(asm.R2, asm.R3)
	l.aluReg(asm.Add, asm.R2, asm.R1)
	l.jumpImm(asm.JGE, asm.R2, int32(textRoom(x)), missing)
	l.aluReg(asm.Add, asm.R2, asm.R4)
	l.emit(asm.LoadMem(asm.R2, asm.R2, 0, asm.Byte))
	l.jumpImm(asm.JEq, asm.R2, 0, missing)
	l.jumpReg(asm.JNE, asm.R0, asm.R2, next)
	l.aluImm(asm.Add, asm.R1, 1)
	l.jumpTo(inner)
	l.bind(next)
	l.aluImm(asm.Add, asm.R3, 1)
	l.jumpImm(asm.JLT, asm.R3, int32(textRoom(x)), outer)
	l.bind(missing)
	l.movImm(asm.R3, ^uint64(0))
	l.jumpTo(done)
	l.bind(found)
	l.bind(done)
	l.setHome(h, asm.R3)
}
