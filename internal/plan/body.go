package plan

import (
	"cmp"
	"slices"

	"trapless/internal/abi"
	insn "trapless/internal/insn/x86"
)

// body is what a function's code tells when it is read once from its start to
// its end.
type body struct {
	f     *Func
	insts []insn.Inst
	at    []int // offset of each instruction
	heads marks // the offsets in at
	stop  int   // offset behind the last instruction that was decoded
	err   error // why that is not the end, nil if it is

	entries  []entry    // sorted by where they lead
	unknown  string     // what may jump to unknown places in the function, "" if nothing
	indirect []indirect // the indirect jumps
	effort   int        // what may still be spent on finding out
	wild     bool       // jumps that are not understood may lead to code to which nothing else leads
	twofold  []int      // sorted indices of instructions that a jump into them makes ambiguous

	graph *flow     // made when first wanted
	lives *liveness // made when often wanted
	asked int       // how often liveness was wanted
}

// entry is a place in the function that is entered by other ways than from the
// instruction before it.
type entry struct {
	to, from int // offsets; from is outside when the source is not in the function
	how      how
}

const outside = -1

// how an entry is entered.
type how uint8

const (
	byBranch how = iota
	byCall
	byAddress
	byEndbr
	byInbound
	byTable
	byData
)

// String says what leads there.
func (h how) String() string {
	return [...]string{"a jump", "a call", "code that takes its address", "an indirect jump (endbr64)",
		"code outside the function", "a switch table", "a pointer in data"}[h]
}

// read decodes the function. It costs one pass over the code.
func read(f *Func) *body {
	const usual = 3 // bytes of an instruction, or more
	b := &body{f: f, heads: newMarks(len(f.Code)), insts: make([]insn.Inst, 0, len(f.Code)/usual+8)}
	for b.stop < len(f.Code) {
		in, err := insn.Decode(f.Code[b.stop:], insn.Mode64)
		if err != nil {
			b.err = err
			b.unknown = "the bytes at " + b.addr(b.stop).String() + ", which cannot be decoded"
			break
		}
		b.heads.add(b.stop)
		b.insts = append(b.insts, in)
		b.stop += int(in.Len)
	}
	b.at = make([]int, 0, b.heads.count())
	off := 0
	for i := range b.insts {
		b.at = append(b.at, off)
		off += int(b.insts[i].Len)
	}
	b.collect()
	b.markTwofold()
	return b
}

func (b *body) addr(off int) abi.Addr { return b.f.Start + abi.Addr(off) }

// collect finds the entries.
func (b *body) collect() {
	for i := range b.insts {
		b.collectFrom(i)
	}
	for _, to := range b.f.Inbound {
		b.enter(to, outside, byInbound)
	}
	for _, to := range b.f.Taken {
		b.enterHead(to, outside, byData)
	}
	b.sortEntries()
	if len(b.indirect) > 0 {
		b.resolve()
	}
}

// collectFrom finds the entries that the instruction with index i makes.
func (b *body) collectFrom(i int) {
	in := &b.insts[i]
	off := b.at[i]
	switch in.Branch {
	case insn.BranchNone:
	case insn.BranchJmpInd:
		b.indirect = append(b.indirect, indirect{inst: i, leaves: b.leaves(i)})
		return
	default:
		if to, ok := in.Target(b.addr(off)); ok && in.Branch != insn.BranchAbs {
			b.enter(to, off, branchHow(in))
		}
		return
	}
	switch {
	case in.DispLen == 4 && isLea(in) && in.RIPRel():
		b.enter(b.addr(off)+abi.Addr(in.Len)+abi.Addr(int64(in.Disp)), off, byAddress)
	case b.f.Fixed && mayHoldAddress(in):
		b.enterHead(addressIn(in), off, byAddress)
	case off != 0 && isEndbr64(in):
		b.entries = append(b.entries, entry{off, outside, byEndbr})
	}
}

// leaves reports whether the frame is taken down right before the jump with
// index i.
func (b *body) leaves(i int) bool {
	for j := i - 1; j >= 0 && !b.ends(j); j-- {
		if takesDown(&b.insts[j]) {
			return true
		}
	}
	return false
}

func (b *body) sortEntries() {
	slices.SortFunc(b.entries, func(x, y entry) int {
		switch {
		case x.to != y.to:
			return x.to - y.to
		case x.from != y.from:
			return x.from - y.from
		}
		return int(x.how) - int(y.how)
	})
}

func branchHow(in *insn.Inst) how {
	if in.Branch == insn.BranchCall {
		return byCall
	}
	return byBranch
}

// enter notes an entry, if it is in the function or its padding.
func (b *body) enter(to abi.Addr, from int, h how) {
	if to >= b.f.Start && to < b.f.End()+abi.Addr(len(b.f.Pad)) {
		b.entries = append(b.entries, entry{int(to - b.f.Start), from, h})
	}
}

// enterHead notes an entry, if it is an instruction of the function, but not the
// first one.
func (b *body) enterHead(to abi.Addr, from int, h how) {
	if to <= b.f.Start || to >= b.f.End() {
		return
	}
	if off := int(to - b.f.Start); off < b.stop && b.heads.has(off) {
		b.entries = append(b.entries, entry{off, from, h})
	}
}

// entriesIn are the entries in the open interval of offsets (lo, hi).
func (b *body) entriesIn(lo, hi int) []entry {
	first, _ := slices.BinarySearchFunc(b.entries, lo+1, func(e entry, off int) int { return cmp.Compare(e.to, off) })
	last := first
	for last < len(b.entries) && b.entries[last].to < hi {
		last++
	}
	return b.entries[first:last]
}

// find is the index of the instruction at an offset, if one begins there.
func (b *body) find(off int) (int, bool) {
	if off < 0 || off >= b.stop || !b.heads.has(off) {
		return 0, false
	}
	return b.heads.rank(off), true
}

// containing is the index of the instruction that holds the byte at an offset.
// Precondition: the offset is below stop.
func (b *body) containing(off int) int {
	if b.heads.has(off) {
		return b.heads.rank(off)
	}
	return b.heads.rank(off) - 1
}

// markTwofold follows each jump into the middle of an instruction until its
// reading meets the first one again. (A jump behind a lock prefix is the usual
// case.) All instructions passed have two readings.
func (b *body) markTwofold() {
	var seen map[int]bool // offsets from which was read on, so that no byte is read twice
	for _, e := range b.entries {
		if _, ok := b.find(e.to); ok || e.to >= b.stop || e.how == byAddress {
			continue
		}
		for off := e.to; off < b.stop; {
			if b.heads.has(off) || seen[off] {
				break
			}
			if seen == nil {
				seen = map[int]bool{}
			}
			seen[off] = true
			b.twofold = append(b.twofold, b.containing(off))
			in, err := insn.Decode(b.f.Code[off:], insn.Mode64)
			if err != nil {
				break
			}
			off += int(in.Len)
		}
	}
	slices.Sort(b.twofold)
	b.twofold = slices.Compact(b.twofold)
}

func (b *body) isTwofold(i int) bool {
	_, ok := slices.BinarySearch(b.twofold, i)
	return ok
}
