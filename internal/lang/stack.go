package lang

import (
	"maps"
	"math"
	"slices"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/bpf"
	"trapless/internal/diag"
)

// A stack is held as its number in a map of stacks, of which there is one for each depth
// that the script asks for. The tracer makes addresses, and names, of the number
// (Value.Elems).

// builtinStack is the stack of the target, with or without arguments: ustack, ustack(3), ustack(perf, 3).
const builtinStack = "ustack"

// NoStack is the number of the empty stack.
const NoStack = math.MaxUint64

const (
	defaultDepth = 127 // frames, as in bpftrace
	maxDepth     = 1024
	maxStacks    = 1 << 14 // different ones of a depth
)

// stackModes are the ways in which a stack is printed.
var stackModes = []string{"bpftrace", "perf", "raw", "build_id"}

// dwarfStack is the stack that bpftrace unwinds by DWARF. Every stack is here, where frame
// pointers do not hold.
const dwarfStack = "dw_ustack"

// stacksByDWARF makes ordinary stacks of them.
func stacksByDWARF(n *scriptNode, diags *diag.Collector, target bool) {
	name := func(b *exprBase, name *string) {
		if *name != dwarfStack && *name != "__builtin_"+dwarfStack {
			return
		}
		if *name = builtinStack; !target {
			diags.Errorf(b.span, "dw_ustack requires a target process").Hint("name one by -p, or start one by -c; ustack needs none, and unwinds by DWARF, too")
		}
	}
	for _, p := range slices.Concat(n.probes, n.unused) {
		visit := func(x expr) {
			switch x := x.(type) {
			case *nameExpr:
				name(x.base(), &x.name)
			case *callExpr:
				name(x.base(), &x.name)
			}
		}
		if p.predicate != nil {
			walk(p.predicate, visit)
		}
		walkStmt(p.body, visit)
	}
}

// stackCall types ustack(mode, frames), of which both may be left out.
func (c *checker) stackCall(x *callExpr) Type {
	t := Type{Kind: Stack, Len: 8 * defaultDepth, Format: c.config.stackMode()}
	args := x.args
	if len(args) > 0 {
		if mode, ok := args[0].(*nameExpr); ok {
			if !slices.Contains(stackModes, mode.name) {
				c.diags.Errorf(mode.span, "Error parsing stack mode: %s", mode.name).Hint("use bpftrace, perf, raw or build_id")
				return badType
			}
			t.Format, args = mode.name, args[1:]
		}
	}
	if len(args) > 0 {
		if c.value(args[0]).Kind == bad {
			return badType
		}
		con := args[0].base().con
		if !con.literal || con.u == 0 || con.u > maxDepth || args[0].base().typ.Kind != Int {
			c.diags.Errorf(args[0].base().span, "%s([int limit]): limit is an integer literal and shouldn't exceed %d", x.name, maxDepth)
			return badType
		}
		t.Len, args = 8*int(con.u), args[1:]
	}
	if len(args) > 0 {
		c.diags.Errorf(x.span, "Invalid number of arguments")
		return badType
	}
	return c.stackType(t, x.base())
}

// stackType checks where a stack is asked for, and notes its depth.
func (c *checker) stackType(t Type, b *exprBase) Type {
	inTracer := 0
	for _, a := range c.probe.attach {
		if a.Kind == Begin || a.Kind == End || a.Kind == Interval {
			inTracer++
		}
	}
	switch {
	case inTracer == len(c.probe.attach) && inTracer > 0:
		c.diags.Warnf(b.span, "%s is empty here: the probe does not run in a process", builtinStack)
		b.con = constant{known: true, u: NoStack}
		return t
	case inTracer > 0:
		c.diags.Errorf(b.span, "%s exists only in probes of the target", builtinStack).Note(c.probe.attach[0].Span, "not all of these are")
		return badType
	}
	if c.stacks == nil {
		c.stacks = map[int]bool{}
	}
	c.stacks[t.Len] = true
	return t
}

// StackMap is the number of the map that has the stacks of a type.
func (s *Script) StackMap(t Type) int {
	return slices.IndexFunc(s.Maps, func(m Map) bool { return m.Spec.Kind == abi.StackTrace && m.Spec.ValueSize == t.Len })
}

// addStacks adds the maps for stacks of some sizes.
func (s *Script) addStacks(sizes map[int]bool) {
	for _, length := range slices.Sorted(maps.Keys(sizes)) {
		spec := abi.MapSpec{Name: "(stacks)", Kind: abi.StackTrace, KeySize: 4, ValueSize: length, MaxEntries: maxStacks}
		s.Maps = append(s.Maps, Map{Name: spec.Name, Spec: spec, Agg: Hist, Hidden: true})
	}
}

// Stacks reports whether a program asks for stacks.
func (s *Script) Stacks() bool {
	return slices.ContainsFunc(s.Maps, func(m Map) bool { return m.Spec.Kind == abi.StackTrace }) ||
		slices.ContainsFunc(s.Probes, func(p Probe) bool { return p.Prog != nil && callsGetStack(p.Prog) })
}

// callsGetStack reports whether a program, which need not be a script's, takes stacks without a map.
func callsGetStack(p *bpf.Program) bool {
	return slices.ContainsFunc(p.Insns, func(in asm.Instruction) bool { return in.IsBuiltinCall() && in.Constant == int64(asm.FnGetStack) })
}

// isStack reports whether an expression is a stack that is asked for.
func isStack(x expr) bool {
	switch x := x.(type) {
	case *nameExpr:
		return x.name == builtinStack
	case *callExpr:
		return x.name == builtinStack
	}
	return false
}

// stackID puts a stack's number into a home.
func (l *lowerer) stackID(x expr, h home) {
	l.mov(asm.R5, l.ctx)
	l.emit(asm.LoadMem(asm.R2, asm.R5, bpf.PtRegsSP, asm.DWord))
	l.emit(asm.LoadMem(asm.R3, asm.R5, bpf.PtRegsBP, asm.DWord))
	l.emit(asm.LoadMem(asm.R4, asm.R5, bpf.PtRegsIP, asm.DWord))
	l.emit(bpf.LoadMap(asm.R1, l.script.StackMap(b2t(x))))
	l.helper(bpf.HelperStackID)
	l.setHome(h, asm.R0)
}
