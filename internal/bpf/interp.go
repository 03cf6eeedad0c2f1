package bpf

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

// Regs is a context: the words of struct pt_regs, at their PtRegs offset / 8.
type Regs [PtRegsEnd / 8]uint64

// ErrFuel is returned when a run has executed as many instructions as it may.
var ErrFuel = errors.New("bpf program ran out of fuel")

// Machine interprets programs on an arena. It is the engine of the programs
// that run in the tracer, and the oracle for compiled ones. Other slots of the
// arena may be in use meanwhile, by threads of a target that need not be well
// behaved.
type Machine struct {
	Arena  []byte      // Layout.Size bytes, 8-byte aligned
	Layout *abi.Layout // with the maps of the programs, at the same numbers
	Slot   int         // whose cells are used: SlotTracer, in the tracer
	TGID   uint32      // what HelperGetCurrentPidTgid tells
	Fuel   int         // instructions that a run may execute; 0 means MaxInsns

	// Event takes an event, which it must not keep, and reports whether there
	// was room for it. Without it, events are dropped.
	Event func(payload []byte) bool
}

// Errors that helpers return to programs (include/uapi/asm-generic/errno-base.h).
const errAgain = -11

// run is one execution of a program. Pointers are held as offsets: into the
// context, into the stack, or into the arena.
type run struct {
	*Machine
	v     *Verified
	ctx   *Regs
	r     [11]uint64
	stack [StackSize]byte
	at    int
}

// Run executes a program. ctx may be nil when the program does not read it.
// It returns an error when the program does not fit the layout or its fuel was
// spent.
func (m *Machine) Run(v *Verified, ctx *Regs) error {
	if err := CheckMaps(v, m.Layout); err != nil {
		return err
	}
	if ctx == nil {
		ctx = new(Regs)
	}
	x := &run{Machine: m, v: v, ctx: ctx}
	x.r[asm.R10] = StackSize
	fuel := m.Fuel
	if fuel == 0 {
		fuel = MaxInsns
	}
	for ; fuel > 0; fuel-- {
		if !x.step() {
			return nil
		}
	}
	return fmt.Errorf("%w: %s", ErrFuel, v.code.Name)
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

// step executes one instruction and reports whether the run goes on.
func (x *run) step() bool {
	in := &x.v.code.Insns[x.at]
	next := x.at + 1
	switch in.Kind {
	case ALU:
		x.r[in.Dst] = x.alu(in)
	case LoadImm, LoadRef:
		x.r[in.Dst] = uint64(in.Imm)
	case Load:
		x.r[in.Dst] = x.load(in, in.Src)
	case Store:
		v := uint64(in.Imm)
		if in.UseSrc {
			v = x.r[in.Src]
		}
		x.storeTo(in, v)
	case AtomicRMW:
		x.atomic(in)
	case CallHelper:
		x.call(asm.BuiltinFunc(in.Imm))
	case Jump:
		if x.jumps(in) {
			next = in.Target
		}
	case JumpAlways:
		next = in.Target
	}
	ends := x.v.Ends(x.at)
	x.at = next
	return !ends
}

// jumps follows the verifier where it has decided a test: pointers, which are
// offsets here, cannot be compared with null.
func (x *run) jumps(in *Insn) bool {
	if b := x.v.branch[x.at]; b != Either {
		return b == Always
	}
	return in.taken(x.r[in.Dst], x.r[in.Src])
}

func (x *run) alu(in *Insn) uint64 { return in.compute(x.r[in.Dst], x.r[in.Src]) }

// space is the memory that a register points into, and the offset there. The
// offset into the arena is checked again: it is cheap, and a mistake of the
// verifier would otherwise be a write to a word that others trust.
func (x *run) space(r asm.Register, off int32) ([]byte, uint64) {
	at := x.r[r] + uint64(int64(off))
	switch x.v.before[x.at].Regs[r].Kind {
	case Stack:
		return x.stack[:], at
	case Cell:
		if at < x.Layout.Slots {
			panic("BUG: bpf: a cell outside the slots")
		}
		return x.Arena, at
	}
	panic("BUG: bpf: access was not verified")
}

func (x *run) load(in *Insn, r asm.Register) uint64 {
	var v uint64
	if x.v.before[x.at].Regs[r].Kind == Context {
		off := x.r[r] + uint64(int64(in.Off))
		v = x.ctx[off/8] >> (off % 8 * 8)
	} else {
		mem, off := x.space(r, in.Off)
		v = loadBytes(mem[off:], in.Size)
	}
	return extend(v, in.Size, in.Signed)
}

// extend makes 64 bits of the low size bytes of v.
func extend(v uint64, size int, signed bool) uint64 {
	shift := 64 - 8*size
	if signed {
		return uint64(int64(v<<shift) >> shift)
	}
	return v << shift >> shift
}

func (x *run) storeTo(in *Insn, v uint64) {
	mem, off := x.space(in.Dst, in.Off)
	storeBytes(mem[off:], in.Size, v)
}

// atomic need not be atomic: only this run writes to its stack and its cells.
func (x *run) atomic(in *Insn) {
	mem, off := x.space(in.Dst, in.Off)
	old := loadBytes(mem[off:], in.Size)
	src := extend(x.r[in.Src], in.Size, false)
	storeBytes(mem[off:], in.Size, in.update(old, src, x.r[asm.R0]))
	switch {
	case in.Atomic == asm.CmpXchg:
		x.r[asm.R0] = old
	case in.Fetches():
		x.r[in.Src] = old
	}
}

func (x *run) call(h asm.BuiltinFunc) {
	switch h {
	case HelperGetCurrentPidTgid:
		x.r[asm.R0] = uint64(x.TGID) << 32
	case HelperExit:
		storeWord(x.Arena, abi.HdrStop, 1)
	case HelperMapCell:
		x.r[asm.R0] = x.mapCell()
	case HelperRingbufOutput:
		data := x.stack[x.r[asm.R2] : x.r[asm.R2]+x.r[asm.R3]]
		x.r[asm.R0] = 0
		if x.Event == nil || !x.Event(data) {
			addWord(x.Arena, x.slotBase()+abi.SlotDrops, 1)
			e := int64(errAgain)
			x.r[asm.R0] = uint64(e)
		}
	default:
		panic("BUG: bpf: helper was not verified")
	}
}

func (m *Machine) slotBase() uint64 { return m.Layout.Slots + uint64(m.Slot)<<m.Layout.StrideShift }

func loadBytes(b []byte, size int) uint64 {
	switch size {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.LittleEndian.Uint16(b))
	case 4:
		return uint64(binary.LittleEndian.Uint32(b))
	}
	return binary.LittleEndian.Uint64(b)
}

func storeBytes(b []byte, size int, v uint64) {
	switch size {
	case 1:
		b[0] = byte(v)
	case 2:
		binary.LittleEndian.PutUint16(b, uint16(v))
	case 4:
		binary.LittleEndian.PutUint32(b, uint32(v))
	default:
		binary.LittleEndian.PutUint64(b, v)
	}
}
