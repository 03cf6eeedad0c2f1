package plan

import (
	"slices"

	"trapless/internal/abi"
	insn "trapless/internal/insn/x86"
)

// Exit is an instruction by which control leaves a function for good, calls that
// do not return aside.
type Exit struct {
	At   abi.Addr
	Kind ExitKind
}

// ExitKind says how an exit leaves.
type ExitKind uint8

// Kinds of exits.
const (
	Return     ExitKind = iota
	TailJump            // a jump to another function, which returns in this one's place
	TailBranch          // the same, but only under a condition
	Unclear             // an indirect jump that may as well stay in the function
)

// Exits lists the exits of a function in the order of their addresses. Other
// parts of the function are those addresses outside for which part says so.
func Exits(f *Func, part func(abi.Addr) bool) []Exit {
	b := read(f)
	var all []Exit
	for i := range b.insts {
		at := b.addr(b.at[i])
		in := &b.insts[i]
		kind, ok := Return, false
		switch in.Branch {
		case insn.BranchRet:
			ok = true
		case insn.BranchJmp, insn.BranchJcc, insn.BranchLoop:
			to, known := in.Target(at)
			_, ends := slices.BinarySearch(f.NoReturn, to)
			ok = known && !b.inside(to) && !part(to) && !ends
			if kind = TailBranch; in.Branch == insn.BranchJmp {
				kind = TailJump
			}
		case insn.BranchJmpInd:
			kind, ok = b.indirectExit(i, part)
		}
		if ok {
			all = append(all, Exit{at, kind})
		}
	}
	return all
}

// indirectExit says whether the indirect jump with index i is an exit.
func (b *body) indirectExit(i int, part func(abi.Addr) bool) (ExitKind, bool) {
	j := b.indirectAt(i)
	switch {
	case j.leaves:
		return TailJump, true
	case j.kind == Tabled:
		away := slices.ContainsFunc(j.outside, func(a abi.Addr) bool { return !part(a) })
		if away && len(j.targets) > 0 {
			return Unclear, true
		}
		return TailJump, away
	case j.kind == Pointed && !b.holdsLabels():
		return TailJump, true
	}
	return Unclear, true
}

// holdsLabels reports whether code or data hold addresses inside the function,
// which a computed jump may lead to.
func (b *body) holdsLabels() bool {
	return slices.ContainsFunc(b.entries, func(e entry) bool { return e.to != 0 && (e.how == byAddress || e.how == byData) })
}
