package elfplan

import (
	"math"
	"slices"

	"trapless/internal/image"
	insn "trapless/internal/insn/x86"
	"trapless/internal/plan"
)

// Goroutine stacks are small, and what lies below their end belongs to somebody else. A function with a stack
// check may count on stackGuard bytes below the place that the check looks at; what it calls may not check
// (NOSPLIT), call on, and use these up: Go's linker proves that each such chain fits, and leaves nothing to
// those who come in between. So the room that is left for a detour is computed for each place, from the
// depths that the function table states and from all calls in the module.

const (
	stackGuard  = 928     // runtime/stack.go, Go 1.18 to 1.26: at least this much is left where a check succeeded
	retSize     = 8       // a return address
	unknownRoom = 0       // where nothing is known: none
	muchRoom    = 1 << 20 // more than anybody asks for
)

// preempt is called by a signal handler wherever a goroutine stands, with just enough room for itself.
const preempt = "runtime.asyncPreempt"

// rooms are the stack's room at the entries of a module's Go functions.
type rooms struct {
	m     *Module
	funcs []goFunc
	index map[image.VAddr]int32
	// indirect is what a call through a pointer leaves, at the worst place that has one. Functions that are only
	// called so count as entered with all the room there can be when it is computed.
	indirect int
}

// goFunc is a Go function with what it calls.
type goFunc struct {
	fn    image.Func
	check plan.StackCheck // Len is 0 if there is none
	entry int             // bytes that are left below the stack pointer when the function begins
	taken bool            // it may be called through a pointer
	calls []goCall
}

// goCall is a call, or a jump in place of one.
type goCall struct {
	callee int32 // -1 if unknown
	at     int32 // offset in the function
	depth  int32
	pushed int32 // 8 for a call, 0 for a jump
}

// Room is how many bytes below the stack pointer are free for certain at an address in a Go function, and
// true; false for other code, whose stacks are large.
func (m *Module) Room(v image.VAddr) (int, bool) {
	fn, ok := m.Funcs.At(v)
	if !ok || !fn.Go {
		return 0, false
	}
	if m.rooms == nil {
		m.rooms = m.findRooms()
	}
	i, ok := m.rooms.index[fn.Start]
	if !ok {
		return unknownRoom, true
	}
	f := &m.rooms.funcs[i]
	at := int(v - fn.Start)
	if at > 0 && fn.SPWrite {
		return unknownRoom, true
	}
	return max(f.room(at, m.depthAt(fn.Start, v)), unknownRoom), true
}

// room is what is left at an offset where the stack is so deep.
func (f *goFunc) room(at, depth int) int {
	if f.check.Len > 0 && at >= f.check.Len && at < f.check.Grow {
		return stackGuard + f.check.Below - depth
	}
	return f.entry - depth
}

// depthAt is by how much the stack is deeper at v than at the start of its function.
func (m *Module) depthAt(start, v image.VAddr) int {
	depth := math.MaxInt32
	m.Funcs.Go.Depths(start, func(end image.VAddr, d int32) bool {
		depth = int(d)
		return v >= end
	})
	return depth
}

// findRooms reads all Go functions and follows their calls.
func (m *Module) findRooms() *rooms {
	r := &rooms{m: m, index: map[image.VAddr]int32{}}
	for _, fn := range m.Funcs.All() {
		if fn.Go && fn.Len() > 0 {
			r.index[fn.Start] = int32(len(r.funcs))
			r.funcs = append(r.funcs, goFunc{fn: fn, entry: muchRoom})
		}
	}
	pointers, err := m.Image.CodePointers()
	for i := range r.funcs {
		f := &r.funcs[i]
		_, f.taken = slices.BinarySearch(pointers, f.fn.Start)
		f.taken = f.taken || err != nil
		r.read(f)
		if slices.Contains(f.fn.Names, preempt) {
			f.entry = unknownRoom
		}
	}
	r.solve()
	return r
}

// read finds a function's check and its calls.
func (r *rooms) read(f *goFunc) {
	code, err := r.m.Funcs.Code(f.fn)
	if err != nil {
		f.entry = unknownRoom
		return
	}
	if c, ok := plan.FindStackCheck(code); ok {
		f.check = c
	}
	off := 0
	r.m.Funcs.Go.Depths(f.fn.Start, func(end image.VAddr, depth int32) bool {
		for off < len(code) && f.fn.Start+image.VAddr(off) < end {
			in, err := insn.Decode(code[off:], insn.Mode64)
			if err != nil {
				off = len(code)
				return false
			}
			r.call(f, in, off, depth)
			off += int(in.Len)
		}
		return true
	})
}

// call notes a call.
func (r *rooms) call(f *goFunc, in insn.Inst, off int, depth int32) {
	c := goCall{callee: -1, at: int32(off), depth: depth}
	switch in.Branch {
	case insn.BranchCall, insn.BranchCallInd:
		c.pushed = retSize
	case insn.BranchJmp, insn.BranchJcc, insn.BranchJmpInd:
	default:
		return
	}
	if to, ok := in.Target(0); ok {
		callee, known := r.m.Funcs.At(f.fn.Start + image.VAddr(off) + image.VAddr(to))
		if !known || callee.Start == f.fn.Start && c.pushed == 0 || !callee.Go {
			return
		}
		c.callee = r.index[callee.Start]
	} else if in.Branch == insn.BranchJmpInd && (!f.fn.Asm || depth != 0) {
		return // a switch
	}
	f.calls = append(f.calls, c)
}

// solve lowers the rooms until each call leaves what its callee has.
//
// Go's linker assumes of calls through pointers that the callee has a check. Here it may be without one, but
// of several such calls in a row, without any check between, only one is followed.
func (r *rooms) solve() {
	r.indirect = muchRoom
	r.spread()
	indirect := r.indirect
	for i := range r.funcs {
		// What nothing in the module calls is called by C, by the kernel, or through a pointer in code.
		if f := &r.funcs[i]; f.taken || f.entry == muchRoom {
			f.entry = min(f.entry, indirect)
		}
	}
	r.spread()
}

// spread follows direct calls to the end, and notes what indirect ones leave.
func (r *rooms) spread() {
	for changed := true; changed; {
		changed = false
		for i := range r.funcs {
			f := &r.funcs[i]
			if f.fn.SPWrite {
				continue // it calls on another stack, where there is room
			}
			for _, c := range f.calls {
				left := max(f.room(int(c.at), int(c.depth))-int(c.pushed), unknownRoom)
				if c.callee < 0 {
					r.indirect = min(r.indirect, left)
				} else if to := &r.funcs[c.callee]; left < to.entry {
					to.entry, changed = left, true
				}
			}
		}
	}
}
