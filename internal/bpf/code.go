package bpf

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

// ErrInvalid is wrapped by every reason why a program is not accepted.
var ErrInvalid = errors.New("bpf program")

// InsnError is a reason why a program is not accepted, and where.
type InsnError struct {
	Program string
	Index   int    // of the instruction in Program.Insns
	Insn    string // its text
	Reason  string // what is wrong

	Word    Reason // the kind of thing that is wrong
	Hint    string // what to change
	Source  string // the line of the source, if the program knows it
	State   string // registers and stack before it, as in the kernel verifier's log
	Callers []int  // the calls that led to it, innermost first
}

// Error has a line for each thing that is known. The first says all that is
// wrong.
func (e *InsnError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v %s: instruction %d (%s): %s", ErrInvalid, e.Program, e.Index, e.Insn, e.Reason)
	if e.Source != "" {
		fmt.Fprintf(&b, "\n  source: %s", e.Source)
	}
	if len(e.Callers) > 0 {
		fmt.Fprintf(&b, "\n  called by instruction %s", strings.Trim(fmt.Sprint(e.Callers), "[]"))
	}
	if e.State != "" {
		fmt.Fprintf(&b, "\n  state: %s", e.State)
	}
	if e.Hint != "" {
		fmt.Fprintf(&b, "\n  hint: %s", e.Hint)
	}
	return b.String()
}

func (e *InsnError) Unwrap() error { return ErrInvalid }

// Limits of a program.
const (
	// MaxInsns is the largest number of instructions.
	MaxInsns = 4096
	// MaxFrames is the largest number of functions that run at the same time,
	// the main one among them (kernel/bpf/verifier.c, MAX_CALL_FRAMES).
	MaxFrames = 8
	// StackSize is the size of a function's stack, in bytes, below r10.
	StackSize = 512
	// DefaultFuel is how many instructions a run may spend on loops and calls;
	// see Code.Charge. It lasts for about 20 µs.
	DefaultFuel = 1 << 16
)

// Code is a decoded program. Its structure is sound: every jump stays in its
// function, no function is left but by its exits, calls lead to functions,
// and at most MaxFrames functions are active at a time. What it does to
// registers and memory is not proven; that is the verifier's part.
type Code struct {
	Name    string
	Input   Input
	Maps    []abi.MapSpec
	Insns   []Insn
	Funcs   []Func // the main function first, in the order of their instructions
	repeats bool   // something can run more than once

	Dead []bool // instructions that a verifier has found to be never reached; nil without one

	Constants map[int][]byte // see Program
}

// Func is a function of a program: a run of its instructions.
type Func struct {
	Start, End int   // its instructions are Start to End-1
	Calls      []int // the functions that it calls or passes to a helper, sorted
	Stack      int   // bytes below its r10 that it may access: StackSize, unless a verifier knows less
}

// Decode decodes a whole program and checks its structure. It refuses, with an
// InsnError that names the instruction, what RFC 9669 does not define, the
// legacy packet access instructions, and jumps and calls that lead nowhere.
func Decode(p *Program) (*Code, error) {
	if len(p.Insns) == 0 || len(p.Insns) > MaxInsns {
		return nil, fmt.Errorf("%w %s: %d instructions, not between 1 and %d", ErrInvalid, p.Name, len(p.Insns), MaxInsns)
	}
	d := newDecoder(p)
	if err := d.insns(); err != nil {
		return nil, err
	}
	if err := d.functions(); err != nil {
		return nil, err
	}
	return d.code, nil
}

// FuncAt is the number of the function that instruction i belongs to.
func (c *Code) FuncAt(i int) int {
	n, found := slices.BinarySearchFunc(c.Funcs, i, func(f Func, i int) int { return f.Start - i })
	if found {
		return n
	}
	return n - 1
}

// Charge is the fuel that instruction i costs: as many instructions as a jump
// backwards runs again, or as a called function has. What only goes forwards
// costs nothing, for it is bounded by the program's length; helpers count when
// they can be called again and again. A helper that calls a function charges
// what the function has for each call.
func (c *Code) Charge(i int) int {
	in := &c.Insns[i]
	switch in.Kind {
	case CallReg:
		return costSyscall
	case CallHelper:
		return c.helperCharge(i)
	case Jump, JumpAlways:
		return max(0, i-in.Target+1)
	case CallFunc:
		f := &c.Funcs[c.FuncAt(in.Target)]
		return f.End - f.Start
	}
	return 0
}

// What helpers cost, in instructions that take as long.
const (
	costHelper  = 64  // a look-up, a record, a reading of the clock
	costSyscall = 400 // a system call
	costFormat  = 1000
)

// A for_each_map_elem looks at up to EachPositions positions of the map at a time,
// for which it takes CostEach of the fuel, and calls the function for the first
// entry among them.
const (
	EachPositions = 16
	CostEach      = 16
)

func (c *Code) helperCharge(i int) int {
	switch c.Insns[i].Helper() {
	case asm.FnProbeRead, asm.FnProbeReadStr, asm.FnProbeReadUser, asm.FnProbeReadUserStr,
		asm.FnGetCurrentComm, asm.FnGetCurrentUidGid, asm.FnKtimeGetBootNs:
		return costSyscall
	case asm.FnSnprintf:
		return costFormat
	case HelperGetCurrentPidTgid:
		if next := &c.Insns[i+1]; !c.repeats || next.Kind == ALU && next.ALU == asm.RSh && next.Dst == asm.R0 && !next.UseSrc && next.Imm == 32 {
			return 0 // only the process is wanted, which takes no system call
		}
		return costSyscall
	case HelperExit, HelperTailCount, HelperContext, asm.FnGetFuncIp, asm.FnGetAttachCookie, asm.FnLoop, asm.FnForEachMapElem, asm.FnRingbufDiscard:
		return 0
	}
	if c.repeats {
		return costHelper
	}
	return 0
}

// ChargeSize is the fuel that a helper costs for each so many bytes, 0 if their
// number does not matter, and the register that holds it.
func (in *Insn) ChargeSize() (bytes int, size asm.Register) {
	switch in.Helper() {
	case asm.FnProbeRead, asm.FnProbeReadUser:
		return 4, asm.R2
	case asm.FnProbeReadStr, asm.FnProbeReadUserStr, asm.FnSnprintf:
		return 1, asm.R2
	}
	return 0, 0
}

// functions finds the functions and checks that each is closed.
func (d *decoder) functions() error {
	c := d.code
	starts := map[int]bool{0: true}
	for i := range c.Insns {
		in := &c.Insns[i]
		back := (in.Kind == Jump || in.Kind == JumpAlways) && in.Target <= i
		c.repeats = c.repeats || back || in.Kind == CallFunc || c.callsBack(i)
		if k := c.Insns[i].Kind; k == CallFunc || k == LoadFunc {
			starts[c.Insns[i].Target] = true
		}
	}
	for i := range c.Insns {
		if starts[i] {
			c.Funcs = append(c.Funcs, Func{Start: i, Stack: StackSize})
		}
	}
	for n := range c.Funcs {
		f := &c.Funcs[n]
		f.End = len(c.Insns)
		if n+1 < len(c.Funcs) {
			f.End = c.Funcs[n+1].Start
		}
		if err := d.closed(f); err != nil {
			return err
		}
	}
	return d.frames()
}

// closed checks that nothing but its exits leaves a function, and finds what
// it calls.
func (d *decoder) closed(f *Func) error {
	c := d.code
	for i := f.Start; i < f.End; i++ {
		in := &c.Insns[i]
		switch in.Kind {
		case Jump, JumpAlways:
			if in.Target < f.Start || in.Target >= f.End {
				return d.fail(i, ReasonFunction, "jumps out of its function")
			}
		case CallFunc, LoadFunc:
			f.Calls = append(f.Calls, c.FuncAt(in.Target))
		}
	}
	slices.Sort(f.Calls)
	f.Calls = slices.Compact(f.Calls)
	if last := f.End - 1; !c.Ends(last) && c.Insns[last].Kind != JumpAlways {
		if f.End == len(c.Insns) {
			return d.fail(last, ReasonFunction, "the program goes on behind its last instruction")
		}
		return d.fail(last, ReasonFunction, "runs into the next function")
	}
	return nil
}

// frames checks that no chain of calls is too long, and none is endless.
func (d *decoder) frames() error {
	c := d.code
	depth := make([]int, len(c.Funcs)) // 0: not known yet; -1: being found
	var find func(n int) error
	find = func(n int) error {
		depth[n] = -1
		deepest := 0
		for _, callee := range c.Funcs[n].Calls {
			if depth[callee] == -1 {
				return d.fail(c.Funcs[callee].Start, ReasonFunction, "the function calls itself, directly or through others")
			}
			if depth[callee] == 0 {
				if err := find(callee); err != nil {
					return err
				}
			}
			deepest = max(deepest, depth[callee])
		}
		if depth[n] = deepest + 1; depth[n] > MaxFrames {
			return d.fail(c.Funcs[n].Start, ReasonFunction, "more than %d functions would be active at a time", MaxFrames)
		}
		return nil
	}
	for n := range c.Funcs {
		if depth[n] == 0 {
			if err := find(n); err != nil {
				return err
			}
		}
	}
	return nil
}

// Ends reports whether nothing follows instruction i in its function.
func (c *Code) Ends(i int) bool {
	in := &c.Insns[i]
	return in.Kind == Exit || in.Kind == CallHelper && in.Helper() == HelperExit
}
