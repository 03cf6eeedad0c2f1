package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

// Regs is a context: its words, at their offset / 8.
type Regs [ContextEnd / 8]uint64

// Errors of a run, wrapped with the place where it ended.
var (
	// ErrFuel says that a run has spent its fuel on loops and calls.
	ErrFuel = errors.New("bpf program ran out of fuel")
	// ErrAccess says that a run used memory that is not the program's, or a
	// register or stack byte that it had not written. A verified program never
	// does.
	ErrAccess = errors.New("bpf program used what it must not")
)

// Machine interprets programs on an arena. It is the engine of the programs
// that run in the tracer, and the oracle for compiled ones and for the
// verifier, of which it believes nothing: it checks each access by itself.
// Other slots of the arena may be in use meanwhile, by threads of a target
// that need not be well behaved.
type Machine struct {
	Arena  []byte      // Layout.Size bytes, 8-byte aligned
	Layout *abi.Layout // with the maps of the programs, at the same numbers
	Slot   int         // whose cells are used: SlotTracer, in the tracer
	TGID   uint32      // what HelperGetCurrentPidTgid tells in the upper half
	TID    uint32      // and in the lower
	Fuel   int         // of a run; 0 means DefaultFuel

	// Now is CLOCK_MONOTONIC in nanoseconds, for the helpers that tell the time.
	Now func() uint64

	// ReadUser reads the target's memory, and reports whether it could. Without
	// it, every read fails.
	ReadUser func(addr uint64, buf []byte) bool

	UIDGID uint64 // what get_current_uid_gid returns
	Comm   string // what get_current_comm returns
	CPU    uint32 // what get_smp_processor_id returns
	Node   uint32 // what get_numa_node_id returns

	// Entries are the entries of a map with their values over all threads, for
	// HelperMapNext and HelperMapRead. Without it, a program that calls them fails.
	Entries func(m int) []MapEntry

	// Event takes an event, which it must not keep, and reports whether there
	// was room for it. Without it, events are dropped.
	Event func(payload []byte) bool

	// MapEvent is the same for a record that goes to a map.
	MapEvent func(m int, payload []byte) bool
}

// Errors that helpers return to programs (include/uapi/asm-generic/errno-base.h).
const errAgain = -11

// run is one execution of a program.
type run struct {
	*Machine
	code   *Code
	ctx    *Regs
	mem    []byte // of an Input with memory
	r      [11]uint64
	have   uint16 // a bit for each register that may be read
	frames []*frame
	fuel   int
	tails  int // tail calls so far
	at     int

	records []record     // that are or were held
	lists   [][]MapEntry // that HelperMapNext goes through
	others  []otherValue // that map_lookup_percpu_elem has returned
}

// record is memory that ringbuf_reserve returned, nil when it was given back.
type record struct {
	ring int
	data []byte
}

// frame is an active function.
type frame struct {
	stack   [StackSize]byte
	written [StackSize]bool
	back    int       // where its caller goes on
	saved   [4]uint64 // the caller's r6 to r9
	have    uint16    // which of them could be read
	loop    *loop     // that calls the function
}

// Run executes a program on a context, which may be nil when the program does
// not read it. It returns an error when the program does not fit the layout,
// when its fuel was spent, or when it did what it must not.
func (m *Machine) Run(v *Verified, ctx *Regs) error {
	if ctx == nil {
		ctx = new(Regs)
	}
	_, err := m.run(v, ctx, nil)
	return err
}

// RunMemory executes a program whose input is memory, and returns its r0.
func (m *Machine) RunMemory(v *Verified, mem []byte) (uint64, error) { return m.run(v, nil, mem) }

func (m *Machine) run(v *Verified, ctx *Regs, mem []byte) (uint64, error) {
	if err := CheckMaps(v, m.Layout); err != nil {
		return 0, err
	}
	x := m.newRun(v.code, ctx, mem)
	for {
		if more, err := x.step(); !more || err != nil {
			return x.r[asm.R0], err
		}
	}
}

func (m *Machine) newRun(code *Code, ctx *Regs, mem []byte) *run {
	x := &run{Machine: m, code: code, ctx: ctx, mem: mem, fuel: m.Fuel}
	if x.fuel == 0 {
		x.fuel = DefaultFuel
	}
	x.push(0)
	if !code.Input.Memory {
		x.set(asm.R1, contextAddr)
		return x
	}
	x.set(asm.R1, 0)
	if len(mem) > 0 {
		x.set(asm.R1, memoryAddr)
	}
	x.set(asm.R2, uint64(len(mem)))
	return x
}

// CheckMaps checks that a layout holds a program's maps at their numbers.
func CheckMaps(v *Verified, l *abi.Layout) error {
	for i, spec := range v.code.Maps {
		if i >= len(l.Maps) || l.Maps[i].MapSpec != spec {
			return fmt.Errorf("%w %s: map %d (%s) is not in the arena's layout", ErrInvalid, v.code.Name, i, spec.Name)
		}
	}
	return nil
}

// push enters a function whose caller goes on at back.
func (x *run) push(back int) {
	f := &frame{back: back, have: x.have}
	copy(f.saved[:], x.r[asm.R6:asm.R10])
	x.frames = append(x.frames, f)
	x.set(asm.R10, frameAddr(len(x.frames)-1))
}

// pop leaves a function; r0 is its result.
func (x *run) pop() {
	f := x.frames[len(x.frames)-1]
	x.frames = x.frames[:len(x.frames)-1]
	copy(x.r[asm.R6:asm.R10], f.saved[:])
	const saved = 1<<asm.R6 | 1<<asm.R7 | 1<<asm.R8 | 1<<asm.R9
	x.have = f.have&saved | x.have&(1<<asm.R0)
	x.set(asm.R10, frameAddr(len(x.frames)-1))
	x.at = f.back
}

func (x *run) set(r asm.Register, v uint64) {
	x.r[r] = v
	x.have |= 1 << r
}

// get reads a register.
func (x *run) get(r asm.Register) (uint64, error) {
	if x.have>>r&1 == 0 {
		return 0, x.fail(ErrAccess, "r%d was not written", r)
	}
	return x.r[r], nil
}

// operand is the second operand of an instruction.
func (x *run) operand(in *Insn) (uint64, error) {
	if in.UseSrc {
		return x.get(in.Src)
	}
	return uint64(in.Imm), nil
}

func (x *run) fail(kind error, format string, args ...any) error {
	return fmt.Errorf("%w: %s, instruction %d (%v): %s", kind, x.code.Name, x.at, x.code.Insns[x.at], fmt.Sprintf(format, args...))
}

// spend takes fuel.
func (x *run) spend(n int) error {
	if x.fuel -= n; x.fuel < 0 {
		return x.fail(ErrFuel, "its loops and calls took too long")
	}
	return nil
}

// step executes one instruction and reports whether the run goes on.
func (x *run) step() (more bool, err error) {
	in := &x.code.Insns[x.at]
	switch in.Kind {
	case ALU:
		err = x.alu(in)
	case LoadImm:
		x.set(in.Dst, uint64(in.Imm))
	case LoadRef:
		x.set(in.Dst, mapRef(in.Imm))
	case LoadValue:
		x.set(in.Dst, x.valueAddr(int(in.Imm), 0)+uint64(in.Off))
	case LoadFunc:
		x.set(in.Dst, funcRef(in.Target))
	case Load:
		err = x.load(in)
	case Store:
		err = x.store(in)
	case AtomicRMW:
		err = x.atomic(in)
	case Jump:
		return true, x.jump(in)
	case JumpAlways:
		return true, x.goTo(in.Target)
	case CallHelper:
		if x.code.callsBack(x.at) {
			return true, x.callback()
		}
		return x.call(in.Helper())
	case CallReg:
		id, err := x.get(in.Dst)
		if err != nil {
			return false, err
		}
		return x.call(asm.BuiltinFunc(id))
	case CallFunc:
		return true, x.callFunc(in)
	case Exit:
		return x.exit()
	}
	x.at++
	return true, err
}

func (x *run) goTo(target int) error {
	if err := x.spend(x.code.Charge(x.at)); err != nil {
		return err
	}
	x.at = target
	return nil
}

func (x *run) callFunc(in *Insn) error {
	if len(x.frames) == MaxFrames {
		return x.fail(ErrAccess, "more than %d functions are active", MaxFrames)
	}
	if err := x.spend(x.code.Charge(x.at)); err != nil {
		return err
	}
	x.push(x.at + 1)
	x.have &^= 1<<asm.R0 | 1<<asm.R6 | 1<<asm.R7 | 1<<asm.R8 | 1<<asm.R9
	x.at = in.Target
	return nil
}

func (x *run) exit() (more bool, err error) {
	if _, err := x.get(asm.R0); err != nil {
		return false, err
	}
	if len(x.frames) == 1 {
		return false, nil
	}
	if l := x.frames[len(x.frames)-1].loop; l != nil {
		return true, x.again(l)
	}
	x.pop()
	return true, nil
}

func (x *run) jump(in *Insn) error {
	dst, err := x.get(in.Dst)
	if err != nil {
		return err
	}
	src, err := x.operand(in)
	if err != nil {
		return err
	}
	if in.taken(dst, src) {
		return x.goTo(in.Target)
	}
	x.at++
	return nil
}

func (x *run) alu(in *Insn) error {
	dst, src := uint64(0), uint64(0)
	var err error
	if !in.overwrites() {
		if dst, err = x.get(in.Dst); err != nil {
			return err
		}
	}
	if in.ALU != asm.Neg && in.ALU != asm.Swap {
		if src, err = x.operand(in); err != nil {
			return err
		}
	}
	x.set(in.Dst, in.compute(dst, src))
	return nil
}

// call executes a helper, after which r1 to r5 are unknown.
func (x *run) call(id asm.BuiltinFunc) (more bool, err error) {
	h, reason := LookupHelper(id)
	if reason != "" {
		return false, x.fail(ErrInvalid, "%s", reason)
	}
	for i := range h.NumArgs() {
		if h.Args[i] == ArgOptional {
			continue
		}
		if _, err := x.get(asm.R1 + asm.Register(i)); err != nil {
			return false, err
		}
	}
	cost := x.code.Charge(x.at)
	if per, size := (&Insn{Kind: CallHelper, Imm: int64(id)}).ChargeSize(); per != 0 {
		cost += int(uint32(x.r[size])) / per
	}
	if err := x.spend(cost); err != nil {
		return false, err
	}
	result, err := x.helper(h)
	if err != nil || h.Ret == RetNever {
		return false, err
	}
	x.have &^= 0x3f // r0 to r5
	if h.Ret != RetVoid {
		x.set(asm.R0, result)
	}
	x.at++
	return true, nil
}
