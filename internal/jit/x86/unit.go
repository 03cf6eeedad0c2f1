package x86

import (
	"math"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// variable is something that lives in one register as long as it lives: an
// eBPF register r0 to r9, the slot's address, or a temporary of one operation.
type variable int

const (
	slotVar variable = 10
	temp1   variable = 11
	temp2   variable = 12
	numVars          = 13
)

// varSet is a set of variables: bit i stands for variable i.
type varSet uint32

func vars(vs ...variable) (s varSet) {
	for _, v := range vs {
		s |= 1 << v
	}
	return s
}

func (s varSet) has(v variable) bool { return s>>v&1 != 0 }

// byteSet is a set of bytes of the eBPF stack, from its lowest.
type byteSet [bpf.StackSize / 64]uint64

func (s *byteSet) add(off int32, size int) {
	for i := int(off) + bpf.StackSize; size > 0; i, size = i+1, size-1 {
		if i >= 0 { // what lies below are records, of which no track is kept
			s[i/64] |= 1 << (i % 64)
		}
	}
}

func (s *byteSet) del(off int32, size int) {
	if off < -bpf.StackSize {
		return
	}
	for i := int(off) + bpf.StackSize; size > 0; i, size = i+1, size-1 {
		s[i/64] &^= 1 << (i % 64)
	}
}

func (s *byteSet) intersects(off int32, size int) bool {
	if off < -bpf.StackSize {
		return true // a record, of which no track is kept
	}
	for i := int(off) + bpf.StackSize; size > 0; i, size = i+1, size-1 {
		if s[i/64]>>(i%64)&1 != 0 {
			return true
		}
	}
	return false
}

func (s *byteSet) addAll() { s.add(-bpf.StackSize, bpf.StackSize) }

func (s *byteSet) union(o *byteSet) {
	for i := range s {
		s[i] |= o[i]
	}
}

// op is one instruction of a unit, with what analysis found out about it.
type op struct {
	in     *bpf.Insn
	before *bpf.Known // nil when it is never reached
	result bpf.Value  // what it leaves in the register that it writes
	branch bpf.Branch
	fn     int // the function that it belongs to
	prog   int // the program
	next   int // the operation that follows, if no jump is taken
	target int // the operation that a jump leads to, or a HelperMapCell call without a cell; -1 when there is none
	joins  int // ways that lead here
	callee int // the function that a call leads to
	charge int // the fuel that it takes to go to target, or next without one, or to call

	begins  bool         // it begins a program
	hit     bool         // it counts a hit of its program
	returns bool         // it leaves r0 as the unit's result
	record  bpf.Reserved // the place of the record that it takes one for
	arg     int          // it loads this argument of a routine, if it is not 0
	tidOnly bool         // of get_current_pid_tgid only the thread is wanted
	stops   bool         // it does not come to an end: a function that it calls runs out of fuel

	key    key             // of a HelperMapCell call
	value  bpfasm.Register // that holds what an update of a PerThread map assigns; R0 if none does
	lookup bool            // the slot's address is not known yet on some path
	dead   bool            // nothing that it does is ever seen
	uses   varSet
	defs   varSet
	temps  varSet
	fixed  asm.RegSet // registers that it overwrites for itself
	across asm.RegSet // registers that it overwrites when its operands have been read
	keeps  varSet     // what it needs after the functions that it calls

	liveIn, liveOut varSet
	stackIn         byteSet
}

func (o *op) val(r bpfasm.Register) bpf.Value { return o.before.Regs[r] }

// key says where the key of a HelperMapCell call is found.
type key struct {
	ml    *abi.MapLayout
	known bool   // it is value
	value uint64 // of a known key
	inReg bool   // it is in reg
	reg   variable
	ptr   bpf.Value // else r2 points to it; so it does to a key of several words
}

// inResult reports whether the key is in the register that the result goes to.
func (k *key) inResult() bool { return k.inReg && k.reg == variable(bpfasm.R0) }

// unit is the programs of a site, one after the other, as one sequence, and
// behind it the functions that they call. An operation that ends a program
// leads to the beginning of the next one.
type unit struct {
	ops     []op
	end     int // stands for what follows the programs
	funcs   []function
	progs   []program
	env     *Env
	escapes bool // pointers to the stack lie in registers or memory
	loops   bool // there are jumps backwards
	routine bool // of the runtime, whose loops are bounded
}

// program is one of a unit's programs.
type program struct {
	*bpf.Verified
	facts *bpf.Facts
	base  int           // its first operation
	next  int           // what follows it
	funcs []int         // the unit's number of each of its functions
	tails bool          // it makes tail calls, which are counted
	spend bool          // it has loops or calls, which take fuel
	spent [2]*asm.Label // of each copy, where it goes on without fuel
}

// function is a function of a unit. Number 0 is what the main functions of all
// programs have in common.
type function struct {
	first, end int
	stack      int // bytes below r10 that it may access
	calls      []int

	saves    varSet     // r6 to r9, where it changes them
	clobbers varSet     // variables that it or a callee changes without saving them
	fixed    asm.RegSet // registers that it or a callee overwrites
	spends   bool       // it or a callee takes fuel
	loop     int32      // bytes of its frame for the bpf_loop or for_each_map_elem that runs
}

func newUnit(progs []*bpf.Verified, site Site, env *Env, escapes bool) *unit {
	u := &unit{env: env, escapes: escapes, routine: site.stackArgs > 0, funcs: make([]function, 1)}
	for _, p := range progs {
		facts := env.Analyses.of(p.Code(), env.Layout, escapes)
		u.progs = append(u.progs, program{Verified: p, facts: facts})
	}
	for n := range u.progs {
		u.main(n, site)
	}
	if site.Result || site.stackArgs > 0 {
		u.ops = append(u.ops, op{in: &bpf.Insn{Kind: bpf.Exit}, before: new(bpf.Known), returns: true, next: len(u.ops) + 1, target: -1})
	}
	u.end = len(u.ops)
	u.ops = append(u.ops, op{in: &bpf.Insn{Kind: bpf.Exit}, next: -1, target: -1})
	u.funcs[0].end = u.end
	for n := range u.progs {
		u.functions(n)
	}
	for i := range u.ops {
		if o := &u.ops[i]; u.reached(i) && o.next >= 0 && o.next != u.end && !u.reached(o.next) {
			o.stop(u)
		}
	}
	return u
}

// stop is for an operation behind which nothing is ever reached.
func (o *op) stop(u *unit) {
	o.stops, o.next = true, -1
	if o.fn == 0 {
		o.next = u.progs[o.prog].next
	}
}

// main adds the main function of a program, and before it an operation that
// begins it.
func (u *unit) main(n int, site Site) {
	p := &u.progs[n]
	code := p.Code()
	p.base = len(u.ops)
	entry := &bpf.Known{}
	entry.Regs[bpfasm.R1] = bpf.Value{Kind: bpf.Context}
	add := func(in bpf.Insn, result bpf.Value) {
		u.ops = append(u.ops, op{in: &in, before: entry, result: result, prog: n, next: len(u.ops) + 1, target: -1})
	}
	add(bpf.Insn{Kind: bpf.LoadRef, Dst: bpfasm.R1}, bpf.Value{Kind: bpf.Context})
	u.ops[p.base].begins = true
	if site.counts(n) {
		add(bpf.Insn{Kind: bpf.Exit}, bpf.Value{})
		u.ops[len(u.ops)-1].hit = true
	}
	for i := range site.stackArgs {
		add(bpf.Insn{Kind: bpf.Load, Dst: bpfasm.R1 + bpfasm.Register(i), Src: bpfasm.R0, Size: 8, UseSrc: true}, bpf.Value{Kind: bpf.Scalar})
		u.ops[len(u.ops)-1].arg = i + 1
	}
	if code.Input.Memory && site.stackArgs == 0 { // it is a C function's: (pointer, size)
		add(bpf.Insn{Kind: bpf.Load, Dst: bpfasm.R2, Src: bpfasm.R1, Off: bpf.PtRegsSI, Size: 8, UseSrc: true}, bpf.Value{Kind: bpf.Scalar})
		add(bpf.Insn{Kind: bpf.Load, Dst: bpfasm.R1, Src: bpfasm.R1, Off: bpf.PtRegsDI, Size: 8, UseSrc: true}, bpf.Value{Kind: bpf.Scalar})
	}
	f := &code.Funcs[0]
	p.funcs = make([]int, len(code.Funcs))
	p.next = len(u.ops) + f.End
	u.funcs[0].stack = max(u.funcs[0].stack, stackOf(p, 0))
	if site.Gates != nil {
		u.ops[p.base].target = p.next
	}
	u.addInsns(n, 0, f)
}

// stackOf is how many bytes below its r10 a function of a program may access,
// with its records.
func stackOf(p *program, fn int) int {
	return (p.Code().Funcs[fn].Stack+7)&^7 + p.facts.Reserve(fn)
}

// functions adds the functions of a program that are called.
func (u *unit) functions(n int) {
	p := &u.progs[n]
	code := p.Code()
	for k := 1; k < len(code.Funcs); k++ {
		if f := &code.Funcs[k]; p.facts.Before(f.Start) != nil {
			p.funcs[k] = len(u.funcs)
			u.funcs = append(u.funcs, function{first: len(u.ops), stack: stackOf(p, k)})
			u.addInsns(n, p.funcs[k], f)
			u.funcs[p.funcs[k]].end = len(u.ops)
		}
	}
}

// addInsns adds the instructions of a function of program n.
func (u *unit) addInsns(n, fn int, f *bpf.Func) {
	p := &u.progs[n]
	code, shift := p.Code(), len(u.ops)-f.Start
	for i := f.Start; i < f.End; i++ {
		in := &p.facts.Insns[i]
		o := op{in: in, before: p.facts.Before(i), result: p.facts.Result(i), branch: p.facts.Branch(i), prog: n, fn: fn, next: i + shift + 1, target: -1}
		o.charge = code.Charge(i)
		o.record, _ = p.facts.RecordOf(i)
		switch {
		case code.Ends(i) && fn == 0:
			o.next = p.next
		case code.Ends(i):
			o.next = -1
		case in.Kind == bpf.Jump:
			o.target = in.Target + shift
		case in.Kind == bpf.JumpAlways:
			o.next = in.Target + shift
		}
		if o.branch == bpf.Always {
			o.next = o.target
		}
		if o.branch == bpf.Never || u.routine {
			o.charge = 0
		}
		if o.branch != bpf.Either {
			o.target = -1
		}
		if o.before != nil && o.charge > 0 {
			p.spend = true
			u.loops = u.loops || in.Kind == bpf.Jump || in.Kind == bpf.JumpAlways
		}
		u.ops = append(u.ops, o)
	}
}

// successors calls f for each operation that may follow operation i; that is
// the next program when the fuel is spent.
func (u *unit) successors(i int, f func(int)) {
	o := &u.ops[i]
	if o.next >= 0 {
		f(o.next)
	}
	if o.target >= 0 {
		f(o.target)
	}
	if o.charge > 0 && o.fn == 0 {
		f(u.progs[o.prog].next)
	}
}

// reached reports whether operation i can be executed.
func (u *unit) reached(i int) bool { return u.ops[i].before != nil }

// follow is the first operation from i on that has an effect, or the end.
func (u *unit) follow(i int) int {
	for i >= 0 && i != u.end && u.ops[i].dead {
		i = u.ops[i].next
	}
	return i
}

// live reports whether operation i is executed and has an effect.
func (u *unit) live(i int) bool { return u.reached(i) && !u.ops[i].dead }

// analyse finds the operations' operands, where the slot is looked up, and
// what is live where.
func (u *unit) analyse() error {
	for i := range u.ops {
		if o := &u.ops[i]; u.reached(i) {
			u.successors(i, func(s int) { u.ops[s].joins++ })
			p := &u.progs[o.prog]
			switch {
			case o.in.Kind == bpf.CallFunc:
				o.callee = p.funcs[p.Code().FuncAt(o.in.Target)]
			case callsBack(o.in) && o.val(bpfasm.R2).Kind == bpf.FuncRef:
				o.callee = p.funcs[o.val(bpfasm.R2).Func]
				u.funcs[o.fn].loop = max(u.funcs[o.fn].loop, u.loopSize(o))
			}
			if o.callee != 0 {
				u.funcs[o.fn].calls = append(u.funcs[o.fn].calls, o.callee)
			}
		}
	}
	for i := range u.ops {
		if u.reached(i) {
			u.foldNullTest(i)
			u.foldTid(i)
			if err := u.operands(&u.ops[i]); err != nil {
				return err
			}
		}
	}
	u.liveness()
	u.foldUpdates()
	u.liveness()
	// Only operations that are not dead look the slot up; that makes more
	// variables live.
	u.placeLookups()
	u.liveness()
	u.summarize()
	return nil
}

// calleesFirst lists the functions, each behind those that it calls.
func (u *unit) calleesFirst() []int {
	var order []int
	seen := make([]bool, len(u.funcs))
	var visit func(n int)
	visit = func(n int) {
		seen[n] = true
		for _, c := range u.funcs[n].calls {
			if !seen[c] {
				visit(c)
			}
		}
		order = append(order, n)
	}
	visit(0)
	return order
}

// foldNullTest makes a test of a cell for null that follows the call at once a
// part of the call: only its cold path has to test.
func (u *unit) foldNullTest(i int) {
	o := &u.ops[i]
	if !isCall(o.in, bpf.HelperMapCell) && !isCall(o.in, bpfasm.FnMapLookupElem) || o.next == u.end || !u.reached(o.next) {
		return
	}
	test := &u.ops[o.next]
	in := test.in
	if test.joins != 1 || in.Kind != bpf.Jump || in.Dst != bpfasm.R0 || test.target < 0 || test.charge > 0 || test.val(bpfasm.R0).Kind != bpf.CellOrNull {
		return
	}
	test.before = nil
	if o.next, o.target = test.target, test.next; in.Jump == bpfasm.JEq {
		o.next, o.target = o.target, o.next
	}
}

// foldTid makes a move that leaves nothing but the thread of what get_current_pid_tgid returned a
// part of the call.
func (u *unit) foldTid(i int) {
	o := &u.ops[i]
	if !isCall(o.in, bpf.HelperGetCurrentPidTgid) || o.charge > 0 || o.next < 0 || o.next == u.end || !u.reached(o.next) {
		return
	}
	move := &u.ops[o.next]
	in := move.in
	if move.joins != 1 || in.Kind != bpf.ALU || in.ALU != bpfasm.Mov || in.Wide || !in.UseSrc || in.Src != bpfasm.R0 || in.Dst != bpfasm.R0 {
		return
	}
	move.before = nil
	o.tidOnly, o.result, o.next = true, move.result, move.next
}

// placeLookups lets an operation of the main function look the slot up if it
// needs it and there is a way to it on which no operation did so before. A
// function gets the slot from its caller.
func (u *unit) placeLookups() {
	known := make([]bool, u.end+1)
	for i := 1; i < len(known); i++ {
		known[i] = true
	}
	needs := func(i int) bool { return u.live(i) && u.ops[i].uses.has(slotVar) }
	for changed := true; changed; {
		changed = false
		for i := range known {
			if !u.reached(i) || known[i] || needs(i) {
				continue
			}
			u.successors(i, func(s int) {
				changed = changed || known[s]
				known[s] = false
			})
		}
	}
	for i := range known {
		if o := &u.ops[i]; !known[i] && needs(i) {
			o.lookup = true
			o.uses &^= vars(slotVar)
			o.defs |= vars(slotVar)
			o.temps |= lookupTemps
		}
	}
}

func isCall(in *bpf.Insn, h bpfasm.BuiltinFunc) bool {
	return in.Kind == bpf.CallHelper && bpfasm.BuiltinFunc(in.Imm) == h
}

// immediate reports whether the value is a constant that an instruction can
// hold as its sign-extended 32-bit immediate, for an operation of size bytes.
func immediate(v bpf.Value, size int) (int32, bool) {
	c := int64(v.Const)
	if size < 8 {
		c = int64(int32(c))
	}
	return int32(c), v.Known && c >= math.MinInt32 && c <= math.MaxInt32
}
