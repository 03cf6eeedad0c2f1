package x86

import (
	"fmt"
	"math/rand/v2"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/bpf"
)

// randomProgram makes a valid program by adding random instructions, of which
// the verifier keeps what it accepts. In the end it writes an event with many
// of its registers, so that what it computed can be seen.
func randomProgram(r *rand.Rand, name string) *bpf.Verified {
	g := &randomizer{Rand: r, name: name}
	g.insns = bpfasm.Instructions{bpfasm.Mov.Reg(bpfasm.R6, bpfasm.R1)}
	for reg := bpfasm.R7; reg <= bpfasm.R9; reg++ {
		g.try(g.contextLoad(reg))
	}
	for range 4 + g.IntN(60) {
		g.step()
	}
	return g.finish()
}

type randomizer struct {
	*rand.Rand
	name    string
	insns   bpfasm.Instructions
	pending []string // labels that are jumped to and lie ahead
	labels  int
	next    string // label of the next instruction
}

func (g *randomizer) validate(insns bpfasm.Instructions) (*bpf.Verified, error) {
	return bpf.Verify(&bpf.Program{Name: g.name, Insns: insns, Maps: testMaps})
}

// tail ends the program; all pending labels lead to it. It begins with a label
// only if one is wanted.
func (g *randomizer) tail() bpfasm.Instructions {
	out := bpfasm.Instructions{}
	for _, l := range g.pending {
		out = append(out, bpfasm.Mov.Imm(bpfasm.R0, 0).WithSymbol(l))
	}
	return append(out, bpfasm.Mov.Imm(bpfasm.R0, 0), bpfasm.Return())
}

// try adds instructions if the program stays valid.
func (g *randomizer) try(add ...bpfasm.Instruction) bool {
	if g.next != "" {
		add[0] = add[0].WithSymbol(g.next)
	}
	trial := append(append(bpfasm.Instructions{}, g.insns...), add...)
	if _, err := g.validate(append(trial, g.tail()...)); err != nil {
		return false
	}
	g.insns = trial
	g.next = ""
	return true
}

func (g *randomizer) reg() bpfasm.Register { return bpfasm.Register(g.IntN(10)) }

func (g *randomizer) step() {
	if len(g.pending) > 0 && g.next == "" && g.IntN(4) == 0 {
		i := g.IntN(len(g.pending))
		g.next = g.pending[i]
		g.pending = append(g.pending[:i], g.pending[i+1:]...)
		// The label lies on an instruction that is always valid.
		if !g.try(bpfasm.Mov.Imm(bpfasm.R0, g.Int32())) {
			g.pending = append(g.pending, g.next)
			g.next = ""
		}
		return
	}
	for range 8 {
		if g.try(g.some()...) {
			return
		}
	}
}

func (g *randomizer) some() []bpfasm.Instruction {
	switch g.IntN(14) {
	case 0, 1, 2, 3:
		return []bpfasm.Instruction{g.alu()}
	case 4:
		return []bpfasm.Instruction{g.contextLoad(g.reg())}
	case 5, 6:
		return []bpfasm.Instruction{g.stackAccess()}
	case 7:
		return []bpfasm.Instruction{bpfasm.LoadImm(g.reg(), g.constant(), bpfasm.DWord)}
	case 8:
		return []bpfasm.Instruction{g.atomic(bpfasm.R10, g.stackOffset())}
	case 9, 10:
		return g.cell()
	case 11:
		return g.jump()
	case 12:
		return []bpfasm.Instruction{bpfasm.Mov.Reg(g.reg(), g.reg())}
	}
	return g.helper()
}

var someALU = []bpfasm.ALUOp{
	bpfasm.Add, bpfasm.Sub, bpfasm.Mul, bpfasm.Div, bpfasm.SDiv, bpfasm.Or, bpfasm.And, bpfasm.LSh, bpfasm.RSh,
	bpfasm.Neg, bpfasm.Mod, bpfasm.SMod, bpfasm.Xor, bpfasm.Mov, bpfasm.MovSX8, bpfasm.MovSX16, bpfasm.MovSX32, bpfasm.ArSh,
}

func (g *randomizer) alu() bpfasm.Instruction {
	if g.IntN(10) == 0 {
		size := []bpfasm.Size{bpfasm.Half, bpfasm.Word, bpfasm.DWord}[g.IntN(3)]
		switch g.IntN(3) {
		case 0:
			return bpfasm.BSwap(g.reg(), size)
		case 1:
			return bpfasm.HostTo(bpfasm.BE, g.reg(), size)
		}
		return bpfasm.HostTo(bpfasm.LE, g.reg(), size)
	}
	op := someALU[g.IntN(len(someALU))]
	in := op.Imm(g.reg(), int32(g.constant()))
	wide := g.IntN(2) == 0
	if g.IntN(2) == 0 {
		in = op.Reg(g.reg(), g.reg())
	}
	if !wide {
		in.OpCode = in.OpCode&^7 | bpfasm.OpCode(bpfasm.ALUClass)
	}
	switch op {
	case bpfasm.LSh, bpfasm.RSh, bpfasm.ArSh:
		in.Constant &= 63
	case bpfasm.Neg:
		in.Constant = 0
	}
	return in
}

// constant prefers numbers at borders.
func (g *randomizer) constant() int64 {
	c := []int64{0, 1, -1, 2, 8, 0x7f, 0x80, 0xff, 0x7fffffff, -0x80000000, 0x80000000, 0xffffffff, -0x8000000000000000, 0x7fffffffffffffff}
	switch g.IntN(3) {
	case 0:
		return c[g.IntN(len(c))]
	case 1:
		return int64(g.IntN(64))
	}
	return int64(g.Uint64()) >> g.IntN(64)
}

var sizes = []bpfasm.Size{bpfasm.Byte, bpfasm.Half, bpfasm.Word, bpfasm.DWord}

func (g *randomizer) contextLoad(dst bpfasm.Register) bpfasm.Instruction {
	size := bpfasm.DWord
	off := 8 * g.IntN(bpf.ContextEnd/8)
	if g.IntN(4) == 0 {
		size = sizes[g.IntN(4)]
		off += g.IntN(8) &^ (size.Sizeof() - 1)
	}
	in := bpfasm.LoadMem(dst, bpfasm.R6, int16(off), size)
	if size != bpfasm.DWord && g.IntN(2) == 0 {
		in = bpfasm.LoadMemSX(dst, bpfasm.R6, int16(off), size)
	}
	return in
}

// stackOffset prefers few places, so that they are used again.
func (g *randomizer) stackOffset() int16 {
	if g.IntN(8) == 0 {
		return -int16(1 + g.IntN(160))
	}
	return -8 * int16(1+g.IntN(6))
}

func (g *randomizer) stackAccess() bpfasm.Instruction {
	size, off := sizes[g.IntN(4)], g.stackOffset()
	if g.IntN(2) == 0 {
		size = bpfasm.DWord
	}
	switch g.IntN(5) {
	case 0:
		return bpfasm.LoadMem(g.reg(), bpfasm.R10, off, size)
	case 1:
		return bpfasm.LoadMemSX(g.reg(), bpfasm.R10, off, size)
	case 2:
		return bpfasm.Instruction{OpCode: bpfasm.StoreImmOp(size), Dst: bpfasm.R10, Offset: off, Constant: int64(int32(g.constant()))}
	}
	return bpfasm.StoreMem(bpfasm.R10, off, g.reg(), size)
}

var someAtomics = []bpfasm.AtomicOp{
	bpfasm.AddAtomic, bpfasm.AndAtomic, bpfasm.OrAtomic, bpfasm.XorAtomic, bpfasm.FetchAdd, bpfasm.FetchAnd,
	bpfasm.FetchOr, bpfasm.FetchXor, bpfasm.Xchg, bpfasm.CmpXchg,
}

func (g *randomizer) atomic(base bpfasm.Register, off int16) bpfasm.Instruction {
	size := []bpfasm.Size{bpfasm.Word, bpfasm.DWord}[g.IntN(2)]
	return someAtomics[g.IntN(len(someAtomics))].Mem(base, g.reg(), size, off)
}

// cell looks a key up, tests the result in one of several ways, and does
// something with the cell.
func (g *randomizer) cell() []bpfasm.Instruction {
	m := g.IntN(numMaps)
	off := -8 * int32(1+g.IntN(6))
	var out []bpfasm.Instruction
	switch key := g.IntN(4); {
	case testMaps[m].KeySize == 4:
		out = append(out, bpfasm.StoreImm(bpfasm.R10, int16(off), int64(g.IntN(12)), bpfasm.Word))
		if key == 0 {
			out[0] = bpfasm.StoreMem(bpfasm.R10, int16(off), g.reg(), bpfasm.Word)
		}
	case testMaps[m].KeySize == 16:
		off = min(off, -16)
		out = append(out, bpfasm.StoreMem(bpfasm.R10, int16(off), g.reg(), bpfasm.DWord),
			bpfasm.StoreMem(bpfasm.R10, int16(off+8), g.reg(), bpfasm.DWord))
	default:
		k := g.reg()
		if key < 3 { // few keys, among them those that are seldom right
			mask := int64(layoutOf(m).KeyMask)
			out = append(out, bpfasm.LoadImm(k, []int64{mask, 0, 1, mask + 1, int64(g.IntN(8)), -1}[g.IntN(6)], bpfasm.DWord))
		}
		if key == 1 { // known only at run time
			out = append(out, bpfasm.LoadMem(bpfasm.R5, bpfasm.R6, bpf.PtRegsDI, bpfasm.DWord), bpfasm.And.Imm(bpfasm.R5, 3), bpfasm.Add.Reg(k, bpfasm.R5))
		}
		out = append(out, bpfasm.StoreMem(bpfasm.R10, int16(off), k, bpfasm.DWord))
		if key == 2 { // and no longer in a register
			out = append(out, bpfasm.LoadImm(k, 5, bpfasm.DWord))
		}
	}
	out = append(out, bpf.LoadMap(bpfasm.R1, m), bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R2, off), bpf.Call(bpf.HelperMapCell))
	return append(out, g.useCell(m)...)
}

func (g *randomizer) useCell(m int) []bpfasm.Instruction {
	ptr := bpfasm.R0
	var out []bpfasm.Instruction
	if g.IntN(3) == 0 {
		ptr = bpfasm.R7 + bpfasm.Register(g.IntN(3))
		out = append(out, bpfasm.Mov.Reg(ptr, bpfasm.R0))
	}
	g.labels++
	over := fmt.Sprintf("null%d", g.labels)
	test := bpfasm.R0
	if g.IntN(2) == 0 {
		test = ptr
	}
	if g.IntN(3) == 0 {
		some := fmt.Sprintf("cell%d", g.labels)
		out = append(out, bpfasm.JNE.Imm(test, 0, some), bpfasm.Ja.Label(over), bpfasm.Mov.Imm(bpfasm.R1, 3).WithSymbol(some))
	} else {
		out = append(out, bpfasm.JEq.Imm(test, 0, over))
	}
	if testMaps[m].ValueSize > 8 && g.IntN(2) == 0 { // an element at an index that is known only at run time
		out = append(out, bpfasm.Mov.Reg(bpfasm.R2, g.reg()), bpfasm.And.Imm(bpfasm.R2, 8), bpfasm.Add.Reg(bpfasm.R2, ptr),
			bpfasm.Mov.Imm(bpfasm.R3, 7), bpfasm.AddAtomic.Mem(bpfasm.R2, bpfasm.R3, bpfasm.DWord, 0))
	}
	for range 1 + g.IntN(3) {
		off := int16(g.IntN(testMaps[m].ValueSize) &^ 7)
		switch g.IntN(4) {
		case 0:
			out = append(out, bpfasm.LoadMem(bpfasm.R8, ptr, off, bpfasm.DWord))
		case 1:
			out = append(out, bpfasm.StoreMem(ptr, off, bpfasm.R9, bpfasm.DWord))
		case 2:
			out = append(out, bpfasm.Mov.Imm(bpfasm.R2, 1), bpfasm.AddAtomic.Mem(ptr, bpfasm.R2, bpfasm.DWord, off))
		default:
			a := g.atomic(ptr, off)
			if a.Src == ptr || a.Src <= bpfasm.R5 {
				a.Src = bpfasm.R9
			}
			out = append(out, a)
		}
	}
	if ptr != bpfasm.R0 {
		out = append(out, bpfasm.Mov.Imm(ptr, 1).WithSymbol(over))
		return append(out, bpfasm.Mov.Imm(bpfasm.R0, 1))
	}
	return append(out, bpfasm.Mov.Imm(bpfasm.R0, 1).WithSymbol(over))
}

var someJumps = []bpfasm.JumpOp{
	bpfasm.JEq, bpfasm.JNE, bpfasm.JGT, bpfasm.JGE, bpfasm.JLT, bpfasm.JLE, bpfasm.JSet,
	bpfasm.JSGT, bpfasm.JSGE, bpfasm.JSLT, bpfasm.JSLE,
}

func (g *randomizer) jump() []bpfasm.Instruction {
	g.labels++
	l := fmt.Sprintf("l%d", g.labels)
	g.pending = append(g.pending, l)
	op := someJumps[g.IntN(len(someJumps))]
	switch g.IntN(4) {
	case 0:
		return []bpfasm.Instruction{op.Imm(g.reg(), int32(g.constant()), l)}
	case 1:
		return []bpfasm.Instruction{op.Imm32(g.reg(), int32(g.constant()), l)}
	case 2:
		return []bpfasm.Instruction{op.Reg(g.reg(), g.reg(), l)}
	}
	return []bpfasm.Instruction{op.Reg32(g.reg(), g.reg(), l)}
}

func (g *randomizer) helper() []bpfasm.Instruction {
	switch g.IntN(8) {
	case 0:
		g.labels++
		over := fmt.Sprintf("exit%d", g.labels)
		return []bpfasm.Instruction{bpfasm.JNE.Imm(g.reg(), 1, over), bpf.Call(bpf.HelperExit), bpfasm.Mov.Imm(bpfasm.R0, 1).WithSymbol(over)}
	case 1, 2:
		return []bpfasm.Instruction{bpf.Call(bpf.HelperGetCurrentPidTgid), bpfasm.RSh.Imm(bpfasm.R0, 32)}
	case 3, 4:
		return []bpfasm.Instruction{bpfasm.Mov.Reg(bpfasm.R1, g.reg()), bpf.Call(bpf.HelperBitLength)}
	}
	return event8(8*int32(1+g.IntN(4)), -8*int32(4+g.IntN(4)))
}

func event8(size, off int32) []bpfasm.Instruction {
	return []bpfasm.Instruction{
		bpf.LoadRing(bpfasm.R1), bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R2, off),
		bpfasm.Mov.Imm(bpfasm.R3, size), bpfasm.Mov.Imm(bpfasm.R4, 0), bpf.Call(bpf.HelperRingbufOutput),
	}
}

// finish writes out a part of the registers.
func (g *randomizer) finish() *bpf.Verified {
	const low = -400
	for _, l := range g.pending {
		g.insns = append(g.insns, bpfasm.Mov.Imm(bpfasm.R0, 0).WithSymbol(l))
	}
	g.pending = nil
	for r := range bpfasm.R10 {
		off := int16(low + 8*int(r))
		if g.IntN(3) == 0 || !g.try(bpfasm.StoreMem(bpfasm.R10, off, r, bpfasm.DWord), bpfasm.LoadMem(bpfasm.R5, bpfasm.R10, off, bpfasm.DWord), bpfasm.Xor.Imm(bpfasm.R5, 0)) {
			g.insns = append(g.insns, bpfasm.Instruction{OpCode: bpfasm.StoreImmOp(bpfasm.DWord), Dst: bpfasm.R10, Offset: off, Constant: 1})
		}
	}
	g.insns = append(g.insns, event8(80, low)...)
	v, err := g.validate(append(g.insns, g.tail()...))
	if err != nil {
		panic(fmt.Sprintf("BUG: random program: %v", err))
	}
	return v
}
