package routine

import (
	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/bpf"
)

// The place of a for_each_map_elem: what is kept of it between two entries, in bytes.
const (
	EachPosition = 0  // that is looked at next
	EachRound    = 8  // how many entries the function was called for
	EachArg      = 16 // that it is called with
	EachValue    = 24 // the address of the entry's value
	EachKey      = 32 // its key, in words
)

// What Next returns.
const (
	EachNone  = 0 // there are no more entries
	EachFound = 1
	EachGoOn  = 2 // there may be more
)

// Next is a step of for_each_map_elem: (place, slot) whether there is an entry at
// one of the next bpf.EachPositions positions. Its key and the address of its value
// are put into the place then. What comes or goes meanwhile may be seen or not.
func Next(ml *abi.MapLayout, arena abi.Addr) *bpf.Program {
	const place = asm.R9
	c := &code{ml: ml, arena: arena}
	c.add(asm.StoreMem(asm.R10, keptSlot, asm.R2, asm.DWord), asm.Mov.Reg(place, asm.R1),
		asm.LoadMem(position, place, EachPosition, asm.DWord), asm.Mov.Imm(tries, bpf.EachPositions))
	c.bind("probe")
	c.add(asm.JGE.Imm(position, int32(ml.Positions()), "over"))
	switch {
	case !ml.IsHash():
		c.add(asm.StoreMem(place, EachKey, position, asm.DWord))
	case ml.IsTable():
		c.tableKey(place)
	default:
		c.directoryKey(place)
	}
	c.value(asm.R0)
	c.add(asm.StoreMem(place, EachValue, asm.R0, asm.DWord), asm.Add.Imm(position, 1), asm.StoreMem(place, EachPosition, position, asm.DWord))
	c.ret(EachFound)
	c.bind("next")
	c.add(asm.Add.Imm(position, 1), asm.Sub.Imm(tries, 1), asm.JNE.Imm(tries, 0, "probe"), asm.StoreMem(place, EachPosition, position, asm.DWord))
	c.ret(EachGoOn)
	c.bind("over")
	c.ret(EachNone)
	return c.program("next")
}

// tableKey copies the key at a position of a table, or goes to "next". The state is
// read before the key and after it: then they belong to each other.
func (c *code) tableKey(place asm.Register) {
	c.address(dir, c.ml.State(0))
	c.look()
	c.add(asm.Mov.Reg(asm.R0, state), asm.And.Imm(asm.R0, abi.StatePhase), asm.JNE.Imm(asm.R0, abi.PhasePresent, "next"))
	at := c.wordOff()
	if c.ml.KeyWords() > 1 {
		at += 8
	}
	for i := range int16(c.ml.KeyWords()) {
		c.add(asm.LoadMem(asm.R0, entry, at+8*i, asm.DWord), asm.StoreMem(place, EachKey+8*i, asm.R0, asm.DWord))
	}
	c.add(asm.LoadMem(asm.R0, entry, 0, asm.DWord), asm.Xor.Reg(asm.R0, state), asm.And.Imm(asm.R0, ^abi.StateUsed), asm.JNE.Imm(asm.R0, 0, "next"))
}

// directoryKey copies the key at a position of a directory, or goes to "next".
func (c *code) directoryKey(place asm.Register) {
	c.address(dir, c.ml.Dir)
	c.add(asm.Mov.Reg(asm.R0, position))
	c.element(asm.R0, dir)
	c.add(asm.LoadMem(asm.R0, asm.R0, 0, asm.DWord), asm.JEq.Imm(asm.R0, 0, "next"))
	if c.ml.KeyWords() == 1 {
		c.add(asm.JNE.Imm(position, 1<<c.ml.DirBits, "short"), asm.Mov.Imm(asm.R0, 0))
		c.bind("short")
		c.number(asm.R1, uint64(int64(c.ml.KeyMask)))
		c.add(asm.Xor.Reg(asm.R0, asm.R1), asm.StoreMem(place, EachKey, asm.R0, asm.DWord))
		return
	}
	c.add(asm.Mov.Reg32(asm.R2, asm.R0), asm.Sub.Imm(asm.R2, 1), asm.JGE.Imm(asm.R2, int32(c.ml.NodeCount), "next"))
	c.nodeAddress(asm.R2)
	for i := range int16(c.ml.KeyWords()) {
		c.add(asm.LoadMem(asm.R0, asm.R2, 8*i, asm.DWord), asm.StoreMem(place, EachKey+8*i, asm.R0, asm.DWord))
	}
}
