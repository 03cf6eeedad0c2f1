// Package routine holds the runtime that programs call in a target, written
// once, in eBPF: each routine is made for one map of one arena, and compiled by
// the same compiler as the programs. It is trusted: no verifier looks at it.
//
// A routine takes its arguments in r1 to r5 and returns r0. It may be
// interrupted at any instruction by a signal handler that calls it again, runs
// beside others in other threads, and waits for nobody: a thread that dies in
// the middle leaves nothing that another would wait for. What it reads from the
// arena becomes an index only when it is masked or checked.
package routine

import (
	"fmt"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/bpf"
)

// code collects a routine's instructions.
type code struct {
	ml    *abi.MapLayout
	arena abi.Addr
	insns asm.Instructions
	label string // of the next instruction
	enter bool   // a key that is not there is entered
	asked bool   // unless the kept flags say that it must be there
}

func (c *code) add(ins ...asm.Instruction) {
	for _, in := range ins {
		if c.label != "" {
			in = in.WithSymbol(c.label)
			c.label = ""
		}
		c.insns = append(c.insns, in)
	}
}

// bind gives the next instruction a label.
func (c *code) bind(label string) {
	if c.label != "" {
		c.add(asm.Ja.Label(label)) // two labels in one place
	}
	c.label = label
}

// address loads the address of an offset in the arena.
func (c *code) address(r asm.Register, off uint64) {
	c.add(asm.LoadImm(r, int64(uint64(c.arena)+off), asm.DWord))
}

// number loads a number of 64 bits.
func (c *code) number(r asm.Register, v uint64) { c.add(asm.LoadImm(r, int64(v), asm.DWord)) }

// element makes r, an index, the address of an 8-byte element of a table whose
// address is in base.
func (c *code) element(r, base asm.Register) {
	c.add(asm.LSh.Imm(r, 3), asm.Add.Reg(r, base))
}

// fresh is a label that there is not yet.
func (c *code) fresh(name string) string { return fmt.Sprint(name, "_", len(c.insns)) }

// ret returns a number.
func (c *code) ret(v int32) { c.add(asm.Mov.Imm(asm.R0, v), asm.Return()) }

func (c *code) program(what string) *bpf.Program {
	return &bpf.Program{Name: fmt.Sprintf("%s of map %s", what, c.ml.Name), Insns: c.insns, Input: bpf.Input{Memory: true}}
}

// Errors that routines return (include/uapi/asm-generic/errno-base.h).
const (
	errNoEnt  = -2
	errTooBig = -7
	errExist  = -17
	errInval  = -22
)

// Flags of map_update_elem (include/uapi/linux/bpf.h).
const (
	noExist = 1
	exist   = 2
)

// Registers of a search. r0, r1, r2 and r4 are used for anything.
const (
	position = asm.R3
	tries    = asm.R5
	word     = asm.R6 // what the directory holds for a short key
	key      = asm.R6 // address of a long key
	dir      = asm.R7
	upper    = asm.R8 // upper half of a long key's hash
	node     = asm.R9 // directory word of our own node, 0 while there is none
)

// Places on the stack where arguments are kept during a search.
const (
	keptValue = -8
	keptFlags = -16
	keptSlot  = -24
)

// find finds the key in r1, a number of up to 8 bytes or else an address. It
// goes on at "hit" with the position in r3 and 0 in r0 if it has entered the key, at
// "absent", "missing", or "full".
func (c *code) find() {
	if c.ml.KeyWords() == 1 {
		c.findShort()
	} else {
		c.findLong()
	}
	if c.enter {
		c.bind("dropped")
		c.mayEnter()
		c.address(asm.R0, abi.HdrDrops)
		c.add(asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0), asm.Ja.Label("full"))
	}
}

// over is where a search goes that has looked at all positions.
func (c *code) over() string {
	if c.enter {
		return "dropped"
	}
	return "absent"
}

func (c *code) findShort() {
	ml := c.ml
	c.address(dir, ml.Dir)
	c.number(asm.R2, uint64(int64(ml.KeyMask)))
	c.add(asm.Mov.Reg(word, asm.R1), asm.Xor.Reg(word, asm.R2), asm.JEq.Imm(word, 0, "special"))
	c.number(position, abi.HashMul)
	c.add(asm.Mul.Reg(position, asm.R1), asm.RSh.Imm(position, int32(64-ml.DirBits)))
	c.probe()
	c.add(asm.JEq.Reg(asm.R0, word, "hit"))
	if c.enter {
		c.add(asm.JEq.Imm(asm.R0, 0, "claim"))
	} else {
		c.add(asm.JEq.Imm(asm.R0, 0, "absent"))
	}
	c.next()
	if c.enter {
		c.bind("claim")
		c.mayEnter()
		c.count("dropped")
		c.swap(word)
		c.add(asm.JEq.Imm(asm.R0, 0, "hit"))
		c.leave()
		c.add(asm.JEq.Reg(asm.R0, word, "hit"), asm.Ja.Label("next"))
	}
	c.special()
}

// special finds the key whose word means that a position is empty. It has a
// position of its own.
func (c *code) special() {
	c.bind("special")
	c.add(asm.Mov.Imm(position, 1<<c.ml.DirBits), asm.Mov.Reg(asm.R0, position))
	c.element(asm.R0, dir)
	c.add(asm.LoadMem(asm.R0, asm.R0, 0, asm.DWord), asm.JNE.Imm(asm.R0, 0, "hit"))
	if !c.enter {
		c.add(asm.Ja.Label("absent"))
		return
	}
	c.mayEnter()
	c.count("dropped")
	c.add(asm.Mov.Imm(word, 1))
	c.swap(word)
	c.add(asm.JEq.Imm(asm.R0, 0, "hit"))
	c.leave()
	c.add(asm.Ja.Label("hit"))
}

// mayEnter goes to "missing" if the flags say that the key must be there.
func (c *code) mayEnter() {
	if c.asked {
		c.add(asm.LoadMem(asm.R1, asm.R10, keptFlags, asm.DWord), asm.JEq.Imm(asm.R1, exist, "missing"))
	}
}

// probe loads the directory word of the position into r0.
func (c *code) probe() {
	c.add(asm.Mov.Imm(tries, int32(min(abi.ProbeLimit, 1<<c.ml.DirBits))))
	c.bind("probe")
	c.add(asm.Mov.Reg(asm.R0, position))
	c.element(asm.R0, dir)
	c.add(asm.LoadMem(asm.R0, asm.R0, 0, asm.DWord))
}

// next goes to the next position, while there are tries.
func (c *code) next() {
	c.bind("next")
	c.add(asm.Add.Imm(position, 1), asm.And.Imm(position, int32(1)<<c.ml.DirBits-1), asm.Sub.Imm(tries, 1),
		asm.JNE.Imm(tries, 0, "probe"), asm.Ja.Label(c.over()))
}

// count counts a new key, or goes elsewhere when the map is full.
func (c *code) count(full string) {
	c.address(asm.R2, c.ml.Used)
	c.add(asm.Mov.Imm(asm.R1, 1), asm.FetchAdd.Mem(asm.R2, asm.R1, asm.DWord, 0))
	over := c.fresh(full)
	c.add(asm.JLT.Imm(asm.R1, int32(c.ml.MaxEntries), over))
	c.leave()
	c.add(asm.Ja.Label(full))
	c.bind(over)
}

// leave takes back what count counted.
func (c *code) leave() {
	c.address(asm.R2, c.ml.Used)
	c.add(asm.Mov.Imm(asm.R1, -1), asm.AddAtomic.Mem(asm.R2, asm.R1, asm.DWord, 0))
}

// swap puts a word into an empty position. r0 is what was there.
func (c *code) swap(r asm.Register) {
	c.add(asm.Mov.Reg(asm.R1, position))
	c.element(asm.R1, dir)
	c.add(asm.Mov.Imm(asm.R0, 0), asm.CmpXchg.Mem(asm.R1, r, asm.DWord, 0))
}
