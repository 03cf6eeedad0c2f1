package bpf

import (
	"slices"

	"trapless/internal/bpf/bound"
)

// joiner makes what is known where two ways meet: what holds on both. The
// result is the first state itself if the second says nothing new. With limits
// numbers that have grown jump to the next of them (see bound.Scalar.Widen), so
// that a loop comes to rest.
type joiner struct {
	widen  bool
	limits []int64

	// Identities are names. Two places have the same one afterwards if they
	// had the same one in both states, at the same distance. The first pair
	// that an identity of the first state is in keeps the name.
	names   []naming
	next    int32
	changed bool
}

// pair is the identities that something has in the two states, and by how much
// its distance from them differs. Those of objects are told from those of
// values.
type pair struct {
	a, b   int32
	delta  int32
	object bool
}

// naming is the identity that a pair has afterwards; there are only few.
type naming struct {
	pair
	name int32
}

// join returns the union of two states whose frames are of the same functions,
// and whether it differs from a. References must be the same, in their order.
func (j *joiner) join(a, b *state) (*state, bool) {
	j.names, j.next, j.changed = nil, max(a.nextID, b.nextID), false
	out := a.share()
	for n := range a.frames {
		j.frame(out, n, b.frames[n], refNames(a.refs, b.refs))
	}
	if !j.changed {
		return a, false
	}
	out.nextID = j.next
	out.owned = 0
	return out, true
}

// refNames maps the references of b to those of a.
func refNames(a, b []ref) map[int32]int32 {
	if len(a) == 0 {
		return nil
	}
	names := make(map[int32]int32, len(a))
	for i := range a {
		names[b[i].id] = a[i].id
	}
	return names
}

func (j *joiner) frame(out *state, n int, b *frameState, refs map[int32]int32) {
	a := out.frames[n]
	for r := range a.regs {
		if v := j.value(&a.regs[r], &b.regs[r], refs); v != a.regs[r] {
			out.edit(n).regs[r] = v
			j.changed = true
		}
	}
	if a.stack == b.stack && !j.named(a) {
		return
	}
	for i := range slots {
		x, y := a.at(i), b.at(i)
		if x == y && len(x.parts) == 0 {
			continue
		}
		if c, change := j.slot(x, y, refs); change {
			out.editStack(n)[i] = c
			j.changed = true
		}
	}
}

// named reports whether anything on the stack has an identity.
func (j *joiner) named(f *frameState) bool {
	for i := range slots {
		for _, p := range f.at(i).parts {
			if p.val.id != 0 || p.val.inst > 0 {
				return true
			}
		}
	}
	return false
}

func (j *joiner) slot(x, y *slot, refs map[int32]int32) (*slot, bool) {
	c := slot{init: x.init & y.init}
	same := c.init == x.init
	for _, p := range x.parts {
		v, ok := y.part(p.off, p.size)
		joined := value{}
		if ok {
			joined = j.value(&p.val, &v, refs)
		}
		switch {
		case joined.kind == Unknown || joined.kind == Mixed || joined.kind == Released:
			same = false
			if p.val.kind != Scalar || ok && v.kind != Scalar {
				c.init &^= byteMask(int(p.off), int(p.size))
			}
			continue
		case joined != p.val:
			same = false
		}
		c.parts = append(c.parts, part{p.off, p.size, joined})
	}
	for _, p := range y.parts { // pointers that x knows nothing of
		if _, ok := x.part(p.off, p.size); !ok && p.val.kind != Scalar {
			if m := byteMask(int(p.off), int(p.size)); c.init&m != 0 {
				c.init &^= m
				same = false
				c.parts = slices.DeleteFunc(c.parts, func(q part) bool { return byteMask(int(q.off), int(q.size))&m != 0 })
			}
		}
	}
	if same {
		return x, false
	}
	return &c, true
}

func (sl *slot) part(off, size uint8) (value, bool) {
	for _, p := range sl.parts {
		if p.off == off && p.size == size {
			return p.val, true
		}
	}
	return value{}, false
}

// value joins two values.
func (j *joiner) value(a, b *value, refs map[int32]int32) value {
	kind, ok := joinKinds(a, b)
	switch {
	case a.kind == Unknown || b.kind == Unknown:
		return value{}
	case !ok || len(refs) != 0 && refs[b.ref] != a.ref:
		return value{kind: Mixed}
	}
	v := *a
	v.kind = kind
	v.num = j.number(a.num, b.num)
	if a.fixed != b.fixed || a.index != b.index {
		v.fixed, v.index = false, 0
	}
	if v.inst = 0; a.inst != 0 && b.inst != 0 {
		v.inst = j.name(pair{a: a.inst, b: b.inst, object: true})
	}
	if v.inst == 0 && kind.nonNull() != kind { // a test of it must not be taken for one of another
		v.inst = j.unshared(a.inst)
	}
	v.id, v.delta, v.low = 0, 0, false
	if a.id != 0 && b.id != 0 && a.low == b.low {
		v.id = j.name(pair{a: a.id, b: b.id, delta: a.delta - b.delta})
		v.delta, v.low = a.delta, a.low
	}
	return v
}

func (j *joiner) number(a, b bound.Scalar) bound.Scalar {
	if a == b || b.Within(a) {
		return a
	}
	if j.widen {
		return a.Widen(b, j.limits)
	}
	return a.Union(b)
}

// name finds the identity of a pair. Negative ones are the same everywhere.
func (j *joiner) name(p pair) int32 {
	if p.a < 0 || p.b < 0 {
		if p.a == p.b {
			return p.a
		}
		return 0
	}
	for i := range j.names {
		if j.names[i].pair == p {
			return j.names[i].name
		}
	}
	n := j.unshared(p.a)
	j.names[len(j.names)-1].pair = p
	return n
}

// unshared is an identity that nothing else has yet: the given one if it is
// still free.
func (j *joiner) unshared(n int32) int32 {
	taken := slices.ContainsFunc(j.names, func(o naming) bool { return o.name == n })
	if n <= 0 || taken {
		j.next++
		n = j.next
	}
	j.names = append(j.names, naming{name: n})
	return n
}

// joinKinds reports whether two values can be seen as one, and its kind.
func joinKinds(a, b *value) (ValueKind, bool) {
	if a.obj != b.obj || a.size != b.size {
		return Mixed, false
	}
	switch {
	case a.kind == b.kind:
		return a.kind, true
	case a.kind == b.kind.orNull():
		return a.kind, true
	case b.kind == a.kind.orNull():
		return b.kind, true
	}
	return Mixed, false
}

// fits reports whether two states can be joined at all: the rounds of loops
// that are told apart are the same, and so are references.
func (s *state) fits(o *state) bool {
	return slices.EqualFunc(s.frames, o.frames, func(a, b *frameState) bool { return slices.Equal(a.laps, b.laps) }) &&
		slices.EqualFunc(s.refs, o.refs, func(a, b ref) bool { return a.at == b.at })
}

// hash is the same for states that fit, and with an effort, for those that have
// the same shape besides. Only the arrival's own state keeps its hash; what it
// is joined with later has the same.
func (s *state) hash(e effort) uint64 {
	h := uint64(0xcbf29ce484222325)
	mix := func(v uint64) { h = (h ^ v) * 0x9e3779b97f4a7c15; h ^= h >> 29 }
	for _, r := range s.refs {
		mix(uint64(r.at))
	}
	for _, f := range s.frames {
		for _, l := range f.laps {
			mix(uint64(l.head)<<32 | uint64(l.count))
		}
		if !e.shapes {
			continue
		}
		for r := range f.regs {
			f.regs[r].hash(mix, e.constants)
		}
		for i := range slots {
			for _, p := range f.at(i).parts {
				if p.val.kind != Scalar {
					mix(uint64(i)<<8 | uint64(p.off))
					p.val.hash(mix, false)
				}
			}
		}
	}
	return h
}

func (v *value) hash(mix func(uint64), constants bool) {
	mix(uint64(v.kind) | uint64(v.obj)<<8 | uint64(uint32(v.index))<<40)
	if c, ok := v.isKnown(); ok && constants {
		mix(c)
	}
}

// sameShape reports whether a join of two states that fit loses nothing but
// limits of numbers: registers and pointers on the stack are of the same kinds.
// With constants, known numbers have to be the same, too.
func (s *state) sameShape(o *state, constants bool) bool {
	for n, f := range s.frames {
		g := o.frames[n]
		for r := range f.regs {
			if !sameKind(&f.regs[r], &g.regs[r], constants) {
				return false
			}
		}
		if f.stack == g.stack {
			continue
		}
		for i := range slots {
			if !f.at(i).sameShape(g.at(i)) {
				return false
			}
		}
	}
	return true
}

func sameKind(a, b *value, constants bool) bool {
	if a.kind != b.kind || a.obj != b.obj || a.ref != b.ref || a.fixed != b.fixed || a.index != b.index {
		return false
	}
	if constants && a.kind == Scalar {
		x, ok := a.isKnown()
		y, too := b.isKnown()
		return ok == too && x == y
	}
	return true
}

func (sl *slot) sameShape(o *slot) bool {
	if sl == o {
		return true
	}
	pointers := 0
	for _, p := range sl.parts {
		if p.val.kind == Scalar {
			continue
		}
		pointers++
		if v, ok := o.part(p.off, p.size); !ok || !sameKind(&p.val, &v, false) {
			return false
		}
	}
	for _, p := range o.parts {
		if p.val.kind != Scalar {
			pointers--
		}
	}
	return pointers == 0
}
