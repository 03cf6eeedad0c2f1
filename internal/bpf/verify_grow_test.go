package bpf

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cilium/ebpf/asm"
)

// grower makes programs by adding random statements, of which it keeps what
// the verifier accepts. Ways part and meet in them with all kinds of things in
// registers and on the stack.
type grower struct {
	*rand.Rand
	insns   asm.Instructions
	pending []string // labels ahead that something jumps to
	behind  []string // labels that a loop can jump back to
	labels  int
	next    string // label of the next instruction
}

// growTail ends a program: what pending labels lead to, and functions.
func (g *grower) growTail() asm.Instructions {
	out := asm.Instructions{}
	for _, l := range g.pending {
		out = append(out, asm.Mov.Imm(asm.R0, 0).WithSymbol(l))
	}
	out = append(out, asm.Mov.Imm(asm.R0, 0), asm.Return())
	for _, f := range growFuncs {
		out = append(out, f...)
	}
	return out
}

// growFuncs are functions that programs call and hand to helpers.
var growFuncs = func() (out []asm.Instructions) {
	for _, text := range []string{
		`write: r0 = 1; if r2 == 0 goto w; r0 = 0; w: *(u64 *)(r1 +0) = r3; exit`,
		`choose: r0 = r1; if r3 != 0 goto c; r0 = r2; c: exit`,
		`round: r3 = *(u64 *)(r2 +0); r3 += r1; *(u64 *)(r2 +0) = r3; r0 = 0; if r3 < 100 goto e; r0 = 1; e: exit`,
		`look: *(u64 *)(r10 -8) = r1; r1 = map hash; r2 = r10; r2 += -8; call map_lookup_elem; exit`,
	} {
		insns, err := assemble(text, runMaps)
		if err != nil {
			panic(err)
		}
		out = append(out, insns)
	}
	return out
}()

func (g *grower) program() *Program {
	return &Program{Name: "grown", Insns: append(append(asm.Instructions{}, g.insns...), g.growTail()...), Maps: runMaps}
}

// try adds a statement if the program stays acceptable.
func (g *grower) try(text string) {
	add, err := assemble(text, runMaps)
	if err != nil {
		panic(err)
	}
	was, next := g.insns, g.next
	if g.next != "" {
		add = append(asm.Instructions{asm.Mov.Imm(asm.R0, g.Int32N(100)).WithSymbol(g.next)}, add...)
		g.next = ""
	}
	g.insns = append(append(asm.Instructions{}, g.insns...), add...)
	if _, err := verify(g.program(), options{effort: 2}); err != nil {
		g.insns, g.next = was, next
	}
}

func (g *grower) reg() int                { return g.IntN(10) }
func (g *grower) off() int                { return -8 * (1 + g.IntN(6)) }
func (g *grower) pick(s ...string) string { return s[g.IntN(len(s))] }

func (g *grower) imm() int32 {
	switch g.IntN(3) {
	case 0:
		return g.Int32N(20) - 4
	case 1:
		return int32(1)<<g.IntN(31) - g.Int32N(2)
	}
	return g.Int32()
}

// statement is one that is not a jump.
func (g *grower) statement() string {
	a, b, off := g.reg(), g.reg(), g.off()
	size := g.pick("8", "16", "32", "64", "64", "64")
	switch g.IntN(15) {
	case 0, 1:
		w := g.pick("r", "r", "w")
		return fmt.Sprintf("%s%d %s %s%d", w, a, g.pick("=", "=", "+=", "-=", "&=", "|=", "*=", "^=", "<<=", ">>=", "s>>=", "%=", "/="), w, b)
	case 2, 3:
		return fmt.Sprintf("%s%d %s %d", g.pick("r", "r", "w"), a, g.pick("=", "+=", "-=", "&=", "&=", "|=", "*=", "%=", "^="), g.imm())
	case 4:
		return fmt.Sprintf("r%d = *(u64 *)(r6 +%d)", a, 8*g.IntN(15))
	case 5, 6:
		return fmt.Sprintf("*(u%s *)(r10 %+d) = r%d", size, off+g.IntN(2)*g.IntN(8), a)
	case 7, 8:
		return fmt.Sprintf("r%d = *(u%s *)(r10 %+d)", a, size, off+g.IntN(2)*g.IntN(8))
	case 9:
		return fmt.Sprintf("r%d = r10; r%d += %d; r%d += r%d", a, a, off, a, b)
	case 10:
		return fmt.Sprintf("*(u%s *)(r%d %+d) = r%d", size, a, 4*g.IntN(4), b)
	case 11:
		return fmt.Sprintf("r%d = *(u%s *)(r%d %+d)", b, size, a, 4*g.IntN(4))
	case 12:
		return fmt.Sprintf("lock %s *(u64 *)(r%d %+d), r%d", g.pick("add", "fetch_add", "xchg", "cmpxchg"), g.pick2(a, 10), -8+8*g.IntN(2), b)
	}
	return g.call()
}

func (g *grower) pick2(a, b int) int {
	if g.IntN(2) == 0 {
		return a
	}
	return b
}

// call is a call of a helper or of a function.
func (g *grower) call() string {
	off, to := g.off(), 7+g.IntN(3)
	switch g.IntN(8) {
	case 0:
		return fmt.Sprintf("r1 = map %s; r2 = r10; r2 += %d; call map_lookup_elem; r%d = r0", g.pick("hash", "array", "odd"), off, to)
	case 1:
		return fmt.Sprintf("r1 = map %s; r2 = r10; r2 += %d; call map_cell; r%d = r0", g.pick("one", "keyed"), off, to)
	case 2:
		return fmt.Sprintf("r%d = value array %+d", to, 8*g.IntN(8))
	case 3:
		return fmt.Sprintf("r1 = r10; r1 += %d; r2 = %d; r3 = r7; call probe_read_user", off, g.IntN(30))
	case 4:
		return fmt.Sprintf("r1 = r10; r1 += %d; r2 = r7; r3 = r8; call @write", off)
	case 5:
		return fmt.Sprintf("r1 = r7; r2 = r8; r3 = r9; call @choose; r%d = r0", to)
	case 6:
		return fmt.Sprintf("r1 = r%d; r2 = func round; r3 = r10; r3 += %d; r4 = 0; call loop", to, off)
	}
	return fmt.Sprintf("r1 = r%d; call @look; r%d = r0", to, to)
}

// jump parts the ways, to somewhere ahead or back.
func (g *grower) jump() string {
	cond := fmt.Sprintf("r%d %s %d", g.reg(), g.pick("==", "!=", "==", ">", "<", "s>", "s<", "&", ">=", "<="), g.imm())
	switch g.IntN(3) {
	case 0:
		cond = fmt.Sprintf("r%d %s 0", g.reg(), g.pick("==", "!="))
	case 1:
		cond = fmt.Sprintf("r%d %s r%d", g.reg(), g.pick("==", "!=", ">", "<", "s<=", ">="), g.reg())
	}
	if len(g.behind) > 0 && g.IntN(4) == 0 {
		return fmt.Sprintf("if %s goto %s", cond, g.behind[g.IntN(len(g.behind))])
	}
	g.labels++
	l := fmt.Sprintf("l%d", g.labels)
	was := len(g.insns)
	g.pending = append(g.pending, l)
	g.try(fmt.Sprintf("if %s goto %s", cond, l))
	if len(g.insns) == was {
		g.pending = g.pending[:len(g.pending)-1]
	}
	return ""
}

func grow(seed uint64) *Program {
	g := &grower{Rand: rand.New(rand.NewPCG(seed, 11))}
	g.try("r6 = r1; r7 = *(u64 *)(r6 +112); r8 = *(u64 *)(r6 +104); r9 = 0; *(u64 *)(r10 -8) = r7; *(u64 *)(r10 -16) = 0")
	for range 20 + g.IntN(60) {
		switch n := g.IntN(10); {
		case n < 3:
			if text := g.jump(); text != "" {
				g.try(text)
			}
		case n == 3 && g.next == "" && len(g.pending) > 0:
			i := g.IntN(len(g.pending))
			g.next = g.pending[i]
			g.pending = append(g.pending[:i:i], g.pending[i+1:]...)
		case n == 4 && g.next == "":
			g.labels++
			g.next = fmt.Sprintf("b%d", g.labels)
			g.behind = append(g.behind, g.next)
		default:
			g.try(g.statement())
		}
	}
	for g.next != "" { // what it names has to be there
		g.pending = append(g.pending, g.next)
		g.next = ""
	}
	return g.program()
}

// TestGrownRuns runs grown programs and compares.
func TestGrownRuns(t *testing.T) {
	m, r := newFuzzMachine(t), rand.New(rand.NewPCG(2, 2))
	programs := 250
	if testing.Short() {
		programs = 50
	}
	n := tally{effort: 2}
	for seed := range uint64(programs) {
		n.try(t, m, r, grow(seed), 10)
	}
	t.Logf("%d programs, %d accepted, %d runs, %d instructions compared", n.programs, n.accepted, n.runs, n.steps)
	if n.accepted < n.programs {
		t.Errorf("%d of %d grown programs are refused", n.programs-n.accepted, n.programs)
	}
}

// FuzzGrown does the same with as many seeds as one has time for.
func FuzzGrown(f *testing.F) {
	m := newFuzzMachine(f)
	f.Fuzz(func(t *testing.T, seed uint64) {
		n := tally{effort: 2}
		n.try(t, m, rand.New(rand.NewPCG(seed, 3)), grow(seed), 10)
	})
}
