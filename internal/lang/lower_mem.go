package lang

import (
	"encoding/binary"

	"github.com/cilium/ebpf/asm"
)

// place is where a value lies that no register holds.
type place struct {
	kind placeKind
	off  int
	addr lastingValue // of inTarget: the address, off bytes before the value
}

type placeKind uint8

const (
	onStack   placeKind = iota // at r10+off
	inScratch                  // in memory of the running thread's own, at off
	inTarget                   // in the target's memory
)

func (p place) plus(n int) place {
	p.off += n
	return p
}

// What is larger than this, or comes when so much of the stack is taken, lies in
// the scratch memory.
const (
	maxOnStack  = 128
	stackIsFull = 400
)

// newPlace takes memory until the frame is cut back.
func (l *lowerer) newPlace(size int) place {
	size = alignUp(max(size, 8), 8)
	if size <= maxOnStack && l.frame+size <= stackIsFull {
		return place{kind: onStack, off: int(l.push(size))}
	}
	p := place{kind: inScratch, off: l.big}
	l.big += size
	l.script.scratch = max(l.script.scratch, l.big)
	return p
}

// point makes dst the address of memory of the program.
func (l *lowerer) point(dst asm.Register, p place) {
	if p.kind == onStack {
		l.stackAddr(dst, int16(p.off))
		return
	}
	l.emit(asm.LoadMapValue(dst, l.script.scratchMap, uint32(p.off)))
}

// access is a register and an offset by which memory of the program is reached.
// Where the register is not r10 it is tmp.
func (l *lowerer) access(p place, tmp asm.Register) (asm.Register, int16) {
	if p.kind == onStack {
		return asm.R10, int16(p.off)
	}
	l.point(tmp, p)
	return tmp, 0
}

func (l *lowerer) storeAt(p place, r asm.Register) {
	base, off := l.access(p, asm.R5)
	l.emit(asm.StoreMem(base, off, r, asm.DWord))
}

// loops of this many words are unrolled.
const unrolledWords = 12

// copyWords copies whole words between places of the program.
func (l *lowerer) copyWords(dst, src place, words int) {
	to, toOff := l.access(dst, asm.R5)
	from, fromOff := l.access(src, asm.R4)
	if words <= unrolledWords {
		for i := range words {
			l.emit(asm.LoadMem(asm.R0, from, fromOff+int16(8*i), asm.DWord))
			l.emit(asm.StoreMem(to, toOff+int16(8*i), asm.R0, asm.DWord))
		}
		return
	}
	l.point(asm.R5, dst)
	l.point(asm.R4, src)
	l.eachWord(words, func() {
		l.mov(asm.R2, asm.R4)
		l.aluReg(asm.Add, asm.R2, asm.R3)
		l.emit(asm.LoadMem(asm.R0, asm.R2, 0, asm.DWord))
		l.mov(asm.R2, asm.R5)
		l.aluReg(asm.Add, asm.R2, asm.R3)
		l.emit(asm.StoreMem(asm.R2, 0, asm.R0, asm.DWord))
	})
}

// eachWord runs code with r3 the offset of each word.
func (l *lowerer) eachWord(words int, body func()) {
	again, done := l.newLabel(), l.newLabel()
	l.movImm(asm.R3, 0)
	l.bind(again)
	l.jumpImm(asm.JGT, asm.R3, int32(8*words-8), done)
	body()
	l.aluImm(asm.Add, asm.R3, 8)
	l.jumpTo(again)
	l.bind(done)
}

// clearAt fills words with zeros.
func (l *lowerer) clearAt(p place, words int) {
	base, off := l.access(p, asm.R5)
	if words <= unrolledWords {
		for i := range words {
			l.storeImmAt(base, off+int16(8*i), 0)
		}
		return
	}
	l.point(asm.R5, p)
	l.movImm(asm.R0, 0)
	l.eachWord(words, func() {
		l.mov(asm.R2, asm.R5)
		l.aluReg(asm.Add, asm.R2, asm.R3)
		l.emit(asm.StoreMem(asm.R2, 0, asm.R0, asm.DWord))
	})
}

func (e *emitter) storeImmAt(base asm.Register, off int16, v int32) {
	op := asm.OpCode(asm.StClass).SetMode(asm.MemMode).SetSize(asm.DWord)
	e.emit(asm.Instruction{OpCode: op, Dst: base, Offset: off, Constant: int64(v)})
}

// putBytes writes bytes that are known, and zeros behind them up to whole words.
func (l *lowerer) putBytes(p place, b []byte, words int) {
	b = append(append([]byte(nil), b...), make([]byte, max(0, 8*words-len(b)))...)
	used := words
	for used > 0 && binary.LittleEndian.Uint64(b[8*used-8:]) == 0 {
		used--
	}
	if words-used > unrolledWords {
		l.clearAt(p.plus(8*used), words-used)
	} else {
		used = words
	}
	base, off := l.access(p, asm.R5)
	for i := range used {
		w := binary.LittleEndian.Uint64(b[8*i:])
		if small(w) {
			l.storeImmAt(base, off+int16(8*i), int32(w))
			continue
		}
		l.movImm(asm.R0, w)
		l.emit(asm.StoreMem(base, off+int16(8*i), asm.R0, asm.DWord))
	}
}

// loadFrom reads a number of a size from the program's memory.
func (l *lowerer) loadFrom(dst asm.Register, p place, t Type) {
	base, off := l.access(p, dst)
	l.emit(asm.LoadMem(dst, base, off, accessSize(t)))
	l.truncate(dst, t)
}

// accessSize is the size of a load of a number.
func accessSize(t Type) asm.Size {
	switch t.memory() {
	case 1:
		return asm.Byte
	case 2:
		return asm.Half
	case 4:
		return asm.Word
	}
	return asm.DWord
}

// readTarget copies bytes of the target's memory to memory of the program. What
// cannot be read is zeros.
func (l *lowerer) readTarget(dst place, size int, src place) {
	l.address(asm.R3, src)
	l.point(asm.R1, dst)
	l.movImm(asm.R2, uint64(size))
	l.helper(asm.FnProbeReadUser)
	l.unread("probe_read_user")
}

// address makes dst the address of what lies in the target.
func (l *lowerer) address(dst asm.Register, p place) {
	switch {
	case p.addr.con.known:
		l.movImm(dst, p.addr.con.u+uint64(p.off))
		return
	case p.addr.home.inReg:
		l.mov(dst, p.addr.home.reg)
	default:
		l.load(dst, p.addr.home.off)
	}
	if p.off != 0 {
		l.aluImm(asm.Add, dst, int32(p.off))
	}
}

// locate finds where a value lies that no register holds, or puts it somewhere.
func (l *lowerer) locate(x expr) place {
	if liesInTarget(x) {
		return l.locateInTarget(x)
	}
	switch x := x.(type) {
	case *varExpr:
		return l.places[x.sym]
	case *fieldExpr:
		if _, ok := l.argField(x); !ok {
			return l.locate(x.x).plus(x.field.Offset)
		}
	case *indexExpr:
		if t := b2t(x.x); t.Kind == Tuple {
			return l.locate(x.x).plus(t.Layout.Fields[x.index.base().con.u].Offset)
		} else if con := x.index.base().con; con.known && t.Kind == Array {
			return l.locate(x.x).plus(int(con.u) * t.Elem.memory())
		}
	case *comptimeExpr:
		return l.locate(x.x)
	}
	p := l.newPlace(8 * b2t(x).Words())
	l.into(x, p, b2t(x))
	return p
}

// locateInTarget computes the address of what lies in the target's memory.
func (l *lowerer) locateInTarget(x expr) place {
	switch x := x.(type) {
	case *derefExpr:
		return l.pointee(x.x)
	case *fieldExpr:
		if b2t(x.x).Kind == Pointer {
			return l.pointee(x.x).plus(x.field.Offset)
		}
		return l.locateInTarget(x.x).plus(x.field.Offset)
	}
	i := x.(*indexExpr)
	t := b2t(i.x)
	if t.Kind == Pointer {
		return l.indexed(l.pointee(i.x), i, t.Elem.memory(), 0)
	}
	return l.indexed(l.locateInTarget(i.x), i, t.Elem.memory(), t.Count)
}

func (l *lowerer) pointee(x expr) place {
	l.hoist(x)
	return place{kind: inTarget, addr: l.lasting(x)}
}

// indexed is the address of an element of an array in the target. Outside of its count
// elements, if that is known, it is read all the same, and a remark.
func (l *lowerer) indexed(base place, x *indexExpr, size, count int) place {
	index := x.index
	if con := index.base().con; con.known {
		if off := base.off + int(int64(con.u))*size; off == int(int32(off)) {
			return base.plus(int(int64(con.u)) * size)
		}
	}
	l.hoist(index)
	h := l.newHome()
	r, release := l.temp()
	l.value(index, r)
	if count > 0 {
		within := l.newLabel()
		l.jumpImm(asm.JLT, r, int32(count), within)
		l.setHome(h, r)
		l.remark(Remark{Span: x.span, From: x.from, Text: outsideText}, r, asm.R0)
		l.getHome(r, h)
		l.bind(within)
	}
	l.aluImm(asm.Mul, r, int32(size))
	l.address(asm.R0, base)
	l.aluReg(asm.Add, r, asm.R0)
	l.setHome(h, r)
	release()
	return place{kind: inTarget, addr: lastingValue{home: h, release: func() {}}}
}

// readScalar reads a number that lies in memory into a home.
func (l *lowerer) readScalar(x expr, h home) {
	l.reads = x.base()
	t := b2t(x)
	bits := Field{}
	if f, ok := x.(*fieldExpr); ok {
		bits = f.field
	}
	if i, ok := x.(*indexExpr); ok && !liesInTarget(x) {
		l.readElement(i, h)
		return
	}
	p := l.locate(x)
	size := t.memory()
	if bits.Bits > 0 {
		size = (bits.Shift + bits.Bits + 7) / 8
	}
	if p.kind == inTarget {
		tmp := l.newPlace(8)
		if size < 8 {
			l.clearAt(tmp, 1)
		}
		l.readTarget(tmp, min(size, 8), p)
		p = tmp
	}
	if bits.Bits == 0 {
		l.loadFrom(asm.R0, p, t)
		l.setHome(h, asm.R0)
		return
	}
	l.bitField(p, size, &bits)
	l.setHome(h, asm.R0)
}

// bitField makes r0 the value of a bit-field in the program's memory.
func (l *lowerer) bitField(p place, size int, f *Field) {
	base, off := l.access(p, asm.R5)
	l.movImm(asm.R0, 0)
	for i := min(size, 8) - 1; i >= 0; i-- {
		l.aluImm(asm.LSh, asm.R0, 8)
		l.emit(asm.LoadMem(asm.R2, base, off+int16(i), asm.Byte))
		l.aluReg(asm.Or, asm.R0, asm.R2)
	}
	l.aluImm(asm.LSh, asm.R0, int32(64-f.Bits-f.Shift))
	if f.Type.Signed {
		l.aluImm(asm.ArSh, asm.R0, int32(64-f.Bits))
	} else {
		l.aluImm(asm.RSh, asm.R0, int32(64-f.Bits))
	}
}

// readElement reads an element of an array that the program has, 0 outside it.
func (l *lowerer) readElement(x *indexExpr, h home) {
	t := b2t(x.x)
	elem, size := b2t(x), 1
	count := t.Len
	switch t.Kind {
	case Array:
		size, count = t.Elem.memory(), t.Count
	case Tuple:
		l.loadFrom(asm.R0, l.locate(x), elem)
		l.setHome(h, asm.R0)
		return
	}
	p := l.locate(x.x)
	if p.kind == inTarget {
		tmp := l.newPlace(count)
		l.readTarget(tmp, count, p)
		p = tmp
	}
	if con := x.index.base().con; con.known && con.u < uint64(count) {
		l.loadFrom(asm.R0, p.plus(int(con.u)*size), elem)
		l.setHome(h, asm.R0)
		return
	}
	l.hoist(x.index)
	outside, done := l.newLabel(), l.newLabel()
	l.value(x.index, asm.R2)
	l.jumpImm(asm.JGE, asm.R2, int32(count), outside)
	l.aluImm(asm.Mul, asm.R2, int32(size))
	l.point(asm.R3, p)
	l.aluReg(asm.Add, asm.R3, asm.R2)
	l.emit(asm.LoadMem(asm.R0, asm.R3, 0, accessSize(elem)))
	l.truncate(asm.R0, elem)
	l.jumpTo(done)
	l.bind(outside)
	l.remark(Remark{Span: x.span, From: x.from, Text: outsideText}, asm.R2, asm.R3)
	l.movImm(asm.R0, 0)
	l.bind(done)
	l.setHome(h, asm.R0)
}
