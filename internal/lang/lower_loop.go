package lang

import (
	"github.com/cilium/ebpf/asm"

	"trapless/internal/bpf"
)

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

// eachStmt goes over copies of the entries that a map has when the loop begins.
func (l *lowerer) eachStmt(s *eachStmt) {
	kv := l.places[s.v.sym]
	fields := s.v.sym.typ.Layout.Fields
	info := l.maps[s.m.name]
	l.eachEntry(info, kv.plus(fields[0].Offset), kv.plus(fields[1].Offset), func(out, again label) {
		l.breakable(out, again, func() { l.block(s.body) })
	})
}

// eachEntry runs code for each entry of a map, with copies of its key and its value
// at two places.
func (l *lowerer) eachEntry(info *mapInfo, key, value place, body func(out, again label)) {
	again, out := l.newLabel(), l.newLabel()
	state := l.newHome()
	cell := value
	if info.agg != Plain {
		cell = l.newPlace(info.cellSize())
	}
	l.setConst(state, 0)
	l.bind(again)
	l.emit(bpf.LoadMap(asm.R1, info.number))
	l.getHome(asm.R2, state)
	l.point(asm.R3, key)
	l.point(asm.R4, cell)
	l.helper(bpf.HelperMapNext)
	l.jumpImm(asm.JEq, asm.R0, 0, out)
	l.setHome(state, asm.R0)
	if info.agg != Plain {
		l.aggregated(info, cell)
		l.storeAt(value, asm.R0)
	}
	body(out, again)
	l.jumpTo(again)
	l.bind(out)
}

// aggregated makes r0 the number that a cell stands for.
func (l *lowerer) aggregated(info *mapInfo, cell place) {
	done := l.newLabel()
	base, off := l.access(cell, asm.R5)
	load := func(r asm.Register, at int) { l.emit(asm.LoadMem(r, base, off+int16(at), asm.DWord)) }
	switch info.agg {
	case Count:
		load(asm.R0, CellCount)
	case Sum:
		load(asm.R0, CellTotal)
	case Avg:
		load(asm.R0, CellTotal)
		load(asm.R2, CellCount)
		op := asm.Div
		if info.signed {
			op = asm.SDiv
		}
		l.aluReg(op, asm.R0, asm.R2) // 0 where there are none
	default:
		load(asm.R0, CellCount)
		l.jumpImm(asm.JEq, asm.R0, 0, done)
		load(asm.R0, CellExtreme)
		if code := extremeCode(info.agg, info.signed); small(code) {
			l.aluImm(asm.Xor, asm.R0, int32(code))
		} else {
			l.movImm(asm.R2, code)
			l.aluReg(asm.Xor, asm.R0, asm.R2)
		}
	}
	l.bind(done)
}

// readAggregated makes h the number that an entry of an aggregation stands for, or
// 1 if there is one, where only that is asked.
func (l *lowerer) readAggregated(m *mapExpr, present bool, h home) {
	info := l.maps[m.name]
	cell := l.newPlace(info.cellSize())
	key := l.key(m)
	l.emit(bpf.LoadMap(asm.R1, info.number))
	l.stackAddr(asm.R2, key)
	l.point(asm.R3, cell)
	l.helper(bpf.HelperMapRead)
	if !present {
		l.aggregated(info, cell)
	}
	l.setHome(h, asm.R0)
}

// mapLen makes h the number of a map's entries.
func (l *lowerer) mapLen(m *mapExpr, h home) {
	info := l.maps[m.name]
	n := l.newHome()
	key, value := l.newPlace(8*keyWords(info.keys)), l.newPlace(info.cellSize())
	l.setConst(n, 0)
	l.eachEntry(info, key, value, func(label, label) {
		l.getHome(asm.R0, n)
		l.aluImm(asm.Add, asm.R0, 1)
		l.setHome(n, asm.R0)
	})
	l.getHome(asm.R0, n)
	l.setHome(h, asm.R0)
}
