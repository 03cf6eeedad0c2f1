package x86

import (
	"fmt"
	"slices"

	bpfasm "github.com/cilium/ebpf/asm"

	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// allocation says which register each variable lives in.
type allocation struct {
	reg     [numVars]asm.Reg // NoReg for a variable that does not occur
	alias   varSet           // variables that are registers of the target, only read
	written asm.RegSet       // registers that the programs change
	read    asm.RegSet       // registers that the programs read through the context
}

// registers are the candidates, in the order of preference where they cost the
// same: the frame pointer last, because profilers and unwinders look at it.
var registers = []asm.Reg{
	asm.RAX, asm.R11, asm.R10, asm.RCX, asm.RDX, asm.RSI, asm.RDI, asm.R8, asm.R9,
	asm.RBX, asm.R12, asm.R13, asm.R14, asm.R15, asm.RBP,
}

// allocator colours the graph of variables that live at the same time. There
// are 15 registers for at most 13 variables; at most 3 of them are out of
// bounds for some variables, which therefore choose first where it matters.
type allocator struct {
	*unit
	allocation
	site      Site
	neighbour [numVars]varSet
	forbidden [numVars]asm.RegSet
	copies    [numVars]varSet // variables that are moved to or from each other
	used      varSet
}

func allocate(u *unit, site Site) (allocation, error) {
	al, ok := (&allocator{unit: u, site: site}).allocate(false)
	if !ok {
		if al, ok = (&allocator{unit: u, site: site}).allocate(true); !ok {
			return al, fmt.Errorf("%w: more values are in use at a time than there are registers", ErrCompile)
		}
	}
	return al, nil
}

// allocate chooses registers: in the variables' order, or first for those that
// have the fewest to choose from.
func (a *allocator) allocate(byNeed bool) (allocation, bool) {
	u, site := a.unit, a.site
	for v := range a.reg {
		a.reg[v] = asm.NoReg
	}
	if site.FlagsLive {
		a.written = a.written.Add(asm.RAX) // LAHF
	}
	for i := range u.ops {
		if u.live(i) {
			a.constrain(&u.ops[i])
		}
	}
	if site.Result {
		a.written = a.written.Add(asm.RAX)
	}
	a.findAliases()
	order := make([]variable, numVars)
	for v := range order {
		order[v] = variable(v)
	}
	if byNeed {
		slices.SortStableFunc(order, func(v, w variable) int { return a.forbidden[w].Len() - a.forbidden[v].Len() })
	}
	for _, v := range order {
		if a.used.has(v) && !a.alias.has(v) {
			if a.reg[v] = a.choose(v); a.reg[v] == asm.NoReg {
				return a.allocation, false
			}
			a.written = a.written.Add(a.reg[v])
		}
	}
	return a.allocation, true
}

// constrain adds what one operation demands.
func (a *allocator) constrain(o *op) {
	a.written |= o.fixed | o.across
	if o.callee != 0 {
		a.constrainCall(o)
		return
	}
	if o.in.Kind == bpf.Exit && o.fn != 0 { // the result is there when the caller's values come back
		a.separate(variable(bpfasm.R0), a.funcs[o.fn].saves)
	}
	here := o.liveIn | o.liveOut | o.uses | o.defs
	a.used |= o.uses | o.defs | o.temps
	for v := variable(0); v < numVars; v++ {
		if (here | o.temps).has(v) {
			a.forbidden[v] |= o.fixed
		}
		if (o.liveOut &^ o.defs).has(v) {
			a.forbidden[v] |= o.across
		}
		if o.defs.has(v) {
			a.separate(v, o.liveOut|o.defs)
		}
		if o.temps.has(v) {
			a.separate(v, here|o.temps)
		}
	}
	// These write their result, or the slot's address, before they have read
	// all operands.
	if o.lookup {
		a.separate(slotVar, here)
	}
	if o.in.Kind == bpf.CallHelper && o.defs.has(variable(bpfasm.R0)) {
		a.separate(variable(bpfasm.R0), here)
	}
	if r, ok := a.site.contextLoad(o); ok {
		a.read = a.read.Add(r)
	}
	if o.in.Kind == bpf.ALU && o.in.ALU == bpfasm.Mov && o.in.UseSrc {
		a.copies[o.in.Dst] |= reg(o.in.Src)
		a.copies[o.in.Src] |= reg(o.in.Dst)
	}
}

// constrainCall keeps what lives across a call out of the registers that the
// function changes. Its arguments and its result are its own business.
func (a *allocator) constrainCall(o *op) {
	c := &a.funcs[o.callee]
	across := o.liveOut&^o.defs | o.keeps
	// A helper that calls back puts what the function takes into registers by itself.
	takes := a.ops[c.first].liveIn
	last := variable(bpfasm.R2)
	if isCall(o.in, bpfasm.FnForEachMapElem) {
		last = variable(bpfasm.R4)
	}
	var made varSet
	for v := variable(bpfasm.R1); v <= last; v++ {
		made |= takes & vars(v)
	}
	for v := variable(bpfasm.R1); v <= last; v++ {
		if made.has(v) {
			a.separate(v, takes)
		}
	}
	a.used |= o.uses | across | o.defs&reg(bpfasm.R0)
	for v := variable(0); v < numVars; v++ {
		if across.has(v) {
			a.forbidden[v] |= c.fixed
			a.separate(v, c.clobbers|made|o.defs&reg(bpfasm.R0))
		}
	}
	if o.lookup {
		a.used |= vars(slotVar) | lookupTemps
		for _, v := range []variable{slotVar, temp1, temp2} {
			a.separate(v, o.liveIn|o.liveOut|o.uses|lookupTemps)
		}
	}
}

// separate says that v and others must not share a register.
func (a *allocator) separate(v variable, others varSet) {
	for w := variable(0); w < numVars; w++ {
		if w != v && others.has(w) {
			a.neighbour[v] |= vars(w)
			a.neighbour[w] |= vars(v)
		}
	}
}

// contextLoad returns the register that an operation reads from the context.
// The stack pointer and the instruction pointer are computed.
func (s *Site) contextLoad(o *op) (asm.Reg, bool) {
	if isCall(o.in, bpfasm.FnGetStack) || isCall(o.in, bpfasm.FnGetStackid) {
		return asm.RBP, true
	}
	if o.in.Kind != bpf.Load || o.val(o.in.Src).Kind != bpf.Context {
		return asm.NoReg, false
	}
	return s.contextReg(contextOffset(o) &^ 7)
}

// contextReg is the register that a field of the context holds.
func (s *Site) contextReg(field int32) (asm.Reg, bool) {
	if field < bpf.PtRegsEnd {
		r, ok := contextRegs[field]
		return r, ok
	}
	return s.Args.registers()[(field-bpf.PtRegsEnd)/8], true
}

func contextOffset(o *op) int32 { return o.val(o.in.Src).Off + o.in.Off }

var contextRegs = map[int32]asm.Reg{
	bpf.PtRegsR15: asm.R15, bpf.PtRegsR14: asm.R14, bpf.PtRegsR13: asm.R13, bpf.PtRegsR12: asm.R12,
	bpf.PtRegsBP: asm.RBP, bpf.PtRegsBX: asm.RBX, bpf.PtRegsR11: asm.R11, bpf.PtRegsR10: asm.R10,
	bpf.PtRegsR9: asm.R9, bpf.PtRegsR8: asm.R8, bpf.PtRegsAX: asm.RAX, bpf.PtRegsCX: asm.RCX,
	bpf.PtRegsDX: asm.RDX, bpf.PtRegsSI: asm.RSI, bpf.PtRegsDI: asm.RDI,
}

// findAliases finds the variables that only ever hold one of the target's
// registers as it was: they are that register, and nothing else may use it.
func (a *allocator) findAliases() {
	var candidate [numVars]asm.Reg
	var not varSet
	for v := range candidate {
		candidate[v] = asm.NoReg
	}
	for i := range a.ops {
		o := &a.ops[i]
		if !a.live(i) {
			continue
		}
		r, ok := a.site.contextLoad(o)
		if !ok || o.in.Size != 8 || a.written.Has(r) {
			not |= o.defs
			continue
		}
		v := variable(o.in.Dst)
		if candidate[v] != asm.NoReg && candidate[v] != r {
			not |= vars(v)
		}
		candidate[v] = r
	}
	for v := variable(0); v < numVars; v++ {
		if candidate[v] != asm.NoReg && !not.has(v) {
			a.reg[v] = candidate[v]
			a.alias |= vars(v)
			for w := range a.forbidden {
				a.forbidden[w] = a.forbidden[w].Add(candidate[v])
			}
		}
	}
}

// choose picks the cheapest register that v may have, if there is one.
func (a *allocator) choose(v variable) asm.Reg {
	taken := a.forbidden[v]
	var wanted asm.RegSet
	for w := variable(0); w < numVars; w++ {
		if a.reg[w] == asm.NoReg {
			continue
		}
		if a.neighbour[v].has(w) {
			taken = taken.Add(a.reg[w])
		} else if a.copies[v].has(w) {
			wanted = wanted.Add(a.reg[w])
		}
	}
	best, bestCost := asm.NoReg, 0
	for _, r := range registers {
		if taken.Has(r) {
			continue
		}
		cost := a.cost(r)
		if wanted.Has(r) {
			cost--
		}
		if best == asm.NoReg || cost < bestCost {
			best, bestCost = r, cost
		}
	}
	return best
}

// cost is what it takes to use a register that nothing used before: a store
// and a load if it is live, and a detour through memory for every read through
// the context.
func (a *allocator) cost(r asm.Reg) int {
	c := 0
	if !a.written.Has(r) && a.site.LiveRegs.Has(r) {
		c += 4
	}
	if !a.written.Has(r) && a.read.Has(r) {
		c += 3
	}
	if r == asm.RBP {
		c += 2
	}
	return c
}
