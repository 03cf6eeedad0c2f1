package lang

import (
	"strings"

	"github.com/cilium/ebpf/asm"
)

// Some expressions need calls of helpers, which destroy the scratch registers, or
// statements: maps that are read, memory of the target, strings, the time, blocks.
// They are hoisted: computed before the expression that they are in, in their
// order, each into a home of its own. Where a condition decides whether one of
// them is computed, the whole condition is.

// hoisted reports whether an expression is computed before what it stands in.
func (l *lowerer) hoisted(x expr) bool {
	if !b2t(x).isScalar() {
		return false
	}
	if v, ok := x.(*varExpr); ok {
		return l.strict && v.sym != nil
	}
	if _, ok := x.(*incExpr); ok && l.strict {
		return true
	}
	return needsCalls(x)
}

// needsCalls reports whether the expression itself, without what is under it,
// needs calls or statements.
func needsCalls(x expr) bool {
	switch x := x.(type) {
	case *mapExpr, *blockExpr, *fnExpr, *derefExpr, *indexExpr:
		return true
	case *fieldExpr:
		n, ok := x.x.(*nameExpr)
		return !ok || n.name != "args"
	case *binaryExpr:
		return !b2t(x.x).isScalar() && !x.con.known
	case *castExpr:
		return !b2t(x.x).isScalar() && !x.con.known
	case *nameExpr:
		return x.marker || isStack(x) || helperBuiltins[x.name].helper != 0 || processFacts[x.name].typ.Kind != None || x.name == builtinComm || x.name == "func" || x.name == "username"
	case *callExpr:
		return callsHelper(x)
	case *incExpr:
		_, ok := x.x.(*mapExpr)
		return ok
	case *tupleExpr:
		return true
	}
	return false
}

func callsHelper(x *callExpr) bool {
	if isStack(x) {
		return true
	}
	switch x.name {
	case "strncmp", "strcontains", "strstr", "strlen", "memcmp", "len":
		return !x.con.known
	case "str", "buf", "str_concat", "ntop", "macaddr", builtinComm, "nsecs", "func", "uaddr", "username", "join", "delete", "has_key":
		return true
	}
	return helperBuiltins[x.name].helper != 0 || processFacts[x.name].typ.Kind != None
}

// needsHoists reports whether anything in an expression is hoisted.
func (l *lowerer) needsHoists(x expr) bool {
	found := false
	walk(x, func(y expr) { found = found || l.hoisted(y) || needsCalls(y) })
	return found
}

// hoist computes what is to be hoisted of expressions.
func (l *lowerer) hoist(xs ...expr) {
	for _, x := range xs {
		if x == nil || x.base().con.known && pure(x) || !b2t(x).isScalar() {
			continue
		}
		if _, ok := l.hoists[x]; ok {
			continue
		}
		outer := l.strict
		l.strict = outer || changesVariables(x) && l.needsHoists(x)
		l.hoistIn(x)
		l.strict = outer
	}
}

// changesVariables reports whether an expression assigns to a variable.
func changesVariables(x expr) bool {
	changes := false
	walk(x, func(y expr) {
		switch y := y.(type) {
		case *incExpr:
			_, ofVariable := y.x.(*varExpr)
			changes = changes || ofVariable
		case *blockExpr, *fnExpr:
			changes = true
		}
	})
	return changes
}

func (l *lowerer) hoistIn(x expr) {
	if l.hoistBranch(x) {
		return
	}
	if !l.hoisted(x) {
		children(x, func(y expr) { l.hoist(y) })
		return
	}
	h := l.newHome()
	spare, frame, big := l.spare, l.frame, l.big
	l.compute(x, h)
	l.spare, l.frame, l.big = spare, frame, big
	l.hoists[x] = h
}

// hoistBranch computes a condition of whose parts one may be computed or not, if
// that one needs hoists.
func (l *lowerer) hoistBranch(x expr) bool {
	var parts []expr
	switch x := x.(type) {
	case *condExpr:
		parts = []expr{x.x, x.y}
	case *binaryExpr:
		if x.op == tokAndAnd || x.op == tokOrOr {
			parts = []expr{x.y}
		}
	}
	needed := false
	for _, p := range parts {
		needed = needed || l.needsHoists(p)
	}
	if !needed {
		return false
	}
	h := l.newHome()
	spare, frame, big := l.spare, l.frame, l.big
	switch x := x.(type) {
	case *condExpr:
		l.choiceHome(x, h)
	case *binaryExpr:
		l.connectiveHome(x, h)
	}
	l.spare, l.frame, l.big = spare, frame, big
	l.hoists[x] = h
	return true
}

// intoHome computes a value of a type into a home.
func (l *lowerer) intoHome(x expr, h home, t Type) {
	spare, frame, big := l.spare, l.frame, l.big
	l.hoist(x)
	if con := x.base().con; con.known && pure(x) {
		l.setConst(h, t.truncate(con.u))
	} else {
		r, release := l.temp()
		l.value(x, r)
		l.convert(r, b2t(x), t)
		l.setHome(h, r)
		release()
	}
	l.spare, l.frame, l.big = spare, frame, big
}

func (l *lowerer) choiceHome(x *condExpr, h home) {
	other, done := l.newLabel(), l.newLabel()
	if x.x == x.cond {
		l.intoHome(x.x, h, x.typ)
		r, release := l.temp()
		l.getHome(r, h)
		l.jumpImm(asm.JNE, r, 0, done)
		release()
	} else {
		l.decide(x.cond, other, false)
		l.intoHome(x.x, h, x.typ)
		l.jumpTo(done)
	}
	l.bind(other)
	l.intoHome(x.y, h, x.typ)
	l.bind(done)
}

func (l *lowerer) getHome(r asm.Register, h home) {
	if h.inReg {
		l.mov(r, h.reg)
	} else {
		l.load(r, h.off)
	}
}

func (l *lowerer) connectiveHome(x *binaryExpr, h home) {
	decided := x.op == tokOrOr // what the left operand decides by itself
	other, done := l.newLabel(), l.newLabel()
	l.decide(x.x, other, decided)
	yes := l.newLabel()
	l.decide(x.y, yes, true)
	l.setConst(h, 0)
	l.jumpTo(done)
	l.bind(yes)
	l.setConst(h, 1)
	l.jumpTo(done)
	l.bind(other)
	l.setConst(h, b2u(decided))
	l.bind(done)
}

// compute computes a hoisted expression into its home.
func (l *lowerer) compute(x expr, h home) {
	switch x := x.(type) {
	case *varExpr:
		r, release := l.temp()
		l.getHome(r, l.homes[x.sym])
		l.setHome(h, r)
		release()
	case *mapExpr:
		l.readMap(x, h)
	case *nameExpr:
		l.nameHome(x, h)
	case *fieldExpr, *indexExpr, *derefExpr:
		l.readScalar(x, h)
	case *binaryExpr:
		l.compareMemory(x.x, x.y, x.op == tokEq, h)
	case *castExpr:
		p := l.newPlace(8 * b2t(x.x).Words())
		l.into(x.x, p, b2t(x.x))
		l.loadFrom(asm.R0, p, x.typ)
		l.setHome(h, asm.R0)
	case *blockExpr, *fnExpr:
		l.statements(x, h)
	case *incExpr:
		l.incrementHome(x, h)
	case *callExpr:
		if isStack(x) {
			l.stackID(x, h)
		} else {
			l.callHome(x, h)
		}
	default:
		bug(x)
	}
}

// statements runs the statements of a block or of a function for its value.
func (l *lowerer) statements(x expr, h home) {
	switch x := x.(type) {
	case *blockExpr:
		for _, s := range x.body.stmts {
			if l.stmt(s) {
				l.setConst(h, 0)
				return
			}
		}
		l.intoHome(x.value, h, x.typ)
	case *fnExpr:
		l.inline(x)
		r, release := l.temp()
		l.getHome(r, l.homes[x.sym])
		l.setHome(h, r)
		release()
	}
}

func (l *lowerer) incrementHome(x *incExpr, h home) {
	if _, ok := x.x.(*mapExpr); ok {
		l.incrementMap(x, h)
		return
	}
	r, release := l.temp()
	l.increment(x, &r)
	l.setHome(h, r)
	release()
}

func (l *lowerer) nameHome(x *nameExpr, h home) {
	switch {
	case isStack(x):
		l.stackID(x, h)
		return
	case x.marker:
		l.markerArg(x, h)
		return
	}
	switch name := x.name; name {
	case "func":
		l.mov(asm.R1, l.ctx)
		l.helper(asm.FnGetFuncIp)
		l.setHome(h, asm.R0)
	case "username":
		l.helperValue(helperBuiltins["uid"], h)
	case "cgroup", "ppid":
		l.processWord(name, h)
	default:
		l.helperValue(helperBuiltins[name], h)
	}
}

// callHome is a call whose value a register holds.
func (l *lowerer) callHome(x *callExpr, h home) {
	switch x.name {
	case "delete", "has_key":
		if m := x.args[0].(*mapExpr); l.maps[m.name].agg != Plain {
			l.readAggregated(m, true, h)
		} else {
			l.entryCall(x, h)
		}
	case "len":
		l.mapLen(x.args[0].(*mapExpr), h)
	case "strncmp":
		l.strncmp(x.args[0], x.args[1], int(min(x.args[2].base().con.u, maxString)), h)
	case "memcmp":
		l.memcmp(x.args[0], x.args[1], int(x.args[2].base().con.u), h)
	case "strlen":
		l.strlen(x.args[0], h)
	case "strstr":
		l.strstr(x.args[0], x.args[1], h)
	case "strcontains":
		l.strstr(x.args[0], x.args[1], h)
		r, release := l.temp()
		l.getHome(r, h)
		l.aluImm(asm.RSh, r, 63)
		l.aluImm(asm.Xor, r, 1)
		l.setHome(h, r)
		release()
	case "uaddr":
		l.mov(asm.R1, l.ctx)
		l.helper(asm.FnGetFuncIp)
		l.aluImm(asm.Add, asm.R0, int32(x.offset))
		l.setHome(h, asm.R0)
	case "nsecs":
		l.clock(x)
		l.setHome(h, asm.R0)
	default:
		l.nameHome(&nameExpr{name: x.name}, h)
	}
}

// clock makes r0 the time of nsecs().
func (l *lowerer) clock(x *callExpr) {
	name := "monotonic"
	if len(x.args) == 1 {
		name = x.args[0].(*nameExpr).name
	}
	if name == "boot" {
		l.helper(asm.FnKtimeGetBootNs)
		return
	}
	l.helper(asm.FnKtimeGetNs)
	if strings.HasSuffix(name, "tai") { // it runs like the other one, but for leap seconds
		l.movImm(asm.R1, l.tai)
		l.aluReg(asm.Add, asm.R0, asm.R1)
	}
}

// argField is the number of the parameter that args.name is.
func (l *lowerer) argField(x *fieldExpr) (int, bool) {
	n, ok := x.x.(*nameExpr)
	return x.field.Offset / 8, ok && n.name == "args"
}

// inline puts a function's statements in.
func (l *lowerer) inline(x *fnExpr) {
	end := l.newLabel()
	if l.fnEnds == nil {
		l.fnEnds = map[*fnExpr]label{}
	}
	l.fnEnds[x] = end
	for _, p := range x.params {
		l.stmt(p)
	}
	if x.typ.isScalar() && x.typ.Kind != bad {
		l.setConst(l.homes[x.sym], 0)
	} else if p, ok := l.places[x.sym]; ok {
		l.clearAt(p, x.typ.Words())
	}
	loops := l.loops
	l.loops = nil
	l.block(x.body)
	l.loops = loops
	l.bind(end)
}
