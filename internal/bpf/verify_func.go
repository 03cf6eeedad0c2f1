package bpf

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/bpf/bound"
)

// enterFunc begins a function of the program.
func (w *walker) enterFunc() *rejection {
	f := &frameState{fn: w.code.FuncAt(w.in.Target), site: w.at, refs: len(w.st.refs)}
	copy(f.regs[asm.R1:asm.R6], w.st.top().regs[asm.R1:asm.R6])
	live := w.flow.live[w.at+1]
	for r := asm.R0; r < asm.R10; r++ {
		if r <= asm.R5 || !live.has(int(r)) {
			w.st.set(r, value{})
		}
	}
	return w.begins(f)
}

// callBack lets a helper call a function. The caller's registers stay: with
// them the call is looked at again when the function has returned.
func (w *walker) callBack(a *arguments) *rejection {
	caller := w.st
	defer func() { w.st = caller }()
	w.st = caller.share()
	f := &frameState{fn: int(a.callback), site: w.at, callback: true, refs: len(w.st.refs)}
	given := w.st.top().regs
	switch a.helper.ID {
	case asm.FnLoop:
		f.regs[asm.R1] = w.rounds(&given[asm.R1])
		f.regs[asm.R2] = given[asm.R3]
	case asm.FnForEachMapElem:
		m := a.mapNumber
		f.regs[asm.R1] = given[asm.R1]
		f.regs[asm.R2] = value{kind: MapKey, obj: m, inst: w.st.fresh()}
		f.regs[asm.R3] = value{kind: MapValue, obj: m, inst: w.st.fresh()}
		if !w.code.Maps[m].Shared() {
			f.regs[asm.R3].kind = Cell // the thread's own
		}
		f.regs[asm.R4] = given[asm.R3]
	default:
		panic("BUG: bpf: a helper of the table calls back: " + a.helper.Name)
	}
	return w.begins(f)
}

// rounds is the index that bpf_loop counts: less than the number of rounds, and
// than the most that there may be.
func (w *walker) rounds(n *value) value {
	low := bound.ALU(asm.Mov, false, bound.Scalar{}, n.num)
	return scalar(bound.Between(0, min(maxLoop, max(low.Wide.UMax, 1))-1))
}

// begins enters a function in a state whose top is its caller.
func (w *walker) begins(f *frameState) *rejection {
	f.regs[asm.R10] = value{kind: Stack, obj: int32(len(w.st.frames))}
	w.st.push(f)
	from := w.chain
	w.chain = w.chainOf(from, w.at)
	defer func() { w.chain = from }()
	return w.arrive(w.code.Funcs[f.fn].Start)
}

// exit returns from a function, or ends the run.
func (w *walker) exit() *rejection {
	v, r := w.use(asm.R0)
	if r != nil {
		return r
	}
	f := w.st.top()
	if w.st.depth() == 0 {
		return w.allReturned("the run ends")
	}
	if v.kind == Stack && int(v.obj) == w.st.depth() {
		return w.refuse(ReasonReturn, fmt.Sprintf("%s is returned", w.what(asm.R0, v)), "what it points to is gone then: use the stack of the caller")
	}
	for _, r := range w.st.refs {
		if r.depth == w.st.depth() { // it lies in the function's frame
			return w.refuse(ReasonReference, fmt.Sprintf("the function returns, but the record of instruction %d was neither submitted nor discarded", r.at),
				"submit or discard it in the function that reserved it")
		}
	}
	if f.callback {
		if r := w.callbackResult(f, v); r != nil {
			return r
		}
	}
	result, site, callback := *v, f.site, f.callback
	w.st.pop()
	w.chain, w.at = w.ctxs[w.chain].parent, site
	if callback {
		return w.arrive(site)
	}
	w.st.set(asm.R0, result)
	return w.arrive(site + 1)
}

// callbackResult checks what a function gives back to the helper that called
// it: 0 to go on, 1 to stop.
func (w *walker) callbackResult(f *frameState, v *value) *rejection {
	if v.kind != Scalar || v.num.Wide.UMax > 1 {
		return w.refuse(ReasonReturn, fmt.Sprintf("a function that a helper calls must return 0 or 1, not %v", w.text(v)), "return 0 to go on and 1 to stop")
	}
	if len(w.st.refs) != f.refs {
		return w.refuse(ReasonReference, "a function that a helper calls keeps a record, or gives back one of its caller", "submit or discard it where it was reserved")
	}
	return nil
}

// allReturned requires that no record is held any more.
func (w *walker) allReturned(when string) *rejection {
	if len(w.st.refs) == 0 {
		return nil
	}
	at := w.st.refs[0].at
	return w.refuse(ReasonReference, fmt.Sprintf("%s, but the record of instruction %d was neither submitted nor discarded", when, at),
		"call ringbuf_submit or ringbuf_discard on every path")
}

// stackSizes checks how much stack the functions use together.
func (v *verifier) stackSizes() *rejection {
	deepest := make([]int, len(v.code.Funcs))
	// The main function is first; others may come in any order, but never call
	// each other in a circle.
	var need func(n int) int
	need = func(n int) int {
		if deepest[n] == 0 {
			below := 0
			for _, c := range v.code.Funcs[n].Calls {
				below = max(below, need(c))
			}
			deepest[n] = v.code.Funcs[n].Stack + below + 1
		}
		return deepest[n] - 1
	}
	for n := range v.code.Funcs {
		v.code.Funcs[n].Stack = (v.depths[n] + 7) &^ 7
	}
	if n := need(0); n > StackSize {
		return &rejection{at: 0, reason: ReasonStackSize,
			text: fmt.Sprintf("the functions need %d bytes of stack together, there are %d", n, StackSize),
			hint: "use smaller buffers, or keep them in a map"}
	}
	return nil
}

func mapName(m *abi.MapSpec) string { return fmt.Sprintf("map %s (%v)", m.Name, mapKindNames[m.Kind]) }

var mapKindNames = map[abi.MapKind]string{
	abi.PerSlotArray: "percpu_array", abi.PerSlotHash: "percpu_hash", abi.Array: "array", abi.Hash: "hash",
	abi.PerThread: "per_thread", abi.LRUHash: "lru_hash", abi.StackTrace: "stack_trace", abi.RingBuf: "ringbuf", abi.PerfEventArray: "perf_event_array",
}

// callers lists the calls that lead to the running function, innermost first.
func (s *state) callers() (sites []int) {
	for _, f := range s.frames[1:] {
		sites = append(sites, f.site)
	}
	slices.Reverse(sites)
	return sites
}
