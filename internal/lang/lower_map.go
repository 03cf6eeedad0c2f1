package lang

import (
	"github.com/cilium/ebpf/asm"

	"trapless/internal/bpf"
)

// helperBuiltin is a builtin that is the result of a helper, or a half of it.
type helperBuiltin struct {
	helper asm.BuiltinFunc
	typ    Type
	high   bool // the upper 32 bits
}

var helperBuiltins = map[string]helperBuiltin{
	"nsecs":  {asm.FnKtimeGetNs, uint64Type, false},
	"cpu":    {asm.FnGetSmpProcessorId, uint64Type, false},
	"numaid": {asm.FnGetNumaNodeId, intType(4, false), false},
	"rand":   {asm.FnGetPrandomU32, intType(4, false), false},
	"uid":    {asm.FnGetCurrentUidGid, intType(4, false), false},
	"gid":    {asm.FnGetCurrentUidGid, intType(4, false), true},
}

func (l *lowerer) helperValue(b helperBuiltin, h home) {
	l.helper(b.helper)
	switch {
	case b.helper != asm.FnGetCurrentUidGid:
	case b.high:
		l.aluImm(asm.RSh, asm.R0, 32)
	default:
		l.emit(asm.Mov.Reg32(asm.R0, asm.R0))
	}
	l.setHome(h, asm.R0)
}

// Offsets in the value of a plain map without keys, which is always there.
const (
	plainPresent = 0 // whether it was assigned
	plainValue   = 8
)

// readMap puts the value of an entry into a home, 0 if there is none.
func (l *lowerer) readMap(m *mapExpr, h home) {
	info := l.maps[m.name]
	if info.agg != Plain {
		l.readAggregated(m, false, h)
		return
	}
	if len(info.keys) == 0 {
		l.emit(asm.LoadMapValue(asm.R1, info.number, plainValue))
		l.emit(asm.LoadMem(asm.R0, asm.R1, 0, asm.DWord))
		l.setHome(h, asm.R0)
		return
	}
	l.lookupEntry(m)
	none := l.newLabel()
	if l.checks {
		found := l.newLabel()
		l.jumpImm(asm.JNE, asm.R0, 0, found)
		l.remark(Remark{Span: m.span, From: m.from, Text: lookupText, Helper: "map_lookup_elem"}, asm.R1, asm.R2)
		l.jumpTo(none)
		l.bind(found)
	} else {
		l.jumpImm(asm.JEq, asm.R0, 0, none)
	}
	l.emit(asm.LoadMem(asm.R0, asm.R0, 0, asm.DWord))
	l.bind(none)
	l.setHome(h, asm.R0)
}

// lookupEntry makes r0 the address of an entry's value, or 0. The key lies
// where it returns.
func (l *lowerer) lookupEntry(m *mapExpr) int16 {
	key := l.key(m)
	l.keyCall(m, key, asm.FnMapLookupElem)
	return key
}

// keyCall calls a helper that takes a map and a key.
func (l *lowerer) keyCall(m *mapExpr, key int16, h asm.BuiltinFunc) {
	l.emit(bpf.LoadMap(asm.R1, l.maps[m.name].number))
	l.stackAddr(asm.R2, key)
	l.helper(h)
}

// entryCall is delete() or has_key().
func (l *lowerer) entryCall(x *callExpr, h home) {
	m := x.args[0].(*mapExpr)
	no := l.newLabel()
	switch {
	case len(m.keys) == 0:
		l.emit(asm.LoadMapValue(asm.R1, l.maps[m.name].number, 0))
		l.emit(asm.LoadMem(asm.R0, asm.R1, plainPresent, asm.DWord))
		if x.name == "delete" {
			l.movImm(asm.R2, 0)
			l.emit(asm.StoreMem(asm.R1, plainPresent, asm.R2, asm.DWord))
			for i := range l.maps[m.name].value.Words() {
				l.emit(asm.StoreMem(asm.R1, int16(plainValue+8*i), asm.R2, asm.DWord))
			}
		}
		l.setHome(h, asm.R0)
		return
	case x.name == "delete":
		l.keyCall(m, l.key(m), asm.FnMapDeleteElem)
		l.setConst(h, 0)
		l.jumpImm(asm.JNE, asm.R0, 0, no)
	default:
		l.lookupEntry(m)
		l.setConst(h, 0)
		l.jumpImm(asm.JEq, asm.R0, 0, no)
	}
	l.setConst(h, 1)
	l.bind(no)
}

// storeMap assigns to an entry. Expressions in the statement are hoisted.
func (l *lowerer) storeMap(s *assignStmt, m *mapExpr) {
	if delta, ok := l.delta(s, m); ok {
		l.addTo(m, delta, nil)
		return
	}
	value := s.value
	if s.op != 0 {
		l.hoist(m)
		value = &binaryExpr{exprBase: exprBase{span: s.span, typ: resultType(s.op, m.typ, b2t(s.value))}, op: s.op, x: m, y: s.value}
	}
	info := l.maps[m.name]
	if !info.value.isScalar() {
		l.storeMemory(m, info, value)
		return
	}
	l.hoist(value)
	if len(m.keys) == 0 {
		r, release := l.operand(value)
		release()
		l.mov(asm.R2, r)
		l.emit(asm.LoadMapValue(asm.R1, info.number, 0))
		l.emit(asm.StoreMem(asm.R1, plainValue, asm.R2, asm.DWord))
		l.present()
		return
	}
	key := l.key(m)
	v := l.push(8)
	l.storeValue(v, value)
	l.update(m, key, v, 0)
}

// storeMemory assigns what no register holds.
func (l *lowerer) storeMemory(m *mapExpr, info *mapInfo, value expr) {
	p := l.newPlace(8 * info.value.Words())
	l.into(value, p, info.value)
	if len(m.keys) == 0 {
		l.emit(asm.LoadMapValue(asm.R1, info.number, 0))
		l.present()
		l.mov(asm.R5, asm.R1)
		l.aluImm(asm.Add, asm.R5, plainValue)
		l.point(asm.R4, p)
		l.copyPointed(info.value.Words())
		return
	}
	key := l.key(m)
	l.emit(bpf.LoadMap(asm.R1, info.number))
	l.stackAddr(asm.R2, key)
	l.point(asm.R3, p)
	l.movImm(asm.R4, 0)
	l.helper(asm.FnMapUpdateElem)
}

// present notes that the map without keys whose value r1 points to has one.
func (l *lowerer) present() {
	l.movImm(asm.R2, 1)
	l.emit(asm.StoreMem(asm.R1, plainPresent, asm.R2, asm.DWord))
}

func (l *lowerer) update(m *mapExpr, key, value int16, flags uint64) {
	l.emit(bpf.LoadMap(asm.R1, l.maps[m.name].number))
	l.stackAddr(asm.R2, key)
	l.stackAddr(asm.R3, value)
	l.movImm(asm.R4, flags)
	l.helper(asm.FnMapUpdateElem)
}

// delta is what += and -= add, negated for -=. That is done by one instruction,
// so that no thread's update is lost.
func (l *lowerer) delta(s *assignStmt, m *mapExpr) (expr, bool) {
	switch s.op {
	case '+':
		return s.value, m.typ.Kind == Int
	case '-':
		return &unaryExpr{exprBase: exprBase{span: s.span, typ: int64Type}, op: '-', x: s.value}, m.typ.Kind == Int
	}
	return nil, false
}

// incrementMap is ++ or --; the value of the expression goes to h.
func (l *lowerer) incrementMap(x *incExpr, h home) {
	one := uint64(1)
	if x.typ.Kind == Pointer {
		one = uint64(x.typ.Elem.memory())
	}
	if x.op == tokDec {
		one = -one
	}
	l.setConst(h, 0) // what is left where the map is full
	by := &intExpr{exprBase: exprBase{span: x.span, typ: int64Type, con: constant{known: true, u: one}}, value: one}
	l.addTo(x.x.(*mapExpr), by, func(r asm.Register) {
		if !x.post {
			l.aluImm(asm.Add, r, int32(int64(one)))
		}
		l.setHome(h, r)
	})
}

// addTo adds to an entry, which is made if it is not there. What was there
// before is passed to old; where the map is full nothing is.
func (l *lowerer) addTo(m *mapExpr, by expr, old func(asm.Register)) {
	l.hoist(by)
	done := l.newLabel()
	frame, spare := l.frame, l.spare
	delta := l.lasting(by)
	off := int16(0)
	if len(m.keys) == 0 {
		l.emit(asm.LoadMapValue(asm.R1, l.maps[m.name].number, 0))
		l.present()
		l.mov(asm.R0, asm.R1)
		off = plainValue
	} else {
		l.findOrMake(m, done)
	}
	r := asm.R2
	switch {
	case delta.con.known:
		l.movImm(r, delta.con.u)
	case delta.home.inReg:
		l.mov(r, delta.home.reg)
	default:
		l.load(r, delta.home.off)
	}
	if old == nil {
		l.emit(asm.AddAtomic.Mem(asm.R0, r, asm.DWord, off))
	} else {
		l.emit(asm.FetchAdd.Mem(asm.R0, r, asm.DWord, off))
		old(r)
	}
	l.bind(done)
	l.frame, l.spare = frame, spare
}

// findOrMake makes r0 the address of an entry's value, and goes to full if
// there is no room for it.
func (l *lowerer) findOrMake(m *mapExpr, full label) {
	const noExist = 1 // BPF_NOEXIST of include/uapi/linux/bpf.h
	found := l.newLabel()
	key := l.lookupEntry(m)
	l.jumpImm(asm.JNE, asm.R0, 0, found)
	zero := l.push(8)
	l.storeImm(zero, 0)
	l.update(m, key, zero, noExist)
	l.keyCall(m, key, asm.FnMapLookupElem)
	l.jumpImm(asm.JEq, asm.R0, 0, full)
	l.bind(found)
}
