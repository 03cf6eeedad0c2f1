package lang

import (
	"github.com/cilium/ebpf/asm"

	"trapless/internal/bpf"
)

// Some expressions are computed by helpers, which destroy the scratch registers:
// maps that are read, the time, and the like. They are hoisted: computed before
// the statement that they are in, in their order, each into a home of its own.
// A condition in the statement does not keep them from being computed; so what
// changes something, as @m++ does, may not stand under one (see checkHoists).

// hoisted reports whether an expression is computed before its statement.
func hoisted(x expr) bool {
	switch x := x.(type) {
	case *mapExpr:
		return true
	case *binaryExpr:
		return b2t(x.x).Kind == String && !x.con.known
	case *nameExpr:
		return x.marker || helperBuiltins[x.name].helper != 0
	case *callExpr:
		return helperBuiltins[x.name].helper != 0 || entryCalls[x.name] || x.name == "strncmp" && !x.con.known
	case *incExpr:
		_, ok := x.x.(*mapExpr)
		return ok
	}
	return false
}

// helperBuiltin is a builtin that is the result of a helper, or a half of it.
type helperBuiltin struct {
	helper asm.BuiltinFunc
	typ    Type
	high   bool // the upper 32 bits
}

var helperBuiltins = map[string]helperBuiltin{
	"nsecs": {asm.FnKtimeGetNs, uint64Type, false},
	"cpu":   {asm.FnGetSmpProcessorId, uint64Type, false},
	"rand":  {asm.FnGetPrandomU32, intType(4, false), false},
	"uid":   {asm.FnGetCurrentUidGid, intType(4, false), false},
	"gid":   {asm.FnGetCurrentUidGid, intType(4, false), true},
}

// entryCalls are functions that work on one entry of a map.
var entryCalls = set("delete has_key")

// hoist computes what is to be hoisted of expressions.
func (l *lowerer) hoist(xs ...expr) {
	for _, x := range xs {
		l.checkHoists(x)
		if x != nil && !(x.base().con.known && pure(x)) {
			l.hoistIn(x)
		}
	}
}

// checkHoists refuses an expression that changes a variable besides what is
// hoisted before it.
func (l *lowerer) checkHoists(x expr) {
	if x == nil {
		return
	}
	changes, hoists := false, false
	walk(x, func(y expr) {
		if inc, ok := y.(*incExpr); ok {
			_, ofVariable := inc.x.(*varExpr)
			changes = changes || ofVariable
		}
		hoists = hoists || hoisted(y)
	})
	if changes && hoists {
		l.diags.Errorf(x.base().span, "not supported yet: '++' or '--' of a variable beside a map or a builtin such as nsecs").
			Hint("change the variable in a statement of its own")
	}
}

func (l *lowerer) hoistIn(x expr) {
	if m, ok := x.(*mapExpr); ok {
		l.hoist(m.keys...)
	} else if inc, ok := x.(*incExpr); ok && hoisted(x) {
		l.hoist(inc.x.(*mapExpr).keys...)
	} else if call, ok := x.(*callExpr); ok && entryCalls[call.name] {
		l.hoist(call.args[0].(*mapExpr).keys...)
	} else {
		children(x, func(y expr) { l.hoist(y) })
	}
	if !hoisted(x) {
		return
	}
	h := l.newHome()
	frame := l.frame
	switch x := x.(type) {
	case *mapExpr:
		l.readMap(x, h)
	case *nameExpr:
		if x.marker {
			l.markerArg(x, h)
		} else {
			l.helperValue(helperBuiltins[x.name], h)
		}
	case *binaryExpr:
		l.compareStrings(x.x, x.y, maxStrlen, x.op == tokEq, h)
	case *callExpr:
		if entryCalls[x.name] {
			l.entryCall(x, h)
		} else if x.name == "strncmp" {
			l.compareStrings(x.args[0], x.args[1], int(x.args[2].base().con.u), false, h)
		} else {
			l.helperValue(helperBuiltins[x.name], h)
		}
	case *incExpr:
		l.incrementMap(x, h)
	}
	l.frame = frame
	l.hoists[x] = h
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
	if len(m.keys) == 0 {
		l.emit(asm.LoadMapValue(asm.R1, info.number, plainValue))
		l.emit(asm.LoadMem(asm.R0, asm.R1, 0, asm.DWord))
		l.setHome(h, asm.R0)
		return
	}
	l.lookupEntry(m)
	none := l.newLabel()
	l.jumpImm(asm.JEq, asm.R0, 0, none)
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
			l.emit(asm.StoreMem(asm.R1, plainValue, asm.R2, asm.DWord))
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
	if len(m.keys) == 0 {
		r, release := l.operand(value)
		release()
		l.mov(asm.R2, r)
		l.emit(asm.LoadMapValue(asm.R1, l.maps[m.name].number, 0))
		l.emit(asm.StoreMem(asm.R1, plainValue, asm.R2, asm.DWord))
		l.present()
		return
	}
	key := l.key(m)
	v := l.push(8)
	l.storeValue(v, value)
	l.update(m, key, v, 0)
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
	if x.op == tokDec {
		one = ^uint64(0)
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
