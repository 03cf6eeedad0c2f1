package lang

import "github.com/cilium/ebpf/asm"

// loopLabels are where break and continue lead.
type loopLabels struct{ out, again label }

// breakable runs f as the body of a loop.
func (l *lowerer) breakable(out, again label, f func()) {
	l.loops = append(l.loops, loopLabels{out, again})
	f()
	l.loops = l.loops[:len(l.loops)-1]
}

func (l *lowerer) whileStmt(s *whileStmt) {
	again, out := l.newLabel(), l.newLabel()
	l.bind(again)
	l.decide(s.cond, out, false)
	l.breakable(out, again, func() { l.block(s.body) })
	l.jumpTo(again)
	l.bind(out)
}

// rangeStmt counts in a variable of its own: the script may assign to its own.
func (l *lowerer) rangeStmt(s *rangeStmt) {
	again, next, out := l.newLabel(), l.newLabel(), l.newLabel()
	count, end, v := l.homes[s.count], l.homes[s.end], l.homes[s.v.sym]
	l.intoHome(s.from, count, s.v.sym.typ)
	l.intoHome(s.to, end, s.v.sym.typ)
	l.bind(again)
	op := asm.JGE
	if s.v.sym.typ.Signed {
		op = asm.JSGE
	}
	l.getHome(asm.R0, count)
	r := end.reg
	if !end.inReg {
		r = l.free[0]
		l.load(r, end.off)
	}
	l.jumpReg(op, asm.R0, r, out)
	l.setHome(v, asm.R0)
	l.breakable(out, next, func() { l.block(s.body) })
	l.bind(next)
	l.getHome(asm.R0, count)
	l.aluImm(asm.Add, asm.R0, 1)
	l.setHome(count, asm.R0)
	l.jumpTo(again)
	l.bind(out)
}

func (l *lowerer) unrollStmt(s *unrollStmt) {
	out := l.newLabel()
	for _, b := range s.copies[:s.count.base().con.u] {
		next := l.newLabel()
		l.breakable(out, next, func() { l.block(b) })
		l.bind(next)
	}
	l.bind(out)
}

func (l *lowerer) jumpStmt(s *jumpStmt) {
	to := l.loops[len(l.loops)-1]
	if s.again {
		l.jumpTo(to.again)
	} else {
		l.jumpTo(to.out)
	}
}

// eachStmt calls a function for each entry of a map.
func (l *lowerer) eachStmt(s *eachStmt) {
	l.diags.Errorf(s.span, "not supported yet: loops over maps")
}
