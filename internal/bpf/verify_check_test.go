package bpf

import (
	"fmt"
	"math/rand/v2"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

// checked is an accepted program with everything that the verifier assumes of
// it, and with what it tells others. Runs of it are compared with both.
type checked struct {
	code   *Code
	states map[int][]*state // by instruction
	facts  *Facts
	last   map[int]int // by instruction, the state that described a run
	full   bool        // a record was refused in this run
}

// verifyChecked verifies a program and keeps what is assumed before each
// instruction.
func verifyChecked(p *Program, layout *abi.Layout, effort int) (*checked, error) {
	c := &checked{last: map[int]int{}}
	v, err := verify(p, options{effort: effort, watch: func(at int, s *state) {
		if at < 0 {
			c.states = map[int][]*state{}
			return
		}
		c.states[at] = append(c.states[at], s.share())
	}})
	if err != nil {
		return nil, err
	}
	c.code, c.facts = v.code, Analyse(v.code, layout, true)
	return c, nil
}

// run executes the program and reports the first thing that the verifier did
// not expect. It says how many instructions were compared.
func (c *checked) run(m *Machine, r *rand.Rand, ctx *Regs, mem []byte) (steps int, err error) {
	x := m.newRun(c.code, ctx, mem)
	c.full = false
	for more := true; more; steps++ {
		if err := c.compare(x); err != nil {
			return steps, fmt.Errorf("before instruction %d (%v): %w", x.at, c.code.Insns[x.at], err)
		}
		at := x.at
		if in := &c.code.Insns[at]; in.Kind == CallHelper && in.Helper() == asm.FnRingbufReserve && r.IntN(3) == 0 {
			x.have &^= 0x3f
			x.set(asm.R0, 0) // the ring is full; compiled programs never see that
			x.at++
			c.full = true
			continue
		}
		if more, err = x.step(); err != nil {
			return steps, err
		}
		if b := c.facts.Branch(at); !c.full && (b == Always && x.at != c.code.Insns[at].Target || b == Never && x.at != at+1) {
			return steps, fmt.Errorf("others are told of the jump %d: %v", at, b)
		}
	}
	return steps, nil
}

// compare requires that one of the states describes the run, and that the facts
// do. It begins with the state that did last time: the next one often does now.
func (c *checked) compare(x *run) error {
	states, first := c.states[x.at], error(nil)
	found := false
	for i := range states {
		n := (c.last[x.at] + i) % len(states)
		err := describes(states[n], x)
		if err == nil {
			c.last[x.at], found = n, true
			break
		}
		if first == nil {
			first = err
		}
	}
	if !found {
		return fmt.Errorf("none of %d states describes it: %w", len(states), first)
	}
	if c.full {
		return nil
	}
	return c.told(x)
}

// describes reports why a state does not describe a run, nil if it does.
func describes(s *state, x *run) error {
	if len(s.frames) != len(x.frames) {
		return fmt.Errorf("%d functions are active, not %d", len(x.frames), len(s.frames))
	}
	d := &description{x: x, links: map[int32]uint64{}, objects: map[int32]uint64{}}
	for n, f := range s.frames {
		if n > 0 && x.frames[n].back != f.site+1 && !f.callback {
			return fmt.Errorf("function %d was called elsewhere", n)
		}
		for r := range f.regs {
			if n+1 < len(s.frames) && r <= int(asm.R5) {
				continue // a helper that calls back keeps them to itself
			}
			have, v := d.register(n, r)
			if !have && f.regs[r].kind == Unknown {
				continue
			}
			if !have {
				return fmt.Errorf("frame %d: r%d was not written", n, r)
			}
			if err := d.value(&f.regs[r], v, 8); err != nil {
				return fmt.Errorf("frame %d: r%d is %#x: %w", n, r, v, err)
			}
		}
		if err := d.stack(f, n); err != nil {
			return err
		}
	}
	return nil
}

// description compares values with what a run has in their places.
type description struct {
	x       *run
	links   map[int32]uint64 // what each identity stands for
	objects map[int32]uint64 // where each object begins
}

// register is what a frame has in a register. Those of a caller are where the
// called function saved them; the others are lost.
func (d *description) register(n, r int) (bool, uint64) {
	x := d.x
	if n == len(x.frames)-1 {
		return x.have>>r&1 != 0, x.r[r]
	}
	if r == int(asm.R10) {
		return true, frameAddr(n)
	}
	callee := x.frames[n+1]
	if r >= int(asm.R6) && r <= int(asm.R9) {
		return callee.have>>r&1 != 0, callee.saved[r-int(asm.R6)]
	}
	return false, 0
}

func (d *description) stack(f *frameState, n int) error {
	concrete := d.x.frames[n]
	for i := range slots {
		sl := f.at(i)
		for b := range 8 {
			if sl.init>>b&1 != 0 && !concrete.written[8*i+b] {
				return fmt.Errorf("frame %d: the byte at r10%+d was not written", n, 8*i+b-StackSize)
			}
		}
		for _, p := range sl.parts {
			v := loadBytes(concrete.stack[8*i+int(p.off):], int(p.size))
			if err := d.value(&p.val, v, int(p.size)); err != nil {
				return fmt.Errorf("frame %d: %d bytes at r10%+d are %#x: %w", n, p.size, 8*i+int(p.off)-StackSize, v, err)
			}
		}
	}
	return nil
}

// value compares one value, of which size bytes are there.
func (d *description) value(v *value, have uint64, size int) error {
	base, ok := d.base(v, have)
	if !ok {
		return fmt.Errorf("it is not %s", v.kind.describe())
	}
	if v.inst > 0 && have != 0 {
		was, seen := d.objects[v.inst]
		if seen && was != base && !v.num.Contains(have-was) { // one of several that it may point into
			return fmt.Errorf("it does not point into the same object as another")
		}
		if !seen && v.num.Bits.Known() {
			d.objects[v.inst] = base
		}
	}
	if v.id == 0 {
		return nil
	}
	root := have - uint64(int64(v.delta))
	if v.low {
		return d.low(v, have, size)
	}
	if was, seen := d.links[v.id]; seen && was != root {
		return fmt.Errorf("it is not linked with another: %#x, not %#x", root, was)
	}
	d.links[v.id] = root
	return nil
}

// low compares the stored bytes with what the identity stands for, if that has
// been seen. (Registers come before the stack.)
func (d *description) low(v *value, have uint64, size int) error {
	if was, seen := d.links[v.id]; seen && extend(was+uint64(int64(v.delta)), size, false) != have {
		return fmt.Errorf("it is not the lower part of %#x", was)
	}
	return nil
}

// base finds the start of what a pointer points into.
func (d *description) base(v *value, have uint64) (uint64, bool) {
	one := func(base uint64) (uint64, bool) { return base, v.num.Contains(have - base) }
	switch v.kind {
	case Unknown, Mixed, Released, MapKey:
		return 0, true
	case Scalar:
		return 0, v.num.Contains(have)
	case Context:
		return one(contextAddr)
	case InputMem:
		return one(memoryAddr)
	case Stack:
		return one(frameAddr(int(v.obj)))
	case MapRef:
		return 0, have == mapRef(int64(v.obj))
	case RingRef:
		return 0, have == mapRef(ringNumber)
	case FuncRef:
		return 0, have == funcRef(d.x.code.Funcs[v.obj].Start)
	case CellOrNull, MapValueOrNull, RecordOrNull:
		if have == 0 {
			return 0, true
		}
	}
	if v.kind == Record || v.kind == RecordOrNull {
		for n, r := range d.x.records {
			if base, ok := one(recordAddr + uint64(n)*frameStride); ok && len(r.data) == int(v.size) {
				return base, true
			}
		}
		return 0, false
	}
	if have>>spaceShift == otherAddr>>spaceShift {
		return one(have / frameStride * frameStride)
	}
	for pos := range uint64(d.x.Layout.Maps[v.obj].Positions()) {
		if base, ok := one(d.x.valueAddr(int(v.obj), pos)); ok && (!v.fixed || pos == uint64(v.index)) {
			return base, true
		}
	}
	return 0, false
}

// told compares the run with what compilers are told.
func (c *checked) told(x *run) error {
	k := c.facts.Before(x.at)
	if k == nil {
		return fmt.Errorf("compilers are told that it is never reached")
	}
	ids := map[int32]uint64{}
	check := func(where string, f Value, have uint64) error {
		bad := false
		switch f.Kind {
		case Scalar:
			bad = f.Known && have != f.Const
		case Context:
			bad = have != contextAddr+uint64(int64(f.Off))
		case Stack:
			if f.Func == int32(c.code.FuncAt(x.at)) && have>>spaceShift != recordAddr>>spaceShift { // records lie on the stack, too
				bad = have != frameAddr(len(x.frames)-1)+uint64(int64(f.Off))
			}
		case MapRef:
			bad = have != mapRef(int64(f.Map))
		case Cell:
			bad = have == 0 || f.Fixed && have != x.valueAddr(int(f.Map), uint64(f.Index))+uint64(int64(f.Off))
		}
		if was, seen := ids[f.ID]; f.ID != 0 && seen && was != have {
			bad = true
		}
		ids[f.ID] = have
		if bad {
			return fmt.Errorf("%s is %#x, but compilers are told %+v", where, have, f)
		}
		return nil
	}
	for r, f := range k.Regs {
		if x.have>>r&1 == 0 {
			continue
		}
		if err := check(fmt.Sprintf("r%d", r), f, x.r[r]); err != nil {
			return err
		}
	}
	top := x.frames[len(x.frames)-1]
	deepest := c.code.Funcs[c.code.FuncAt(x.at)].Stack // compilers have records below
	for off := -int32(deepest); off < 0; off += 8 {
		if f, ok := k.StackWord(off, 8); ok {
			if err := check(fmt.Sprintf("the word at r10%+d", off), f, loadBytes(top.stack[off+StackSize:], 8)); err != nil {
				return err
			}
		}
	}
	return nil
}

// randomContext prefers numbers at borders.
func randomContext(r *rand.Rand) *Regs {
	c := new(Regs)
	for i := range c {
		switch r.IntN(4) {
		case 0:
			c[i] = uint64(r.IntN(70))
		case 1:
			c[i] = uint64(r.IntN(9) - 4)
		case 2:
			c[i] = uint64(1)<<r.IntN(64) - uint64(r.IntN(2))
		default:
			c[i] = r.Uint64()
		}
	}
	return c
}
