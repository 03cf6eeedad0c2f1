package lang

import (
	"cmp"
	"fmt"
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
	spare  []asm.Register // lasting registers without a variable
	free   []asm.Register // scratch registers that hold nothing
	frame  int            // bytes of the stack in use
	deep   int            // the most that were
	exit   label
	called bool
}

// lower compiles a checked probe. It adds the probe's actions to the script.
func lower(s *Script, maps map[string]*mapInfo, diags *diag.Collector, n *probeNode, name string) *bpf.Program {
	l := &lowerer{script: s, maps: maps, diags: diags, homes: make(map[*variable]home), hoists: make(map[expr]home)}
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
	p := &bpf.Program{Name: name, Insns: l.finish(), Maps: s.MapSpecs()}
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
		l.homes[v] = l.newHome()
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
	frame, spare := l.frame, l.spare
	defer func() { l.frame, l.spare = frame, spare }()
	switch s := s.(type) {
	case *blockStmt:
		return l.block(s)
	case *ifStmt:
		return l.ifStmt(s)
	case *returnStmt:
		l.jumpTo(l.exit)
		return true
	case *declStmt:
		l.setConst(l.homes[s.v.sym], 0)
	case *assignStmt:
		l.assignStmt(s)
	case *exprStmt:
		if c, ok := s.x.(*callExpr); ok && !hoisted(c) {
			return l.callStmt(c)
		}
		l.discard(s.x)
	}
	return false
}

// decide is cond with what has to be computed before.
func (l *lowerer) decide(x expr, to label, when bool) {
	frame, spare := l.frame, l.spare
	l.hoist(x)
	l.cond(x, to, when)
	l.frame, l.spare = frame, spare
}

func (l *lowerer) assignStmt(s *assignStmt) {
	m, ok := s.target.(*mapExpr)
	if !ok {
		l.hoist(s.value)
		l.assign(s)
		return
	}
	l.hoist(m.keys...)
	if l.maps[m.name].agg == Plain {
		l.hoist(s.value)
		l.storeMap(s, m)
		return
	}
	call := s.value.(*callExpr)
	l.hoist(call.args...)
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

// assign computes a value into a variable.
func (l *lowerer) assign(s *assignStmt) {
	target := s.target.(*varExpr)
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
	off := l.push(8 * keyWords(types))
	at := off
	for i, k := range m.keys {
		size := 8 * types[i].Words()
		if types[i].Kind == String {
			l.putString(at, size, size, k)
		} else {
			l.storeValue(at, k)
		}
		at += int16(size)
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

// callStmt makes an event.
func (l *lowerer) callStmt(c *callExpr) bool {
	a := Action{Span: c.span}
	var args []expr
	switch c.name {
	case "printf":
		f, _ := parseFormat(c.args[0].base().con.s)
		a.Kind, a.Format, args = Printf, &f, c.args[1:]
	case "print":
		a.Kind, args = PrintValue, c.args[:1]
		if m, ok := c.args[0].(*mapExpr); ok && !m.indexed {
			a.Kind, a.Map, a.Div, args = PrintMap, l.maps[m.name].number, 1, nil
			if len(c.args) > 1 {
				a.Top = uint32(c.args[1].base().con.u)
			}
			if len(c.args) > 2 {
				a.Div = max(1, uint32(c.args[2].base().con.u))
			}
		}
	case "clear", "zero":
		a.Kind = map[string]ActionKind{"clear": Clear, "zero": Zero}[c.name]
		a.Map = l.maps[c.args[0].(*mapExpr).name].number
	case "exit":
		a.Kind, args = Exit, c.args
		if len(args) == 0 {
			a.Args = []Arg{{Const: true, Value: Value{Type: int64Type}}}
		}
	default:
		l.discard(c) // a call with a value, which is dropped
		return false
	}
	l.event(&a, args)
	if a.Kind == Exit {
		l.helper(bpf.HelperExit)
		return true
	}
	return false
}

// event writes an action's number and its arguments into the ring.
func (l *lowerer) event(a *Action, args []expr) {
	var words []expr
	size := 8
	for _, x := range args {
		b := x.base()
		arg := Arg{Value: Value{Type: b.typ}}
		if b.con.known && pure(x) {
			arg.Const, arg.Value.Int, arg.Value.Str = true, b.con.u, b.con.s
		} else {
			words = append(words, x)
			size += 8 * b.typ.Words()
			arg.Trailer = b.typ.Kind == String && x.base().typ.Len > commSize && !b.cut
			l.hoist(x)
		}
		a.Args = append(a.Args, arg)
	}
	base := l.push(size)
	l.storeImm(base, int32(len(l.script.Actions)))
	l.script.Actions = append(l.script.Actions, *a)
	at := base + 8
	for _, x := range words {
		n := 8 * b2t(x).Words()
		if b2t(x).Kind == String {
			l.putString(at, n, n, x)
		} else {
			l.storeValue(at, x)
		}
		at += int16(n)
	}
	l.emit(bpf.LoadRing(asm.R1))
	l.stackAddr(asm.R2, base)
	l.movImm(asm.R3, uint64(size))
	l.movImm(asm.R4, 0)
	l.helper(bpf.HelperRingbufOutput)
	if size > bpf.MaxEvent {
		l.diags.Errorf(a.Span, "the event has %d bytes, the limit is %d", size, bpf.MaxEvent).Hint("str(pointer, length) takes shorter strings")
	}
}

// bug reports a tree that the checker should have refused.
func bug(x any) { panic(fmt.Sprintf("BUG: lang: cannot lower %T", x)) }
