package routine

import (
	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/bpf"
)

// Lookup is map_lookup_elem of a hash: (key, slot) the address of the value, or
// 0. A key of more than 8 bytes is given by its address.
func Lookup(ml *abi.MapLayout, arena abi.Addr) *bpf.Program {
	c := &code{ml: ml, arena: arena}
	if !ml.Shared() {
		c.add(asm.StoreMem(asm.R10, keptSlot, asm.R2, asm.DWord))
	}
	c.find()
	c.bind("hit")
	if ml.Kind == abi.Hash {
		c.state(asm.R1)
		c.add(asm.LoadMem(asm.R1, asm.R1, 0, asm.DWord), asm.JNE.Imm(asm.R1, abi.StatePresent, "absent"))
	}
	c.value(asm.R0)
	c.add(asm.Return())
	c.bind("absent")
	c.ret(0)
	return c.program("lookup")
}

// state makes r the address of the position's state.
func (c *code) state(r asm.Register) {
	c.address(asm.R2, c.ml.Values-8)
	c.add(asm.Mov.Reg(r, position), asm.Mul.Imm(r, int32(c.ml.Entry())), asm.Add.Reg(r, asm.R2))
}

// value makes r the address of the position's value.
func (c *code) value(r asm.Register) {
	distance := c.ml.Entry()
	if c.ml.Shared() {
		c.address(r, c.ml.Values)
	} else {
		distance = c.ml.Stride()
		c.add(asm.LoadMem(r, asm.R10, keptSlot, asm.DWord), asm.Add.Imm(r, int32(c.ml.Cells)))
	}
	c.add(asm.Mov.Reg(asm.R2, position), asm.Mul.Imm(asm.R2, int32(distance)), asm.Add.Reg(r, asm.R2))
}

// Update is map_update_elem: (key, address of the value, flags, slot) 0 or an
// error. A key of more than 8 bytes is given by its address.
func Update(ml *abi.MapLayout, arena abi.Addr) *bpf.Program {
	c := &code{ml: ml, arena: arena, enter: true}
	c.add(asm.JGT.Imm(asm.R3, exist, "invalid"))
	c.add(asm.StoreMem(asm.R10, keptValue, asm.R2, asm.DWord), asm.StoreMem(asm.R10, keptFlags, asm.R3, asm.DWord))
	if !ml.Shared() {
		c.add(asm.StoreMem(asm.R10, keptSlot, asm.R4, asm.DWord))
	}
	switch {
	case !ml.IsHash():
		c.add(asm.Mov.Reg32(position, asm.R1), asm.JGE.Imm(position, int32(ml.MaxEntries), "full"),
			asm.LoadMem(asm.R0, asm.R10, keptFlags, asm.DWord), asm.JEq.Imm(asm.R0, noExist, "exists"))
	default:
		if ml.Kind == abi.PerSlotHash {
			c.add(asm.JEq.Imm(asm.R3, noExist, "invalid"))
		}
		c.find()
		c.bind("hit")
		if ml.Kind == abi.Hash {
			c.claimState()
		}
	}
	c.bind("put")
	c.value(asm.R0)
	c.add(asm.LoadMem(asm.R1, asm.R10, keptValue, asm.DWord))
	c.copy(asm.R0, asm.R1, ml.ValueSize)
	if ml.Kind == abi.Hash {
		c.state(asm.R1)
		c.add(asm.Mov.Imm(asm.R0, abi.StatePresent), asm.StoreMem(asm.R1, 0, asm.R0, asm.DWord))
	}
	c.ret(0)
	c.bind("full")
	c.ret(errTooBig)
	c.bind("exists")
	c.ret(errExist)
	c.bind("missing")
	c.ret(errNoEnt)
	c.bind("invalid")
	c.ret(errInval)
	return c.program("update")
}

// claimState obeys the flags: an entry that must be new is claimed, one that
// must be there has to be.
func (c *code) claimState() {
	c.state(asm.R1)
	c.add(asm.LoadMem(asm.R4, asm.R10, keptFlags, asm.DWord), asm.JEq.Imm(asm.R4, 0, "put"), asm.JEq.Imm(asm.R4, noExist, "new"),
		asm.LoadMem(asm.R0, asm.R1, 0, asm.DWord), asm.JNE.Imm(asm.R0, abi.StatePresent, "missing"), asm.Ja.Label("put"))
	c.bind("new")
	c.add(asm.Mov.Imm(asm.R0, abi.StateAbsent), asm.Mov.Imm(asm.R2, abi.StateClaimed), asm.CmpXchg.Mem(asm.R1, asm.R2, asm.DWord, 0),
		asm.JNE.Imm(asm.R0, abi.StateAbsent, "exists"))
}

// unrolled is how many bytes are copied without a loop.
const unrolled = 64

// copy copies size bytes from s to d, which move. r2 and r4 are used.
func (c *code) copy(d, s asm.Register, size int) {
	if size >= unrolled {
		c.add(asm.Mov.Imm(asm.R4, int32(size/8)))
		c.bind("copy")
		c.add(asm.LoadMem(asm.R2, s, 0, asm.DWord), asm.StoreMem(d, 0, asm.R2, asm.DWord), asm.Add.Imm(s, 8), asm.Add.Imm(d, 8),
			asm.Sub.Imm(asm.R4, 1), asm.JNE.Imm(asm.R4, 0, "copy"))
		size %= 8
	}
	for off := 0; size > 0; {
		for _, w := range []asm.Size{asm.DWord, asm.Word, asm.Half, asm.Byte} {
			if n := w.Sizeof(); n <= size {
				c.add(asm.LoadMem(asm.R2, s, int16(off), w), asm.StoreMem(d, int16(off), asm.R2, w))
				off, size = off+n, size-n
				break
			}
		}
	}
}

// Delete is map_delete_elem of a Hash: (key) 0 or an error.
func Delete(ml *abi.MapLayout, arena abi.Addr) *bpf.Program {
	c := &code{ml: ml, arena: arena}
	c.find()
	c.bind("hit")
	c.state(asm.R1)
	c.add(asm.Mov.Imm(asm.R0, abi.StatePresent), asm.Mov.Imm(asm.R2, abi.StateAbsent), asm.CmpXchg.Mem(asm.R1, asm.R2, asm.DWord, 0),
		asm.JNE.Imm(asm.R0, abi.StatePresent, "absent"))
	c.ret(0)
	c.bind("absent")
	c.ret(errNoEnt)
	return c.program("delete")
}
