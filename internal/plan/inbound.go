package plan

import (
	"cmp"
	"slices"

	"trapless/internal/abi"
	insn "trapless/internal/insn/x86"
)

// Text is a stretch of a module's code.
type Text struct {
	Start abi.Addr
	Code  []byte
	// Starts are known instruction boundaries (of symbols), ascending. The
	// reading begins anew at each of them.
	Starts []abi.Addr
}

// FindInbound reads the whole text and adds to each function's Inbound the
// direct branches that lead into it, but not to its start, from outside; and
// the addresses inside it that code outside takes. The functions must not
// overlap. Call it once for each stretch of a module's text; a caller that has
// read them all may set InboundKnown.
func FindInbound(text Text, funcs []*Func) {
	sorted := slices.Clone(funcs)
	slices.SortFunc(sorted, func(x, y *Func) int { return cmp.Compare(x.Start, y.Start) })
	starts := text.Starts
	for off := 0; off < len(text.Code); {
		at := text.Start + abi.Addr(off)
		for len(starts) > 0 && starts[0] <= at {
			starts = starts[1:]
		}
		in, err := insn.Decode(text.Code[off:], insn.Mode64)
		switch {
		case err != nil:
			off++
			continue
		case len(starts) > 0 && at+abi.Addr(in.Len) > starts[0]:
			off = int(starts[0] - text.Start)
			continue
		}
		off += int(in.Len)
		if to, ok := leadsTo(in, at); ok {
			addInbound(sorted, at, to)
		}
	}
	for _, f := range funcs {
		slices.Sort(f.Inbound)
		f.Inbound = slices.Compact(f.Inbound)
	}
}

// leadsTo is where an instruction may make control go.
func leadsTo(in insn.Inst, at abi.Addr) (abi.Addr, bool) {
	if isLea(in) && in.RIPRel() {
		return at + abi.Addr(in.Len) + abi.Addr(int64(in.Disp)), true
	}
	return in.Target(at)
}

// addInbound adds one address to the function that holds it, if its source
// does not lie there too.
func addInbound(sorted []*Func, from, to abi.Addr) {
	i, exact := slices.BinarySearchFunc(sorted, to, func(f *Func, a abi.Addr) int { return cmp.Compare(f.Start, a) })
	if exact || i == 0 {
		return
	}
	f := sorted[i-1]
	if to < f.End()+abi.Addr(len(f.Pad)) && (from < f.Start || from >= f.End()) {
		f.Inbound = append(f.Inbound, to)
	}
}
