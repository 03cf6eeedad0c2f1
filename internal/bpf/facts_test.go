package bpf

import (
	"math/rand/v2"
	"testing"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

func analysed(t testing.TB, insns ...asm.Instruction) *Facts {
	t.Helper()
	return Analyse(trusted(t, program(insns...)).code, newMachine(t).Layout, false)
}

func TestFactsInLoops(t *testing.T) {
	f := analysed(t,
		asm.Mov.Imm(asm.R6, 0), asm.Mov.Imm(asm.R7, 3), asm.Mov.Reg(asm.R8, asm.R10), asm.Mov.Reg(asm.R9, asm.R10),
		asm.Add.Reg(asm.R6, asm.R7).WithSymbol("loop"), // 4
		asm.Mov.Reg(asm.R2, asm.R6),
		asm.Add.Imm(asm.R9, -8),
		asm.JNE.Imm(asm.R6, 30, "loop"),
		asm.Mov.Reg(asm.R0, asm.R2), ret)
	k := f.Before(4)
	if k.Regs[asm.R6].Known || k.Regs[asm.R6].Kind != Scalar {
		t.Errorf("the counter is %+v", k.Regs[asm.R6])
	}
	if k.Regs[asm.R7] != constant(3) || k.Regs[asm.R8] != (Value{Kind: Stack}) {
		t.Errorf("what the loop leaves alone is %+v and %+v", k.Regs[asm.R7], k.Regs[asm.R8])
	}
	if k.Regs[asm.R9].Static() {
		t.Errorf("a pointer that moves is %+v", k.Regs[asm.R9])
	}
	if k.Regs[asm.R2].Kind != Unknown {
		t.Errorf("r2, which the first round has not written, is %+v", k.Regs[asm.R2])
	}
	if at := f.Before(7).Regs; at[asm.R2].ID == 0 || at[asm.R2] != at[asm.R6] {
		t.Errorf("a copy is %+v of %+v", at[asm.R2], at[asm.R6])
	}
}

// A value of an earlier round is not taken for the one of this round.
func TestFactsTellRoundsApart(t *testing.T) {
	f := analysed(t,
		asm.LoadMem(asm.R6, asm.R1, 0, asm.DWord), asm.Mov.Imm(asm.R7, 0), asm.Mov.Reg(asm.R8, asm.R1),
		asm.Mov.Reg(asm.R7, asm.R6).WithSymbol("loop"), // 3
		asm.LoadMem(asm.R6, asm.R8, 8, asm.DWord),
		asm.JNE.Imm(asm.R6, 0, "loop"),
		r0is(0), ret)
	if at := f.Before(5).Regs; at[asm.R6] == at[asm.R7] && at[asm.R6].ID != 0 {
		t.Errorf("r6 and r7 are both %+v", at[asm.R6])
	}
}

func TestFactsAcrossCalls(t *testing.T) {
	f := analysed(t,
		asm.Mov.Imm(asm.R2, 7), asm.Mov.Imm(asm.R3, 1), asm.Mov.Reg(asm.R6, asm.R1),
		asm.Call.Label("f"), // r1 is the context
		asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, 7), asm.Mov.Imm(asm.R3, 2),
		asm.Call.Label("f"),
		ret,
		asm.LoadMem(asm.R0, asm.R1, 8, asm.DWord).WithSymbol("f"), asm.Add.Reg(asm.R0, asm.R2), asm.Add.Reg(asm.R0, asm.R3), ret)
	k := f.Before(9)
	if k.Regs[asm.R1].Kind != Context || k.Regs[asm.R2] != constant(7) || k.Regs[asm.R3] != (Value{Kind: Scalar}) {
		t.Errorf("the function begins with %+v", k.Regs[:4])
	}
	if f.Before(4).Regs[asm.R6].Kind != Context || f.Before(4).Regs[asm.R2].Kind != Unknown {
		t.Errorf("after the call there are %+v", f.Before(4).Regs)
	}
}

// FuzzFacts runs random programs and compares what is known with what is.
func FuzzFacts(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { checkFacts(t, seed) })
}

func TestFactsHold(t *testing.T) {
	for seed := range uint64(3000) {
		checkFacts(t, seed)
	}
}

// checkFacts runs a random program with loops and functions. Whenever an
// instruction is reached, constants and identities must hold.
func checkFacts(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 9))
	code := trusted(t, randomFlow(r)).code
	m := newMachine(t)
	m.Fuel = 400
	f := Analyse(code, m.Layout, false)
	ctx := new(Regs)
	for i := range ctx {
		ctx[i] = r.Uint64() >> (r.UintN(3) * 31)
	}
	x := m.newRun(code, ctx, nil)
	for more := true; more; {
		k := f.Before(x.at)
		if k == nil {
			t.Fatalf("seed %d: instruction %d is reached\n%v", seed, x.at, code.Insns)
		}
		ids := map[int32]uint64{}
		for r, v := range k.Regs {
			got := x.r[r]
			if v.Known && got != v.Const || v.Kind == Stack && got != frameAddr(len(x.frames)-1)+uint64(int64(v.Off)) {
				t.Fatalf("seed %d: before %d r%d is %#x, not %+v\n%v", seed, x.at, r, got, v, code.Insns)
			}
			if old, ok := ids[v.ID]; ok && v.ID != 0 && old != got {
				t.Fatalf("seed %d: before %d r%d is %#x, another of %+v is %#x\n%v", seed, x.at, r, got, v, old, code.Insns)
			}
			ids[v.ID] = got
		}
		for off := int32(-64); off < 0; off += 8 {
			v, ok := k.StackWord(off, 8)
			got := loadBytes(x.frames[len(x.frames)-1].stack[StackSize+off:], 8)
			if !ok || v.Kind != Scalar {
				continue
			}
			if old, same := ids[v.ID]; v.Known && v.Const != got || same && v.ID != 0 && old != got {
				t.Fatalf("seed %d: before %d the word at %d is %#x, not %+v\n%v", seed, x.at, off, got, v, code.Insns)
			}
		}
		if f.Branch(x.at) != Either {
			in := &code.Insns[x.at]
			if v, _ := x.operand(in); in.taken(x.r[in.Dst], v) != (f.Branch(x.at) == Always) {
				t.Fatalf("seed %d: branch %d is wrong\n%v", seed, x.at, code.Insns)
			}
		}
		var err error
		if more, err = x.step(); err != nil {
			return // out of fuel
		}
	}
}

// randomFlow makes a program that jumps anywhere in its function and calls
// others. All registers and a part of the stack are written first.
func randomFlow(r *rand.Rand) *Program {
	p := &Program{Name: "flow", Maps: testMaps}
	funcs := 1 + r.IntN(3)
	name := func(f, i int) string { return string(rune('a'+f)) + string(rune('0'+i/10)) + string(rune('0'+i%10)) }
	for f := range funcs {
		n := 12 + r.IntN(20)
		first := len(p.Insns)
		p.Insns = append(p.Insns, asm.Mov.Reg(asm.R6, asm.R1))
		for reg := asm.R0; reg < asm.R10; reg++ {
			if reg != asm.R6 && (f == 0 || reg == asm.R0 || reg > asm.R6) {
				p.Insns = append(p.Insns, asm.Mov.Imm(reg, int32(r.IntN(4))))
			}
		}
		for off := int16(-32); off < 0; off += 8 {
			p.Insns = append(p.Insns, asm.StoreMem(asm.R10, off, asm.Register(r.IntN(10)), asm.DWord))
		}
		p.Insns[first] = p.Insns[first].WithSymbol(string(rune('f' + f)))
		reg := func() asm.Register { return asm.R7 + asm.Register(r.IntN(3)) }
		for i := range n {
			var in asm.Instruction
			switch r.IntN(9) {
			case 0:
				in = asm.JGT.Reg(reg(), reg(), name(f, r.IntN(n)))
			case 1:
				in = asm.JNE.Imm(reg(), int32(r.IntN(4)), name(f, r.IntN(n)))
			case 2:
				in = asm.LoadMem(reg(), asm.R10, int16(-8*(1+r.IntN(4))), asm.DWord)
			case 3:
				in = asm.StoreMem(asm.R10, int16(-8*(1+r.IntN(4))), reg(), asm.DWord)
			case 4:
				in = asm.Mov.Imm(reg(), int32(r.IntN(4)))
			case 5:
				in = asm.FetchAdd.Mem(asm.R10, reg(), asm.DWord, int16(-8*(1+r.IntN(4))))
			case 6:
				in = asm.Add.Reg(reg(), reg())
			default:
				in = asm.Mov.Reg(reg(), reg())
			}
			p.Insns = append(p.Insns, in.WithSymbol(name(f, i)))
		}
		if f+1 < funcs {
			for a := asm.R1; a <= asm.R5; a++ {
				p.Insns = append(p.Insns, asm.Mov.Reg(a, reg()))
			}
			p.Insns = append(p.Insns, asm.Call.Label(string(rune('f'+f+1))))
		}
		p.Insns = append(p.Insns, asm.Mov.Imm(asm.R0, 1), ret)
	}
	return p
}

// What a constant map holds is known, also to those who cannot trust the arena.
func TestFactsOfConstantMaps(t *testing.T) {
	p := program(asm.LoadMapValue(asm.R1, 0, 8), asm.LoadMem(asm.R0, asm.R1, 0, asm.Half), asm.LoadMemSX(asm.R2, asm.R1, 1, asm.Byte),
		asm.LoadMem(asm.R3, asm.R1, 0, asm.DWord), ret)
	p.Maps = []abi.MapSpec{{Name: ".rodata", Kind: abi.Array, KeySize: 4, ValueSize: 12, MaxEntries: 1}}
	p.Constants = map[int][]byte{0: {8: 0x34, 9: 0xf2, 11: 0}}
	code := trusted(t, p).code
	l, err := abi.NewLayout(abi.Config{Threads: 1, Maps: p.Maps})
	if err != nil {
		t.Fatal(err)
	}
	k := Analyse(code, l, false).Before(4)
	if k.Regs[asm.R0] != constant(0xf234) || k.Regs[asm.R2] != constant(neg(0x0e)) {
		t.Errorf("the loads give %+v and %+v", k.Regs[asm.R0], k.Regs[asm.R2])
	}
	if k.Regs[asm.R3].Known {
		t.Errorf("a load across the end gives %+v", k.Regs[asm.R3])
	}
}
