package plan

import (
	"encoding/binary"

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
	if s.f.ReadOnly == nil || n.n > tableMost || !s.spend(int(n.n)) {
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
