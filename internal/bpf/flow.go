package bpf

import (
	"fmt"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

// jump verifies a conditional jump and decides it where that is possible.
func (c *checker) jump() string {
	in := c.in
	dst, src := c.reg(in.Dst), c.operand()
	if dst.Kind == Unknown {
		return c.initialised(in.Dst)
	}
	if src.Kind == Unknown {
		return c.initialised(in.Src)
	}
	if dst.Kind == Scalar && src.Kind == Scalar {
		if dst.Known && src.Known {
			c.decide(in.taken(dst.Const, src.Const))
		}
		return c.both(&c.after, &c.after)
	}
	nullTest := in.Wide && src == constant(0) && (in.Jump == asm.JEq || in.Jump == asm.JNE)
	switch {
	case nullTest && dst.Kind == CellOrNull:
		null, cell := c.after, c.after
		null.resolve(dst, constant(0))
		dst.Kind = Cell
		cell.resolve(c.reg(in.Dst), dst)
		if in.Jump == asm.JEq {
			return c.both(&null, &cell)
		}
		return c.both(&cell, &null)
	case nullTest && (dst.Kind == Cell || dst.Kind == Stack || dst.Kind == Context):
		c.decide(in.Jump == asm.JNE)
		return c.both(&c.after, &c.after)
	}
	return "a pointer is compared"
}

func (c *checker) decide(taken bool) {
	c.v.branch[c.at] = Never
	if taken {
		c.v.branch[c.at] = Always
	}
}

// both follows a conditional jump into the states where it is taken and not.
func (c *checker) both(taken, not *State) string {
	known := c.v.branch[c.at]
	if known != Never {
		if reason := c.flow(c.in.Target, taken); reason != "" {
			return reason
		}
	}
	if known == Always {
		return ""
	}
	return c.flow(c.at+1, not)
}

// resolve replaces every copy of a value by what a test has shown.
func (s *State) resolve(old, now Value) {
	for r := range s.Regs {
		if s.Regs[r] == old {
			s.Regs[r] = now
		}
	}
	for u := range s.words {
		if w := &s.words[u]; w.size == 8 && w.val == old {
			w.val = now
		}
	}
}

// call verifies a call of a helper.
func (c *checker) call() string {
	result := c.newScalar()
	var reason string
	switch h := asm.BuiltinFunc(c.in.Imm); h {
	case HelperGetCurrentPidTgid:
		result.Kind = PidTgid
	case HelperExit:
		return ""
	case HelperMapCell:
		result, reason = c.mapCell()
	case HelperRingbufOutput:
		reason = c.ringOutput()
	default:
		if _, reason = LookupHelper(h); reason == "" {
			reason = fmt.Sprintf("helper %d (%v) is not supported", c.in.Imm, h)
		}
	}
	for r := asm.R1; r <= asm.R5; r++ {
		c.after.Regs[r] = Value{}
	}
	c.after.Regs[asm.R0] = result
	return reason
}

func (c *checker) mapCell() (Value, string) {
	ref, key := c.reg(asm.R1), c.reg(asm.R2)
	if ref.Kind != MapRef {
		return ref, "r1 is not a map"
	}
	spec := &c.v.code.Maps[ref.Map]
	if reason := c.data("key", key, spec.KeySize); reason != "" {
		return ref, reason
	}
	cell := Value{Kind: CellOrNull, Map: ref.Map, ID: valueID(c.at)}
	if spec.Kind == abi.PerSlotArray {
		if w, ok := c.v.before[c.at].StackWord(key.Off, 4); ok && w.Known && w.Const < uint64(spec.MaxEntries) {
			cell.Kind, cell.Fixed, cell.Index = Cell, true, int32(w.Const)
		}
	}
	return cell, ""
}

func (c *checker) ringOutput() string {
	if c.reg(asm.R1).Kind != RingRef {
		return "r1 is not the ring"
	}
	size, flags := c.reg(asm.R3), c.reg(asm.R4)
	if !size.Known || size.Const == 0 || size.Const%8 != 0 || size.Const > MaxEvent {
		return fmt.Sprintf("the size of an event must be a constant multiple of 8 up to %d", MaxEvent)
	}
	if !flags.Known || flags.Const != 0 {
		return "the flags must be 0"
	}
	return c.data("event", c.reg(asm.R2), int(size.Const))
}

// data checks that p points to size bytes of numbers on the stack.
func (c *checker) data(what string, p Value, size int) string {
	if p.Kind != Stack {
		return fmt.Sprintf("r2 does not point to a %s on the stack", what)
	}
	pos, reason := c.stackRange(p.Off, size)
	if reason != "" {
		return what + ": " + reason
	}
	s := c.v.before[c.at]
	if !s.initialised(pos, size) || s.holdsPointer(pos, size) {
		return fmt.Sprintf("the %s is not %d bytes of numbers", what, size)
	}
	return ""
}
