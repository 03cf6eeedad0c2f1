package lang

import (
	"encoding/binary"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/bpf"
)

// into writes a value, converted to a type, to memory of the program. It fills
// whole words.
func (l *lowerer) into(x expr, dst place, t Type) {
	b := x.base()
	frame, spare, big := l.frame, l.spare, l.big
	defer func() { l.frame, l.spare, l.big = frame, spare, big }()
	switch {
	case b.con.known && pure(x) && l.constInto(b, dst, t):
		return
	case b.typ.isScalar():
		l.hoist(x)
		l.scalarInto(x, dst)
		if n := t.Words(); n > 1 {
			l.clearAt(dst.plus(8), n-1)
		}
		return
	}
	switch x := x.(type) {
	case *tupleExpr:
		l.tupleInto(x, dst, t)
	case *condExpr:
		l.choiceInto(x, dst, t)
	case *blockExpr:
		for _, s := range x.body.stmts {
			if l.stmt(s) {
				return
			}
		}
		l.into(x.value, dst, t)
	case *fnExpr:
		l.inline(x)
		l.convertPlace(l.places[x.sym], x.typ, dst, t)
	case *castExpr:
		l.castInto(x, dst, t)
	case *callExpr, *nameExpr:
		l.callInto(x, dst, t)
	case *mapExpr:
		l.mapInto(x, dst, t)
	default:
		l.memoryInto(x, dst, t)
	}
}

// constInto writes a value that is known, and reports whether it could.
func (l *lowerer) constInto(b *exprBase, dst place, t Type) bool {
	switch {
	case t.Kind == String:
		l.putBytes(dst, []byte(b.con.s[:min(len(b.con.s), t.Len-1)]), t.Words())
	case t.Kind == Array && b.typ.Kind == Array:
		l.putBytes(dst, []byte(b.con.s), t.Words())
	case b.typ.isScalar():
		l.putBytes(dst, binary.LittleEndian.AppendUint64(nil, b.con.u), t.Words())
	default:
		return false
	}
	return true
}

func (l *lowerer) scalarInto(x expr, dst place) {
	r, release := l.operand(x)
	if dst.kind != onStack && r == asm.R5 {
		l.mov(asm.R0, r)
		r = asm.R0
	}
	l.storeAt(dst, r)
	release()
}

// memoryInto copies what lies in memory.
func (l *lowerer) memoryInto(x expr, dst place, t Type) {
	l.reads = x.base()
	from := b2t(x)
	src := l.locate(x)
	if from.Kind == String {
		l.textInto(x, src, dst, t)
		return
	}
	if src.kind == inTarget {
		if from.Equal(t) {
			l.clearAt(dst.plus(8*(t.Words()-1)), 1)
			l.readTarget(dst, from.memory(), src)
			return
		}
		tmp := l.newPlace(8 * from.Words())
		l.clearAt(tmp.plus(8*(from.Words()-1)), 1)
		l.readTarget(tmp, from.memory(), src)
		src = tmp
	}
	l.convertPlace(src, from, dst, t)
}

// rawLen is how many bytes a text has where it lies: those of a field of C need
// no zero byte.
func rawLen(x expr) (int, bool) {
	switch x := x.(type) {
	case *fieldExpr:
		if x.field.Type.Kind == String && (b2t(x.x).Kind == Struct || b2t(x.x).Kind == Pointer) {
			return x.field.Type.Len, true
		}
	case *indexExpr:
		if t := b2t(x.x); (t.Kind == Array || t.Kind == Pointer) && t.Elem.Kind == String {
			return t.Elem.Len, true
		}
	case *derefExpr:
		if t := b2t(x.x); t.Elem.Kind == String {
			return t.Elem.Len, true
		}
	}
	return 0, false
}

// textInto copies a text from memory, up to its zero byte.
func (l *lowerer) textInto(x expr, src, dst place, t Type) {
	n, raw := rawLen(x)
	switch {
	case src.kind == inTarget:
		l.clearAt(dst, t.Words())
		l.address(asm.R3, src)
		l.point(asm.R1, dst)
		l.movImm(asm.R2, uint64(min(n+1, t.Len)))
		l.helper(asm.FnProbeReadUserStr)
		l.unread("probe_read_user_str")
	case raw:
		l.clearAt(dst, t.Words())
		l.copyText(dst, src, min(n, t.Len-1))
	default:
		l.convertPlace(src, b2t(x), dst, t)
	}
}

// copyText copies bytes up to a zero byte, n at most.
func (l *lowerer) copyText(dst, src place, n int) {
	again, done := l.newLabel(), l.newLabel()
	l.point(asm.R4, src)
	l.point(asm.R5, dst)
	l.movImm(asm.R3, 0)
	l.bind(again)
	l.jumpImm(asm.JGE, asm.R3, int32(n), done)
	l.mov(asm.R2, asm.R4)
	l.aluReg(asm.Add, asm.R2, asm.R3)
	l.emit(asm.LoadMem(asm.R0, asm.R2, 0, asm.Byte))
	l.jumpImm(asm.JEq, asm.R0, 0, done)
	l.mov(asm.R2, asm.R5)
	l.aluReg(asm.Add, asm.R2, asm.R3)
	l.emit(asm.StoreMem(asm.R2, 0, asm.R0, asm.Byte))
	l.aluImm(asm.Add, asm.R3, 1)
	l.jumpTo(again)
	l.bind(done)
}

// convertPlace copies a value of one type as one of another.
func (l *lowerer) convertPlace(src place, from Type, dst place, to Type) {
	switch {
	case from.isScalar():
		l.loadFrom(asm.R0, src, from)
		l.storeAt(dst, asm.R0)
	case (to.Kind == Tuple || to.Kind == Record) && !sameWords(from, to):
		for i, f := range to.Layout.Fields {
			g := from.Layout.Fields[i]
			if to.Kind == Record {
				g, _ = from.Layout.field(f.Name)
			}
			l.convertPlace(src.plus(g.Offset), g.Type, dst.plus(f.Offset), f.Type)
		}
	default:
		n := min(from.Words(), to.Words())
		l.copyWords(dst, src, n)
		if rest := to.Words() - n; rest > 0 {
			l.clearAt(dst.plus(8*n), rest)
		} else if to.Kind == String && from.Words() > n { // it may have been cut
			l.movImm(asm.R0, 0)
			base, off := l.access(dst.plus(to.Len-1), asm.R5)
			l.emit(asm.StoreMem(base, off, asm.R0, asm.Byte))
		}
	}
}

// sameWords reports whether values of two types are the same words.
func sameWords(a, b Type) bool {
	if a.Words() != b.Words() || a.Kind != b.Kind {
		return false
	}
	if a.Kind != Tuple && a.Kind != Record {
		return true
	}
	for i, f := range a.Layout.Fields {
		g := b.Layout.Fields[i]
		if f.Name != g.Name || f.Offset != g.Offset || !sameWords(f.Type, g.Type) {
			return false
		}
	}
	return true
}

// tupleInto writes the elements of a tuple or record in their order.
func (l *lowerer) tupleInto(x *tupleExpr, dst place, t Type) {
	for i, e := range x.elems {
		f := t.Layout.Fields[min(i, len(t.Layout.Fields)-1)]
		if x.names != nil {
			f, _ = t.Layout.field(x.names[i])
		}
		l.into(e, dst.plus(f.Offset), f.Type)
	}
}

func (l *lowerer) choiceInto(x *condExpr, dst place, t Type) {
	other, done := l.newLabel(), l.newLabel()
	l.decide(x.cond, other, false)
	l.into(x.x, dst, t)
	l.jumpTo(done)
	l.bind(other)
	l.into(x.y, dst, t)
	l.bind(done)
}

// castInto is a cast to what no register holds.
func (l *lowerer) castInto(x *castExpr, dst place, t Type) {
	from := b2t(x.x)
	switch {
	case from.isScalar() && t.Kind == Array:
		l.hoist(x.x)
		l.scalarInto(x.x, dst)
	case from.Kind == String && t.Kind == Array, from.Kind == Array && t.Kind == String:
		as := Type{Kind: String, Len: alignUp(t.memory(), 8)}
		l.into(x.x, dst, as)
	default:
		l.into(x.x, dst, t)
	}
}

// mapInto copies the value of an entry, zeros if there is none.
func (l *lowerer) mapInto(m *mapExpr, dst place, t Type) {
	info := l.maps[m.name]
	src := place{}
	if !sameWords(info.value, t) {
		src = l.newPlace(8 * info.value.Words())
		l.mapInto(m, src, info.value)
		l.convertPlace(src, info.value, dst, t)
		return
	}
	none, done := l.newLabel(), l.newLabel()
	if len(info.keys) == 0 {
		l.emit(asm.LoadMapValue(asm.R0, info.number, plainValue))
	} else {
		l.lookupEntry(m)
		l.jumpImm(asm.JEq, asm.R0, 0, none)
	}
	l.mov(asm.R4, asm.R0)
	l.point(asm.R5, dst)
	l.copyPointed(t.Words())
	if len(info.keys) > 0 {
		l.jumpTo(done)
		l.bind(none)
		l.clearAt(dst, t.Words())
		l.bind(done)
	}
}

// copyPointed copies words from r4 to r5.
func (l *lowerer) copyPointed(words int) {
	if words <= unrolledWords {
		for i := range words {
			l.emit(asm.LoadMem(asm.R0, asm.R4, int16(8*i), asm.DWord))
			l.emit(asm.StoreMem(asm.R5, int16(8*i), asm.R0, asm.DWord))
		}
		return
	}
	l.eachWord(words, func() {
		l.mov(asm.R2, asm.R4)
		l.aluReg(asm.Add, asm.R2, asm.R3)
		l.emit(asm.LoadMem(asm.R0, asm.R2, 0, asm.DWord))
		l.mov(asm.R2, asm.R5)
		l.aluReg(asm.Add, asm.R2, asm.R3)
		l.emit(asm.StoreMem(asm.R2, 0, asm.R0, asm.DWord))
	})
}

// callInto is a call, or a builtin, whose value no register holds.
func (l *lowerer) callInto(x expr, dst place, t Type) {
	name := ""
	var args []expr
	switch x := x.(type) {
	case *callExpr:
		name, args = x.name, x.args
	case *nameExpr:
		name = x.name
	}
	switch name {
	case builtinComm:
		l.clearAt(dst, t.Words())
		l.point(asm.R1, dst)
		l.movImm(asm.R2, uint64(min(t.Len, commSize)))
		l.helper(asm.FnGetCurrentComm)
	case "str":
		l.strInto(x.(*callExpr), dst, t)
	case "buf":
		l.bufInto(args, dst, t)
	case "str_concat":
		l.concatInto(args, dst, t)
	case "ntop":
		l.ntopInto(args[len(args)-1], dst)
	case "macaddr":
		l.clearAt(dst, 1)
		if b2t(args[0]).Kind == Pointer {
			l.readTarget(dst, 6, l.pointee(args[0]))
			return
		}
		l.bytesInto(args[0], dst, 6)
	case "args":
		for i := range t.Layout.Fields {
			l.emit(bpf.LoadArg(asm.R0, l.ctx, i))
			l.storeAt(dst.plus(8*i), asm.R0)
		}
	default:
		bug(x)
	}
}

// bytesInto copies the bytes of an array or a text.
func (l *lowerer) bytesInto(x expr, dst place, n int) {
	words := (n + 7) / 8
	p := l.locate(x)
	if p.kind == inTarget {
		l.clearAt(dst.plus(8*(words-1)), 1)
		l.readTarget(dst, n, p)
		return
	}
	l.copyWords(dst, p, words)
	if rest := n % 8; rest > 0 { // what follows it is none of its
		base, off := l.access(dst.plus(8*(words-1)), asm.R5)
		l.emit(asm.LoadMem(asm.R0, base, off, asm.DWord))
		l.aluImm(asm.LSh, asm.R0, int32(64-8*rest))
		l.aluImm(asm.RSh, asm.R0, int32(64-8*rest))
		l.emit(asm.StoreMem(base, off, asm.R0, asm.DWord))
	}
}

// strInto reads a text, up to a length.
func (l *lowerer) strInto(x *callExpr, dst place, t Type) {
	arg := x.args[0]
	limit := t.Len
	var length lastingValue
	dynamic := false
	if len(x.args) == 2 {
		if con := x.args[1].base().con; con.known {
			limit = min(limit, int(con.u)+1)
		} else {
			dynamic = true
			l.hoist(x.args[1])
			length = l.lasting(x.args[1])
		}
	}
	if k := b2t(arg).Kind; k == String || k == Array {
		src := l.newPlace(8 * b2t(arg).Words())
		l.into(arg, src, b2t(arg))
		l.clearAt(dst, t.Words())
		l.copyText(dst, src, min(limit-1, 8*b2t(arg).Words()))
		return
	}
	l.hoist(arg)
	address := l.lasting(arg)
	kept := limit / 8 // the helper fills the rest of what it is given by zeros
	if dynamic {
		kept = 0
	}
	l.clearAt(dst.plus(8*kept), t.Words()-kept)
	l.address(asm.R3, place{addr: address})
	l.movImm(asm.R2, uint64(limit))
	if dynamic {
		fits := l.newLabel()
		l.address(asm.R4, place{addr: length})
		l.aluImm(asm.Add, asm.R4, 1)
		l.jumpImm(asm.JGE, asm.R4, int32(limit), fits)
		l.mov(asm.R2, asm.R4)
		l.bind(fits)
	}
	l.point(asm.R1, dst)
	l.helper(asm.FnProbeReadUserStr)
	l.reads = x.base()
	l.unread("probe_read_user_str")
}

// cutText ends a text at a length, which counts the zero byte.
func (l *lowerer) cutText(dst place, limit int) {
	l.movImm(asm.R0, 0)
	base, off := l.access(dst.plus(limit-1), asm.R5)
	l.emit(asm.StoreMem(base, off, asm.R0, asm.Byte))
}

// bufInto reads bytes, and their number before them.
func (l *lowerer) bufInto(args []expr, dst place, t Type) {
	k := b2t(args[0]).Kind
	if k == Array || k == String {
		n := min(b2t(args[0]).memory(), t.Len)
		if len(args) == 2 {
			n = min(n, int(args[1].base().con.u))
		}
		l.putBytes(dst, []byte{byte(n), byte(n >> 8)}, 1)
		l.bytesInto(args[0], dst.plus(8), t.Len)
		return
	}
	l.hoist(args[1])
	length := l.lasting(args[1])
	l.hoist(args[0])
	address := l.lasting(args[0])
	l.clearAt(dst, t.Words())
	fits := l.newLabel()
	l.address(asm.R2, place{addr: length})
	l.jumpImm(asm.JLE, asm.R2, int32(t.Len), fits)
	l.movImm(asm.R2, uint64(t.Len))
	l.bind(fits)
	l.storeAt(dst, asm.R2)
	l.address(asm.R3, place{addr: address})
	l.point(asm.R1, dst.plus(8))
	l.helper(asm.FnProbeReadUser)
	l.reads = args[0].base()
	l.unread("probe_read_user")
}

// ntopInto is an address of the internet: its size, and its bytes.
func (l *lowerer) ntopInto(x expr, dst place) {
	t := b2t(x)
	n := 4
	if !t.isScalar() {
		n = t.memory()
	}
	l.clearAt(dst, 3)
	if t.isScalar() {
		l.hoist(x)
		l.scalarInto(x, dst.plus(8))
	} else {
		l.bytesInto(x, dst.plus(8), n)
	}
	l.putBytes(dst, []byte{byte(n)}, 1)
}

// concatInto puts two texts behind one another.
func (l *lowerer) concatInto(args []expr, dst place, t Type) {
	l.into(args[0], dst, t)
	second := l.textPlace(args[1])
	again, copied, done := l.newLabel(), l.newLabel(), l.newLabel()
	l.point(asm.R5, dst)
	l.movImm(asm.R3, 0)
	l.bind(again) // r3 becomes the length of the first
	l.jumpImm(asm.JGE, asm.R3, int32(t.Len-1), done)
	l.mov(asm.R2, asm.R5)
	l.aluReg(asm.Add, asm.R2, asm.R3)
	l.emit(asm.LoadMem(asm.R0, asm.R2, 0, asm.Byte))
	l.jumpImm(asm.JEq, asm.R0, 0, copied)
	l.aluImm(asm.Add, asm.R3, 1)
	l.jumpTo(again)
	l.bind(copied)
	l.point(asm.R4, second)
	l.movImm(asm.R1, 0)
	next := l.newLabel()
	l.bind(next)
	l.jumpImm(asm.JGE, asm.R3, int32(t.Len-1), done)
	l.jumpImm(asm.JGE, asm.R1, int32(textRoom(args[1])), done)
	l.mov(asm.R2, asm.R4)
	l.aluReg(asm.Add, asm.R2, asm.R1)
	l.emit(asm.LoadMem(asm.R0, asm.R2, 0, asm.Byte))
	l.jumpImm(asm.JEq, asm.R0, 0, done)
	l.mov(asm.R2, asm.R5)
	l.aluReg(asm.Add, asm.R2, asm.R3)
	l.emit(asm.StoreMem(asm.R2, 0, asm.R0, asm.Byte))
	l.aluImm(asm.Add, asm.R1, 1)
	l.aluImm(asm.Add, asm.R3, 1)
	l.jumpTo(next)
	l.bind(done)
}
