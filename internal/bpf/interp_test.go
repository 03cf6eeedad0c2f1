package bpf

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

func newMachine(t testing.TB) *Machine {
	t.Helper()
	l, err := abi.NewLayout(abi.Config{Threads: 1, Maps: testMaps})
	if err != nil {
		t.Fatal(err)
	}
	return &Machine{Arena: make([]byte, l.Size), Layout: l, TGID: 4711}
}

func (m *Machine) cell(mapNumber, pos int) uint64 {
	ml := &m.Layout.Maps[mapNumber]
	return loadWord(m.Arena, m.slotBase()+ml.Cells+uint64(pos*ml.ValueSize))
}

func mustVerify(t testing.TB, p *Program) *Verified {
	t.Helper()
	v, err := Verify(p)
	if err != nil {
		t.Fatalf("%v\n%v", err, p)
	}
	return v
}

// Results are from RFC 9669, 4.1 and 4.2, and from its definitions of / and %.
func TestArithmetic(t *testing.T) {
	const (
		min64 = 1 << 63
		max64 = 1<<64 - 1
		min32 = 1 << 31
	)
	for _, c := range []struct {
		text     string
		in       asm.Instruction
		dst, src uint64
		want     uint64
	}{
		{"32-bit result clears the upper half", asm.Add.Reg32(0, 1), max64, 1, 0},
		{"imm is sign-extended", asm.Add.Imm(0, -1), 5, 0, 4},
		{"32-bit imm is not", asm.Or.Imm32(0, -1), 0, 0, 0xffffffff},
		{"mov imm", asm.Mov.Imm(0, -2), 0, 0, max64 - 1},
		{"mov32 imm", asm.Mov.Imm32(0, -2), 0, 0, 0xfffffffe},
		{"mov32 reg", asm.Mov.Reg32(0, 1), 0, max64, 0xffffffff},
		{"unsigned division", asm.Div.Reg(0, 1), max64, 2, max64 / 2},
		{"division by zero", asm.Div.Reg(0, 1), 7, 0, 0},
		{"32-bit division by a zero lower half", asm.Div.Reg32(0, 1), 7, 1 << 32, 0},
		{"remainder by zero", asm.Mod.Reg(0, 1), 7, 0, 7},
		{"32-bit remainder by zero", asm.Mod.Reg32(0, 1), max64, 0, 0xffffffff},
		{"unsigned division by a sign-extended imm", asm.Div.Imm(0, -1), max64, 0, 1},
		{"signed division truncates", asm.SDiv.Reg(0, 1), neg(13), 3, neg(4)},
		{"signed remainder follows the dividend", asm.SMod.Reg(0, 1), neg(13), 3, neg(1)},
		{"signed division of the smallest number", asm.SDiv.Reg(0, 1), min64, max64, min64},
		{"signed remainder of the smallest number", asm.SMod.Reg(0, 1), min64, max64, 0},
		{"the same with 32 bits", asm.SDiv.Reg32(0, 1), min32, max64, min32},
		{"and its remainder", asm.SMod.Reg32(0, 1), min32, 0xffffffff, 0},
		{"32-bit signed division", asm.SDiv.Imm32(0, -3), 13, 0, 0xfffffffc},
		{"shift counts are masked", asm.LSh.Reg(0, 1), 1, 65, 2},
		{"to 5 bits with 32", asm.RSh.Reg32(0, 1), 0x1_0000_0004, 33, 2},
		{"arithmetic shift", asm.ArSh.Imm(0, 4), min64, 0, 0xf8 << 56},
		{"32-bit arithmetic shift", asm.ArSh.Imm32(0, 4), min32, 0, 0xf8000000},
		{"negation", asm.Instruction{OpCode: asm.Neg.Op(asm.ImmSource)}, 1, 0, max64},
		{"32-bit negation", asm.Instruction{OpCode: asm.Neg.Op32(asm.ImmSource)}, 1, 0, 0xffffffff},
		{"movsx8", asm.MovSX8.Reg(0, 1), 0, 0x180, neg(0x80)},
		{"movsx16 to 32 bits", asm.MovSX16.Reg32(0, 1), 0, 0x8000, 0xffff8000},
		{"movsx32", asm.MovSX32.Reg(0, 1), 0, min32, neg(min32)},
		{"be16", asm.HostTo(asm.BE, 0, asm.Half), 0x11223344, 0, 0x4433},
		{"be32", asm.HostTo(asm.BE, 0, asm.Word), 0xff11223344, 0, 0x44332211},
		{"be64", asm.HostTo(asm.BE, 0, asm.DWord), 0x1122334455667788, 0, 0x8877665544332211},
		{"le16 truncates", asm.HostTo(asm.LE, 0, asm.Half), 0x11223344, 0, 0x3344},
		{"le64 does nothing", asm.HostTo(asm.LE, 0, asm.DWord), max64, 0, max64},
		{"bswap16", asm.BSwap(0, asm.Half), 0x11223344, 0, 0x4433},
	} {
		m := newMachine(t)
		v := mustVerify(t, program(concat(
			asm.LoadMem(asm.R0, asm.R1, PtRegsDI, asm.DWord), asm.LoadMem(asm.R1, asm.R1, PtRegsSI, asm.DWord),
			c.in, asm.Mov.Reg(asm.R6, asm.R0), asm.StoreImm(asm.R10, -8, 0, asm.Word), lookup(0),
			asm.StoreMem(asm.R0, 0, asm.R6, asm.DWord), ret)...))
		var ctx Regs
		ctx[PtRegsDI/8], ctx[PtRegsSI/8] = c.dst, c.src
		if err := m.Run(v, &ctx); err != nil {
			t.Fatal(err)
		}
		if got := m.cell(0, 0); got != c.want {
			t.Errorf("%s: %v of %#x and %#x is %#x, not %#x", c.text, c.in, c.dst, c.src, got, c.want)
		}
	}
}

func neg(x uint64) uint64 { return -x }

func TestAtomics(t *testing.T) {
	const old = 0xffffffff_00000005
	for _, c := range []struct {
		op                 asm.AtomicOp
		size               asm.Size
		src, r0            uint64
		mem, wantSrc, want uint64 // want is r0
	}{
		{asm.AddAtomic, asm.DWord, 3, 0, old + 3, 3, 0},
		{asm.AddAtomic, asm.Word, 0xffffffff, 0, old - 1, 0xffffffff, 0},
		{asm.FetchAdd, asm.DWord, 3, 0, old + 3, old, 0},
		{asm.FetchAdd, asm.Word, 3, 0, old + 3, 5, 0},
		{asm.FetchAnd, asm.DWord, 4, 0, 4, old, 0},
		{asm.FetchOr, asm.Word, 2, 0, old + 2, 5, 0},
		{asm.FetchXor, asm.DWord, old, 0, 0, old, 0},
		{asm.Xchg, asm.Word, 0x1_00000009, 0, old + 4, 5, 0},
		{asm.CmpXchg, asm.DWord, 9, old, 9, 9, old},
		{asm.CmpXchg, asm.DWord, 9, 5, old, 9, old},
		{asm.CmpXchg, asm.Word, 9, 0x7_00000005, old + 4, 9, 5}, // compares the lower half, clears the upper
		{asm.CmpXchg, asm.Word, 9, 6, old, 9, 5},
	} {
		m := newMachine(t)
		v := mustVerify(t, program(concat(
			asm.LoadImm(asm.R2, int64(-0x1_00000000+5), asm.DWord), asm.StoreMem(asm.R10, -16, asm.R2, asm.DWord),
			asm.LoadMem(asm.R0, asm.R1, PtRegsDI, asm.DWord), asm.LoadMem(asm.R7, asm.R1, PtRegsSI, asm.DWord),
			c.op.Mem(asm.R10, asm.R7, c.size, -16), asm.Mov.Reg(asm.R8, asm.R0), asm.LoadMem(asm.R9, asm.R10, -16, asm.DWord),
			asm.StoreMem(asm.R10, -40, asm.R7, asm.DWord), asm.StoreMem(asm.R10, -32, asm.R8, asm.DWord), asm.StoreMem(asm.R10, -24, asm.R9, asm.DWord),
			LoadRing(asm.R1), asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -40), asm.Mov.Imm(asm.R3, 24), asm.Mov.Imm(asm.R4, 0),
			Call(HelperRingbufOutput), ret)...))
		var got [3]uint64
		m.Event = func(b []byte) bool {
			for i := range got {
				got[i] = loadBytes(b[8*i:], 8)
			}
			return true
		}
		var ctx Regs
		ctx[PtRegsDI/8], ctx[PtRegsSI/8] = c.r0, c.src
		if err := m.Run(v, &ctx); err != nil {
			t.Fatal(err)
		}
		if want := [3]uint64{c.wantSrc, c.want, c.mem}; got != want {
			t.Errorf("%v of %d bytes, src %#x, r0 %#x: src, r0, memory are %#x, not %#x", c.op, c.size.Sizeof(), c.src, c.r0, got, want)
		}
	}
}

func TestMapCells(t *testing.T) {
	m := newMachine(t)
	v := mustVerify(t, program(concat(LoadArg(asm.R3, asm.R1, 0), asm.StoreMem(asm.R10, -8, asm.R3, asm.DWord), lookup(1),
		asm.JEq.Imm(asm.R0, 0, "out"), asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
		r0is(0).WithSymbol("out"), ret)...))
	ml := &m.Layout.Maps[1]
	mask := uint64(int64(ml.KeyMask))
	for _, key := range []uint64{0, 1, mask, 2, 3, 4, 0, mask} { // 4 entries
		var ctx Regs
		ctx[ArgOffset(0)/8] = key
		if err := m.Run(v, &ctx); err != nil {
			t.Fatal(err)
		}
	}
	if used, drops := loadWord(m.Arena, ml.Used), loadWord(m.Arena, abi.HdrDrops); used != 4 || drops != 2 {
		t.Errorf("%d keys, %d drops, not 4 and 2", used, drops)
	}
	hits := map[uint64]uint64{}
	for pos := range ml.Positions() {
		if w := loadWord(m.Arena, ml.Dir+8*uint64(pos)); w != 0 {
			key := w ^ mask
			if pos == 1<<ml.DirBits {
				key = mask
			}
			hits[key] = m.cell(1, pos)
		}
	}
	if len(hits) != 4 || hits[0] != 2 || hits[1] != 1 || hits[2] != 1 || hits[mask] != 2 {
		t.Errorf("hits are %v", hits)
	}
}

func TestMachineStops(t *testing.T) {
	m := newMachine(t)
	v := mustVerify(t, program(Call(HelperExit), ret))
	if err := m.Run(v, nil); err != nil || loadWord(m.Arena, abi.HdrStop) == 0 {
		t.Errorf("%v, stop word %d", err, loadWord(m.Arena, abi.HdrStop))
	}
	m.Layout.Maps = nil
	if err := m.Run(v, nil); !errors.Is(err, ErrInvalid) {
		t.Errorf("run without its maps: %v", err)
	}
}

// trusted decodes a program that the verifier need not accept.
func trusted(t testing.TB, p *Program) *Verified {
	t.Helper()
	v, err := Trust(p)
	if err != nil {
		t.Fatalf("%v\n%v", err, p)
	}
	return v
}

// storeImm stores 8 bytes; asm.StoreImm does not.
func storeImm(dst asm.Register, off int16, v int64) asm.Instruction {
	return asm.Instruction{OpCode: asm.StoreImmOp(asm.DWord), Dst: dst, Offset: off, Constant: v}
}

// memoryProgram gets memory as its input.
func memoryProgram(size int, insns ...asm.Instruction) *Program {
	p := program(insns...)
	p.Input = Input{Memory: true, Size: size}
	return p
}

// A function keeps r6 to r9 for its caller, has a stack of its own, and may
// write to its caller's.
func TestFunctions(t *testing.T) {
	v := trusted(t, memoryProgram(0,
		asm.Mov.Imm(asm.R6, 5), storeImm(asm.R10, -8, 7),
		asm.Mov.Reg(asm.R1, asm.R10), asm.Add.Imm(asm.R1, -8), asm.Mov.Imm(asm.R2, 100),
		asm.Call.Label("f"),
		asm.LoadMem(asm.R1, asm.R10, -8, asm.DWord), asm.Add.Reg(asm.R0, asm.R1), asm.Add.Reg(asm.R0, asm.R6), ret,
		asm.Mov.Imm(asm.R6, 1000).WithSymbol("f"), storeImm(asm.R10, -8, 9),
		asm.StoreMem(asm.R1, 0, asm.R2, asm.DWord), asm.Mov.Reg(asm.R0, asm.R6), ret,
	))
	if got, err := newMachine(t).RunMemory(v, nil); err != nil || got != 1105 {
		t.Errorf("%d, %v, not 1105", got, err)
	}
}

func TestFuel(t *testing.T) {
	// Each round of the loop costs its 2 instructions.
	v := trusted(t, memoryProgram(0, asm.Mov.Imm(asm.R0, 0), asm.Add.Imm(asm.R0, 1).WithSymbol("loop"), asm.JNE.Imm(asm.R0, 1000, "loop"), ret))
	m := newMachine(t)
	for fuel, enough := range map[int]bool{0: true, 1998: true, 1997: false} {
		m.Fuel = fuel
		got, err := m.RunMemory(v, nil)
		if enough && (err != nil || got != 1000) || !enough && !errors.Is(err, ErrFuel) {
			t.Errorf("%d units of fuel: %d, %v", fuel, got, err)
		}
	}
	endless := trusted(t, memoryProgram(0, asm.Ja.Label("l").WithSymbol("l")))
	m.Fuel = 0
	if _, err := m.RunMemory(endless, nil); !errors.Is(err, ErrFuel) {
		t.Errorf("an endless loop: %v", err)
	}
}

// The interpreter sees every access outside an object by itself.
func TestAccessIsChecked(t *testing.T) {
	cell := concat(storeImm(asm.R10, -8, 0), lookup(1))
	for name, insns := range map[string][]asm.Instruction{
		"null":                       {asm.Mov.Imm(asm.R1, 0), asm.LoadMem(asm.R0, asm.R1, 0, asm.Byte), ret},
		"behind the memory":          {asm.LoadMem(asm.R0, asm.R1, 8, asm.Byte), ret},
		"across its end":             {asm.LoadMem(asm.R0, asm.R1, 5, asm.Word), ret},
		"before it":                  {asm.LoadMem(asm.R0, asm.R1, -1, asm.Byte), ret},
		"above the stack":            {asm.StoreImm(asm.R10, 0, 0, asm.Byte), ret},
		"below the stack":            {asm.StoreImm(asm.R10, -513, 0, asm.Byte), ret},
		"stack that was not written": {asm.StoreImm(asm.R10, -8, 0, asm.Word), asm.LoadMem(asm.R0, asm.R10, -8, asm.DWord), ret},
		"register, not written":      {asm.Mov.Reg(asm.R0, asm.R3), ret},
		"lost in a call":             {asm.Mov.Imm(asm.R3, 1), Call(HelperGetCurrentPidTgid), asm.Mov.Reg(asm.R0, asm.R3), ret},
		"r0 at the end":              {ret},
		"behind a cell":              concat(asm.Instructions(cell), asm.LoadMem(asm.R0, asm.R0, 16, asm.Byte), ret),
		"before a cell":              concat(asm.Instructions(cell), storeImm(asm.R0, -8, 1), ret),
		"a map's reference":          {LoadMap(asm.R1, 0), asm.LoadMem(asm.R0, asm.R1, 0, asm.Byte), ret},
		"a key that is not there":    concat(lookup(1), r0is(0), ret),
		"no map":                     {asm.Mov.Imm(asm.R1, 0), asm.Mov.Reg(asm.R2, asm.R10), Call(HelperMapCell), ret},
		"the frame of a callee": {asm.Call.Label("f"), asm.LoadMem(asm.R0, asm.R0, -8, asm.DWord), ret,
			asm.Mov.Reg(asm.R0, asm.R10).WithSymbol("f"), storeImm(asm.R10, -8, 1), ret},
	} {
		if _, err := newMachine(t).RunMemory(trusted(t, memoryProgram(8, insns...)), make([]byte, 8)); !errors.Is(err, ErrAccess) {
			t.Errorf("%s: %v", name, err)
		}
	}
	writes := trusted(t, program(storeImm(asm.R1, PtRegsDI, 0), r0is(0), ret))
	if err := newMachine(t).Run(writes, nil); !errors.Is(err, ErrAccess) {
		t.Errorf("a store to the context: %v", err)
	}
}
