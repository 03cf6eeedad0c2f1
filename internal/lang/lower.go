package lang

import (
	"cmp"
	"slices"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/bpf"
	"trapless/internal/diag"
)

// Registers. r1 holds the context at the entry; helpers take r1 to r5, return
// in r0 and destroy them all; r6 to r9 stay. r0 is never allocated: it serves
// for the moment between two instructions.
var (
	scratch = []asm.Register{asm.R2, asm.R3, asm.R4, asm.R5}
	lasting = []asm.Register{asm.R6, asm.R7, asm.R8, asm.R9}
)

// home is where a variable lives for the whole program: in a register, or on
// the stack at r10+off.
type home struct {
	inReg bool
	reg   asm.Register
	off   int16
}

// lowerer makes the program of one probe.
type lowerer struct {
	emitter
	script *Script
	maps   map[string]*mapInfo
	diags  *diag.Collector

	ctx    asm.Register // where the context is, as long as it is needed
	homes  map[*variable]home
	hoists map[expr]home // see hoist
	pid    home
	tid    home
	spare  []asm.Register      // lasting registers without a variable
	free   []asm.Register      // scratch registers that hold nothing
	places map[*variable]place // of variables that no register holds
	checks bool                // Options.Checks
	reads  *exprBase           // what memory of the target is read for
	tai    uint64              // Options.TAI
	strict bool                // variables are read in their order, see hoist
	loops  []loopLabels
	fnEnds map[*fnExpr]label
	big    int // bytes of the scratch memory in use
	frame  int // bytes of the stack in use
	deep   int // the most that were
	exit   label
	called bool
}

// lower compiles a checked probe. It adds the probe's actions to the script.
func lower(s *Script, c *checker, n *probeNode, name string) *bpf.Program {
	diags := c.diags
	l := &lowerer{script: s, maps: c.maps, diags: diags, checks: c.opts.Checks, tai: c.opts.TAI, homes: make(map[*variable]home), hoists: make(map[expr]home), places: make(map[*variable]place)}
	l.exit = l.newLabel()
	l.prologue(n)
	if n.predicate != nil {
		l.decide(n.predicate, l.exit, false)
	}
	ended := l.block(n.body)
	if !ended || l.used(l.exit) {
		l.bind(l.exit)
		l.epilogue()
	}
	p := &bpf.Program{Name: name, Insns: l.finish()}
	if l.deep > bpf.StackSize {
		diags.Errorf(n.span, "the probe needs %d bytes of stack, there are %d", l.deep, bpf.StackSize).
			Hint("use fewer variables, or shorter strings, keys and events")
	}
	if len(p.Insns) > bpf.MaxInsns {
		diags.Errorf(n.span, "the probe makes %d instructions, the limit is %d", len(p.Insns), bpf.MaxInsns)
	}
	return p
}

// epilogue ends the run. r0 must hold a number or a pointer then; after a call
// in a straight line of code it does, whatever it is.
func (l *lowerer) epilogue() {
	if !l.called || len(l.jumps) > 0 {
		l.movImm(asm.R0, 0)
	}
	l.emit(asm.Return())
}

// prologue decides where everything lives.
func (l *lowerer) prologue(n *probeNode) {
	u := survey(n)
	l.ctx, l.free, l.spare = asm.R1, slices.Clone(scratch), slices.Clone(lasting)
	if u.argAfterCall {
		l.ctx = asm.R6
		l.spare = l.spare[1:]
		l.mov(asm.R6, asm.R1)
	}
	if l.ctx != asm.R1 || !u.args {
		l.free = append(l.free, asm.R1)
	}
	slices.SortStableFunc(u.vars, func(a, b *variable) int { return cmp.Compare(b.uses, a.uses) })
	if u.pid {
		l.pid = l.newHome()
		l.call(bpf.HelperGetCurrentPidTgid)
		l.called = true
		l.aluImm(asm.RSh, asm.R0, 32)
		l.setHome(l.pid, asm.R0)
	}
	if u.tid {
		l.tid = l.newHome()
		l.call(bpf.HelperGetCurrentPidTgid)
		l.called = true
		l.emit(asm.Mov.Reg32(asm.R0, asm.R0))
		l.setHome(l.tid, asm.R0)
	}
	for _, v := range u.vars {
		if v.typ.isScalar() {
			l.homes[v] = l.newHome()
		} else if v.typ.Kind != None {
			l.places[v] = l.newPlace(8 * v.typ.Words())
		}
	}
}

func (l *lowerer) newHome() home {
	if len(l.spare) > 0 {
		r := l.spare[0]
		l.spare = l.spare[1:]
		return home{inReg: true, reg: r}
	}
	return home{off: l.push(8)}
}

// push takes bytes of the stack until the frame is cut back.
func (l *lowerer) push(size int) int16 {
	l.frame += size
	l.deep = max(l.deep, l.frame)
	// Where the stack is too small the program is refused; until then the
	// offset only has to be one.
	return int16(-min(l.frame, 1<<14))
}

func (l *lowerer) setHome(h home, r asm.Register) {
	if h.inReg {
		l.mov(h.reg, r)
		return
	}
	l.store(h.off, r)
}

// helper calls a helper. Without a saved copy the context is lost.
func (l *lowerer) helper(h asm.BuiltinFunc) {
	l.call(h)
	l.called = true
	if l.ctx == asm.R1 && !slices.Contains(l.free, asm.R1) {
		l.free = append(l.free, asm.R1)
	}
}

// block, stmt and the like report whether the run ends in all their ways.
func (l *lowerer) block(b *blockStmt) bool {
	for _, s := range b.stmts {
		if l.stmt(s) {
			return true
		}
	}
	return false
}

func (l *lowerer) stmt(s stmt) bool {
	frame, spare, big := l.frame, l.spare, l.big
	defer func() { l.frame, l.spare, l.big = frame, spare, big }()
	switch s := s.(type) {
	case *blockStmt:
		return l.block(s)
	case *ifStmt:
		return l.ifStmt(s)
	case *returnStmt:
		l.returnStmt(s)
		return true
	case *declStmt:
		if p, ok := l.places[s.v.sym]; ok {
			l.clearAt(p, s.v.sym.typ.Words())
		} else if h, ok := l.homes[s.v.sym]; ok { // else it is never used
			l.setConst(h, 0)
		}
	case *whileStmt:
		l.whileStmt(s)
	case *rangeStmt:
		l.rangeStmt(s)
	case *eachStmt:
		l.eachStmt(s)
	case *unrollStmt:
		l.unrollStmt(s)
	case *jumpStmt:
		l.jumpStmt(s)
		return true
	case *assignStmt:
		l.assignStmt(s)
	case *exprStmt:
		ended := l.exprStmt(s.x)
		if h, ok := l.hoists[s.x]; ok && !s.discard {
			l.unnoticed(s.x, h)
		}
		return ended
	}
	return false
}

// exprStmt computes an expression that stands as a statement.
func (l *lowerer) exprStmt(x expr) bool {
	switch x := x.(type) {
	case *callExpr:
		if b2t(x).Kind == None {
			return l.callStmt(x)
		}
	case *blockExpr:
		for _, s := range x.body.stmts {
			if l.stmt(s) {
				return true
			}
		}
		return x.value != nil && l.exprStmt(x.value)
	case *fnExpr:
		l.inline(x)
		return false
	case *condExpr:
		if b2t(x).Kind == None {
			return l.ifStmt(&ifStmt{span: x.span, cond: x.cond, then: &exprStmt{x: x.x}, els: &exprStmt{x: x.y}})
		}
	}
	l.discard(x)
	return false
}

// returnStmt leaves the probe, or a function of the script.
func (l *lowerer) returnStmt(s *returnStmt) {
	if s.fn == nil {
		l.jumpTo(l.exit)
		return
	}
	if v := s.fn.sym; s.value != nil && v.typ.Kind != None {
		if p, ok := l.places[v]; ok {
			l.into(s.value, p, v.typ)
		} else {
			l.intoHome(s.value, l.homes[v], v.typ)
		}
	}
	l.jumpTo(l.fnEnds[s.fn])
}

// decide is cond with what has to be computed before.
func (l *lowerer) decide(x expr, to label, when bool) {
	frame, spare, big := l.frame, l.spare, l.big
	l.hoist(x)
	l.cond(x, to, when)
	l.frame, l.spare, l.big = frame, spare, big
}

func (l *lowerer) assignStmt(s *assignStmt) {
	m, ok := s.target.(*mapExpr)
	if !ok {
		l.hoist(s.value)
		l.assign(s)
		return
	}
	if l.maps[m.name].agg == Plain {
		l.hoist(s.value)
		l.hoist(m.keys...)
		l.storeMap(s, m)
		return
	}
	l.hoist(m.keys...)
	call := s.value.(*callExpr)
	l.hoist(call.args...)
	if l.maps[m.name].agg == TSeries {
		l.record(m, call)
		return
	}
	l.aggregate(m, call)
}

func (l *lowerer) ifStmt(s *ifStmt) bool {
	if con := s.cond.base().con; con.known && pure(s.cond) {
		if con.u != 0 {
			return l.stmt(s.then)
		}
		return s.els != nil && l.stmt(s.els)
	}
	other := l.newLabel()
	l.decide(s.cond, other, false)
	ended := l.stmt(s.then)
	if s.els == nil {
		l.bind(other)
		return false
	}
	done := l.newLabel()
	if !ended {
		l.jumpTo(done)
	}
	l.bind(other)
	elseEnded := l.stmt(s.els)
	l.bind(done)
	return ended && elseEnded
}

// discard computes an expression for its effects.
func (l *lowerer) discard(x expr) {
	if !b2t(x).isScalar() {
		if !pure(x) {
			l.locate(x)
		}
		return
	}
	l.hoist(x)
	if _, ok := l.hoists[x]; ok {
		return
	}
	if inc, ok := x.(*incExpr); ok {
		l.increment(inc, nil)
		return
	}
	if !pure(x) {
		r, release := l.temp()
		l.value(x, r)
		release()
	}
}

// unnoticed remarks that a delete() failed whose result is not used.
func (l *lowerer) unnoticed(x expr, h home) {
	call, ok := x.(*callExpr)
	if !ok || call.name != "delete" {
		return
	}
	done := l.newLabel()
	r, release := l.temp()
	l.getHome(r, h)
	l.jumpImm(asm.JNE, r, 0, done)
	l.remark(Remark{Span: x.base().span, From: x.base().from, Text: deleteText, Helper: "map_delete_elem", Retcode: -2}, r, asm.R0) // -ENOENT
	release()
	l.bind(done)
}

// assign computes a value into a variable.
func (l *lowerer) assign(s *assignStmt) {
	target := s.target.(*varExpr)
	if p, ok := l.places[target.sym]; ok {
		l.assignMemory(s.value, p, target.sym)
		return
	}
	h, t := l.homes[target.sym], target.sym.typ
	value, from := s.value, b2t(s.value)
	if s.op != 0 {
		from = resultType(s.op, target.typ, from)
		value = &binaryExpr{exprBase: exprBase{span: s.span, typ: from}, op: s.op, x: target, y: s.value}
	}
	if con := value.base().con; con.known {
		l.setConst(h, t.truncate(con.u))
		return
	}
	if h.inReg && !mentionsLate(value, target.sym) {
		l.value(value, h.reg)
		l.convert(h.reg, from, t)
		return
	}
	r, release := l.temp()
	l.value(value, r)
	l.convert(r, from, t)
	l.setHome(h, r)
	release()
}

// assignMemory assigns to a variable that no register holds. What is computed from
// the variable itself is computed elsewhere first.
func (l *lowerer) assignMemory(value expr, p place, v *variable) {
	mentioned := false
	walk(value, func(x expr) {
		r, ok := x.(*varExpr)
		mentioned = mentioned || ok && r.sym == v
	})
	if !mentioned {
		l.into(value, p, v.typ)
		return
	}
	tmp := l.newPlace(8 * v.typ.Words())
	l.into(value, tmp, v.typ)
	l.copyWords(p, tmp, v.typ.Words())
}

// setConst puts a constant into a variable.
func (l *lowerer) setConst(h home, v uint64) {
	switch {
	case h.inReg:
		l.movImm(h.reg, v)
	case small(v):
		l.storeImm(h.off, int32(v))
	default:
		l.movImm(asm.R0, v)
		l.store(h.off, asm.R0)
	}
}

// convert makes a value of one type a value of another.
func (l *lowerer) convert(r asm.Register, from, to Type) {
	if from.Kind != Bool && !from.fits(to) {
		l.truncate(r, to)
	}
}

// key puts a map's key on the stack: its parts, or for a map without keys the
// index 0 of an array of one cell.
func (l *lowerer) key(m *mapExpr) int16 {
	if len(m.keys) == 0 {
		off := l.push(8)
		l.emit(asm.StoreImm(asm.R10, off, 0, asm.Word))
		return off
	}
	types := l.maps[m.name].keys
	l.hoist(m.keys...)
	off := l.push(8 * keyWords(types))
	at := off
	if len(m.keys) < len(types) { // a tuple
		l.into(m.keys[0], place{kind: onStack, off: int(at)}, tupleOf(types, nil))
		return off
	}
	for i, k := range m.keys {
		if types[i].isScalar() {
			l.storeValue(at, k)
		} else {
			l.into(k, place{kind: onStack, off: int(at)}, types[i])
		}
		at += int16(8 * types[i].Words())
	}
	return off
}

// storeValue computes a value onto the stack.
func (l *lowerer) storeValue(off int16, x expr) {
	if con := x.base().con; con.known && small(con.u) && pure(x) {
		l.storeImm(off, int32(con.u))
		return
	}
	r, release := l.operand(x)
	l.store(off, r)
	release()
}

// lastingValue is a value that survives a call: a constant, a register, or a
// word of the stack.
type lastingValue struct {
	con     constant
	home    home
	release func()
}

func (l *lowerer) lasting(x expr) lastingValue {
	v := lastingValue{release: func() {}}
	if con := x.base().con; con.known && pure(x) {
		v.con = con
		return v
	}
	if h, ok := l.homeOf(x); ok {
		v.home = h
		return v
	}
	spare := l.spare
	v.home = l.newHome()
	v.release = func() { l.spare = spare }
	if v.home.inReg {
		l.value(x, v.home.reg)
		return v
	}
	r, release := l.operand(x)
	l.store(v.home.off, r)
	release()
	return v
}

// reload returns a register with the value, which the next call may destroy.
// r1 holds 1 when it is called.
func (l *lowerer) reload(v lastingValue) asm.Register {
	switch {
	case v.con.known:
		if v.con.u != 1 {
			l.movImm(asm.R1, v.con.u)
		}
		return asm.R1
	case v.home.inReg:
		return v.home.reg
	}
	l.load(asm.R1, v.home.off)
	return asm.R1
}
