package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

// mutant changes a program a little, so that it often stays acceptable: the
// interesting programs are those that only just are.
func mutant(r *rand.Rand, insns asm.Instructions) asm.Instructions {
	out := append(asm.Instructions{}, insns...)
	for range 1 + r.IntN(4) {
		i := r.IntN(len(out))
		in := &out[i]
		switch r.IntN(9) {
		case 0, 1:
			in.Constant = nearby(r, in.Constant)
		case 2:
			in.Offset = int16(nearby(r, int64(in.Offset)))
		case 3:
			in.Dst = asm.Register(r.IntN(11))
		case 4:
			in.Src = asm.Register(r.IntN(11))
		case 5: // another operation of the same class
			other := out[r.IntN(len(out))]
			if other.OpCode.Class() == in.OpCode.Class() {
				in.OpCode = other.OpCode
			} else if in.OpCode.Class().IsALU() {
				in.OpCode = in.OpCode.SetALUOp(someALU[r.IntN(len(someALU))])
			} else if in.OpCode.Class().IsJump() && in.OpCode.JumpOp() != asm.Call && in.OpCode.JumpOp() != asm.Exit {
				in.OpCode = in.OpCode.SetJumpOp(someJumps[r.IntN(len(someJumps))])
			}
		case 6: // 32 bits for 64, or the other way round
			if c := in.OpCode.Class(); c == asm.ALUClass || c == asm.ALU64Class {
				in.OpCode ^= asm.OpCode(asm.ALUClass ^ asm.ALU64Class)
			} else if c == asm.JumpClass || c == asm.Jump32Class {
				in.OpCode ^= asm.OpCode(asm.JumpClass ^ asm.Jump32Class)
			}
		case 7: // one in the place of another
			*in = out[r.IntN(len(out))]
		default: // a swap with the next
			if i+1 < len(out) {
				out[i], out[i+1] = out[i+1], out[i]
			}
		}
	}
	return out
}

var (
	someALU   = []asm.ALUOp{asm.Add, asm.Sub, asm.Mul, asm.Div, asm.Or, asm.And, asm.LSh, asm.RSh, asm.Mod, asm.Xor, asm.Mov, asm.ArSh, asm.SDiv, asm.SMod}
	someJumps = []asm.JumpOp{asm.JEq, asm.JNE, asm.JGT, asm.JGE, asm.JLT, asm.JLE, asm.JSet, asm.JSGT, asm.JSGE, asm.JSLT, asm.JSLE}
)

func nearby(r *rand.Rand, v int64) int64 {
	switch r.IntN(4) {
	case 0:
		return v + int64(r.IntN(17)) - 8
	case 1:
		return -v
	case 2:
		return int64(1)<<r.IntN(32) - int64(r.IntN(2))
	}
	return int64(r.IntN(80)) - 8
}

// resolved replaces labels by distances, so that instructions can be changed
// without them.
func resolved(t testing.TB, p *Program) asm.Instructions {
	t.Helper()
	return parsed(t, marshalled(t, p))
}

func marshalled(t testing.TB, p *Program) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := p.Insns.Marshal(&b, binary.LittleEndian); err != nil {
		t.Fatalf("%s: %v", p.Name, err)
	}
	return b.Bytes()
}

func parsed(t testing.TB, code []byte) asm.Instructions {
	t.Helper()
	insns, err := asm.AppendInstructions(nil, bytes.NewReader(code), binary.LittleEndian, "linux")
	if err != nil {
		t.Fatal(err)
	}
	return insns
}

// tally counts what a search for mistakes has looked at.
type tally struct {
	effort                          int // see options
	programs, accepted, runs, steps int
}

// try verifies a program and, if it is accepted, runs it some times.
func (n *tally) try(t testing.TB, m *Machine, r *rand.Rand, p *Program, runs int) {
	t.Helper()
	n.programs++
	c, err := verifyChecked(p, m.Layout, n.effort)
	if err != nil {
		return
	}
	n.accepted++
	for range runs {
		n.runs++
		ctx := randomContext(r)
		fillCells(r, m)
		m.randomize(r)
		steps, err := c.run(m, r, ctx, nil)
		n.steps += steps
		if err != nil && !errors.Is(err, ErrFuel) {
			t.Fatalf("%v\n%vcontext %v", err, p, *ctx)
		}
	}
}

// fillCells scribbles over the values of all maps, as a hostile process may.
func fillCells(r *rand.Rand, m *Machine) {
	x := m.newRun(&Code{}, nil, nil)
	for i := range m.Layout.Maps {
		ml := &m.Layout.Maps[i]
		if ml.IsHash() { // some keys are there
			for k := range min(ml.MaxEntries, 70) {
				key := append(binary.LittleEndian.AppendUint64(nil, uint64(k)), make([]byte, 8)...)[:ml.KeySize]
				switch n := r.IntN(4); {
				case n == 0 && ml.Kind == abi.Hash:
					x.update(ml, key, make([]byte, ml.ValueSize), 0)
				case n == 1 && ml.Kind == abi.Hash:
					x.remove(ml, key)
				case n == 0:
					x.find(ml, key, true)
				}
			}
		}
		for pos := range uint64(ml.Positions()) {
			at := x.valueAt(ml, pos)
			for off := range uint64(ml.Stride() / 8) {
				v := r.Uint64()
				if r.IntN(2) == 0 {
					v = uint64(r.IntN(70))
				}
				binary.LittleEndian.PutUint64(m.Arena[at+8*off:], v)
			}
		}
	}
}

// runnable are the accepted programs that the engine can run, and the refused
// ones that call nothing else.
func runnable(t testing.TB) (out []*Program) {
	add := func(name, text string) {
		p := textProgram(t, name, text)
		if len(p.Maps) > len(runMaps) {
			return
		}
		for _, in := range p.Insns {
			if in.IsBuiltinCall() {
				if _, missing := LookupHelper(asm.BuiltinFunc(in.Constant)); missing != "" {
					return
				}
			}
		}
		out = append(out, p)
	}
	for name, text := range acceptedTexts {
		add(name, text)
	}
	for i, row := range refusals {
		add(fmt.Sprintf("refused %d", i), row.prog)
	}
	slices.SortFunc(out, func(a, b *Program) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func newFuzzMachine(t testing.TB) *Machine {
	l, err := abi.NewLayout(abi.Config{Threads: 1, Maps: runMaps})
	if err != nil {
		t.Fatal(err)
	}
	m := &Machine{Arena: make([]byte, l.Size), Layout: l, TGID: 4711, TID: 4712, Fuel: 1500}
	m.Now = func() uint64 { return 12345 }
	return m
}

// randomize lets helpers return this and that.
func (m *Machine) randomize(r *rand.Rand) {
	m.UIDGID, m.CPU, m.Comm = r.Uint64(), r.Uint32(), "someone"
	m.Event = func([]byte) bool { return r.IntN(2) == 0 }
	m.MapEvent = func(int, []byte) bool { return r.IntN(2) == 0 }
	m.ReadUser = func(_ uint64, buf []byte) bool {
		for i := range buf {
			buf[i] = byte(r.Uint32() >> r.IntN(8))
		}
		return r.IntN(8) > 0
	}
}

// TestVerifiedRuns runs the accepted programs, and programs that differ from
// them a little, and compares each register with what is known of it.
func TestVerifiedRuns(t *testing.T) {
	m, r := newFuzzMachine(t), rand.New(rand.NewPCG(1, 1))
	mutants := 200
	if testing.Short() {
		mutants = 40
	}
	n := tally{effort: 3}
	for _, p := range runnable(t) {
		n.try(t, m, r, p, 20)
		insns := resolved(t, p)
		some := mutants
		if strings.HasPrefix(p.Name, "refused") {
			some /= 6
		}
		for range some {
			n.try(t, m, r, &Program{Name: "mutant of " + p.Name, Insns: mutant(r, insns), Maps: p.Maps}, 4)
		}
	}
	t.Logf("%d programs, %d accepted, %d runs, %d instructions compared", n.programs, n.accepted, n.runs, n.steps)
}

// FuzzVerify gives the verifier programs of any bytes, changed a little. What
// it accepts must run as it expects.
func FuzzVerify(f *testing.F) {
	for _, p := range runnable(f) {
		f.Add(marshalled(f, p), uint64(0))
	}
	m := newFuzzMachine(f)
	f.Fuzz(func(t *testing.T, code []byte, seed uint64) {
		insns, err := asm.AppendInstructions(nil, bytes.NewReader(code), binary.LittleEndian, "linux")
		if err != nil || len(insns) == 0 {
			return
		}
		r := rand.New(rand.NewPCG(seed, 2))
		n := tally{effort: 3} // the last takes long where it is in vain
		n.try(t, m, r, &Program{Name: "fuzzed", Insns: insns, Maps: runMaps}, 3)
		for range 8 {
			n.try(t, m, r, &Program{Name: "mutant", Insns: mutant(r, insns), Maps: runMaps}, 3)
		}
	})
}
