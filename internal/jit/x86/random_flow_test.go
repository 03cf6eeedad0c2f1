package x86

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/bpf"
)

// regionSize is how many bytes the pointer that each function of a random
// program gets in r1 points to, in the input's memory or in its caller's stack.
const regionSize = 32

// flowRandomizer makes programs with jumps in both directions, functions, and
// pointers to the stack in registers and in memory. They are valid by the use
// that they make of each register:
//
//	r0, r2 to r5, r7 to r9  numbers
//	r1                      a pointer, for the few instructions that need one
//	r6                      the pointer that the function got
type flowRandomizer struct {
	*rand.Rand
	insns  bpfasm.Instructions
	groups int // of the function
	fn     int
	funcs  int
	strict bool // only what the verifier accepts too
}

func randomFlow(r *rand.Rand) *bpf.Program { return (&flowRandomizer{Rand: r}).program() }

func (g *flowRandomizer) program() *bpf.Program {
	g.funcs = 1 + g.IntN(4)
	for g.fn = range g.funcs {
		g.function()
	}
	return &bpf.Program{Name: "flow", Input: bpf.Input{Memory: true, Size: regionSize}, Insns: g.insns, Maps: testMaps}
}

func (g *flowRandomizer) add(in ...bpfasm.Instruction) { g.insns = append(g.insns, in...) }

func (g *flowRandomizer) label(group int) string { return fmt.Sprintf("f%dg%d", g.fn, group) }

var numbers = []bpfasm.Register{bpfasm.R0, bpfasm.R2, bpfasm.R3, bpfasm.R4, bpfasm.R5, bpfasm.R7, bpfasm.R8, bpfasm.R9}

func (g *flowRandomizer) num() bpfasm.Register { return numbers[g.IntN(len(numbers))] }

// frameBytes is how much of its stack a function uses.
const frameBytes = 64

// Functions with an odd number are called by bpf_loop: with the round in r1 and
// the pointer in r2.
func (g *flowRandomizer) function() {
	first := len(g.insns)
	looped := g.fn%2 == 1
	if looped {
		g.add(bpfasm.Mov.Reg(bpfasm.R6, bpfasm.R2))
	} else {
		g.add(bpfasm.Mov.Reg(bpfasm.R6, bpfasm.R1))
	}
	for _, r := range numbers {
		if looped && r == bpfasm.R7 {
			g.add(bpfasm.Mov.Reg(bpfasm.R7, bpfasm.R1))
			continue
		}
		if g.fn == 0 || looped || r < bpfasm.R2 || r > bpfasm.R5 {
			g.add(bpfasm.LoadImm(r, g.constant(), bpfasm.DWord))
		}
	}
	for off := int16(-frameBytes); off < 0; off += 8 {
		g.add(bpfasm.StoreMem(bpfasm.R10, off, g.num(), bpfasm.DWord))
	}
	g.insns[first] = g.insns[first].WithSymbol(fmt.Sprintf("f%d", g.fn))
	g.groups = 5 + g.IntN(25)
	for i := range g.groups {
		at := len(g.insns)
		g.group()
		g.insns[at] = g.insns[at].WithSymbol(g.label(i))
	}
	if looped {
		g.add(bpfasm.And.Imm(bpfasm.R0, int32(g.IntN(2))))
	}
	g.add(bpfasm.Return())
}

// group adds a few instructions; jumps go to the first of such.
func (g *flowRandomizer) group() {
	switch k := g.IntN(16); {
	case k < 6:
		g.add(g.alu())
	case k < 9:
		g.access(bpfasm.R10, -frameBytes, frameBytes)
	case k < 10:
		g.access(bpfasm.R6, 0, regionSize)
	case k < 11: // a place in the stack or region that only the run knows
		base, off := bpfasm.R10, int32(-frameBytes)
		if g.IntN(2) == 0 {
			base, off = bpfasm.R6, 0
		}
		g.add(bpfasm.Mov.Reg(bpfasm.R1, g.num()), bpfasm.And.Imm(bpfasm.R1, 0x18), bpfasm.Add.Reg(bpfasm.R1, base))
		if off != 0 {
			g.add(bpfasm.Add.Imm(bpfasm.R1, off))
		}
		g.access(bpfasm.R1, 0, 8)
	case k < 12: // a pointer, kept on the stack meanwhile
		g.add(bpfasm.Mov.Reg(bpfasm.R1, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R1, -frameBytes), bpfasm.StoreMem(bpfasm.R10, -72, bpfasm.R1, bpfasm.DWord),
			bpfasm.LoadMem(bpfasm.R1, bpfasm.R10, -72, bpfasm.DWord))
		g.access(bpfasm.R1, 0, frameBytes)
	case k < 13 && g.fn+1 < g.funcs:
		g.call()
	case k < 14:
		g.add(bpfasm.Mov.Reg(g.num(), g.num()))
	default:
		g.jump()
	}
}

func (g *flowRandomizer) call() {
	callee := g.fn + 1 + g.IntN(g.funcs-g.fn-1)
	p := bpfasm.R1
	if callee%2 == 1 {
		p = bpfasm.R3
	}
	if g.IntN(2) == 0 && (!g.strict || callee%2 == 0) {
		g.add(bpfasm.Mov.Reg(p, bpfasm.R6))
	} else {
		g.add(bpfasm.Mov.Reg(p, bpfasm.R10), bpfasm.Add.Imm(p, -int32(frameBytes-8*g.IntN(4))))
	}
	if callee%2 == 1 {
		if g.IntN(2) == 0 {
			g.add(bpfasm.Mov.Imm(bpfasm.R1, int32(g.IntN(5))))
		} else {
			g.add(bpfasm.Mov.Reg(bpfasm.R1, bpfasm.R7), bpfasm.And.Imm(bpfasm.R1, []int32{3, 7, -1}[g.IntN(3)]))
		}
		g.add(bpfasm.Instruction{OpCode: bpfasm.LoadImmOp(bpfasm.DWord), Dst: bpfasm.R2, Src: bpfasm.PseudoFunc, Constant: -1}.WithReference(fmt.Sprintf("f%d", callee)),
			bpfasm.Mov.Imm(bpfasm.R4, 0), bpfasm.FnLoop.Call())
	} else {
		g.add(bpfasm.Call.Label(fmt.Sprintf("f%d", callee)))
	}
	for r := bpfasm.R2; r <= bpfasm.R5; r++ {
		g.add(bpfasm.Mov.Imm(r, int32(g.constant())))
	}
}

func (g *flowRandomizer) constant() int64 { return (&randomizer{Rand: g.Rand}).constant() }

// alu is any arithmetic instruction on numbers.
func (g *flowRandomizer) alu() bpfasm.Instruction {
	in := (&randomizer{Rand: g.Rand}).alu()
	in.Dst = g.num()
	if in.OpCode.Source() == bpfasm.RegSource && in.OpCode.ALUOp() != bpfasm.Swap {
		in.Src = g.num()
	}
	if in.OpCode.ALUOp() == bpfasm.Neg {
		in.OpCode, in.Src = in.OpCode.SetSource(bpfasm.ImmSource), 0
	}
	switch in.OpCode.ALUOp() {
	case bpfasm.MovSX8, bpfasm.MovSX16, bpfasm.MovSX32:
		in.OpCode, in.Src, in.Constant = bpfasm.OpCode(bpfasm.ALU64Class).SetALUOp(in.OpCode.ALUOp()).SetSource(bpfasm.RegSource), g.num(), 0
	}
	return in
}

// access reads or writes, or does both, somewhere in size bytes at base+off.
func (g *flowRandomizer) access(base bpfasm.Register, off int16, size int) {
	s := sizes[g.IntN(4)]
	if g.IntN(2) == 0 {
		s = bpfasm.DWord
	}
	off += int16(g.IntN(size/s.Sizeof()) * s.Sizeof())
	switch g.IntN(6) {
	case 0, 1:
		g.add(bpfasm.LoadMem(g.num(), base, off, s))
	case 2:
		if s != bpfasm.DWord {
			g.add(bpfasm.LoadMemSX(g.num(), base, off, s))
			return
		}
		g.add(bpfasm.Instruction{OpCode: bpfasm.StoreImmOp(s), Dst: base, Offset: off, Constant: int64(int32(g.constant()))})
	case 3, 4:
		g.add(bpfasm.StoreMem(base, off, g.num(), s))
	default:
		if s.Sizeof() < 4 {
			s, off = bpfasm.Word, off&^3
		}
		g.add(someAtomics[g.IntN(len(someAtomics))].Mem(base, g.num(), s, off))
	}
}

// jump goes anywhere in the function, more often ahead.
func (g *flowRandomizer) jump() {
	to := g.label(g.IntN(g.groups))
	op := someJumps[g.IntN(len(someJumps))]
	switch g.IntN(8) {
	case 0:
		g.add(bpfasm.LongJump(to))
	case 1:
		g.add(bpfasm.Ja.Label(to))
	case 2, 3:
		g.add(op.Imm(g.num(), int32(g.constant()), to))
	case 4:
		g.add(op.Imm32(g.num(), int32(g.constant()), to))
	case 5:
		g.add(op.Reg32(g.num(), g.num(), to))
	default:
		g.add(op.Reg(g.num(), g.num(), to))
	}
}

// TestFlowCompiledAsInterpreted compares what random programs return and leave
// in memory, and whether they run out of fuel.
func TestFlowCompiledAsInterpreted(t *testing.T) {
	programs := uint64(500)
	if testing.Short() {
		programs = 200
	}
	for _, at := range []abi.Addr{arenaNear, arenaFar} {
		h := newHarness(t, at, testConfig)
		spent := 0
		for seed := range programs {
			if h.flow(t, seed) {
				spent++
			}
		}
		if spent == 0 || spent == int(programs) {
			t.Errorf("%d of %d programs ran out of fuel", spent, programs)
		}
	}
}

func FuzzFlowCompiledAsInterpreted(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) {
		newHarness(t, []abi.Addr{arenaNear, arenaFar}[seed%2], testConfig).flow(t, seed)
	})
}

// flow compares one program, and reports whether it ran out of fuel.
func (h *harness) flow(t testing.TB, seed uint64) bool {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 5))
	p := randomFlow(r)
	v, err := bpf.Trust(p)
	if err != nil {
		t.Fatalf("seed %d: %v\n%v", seed, err, p)
	}
	for i := range v.Code().Funcs { // as a verifier would say
		v.Code().Funcs[i].Stack = frameBytes + 8
	}
	memory := binary.LittleEndian.AppendUint64(bytes.Repeat([]byte{0xfe, 1, 0}, regionSize/4), r.Uint64())
	m := newModel(h)
	want := bytes.Clone(memory)
	wantR0, err := m.RunMemory(v, want)
	spent := errors.Is(err, bpf.ErrFuel)
	if err != nil && !spent {
		t.Fatalf("seed %d: %v\n%v", seed, err, p)
	}
	misses := h.word(abi.HdrMisses)
	got, err := h.callFunction(v, memory)
	if err != nil {
		t.Fatalf("seed %d: %v\n%v", seed, err, p)
	}
	if n := h.word(abi.HdrMisses) - misses; n != 0 != spent || n > 1 {
		t.Fatalf("seed %d: out of fuel %v, counted %d\n%v", seed, spent, n, p)
	}
	if !spent && got != wantR0 {
		t.Fatalf("seed %d: returns %#x, not %#x\n%v", seed, got, wantR0, p)
	}
	if left := h.code[memoryBase-codeBase:][:len(want)]; !bytes.Equal(left, want) {
		t.Fatalf("seed %d: leaves %x, not %x (out of fuel: %v)\n%v", seed, left, want, spent, p)
	}
	return spent
}
