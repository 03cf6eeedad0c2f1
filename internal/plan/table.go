package plan

import (
	"encoding/binary"
	"slices"

	"trapless/internal/abi"
	insn "trapless/internal/insn/x86"
)

// Data is a stretch of a module's memory that never changes.
type Data struct {
	Start abi.Addr
	Bytes []byte
}

// Constants are stretches of memory, for Func.ReadOnly.
type Constants []Data

// Read is size bytes at an address, nil if not all of them are known.
func (c Constants) Read(at abi.Addr, size int) []byte {
	for _, d := range c {
		if at >= d.Start && uint64(at-d.Start)+uint64(size) <= uint64(len(d.Bytes)) {
			return d.Bytes[at-d.Start:][:size]
		}
	}
	return nil
}

// tableMost is the greatest number of entries; compilers make no greater tables.
const tableMost = 8192

// table is a switch statement's: absolute addresses of eight bytes, or offsets
// of four bytes to a place that is mostly the table itself.
type table struct {
	at    abi.Addr
	size  int      // of an entry
	to    abi.Addr // what is added to an entry
	index insn.Reg
	use   int // the instruction that reads the table
}

// indirect is an indirect jump.
type indirect struct {
	inst    int
	kind    jumpKind
	leaves  bool       // the frame is taken down before: it does not lead into this function
	targets []int      // by tables: offsets in the function, ascending
	outside []abi.Addr // by tables: where they lead elsewhere
}

// jumpKind is what is known of an indirect jump.
type jumpKind uint8

const (
	unresolved jumpKind = iota // it leads to an address that is computed in a way that is not understood
	byTables                   // it leads where tables say
	byPointer                  // it leads to an address that is written in code or data
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
		if stable && !b.wild && slices.ContainsFunc(b.indirect, func(j indirect) bool { return j.kind == unresolved }) {
			b.wild, stable = true, pass+1 == resolvePasses
		}
	}
	for k := range b.indirect {
		j := &b.indirect[k]
		if !stable {
			*j = indirect{inst: j.inst, leaves: j.leaves}
		}
		if j.kind == unresolved {
			b.unknown = "the indirect jump at " + b.addr(b.at[j.inst]).String()
			b.unresolved++
		}
		for _, to := range j.targets {
			b.entries = append(b.entries, entry{to, b.at[j.inst], byTable})
		}
		if j.kind == byPointer && !j.leaves { // data may hold the function's own address
			b.entries = append(b.entries, entry{0, b.at[j.inst], byTable})
		}
	}
	b.sortEntries()
}

// Unresolved is the number of the function's indirect jumps to addresses that
// are computed in a way that is not understood: mostly switch tables.
func (p *Planner) Unresolved() int { return p.unresolved }

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
		if j.kind == byTables && len(s.targets) <= room {
			room -= len(s.targets)
			slices.Sort(s.targets)
			j.targets, j.outside = slices.Compact(s.targets), s.outside
		} else if j.kind == byTables {
			j.kind = unresolved
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
func (s *sources) jump(i int) jumpKind {
	in := &s.insts[i]
	ok := false
	if in.HasMem() {
		ok = s.loaded(i)
	} else {
		ok = s.register(i, rmOf(in))
	}
	switch {
	case !ok:
		return unresolved
	case !s.pointer && len(s.targets)+len(s.outside) == 0: // nothing leads here
		return unresolved
	case s.pointer:
		return byPointer
	}
	return byTables
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

// entry recognises the load of a table's entry, of four bytes, extended by its
// sign, to what a register holds before the instruction with index j.
func (s *sources) entry(j int, r insn.Reg) (table, bool) {
	for range depthBudget {
		origins, ok := s.origins(j, r)
		if !ok || len(origins) != 1 || origins[0] < 0 {
			return table{}, false
		}
		j = origins[0]
		c, ok := copyOf(&s.insts[j])
		switch {
		case !ok || c.bytes < 4:
			return table{}, false
		case c.from == none:
			return s.indexed(j)
		}
		r = c.from
	}
	return table{}, false
}

// indexed recognises the operand of the load of an entry of four bytes.
func (s *sources) indexed(j int) (table, bool) {
	o, ok := s.operandOf(j)
	t := table{at: abi.Addr(o.disp), size: 4, index: o.index, use: j}
	switch {
	case !ok || o.base != none && o.index == none:
		return table{}, false
	case o.base == none: // with an index, or a single entry
		return t, o.index == none || o.scale == 4
	}
	base, known := s.constant(j, o.base, 0)
	switch {
	case known && o.scale == 4:
		t.at += base
		return t, true
	case o.scale != 1:
		return table{}, false
	}
	// Both are added as they are: one of them is the index times 4.
	if known {
		t.at += base
		return s.scaled(j, o.index, t)
	}
	if base, known = s.constant(j, o.index, 0); known {
		t.at += base
		return s.scaled(j, o.base, t)
	}
	return table{}, false
}

// scaled recognises lea 0(,index,4).
func (s *sources) scaled(j int, r insn.Reg, t table) (table, bool) {
	origins, ok := s.origins(j, r)
	if !ok || len(origins) != 1 || origins[0] < 0 || !isLea(&s.insts[origins[0]]) {
		return table{}, false
	}
	t.use = origins[0]
	o, ok := s.operandOf(t.use)
	t.index = o.index
	return t, ok && o.base == none && o.index != none && o.scale == 4 && o.disp == 0
}

// constant is the address that a register holds before the instruction with
// index i, whatever way led there. Other parts of the function, which may jump
// back into a loop, are trusted to agree.
func (b *body) constant(i int, r insn.Reg, depth int) (abi.Addr, bool) {
	origins, ok := b.origins(i, r)
	if !ok || depth == depthBudget {
		return 0, false
	}
	var all abi.Addr
	known := false
	for _, j := range origins {
		if j == fromPart {
			continue
		}
		if j == fromCaller {
			return 0, false
		}
		v, ok := b.literalOf(j)
		if c, copies := copyOf(&b.insts[j]); !ok && copies && c.bytes == 8 && c.from != none {
			v, ok = b.constant(j, c.from, depth+1)
		}
		if !ok || known && v != all {
			return 0, false
		}
		all, known = v, true
	}
	return all, known
}

// read adds where all entries of a table lead. It reports false unless the
// table's length is certain and all of it makes sense. If its length is not
// known, it ends where an entry makes no sense: it cannot be longer.
func (s *sources) read(t table) bool {
	n := limit{1, true}
	if t.index != none {
		n = s.bound(t.use, t.index)
	}
	if s.f.ReadOnly == nil || n.n > tableMost {
		return false
	}
	if n.tight {
		b := s.f.ReadOnly(t.at, int(n.n)*t.size)
		return b != nil && s.addAll(t, b) == int(n.n)
	}
	if t.size != 4 || s.f.Part == nil {
		return false
	}
	if n.n == 0 {
		n.n = tableMost
	}
	b := s.f.ReadOnly(t.at, int(n.n)*t.size)
	for ; b == nil && n.n > 1; n.n /= 2 { // the end of the data may be near
		b = s.f.ReadOnly(t.at, int(n.n/2)*t.size)
	}
	return s.addAll(t, b) > 0
}

// addAll adds entries up to one that makes no sense, and says how many.
func (s *sources) addAll(t table, b []byte) int {
	n := 0
	for ; len(b) > 0; b = b[t.size:] {
		var to abi.Addr
		if t.size == 4 {
			to = t.to + abi.Addr(int64(int32(binary.LittleEndian.Uint32(b))))
		} else {
			to = abi.Addr(binary.LittleEndian.Uint64(b))
		}
		if !s.add(to) {
			break
		}
		n++
	}
	return n
}

// add adds one address. It reports false if the function has no instruction
// there.
func (s *sources) add(to abi.Addr) bool {
	switch {
	case to == s.f.End():
		return true // where a compiler says that nothing goes
	case to >= s.f.Start && to < s.f.End():
		off := int(to - s.f.Start)
		_, boundary := s.find(off)
		if boundary {
			s.targets = append(s.targets, off)
		}
		return boundary
	case s.f.Part != nil && !s.f.Part(to):
		return false
	}
	s.outside = append(s.outside, to)
	return true
}
