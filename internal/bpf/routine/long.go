package routine

import (
	"github.com/cilium/ebpf/asm"
)

// keyWord loads word i of the key that a register points to; the last one may have
// fewer bytes. r1 is used, unless the word has 4 or 8.
func (c *code) keyWord(d, key asm.Register, i int) {
	rest := min(8, c.ml.KeySize-8*i)
	off := int16(8 * i)
	switch rest {
	case 8:
		c.add(asm.LoadMem(d, key, off, asm.DWord))
		return
	case 4:
		c.add(asm.LoadMem(d, key, off, asm.Word))
		return
	}
	c.add(asm.Mov.Imm(d, 0))
	for b := rest - 1; b >= 0; b-- {
		c.add(asm.LSh.Imm(d, 8), asm.LoadMem(asm.R1, key, off+int16(b), asm.Byte), asm.Or.Reg(d, asm.R1))
	}
}

// hash computes abi.HashKey: the position and the upper half.
func (c *code) hash() {
	c.hashAll(position)
	c.add(asm.Mov.Reg(upper, position), asm.RSh.Imm(upper, 32), asm.RSh.Imm(position, int32(64-c.ml.DirBits)))
}

func (c *code) findLong() {
	c.address(dir, c.ml.Dir)
	c.add(asm.Mov.Reg(key, asm.R1))
	c.hash()
	if c.enter {
		c.add(asm.Mov.Imm(node, 0))
	}
	c.probe()
	if c.enter {
		c.add(asm.JEq.Imm(asm.R0, 0, "empty"))
	} else {
		c.add(asm.JEq.Imm(asm.R0, 0, "absent"))
	}
	c.bind("match")
	c.match()
	c.add(asm.Ja.Label("hit"))
	c.next()
	if !c.enter {
		return
	}
	c.bind("empty")
	c.mayEnter()
	c.add(asm.JNE.Imm(node, 0, "claim"))
	c.newNode()
	c.bind("claim")
	c.count("dropped")
	c.swap(node)
	c.add(asm.JEq.Imm(asm.R0, 0, "hit"))
	c.leave()
	c.add(asm.Ja.Label("match")) // r0 is the word that another thread has put there
}

// match goes to "next" unless the directory word in r0 names a node with the
// key.
func (c *code) match() {
	c.add(asm.Mov.Reg(asm.R1, asm.R0), asm.RSh.Imm(asm.R1, 32), asm.JNE.Reg(asm.R1, upper, "next"),
		asm.Mov.Reg32(asm.R2, asm.R0), asm.Sub.Imm(asm.R2, 1), asm.JGE.Imm(asm.R2, int32(c.ml.NodeCount), "next"))
	c.nodeAddress(asm.R2)
	for i := range c.ml.KeyWords() {
		c.keyWord(asm.R4, key, i)
		c.add(asm.LoadMem(asm.R1, asm.R2, int16(8*i), asm.DWord), asm.JNE.Reg(asm.R1, asm.R4, "next"))
	}
}

// nodeAddress makes r2, the number of a node, its address. r1 is used.
func (c *code) nodeAddress(r asm.Register) {
	c.add(asm.Mul.Imm(r, int32(8*c.ml.KeyWords())))
	c.address(asm.R1, c.ml.Nodes+8)
	c.add(asm.Add.Reg(r, asm.R1))
}

// newNode takes a node, writes the key into it and makes the word that names
// it. Without one it goes to "dropped".
func (c *code) newNode() {
	c.address(asm.R2, c.ml.Used)
	c.add(asm.LoadMem(asm.R1, asm.R2, 0, asm.DWord), asm.JGE.Imm(asm.R1, int32(c.ml.MaxEntries), "dropped"))
	c.address(asm.R2, c.ml.Nodes)
	c.add(asm.Mov.Imm(asm.R1, 1), asm.FetchAdd.Mem(asm.R2, asm.R1, asm.DWord, 0),
		asm.JGE.Imm(asm.R1, int32(c.ml.NodeCount), "dropped"),
		asm.Mov.Reg(node, upper), asm.LSh.Imm(node, 32), asm.Add.Reg(node, asm.R1), asm.Add.Imm(node, 1), asm.Mov.Reg(asm.R2, asm.R1))
	c.nodeAddress(asm.R2)
	for i := range c.ml.KeyWords() {
		c.keyWord(asm.R4, key, i)
		c.add(asm.StoreMem(asm.R2, int16(8*i), asm.R4, asm.DWord))
	}
}
