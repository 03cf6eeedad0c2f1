package plan

import (
	"slices"

	"trapless/internal/abi"
	insn "trapless/internal/insn/x86"
)

// indirect is an indirect jump.
type indirect struct {
	inst    int
	kind    JumpKind
	leaves  bool       // the frame is taken down before: it does not lead into this function
	targets []int      // by tables: offsets in the function, ascending
	outside []abi.Addr // by tables: where they lead elsewhere
}

// JumpKind is how much is known of an indirect jump.
type JumpKind uint8

// Kinds of indirect jumps.
const (
	// Unresolved: it leads to an address that is computed in a way that is not
	// understood; mostly by a switch table.
	Unresolved JumpKind = iota
	Tabled              // it leads where tables say, or one known address
	Pointed             // it leads to an address that code or data hold
)

// resolve follows the indirect jumps. Those whose tables are understood add
// entries. One that takes its address from memory leads to a place whose
// address code or data hold, so it adds none that is not known. Any other may
// lead anywhere.
//
// What one jump leads to decides what reaches another one. So at first they lead
// nowhere, and are looked at again as long as that adds ways; in the end all
// that was found is true of all ways. If some are not understood even so, they
// may lead to code to which nothing else leads.
func (b *body) resolve() {
	b.effort = leastEffort + effortForInst*len(b.insts)
	stable := false
	for pass := 0; pass < resolvePasses && !stable; pass++ {
		stable = b.resolveAll()
		if stable && !b.wild && slices.ContainsFunc(b.indirect, func(j indirect) bool { return j.kind == Unresolved }) {
			b.wild, stable = true, pass+1 == resolvePasses
		}
	}
	for k := range b.indirect {
		j := &b.indirect[k]
		if !stable {
			*j = indirect{inst: j.inst, leaves: j.leaves}
		}
		if j.kind == Unresolved {
			b.unknown = "the indirect jump at " + b.addr(b.at[j.inst]).String()
		}
		for _, to := range j.targets {
			b.entries = append(b.entries, entry{to, b.at[j.inst], byTable})
		}
		if j.kind == Pointed && !j.leaves { // data may hold the function's own address
			b.entries = append(b.entries, entry{0, b.at[j.inst], byTable})
		}
	}
	b.sortEntries()
}

// ComputedJump is what is known of an indirect jump.
type ComputedJump struct {
	At   abi.Addr
	Kind JumpKind
	To   []abi.Addr // Tabled: where it leads, ascending
}

// Jumps are the function's indirect jumps, ascending.
func (p *Planner) Jumps() []ComputedJump {
	var all []ComputedJump
	for _, j := range p.indirect {
		known := ComputedJump{At: p.addr(p.at[j.inst]), Kind: j.kind, To: slices.Clone(j.outside)}
		for _, off := range j.targets {
			known.To = append(known.To, p.addr(off))
		}
		slices.Sort(known.To)
		all = append(all, known)
	}
	return all
}

// resolvePasses is how often the jumps of a function are looked at.
const resolvePasses = 8

// resolveAll looks at each indirect jump. It reports whether that has brought
// nothing new.
func (b *body) resolveAll() bool {
	room := tableMost + 4*len(b.f.Code) // entries; honest functions stay far below
	found := make([]indirect, len(b.indirect))
	stable := true
	for k, old := range b.indirect {
		s := sources{body: b, leaves: old.leaves}
		j := old
		j.kind, j.targets, j.outside = s.jump(old.inst), nil, nil
		if j.kind == Tabled && len(s.targets) <= room {
			room -= len(s.targets)
			slices.Sort(s.targets)
			j.targets, j.outside = slices.Compact(s.targets), s.outside
		} else if j.kind == Tabled {
			j.kind = Unresolved
		}
		found[k] = j
		stable = stable && j.kind == old.kind && slices.Equal(j.targets, old.targets)
	}
	if !stable {
		b.indirect, b.graph = found, nil
	}
	return stable
}

// sources collects where one indirect jump leads.
type sources struct {
	*body
	targets []int // offsets in the function
	outside []abi.Addr
	pointer bool // somewhere a pointer says where
	leaves  bool // see indirect
	depth   int
}

// jump finds where the indirect jump with index i leads.
func (s *sources) jump(i int) JumpKind {
	in := &s.insts[i]
	ok := false
	if in.HasMem() {
		ok = s.loaded(i)
	} else {
		ok = s.register(i, rmOf(in))
	}
	switch {
	case !ok:
		return Unresolved
	case !s.pointer && len(s.targets)+len(s.outside) == 0: // nothing leads here
		return Unresolved
	case s.pointer:
		return Pointed
	}
	return Tabled
}

// loaded: the address is the memory operand of the instruction with index i.
func (s *sources) loaded(i int) bool {
	o, ok := s.operandOf(i)
	if !ok || s.insts[i].OpSize != 8 {
		return false
	}
	t := table{at: abi.Addr(o.disp), size: 8, index: o.index, use: i}
	if o.index != none && o.scale == 8 {
		known := o.base == none
		if !known {
			var base abi.Addr
			if base, known = s.constant(i, o.base, 0); known {
				t.at += base
			}
		}
		if known && s.read(t) {
			return true
		}
	}
	return s.elsewhere()
}

// elsewhere: the address was made by other code. It is written in code or data
// then, unless this function takes addresses inside of itself, with which it
// may compute.
func (s *sources) elsewhere() bool {
	s.pointer = true
	return !slices.ContainsFunc(s.entries, func(e entry) bool { return e.how == byAddress && e.from != outside && e.to != 0 })
}

// register: the address is what a register holds before the instruction with
// index i.
func (s *sources) register(i int, r insn.Reg) bool {
	if s.depth++; s.depth > depthBudget {
		return false
	}
	origins, ok := s.origins(i, r)
	if !ok {
		return false
	}
	for _, j := range origins {
		if !s.value(j, r) {
			return false
		}
	}
	return true
}

// value: the address is what the instruction with index j writes to a register.
func (s *sources) value(j int, r insn.Reg) bool {
	switch {
	case j == fromCaller, j == fromPart && s.leaves:
		return s.elsewhere()
	case j == fromPart:
		return false
	}
	in := &s.insts[j]
	if to, ok := s.literalOf(j); ok {
		if to < s.f.Start || to > s.f.End() {
			s.outside = append(s.outside, to)
			return true
		}
		return s.add(to)
	}
	if in.Branch == insn.BranchCall || in.Branch == insn.BranchCallInd {
		return r == insn.RAX && s.elsewhere()
	}
	if isPop(in) || isDemangling(in) {
		return s.elsewhere()
	}
	if c, ok := copyOf(in); ok && c.bytes == 8 && c.to == r {
		if c.from == none {
			return s.loaded(j)
		}
		return s.register(j, c.from)
	}
	if isCmov(in) {
		if in.HasMem() {
			return s.loaded(j) && s.register(j, r)
		}
		return s.register(j, rmOf(in)) && s.register(j, r)
	}
	if x, y, ok := s.sumOf(j); ok {
		return s.sum(j, x, y) || s.sum(j, y, x)
	}
	return false
}

// sum: the address is the sum of an entry of a table and a constant, which two
// registers hold before the instruction with index j.
func (s *sources) sum(j int, entry, other insn.Reg) bool {
	to, ok := s.constant(j, other, 0)
	if !ok {
		return false
	}
	t, ok := s.entry(j, entry)
	t.to = to
	return ok && s.read(t)
}
