package plan

import (
	insn "trapless/internal/insn/x86"
)

// place is what may have been compared: a register, or memory that is
// addressed like this.
type place struct {
	reg insn.Reg // none: memory
	mem operand
}

// uses reports whether the place is not what it was after a write of registers.
func (p place) uses(written insn.RegSet) bool {
	if p.reg != none {
		return written.Has(p.reg)
	}
	return p.mem.base != none && written.Has(p.mem.base) || p.mem.index != none && written.Has(p.mem.index)
}

// fact is an upper bound: the low bytes of a place are below n.
type fact struct {
	place
	bytes int
	n     int64
}

// bounder finds how many values an index may have.
type bounder struct {
	*body
	g      *flow
	active map[boundKey]bool // searches that are under way: a loop adds no values
}

type boundKey struct {
	block int32
	place place
}

// query is where a search stands: what it looks for, and what it has met on its
// way back.
type query struct {
	place
	bytes int   // of the place that count
	sign  bool  // copies of the sign stand above them
	most  int64 // a bound by the width of the place, 0 if there is none
	facts []fact
	// Of a conditional jump whose comparison was not met yet: an unsigned
	// value is below, or not above, what it was compared with.
	pending bool
	equal   int64
}

// limit is how many values something may have, from 0 on; 0 if that is not known.
type limit struct {
	n int64
	// tight: a comparison or a mask says so on all ways, and not just the width
	// of what was copied somewhere.
	tight bool
}

// bound is how many values a register may have at the instruction with index i,
// because unsigned comparisons, masks or widths say so on all ways that lead
// there.
func (b *body) bound(i int, r insn.Reg) limit {
	s := bounder{b, b.flow(), map[boundKey]bool{}}
	return s.within(s.g.of[i], i-1, query{place: place{reg: r}, bytes: 8})
}

// within looks in a block, from an instruction back to its start, and then
// further; 0 if there is no bound.
func (s *bounder) within(k int32, from int, q query) limit {
	for j := from; j >= int(s.g.blocks[k].first); j-- {
		if !s.spend(1) {
			return limit{}
		}
		if n, done := s.step(j, &q); done {
			return n
		}
	}
	return s.ways(k, q)
}

// ways looks on all ways to the start of a block, and takes the greatest bound.
func (s *bounder) ways(k int32, q query) limit {
	key := boundKey{k, q.place}
	if s.active[key] {
		return limit{1, true} // nothing that the other ways do not bring
	}
	s.active[key] = true
	defer delete(s.active, key)
	ways := s.waysTo(s.g, k)
	if len(ways) == 0 || !s.spend(len(ways)) {
		return limit{q.most, false}
	}
	most := limit{0, true}
	for _, w := range ways {
		if w.block < 0 {
			return limit{q.most, false}
		}
		last := int(s.g.blocks[w.block].end) - 1
		along := q
		along.facts = append([]fact(nil), q.facts...)
		along.pending, along.equal = condition(&s.insts[last], w.taken)
		n := s.within(w.block, last, along)
		if n.n == 0 {
			return limit{q.most, false}
		}
		most = limit{max(most.n, n.n), most.tight && n.tight}
	}
	return most
}

// condition is what a conditional jump says when control goes one way: that the
// unsigned value compared is below (0) or at most (1) the other.
func condition(in *insn.Inst, taken bool) (bool, int64) {
	if in.Branch != insn.BranchJcc {
		return false, 0
	}
	below, equal := byte(0x3), byte(0x7) // jae and ja fall through
	if taken {
		below, equal = 0x2, 0x6 // jb and jbe jump
	}
	switch in.Opcode & 0x0f {
	case below:
		return true, 0
	case equal:
		return true, 1
	}
	return false, 0
}

// step looks at one instruction. It reports true if the search ends there.
func (s *bounder) step(j int, q *query) (limit, bool) {
	in := &s.insts[j]
	if in.Branch == insn.BranchJcc {
		return limit{}, false
	}
	if f, ok := s.compared(j); ok {
		if q.pending {
			f.n += q.equal
			if n, ok := q.use(f); ok {
				return limit{n, true}, true
			}
			q.facts = append(q.facts, f)
		}
		q.pending = false
		return limit{}, false
	}
	e := in.Effects()
	written := s.writes(j)
	if e.FlagsWrite&insn.StatusFlags != 0 {
		q.pending = false
	}
	if q.uses(written) || q.reg == none && e.MemWrite {
		if !s.follow(j, q) {
			return s.final(j, q), true
		}
		q.forget(written, e.MemWrite)
		for _, f := range q.facts {
			if n, ok := q.use(f); ok {
				return limit{n, true}, true
			}
		}
	}
	q.forget(written, e.MemWrite)
	return limit{}, false
}

// use is the bound that a fact gives to what is looked for.
func (q *query) use(f fact) (int64, bool) {
	if f.place != q.place || f.bytes < min(q.bytes, 4) || f.n <= 0 || q.sign && f.n > 1<<(8*q.bytes-1) {
		return 0, false
	}
	return f.n, true
}

// forget drops facts about what an instruction writes.
func (q *query) forget(written insn.RegSet, memory bool) {
	kept := q.facts[:0]
	for _, f := range q.facts {
		if !f.uses(written) && (f.reg != none || !memory) {
			kept = append(kept, f)
		}
	}
	q.facts = kept
}

// compared recognises the comparison of a place with a constant.
func (s *bounder) compared(j int) (fact, bool) {
	r, n, bytes, ok := constantOf(&s.insts[j], opCmp)
	if !ok {
		return fact{}, false
	}
	if r != none {
		return fact{place{reg: r}, bytes, n}, true
	}
	mem, ok := s.operandOf(j)
	return fact{place{none, mem}, bytes, n}, ok
}

// follow goes on with what an instruction copies.
func (s *bounder) follow(j int, q *query) bool {
	c, ok := copyOf(&s.insts[j])
	if !ok || q.reg == none || c.to != q.reg {
		return false
	}
	from := place{reg: c.from}
	if c.from == none {
		mem, ok := s.operandOf(j)
		if !ok {
			return false
		}
		from.mem = mem
	}
	if c.bytes < q.bytes {
		q.bytes, q.sign = c.bytes, c.sign
		if c.bytes < 4 && !c.sign {
			q.most = 1 << (8 * c.bytes)
		}
	}
	q.place = from
	return true
}

// final is the bound by the instruction that made the value, 0 if it gives none.
func (s *bounder) final(j int, q *query) limit {
	if r, n, bytes, ok := constantOf(&s.insts[j], opAnd); ok && r == q.reg && r != none && bytes >= min(q.bytes, 4) {
		return limit{n + 1, true}
	}
	return limit{q.most, false}
}
