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
	if ml.IsTable() {
		return c.tableLookup()
	}
	c.add(asm.StoreMem(asm.R10, keptSlot, asm.R2, asm.DWord))
	c.find()
	c.bind("hit")
	c.value(asm.R0)
	c.add(asm.Return())
	c.bind("absent")
	c.ret(0)
	return c.program("lookup")
}

// LookupSlot is map_lookup_percpu_elem: (key, number of a slot) the address of its
// value, or 0. A key of more than 8 bytes is given by its address.
func LookupSlot(ml *abi.MapLayout, l *abi.Layout, arena abi.Addr) *bpf.Program {
	c := &code{ml: ml, arena: arena}
	c.add(asm.Mov.Reg32(asm.R2, asm.R2), asm.JGE.Imm(asm.R2, 1<<l.SlotBits, "absent"), asm.LSh.Imm(asm.R2, int32(l.StrideShift)))
	c.address(asm.R0, l.Slots)
	c.add(asm.Add.Reg(asm.R2, asm.R0), asm.StoreMem(asm.R10, keptSlot, asm.R2, asm.DWord))
	if ml.IsHash() {
		c.find()
		c.bind("hit")
	} else {
		c.add(asm.Mov.Reg32(position, asm.R1), asm.JGE.Imm(position, int32(ml.MaxEntries), "absent"))
	}
	c.value(asm.R0)
	c.add(asm.Return())
	c.bind("absent")
	c.ret(0)
	return c.program("lookup of a slot")
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
	if ml.IsTable() {
		return c.tableUpdate()
	}
	c.asked = ml.IsHash()
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
		c.find()
		c.bind("hit")
		c.add(asm.JEq.Imm(asm.R0, 0, "put"), asm.LoadMem(asm.R0, asm.R10, keptFlags, asm.DWord), asm.JEq.Imm(asm.R0, noExist, "exists"))
	}
	c.bind("put")
	c.value(asm.R0)
	c.add(asm.LoadMem(asm.R1, asm.R10, keptValue, asm.DWord))
	c.copy(asm.R0, asm.R1, ml.ValueSize)
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

// unrolled is how many bytes are copied without a loop.
const unrolled = 64

// copy copies size bytes from s to d, which move. r2 and r4 are used.
func (c *code) copy(d, s asm.Register, size int) {
	if size >= unrolled {
		loop := c.fresh("copy")
		c.add(asm.Mov.Imm(asm.R4, int32(size/8)))
		c.bind(loop)
		c.add(asm.LoadMem(asm.R2, s, 0, asm.DWord), asm.StoreMem(d, 0, asm.R2, asm.DWord), asm.Add.Imm(s, 8), asm.Add.Imm(d, 8),
			asm.Sub.Imm(asm.R4, 1), asm.JNE.Imm(asm.R4, 0, loop))
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
