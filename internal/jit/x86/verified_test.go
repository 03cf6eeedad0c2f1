package x86

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/bpf"
)

// mutant changes a few instructions of a program: their operation, registers,
// offset or constant, or the whole.
func mutant(r *rand.Rand, code []byte) []byte {
	out := bytes.Clone(code)
	at := func() int { return 8 * r.IntN(len(out)/8) }
	for range r.IntN(4) {
		i := at()
		switch r.IntN(6) {
		case 0:
			out[i] = code[at()]
		case 1:
			out[i+1] = out[i+1]&0xf0 | byte(r.IntN(11))
		case 2:
			out[i+1] = out[i+1]&0x0f | byte(r.IntN(11))<<4
		case 3:
			binary.LittleEndian.PutUint16(out[i+2:], uint16(r.IntN(160)-80))
		case 4:
			binary.LittleEndian.PutUint32(out[i+4:], uint32((&randomizer{Rand: r}).constant()))
		case 5:
			j := at()
			copy(out[i:i+8], code[j:j+8])
		}
	}
	return out
}

// tells reports whether a helper tells something that the interpreter's model of
// the target does not know.
func tells(v *bpf.Verified) bool {
	for _, in := range v.Code().Insns {
		if in.Kind == bpf.CallReg {
			return true
		}
		if in.Kind != bpf.CallHelper {
			continue
		}
		switch in.Helper() {
		case bpfasm.FnMapLookupElem, bpfasm.FnMapUpdateElem, bpfasm.FnMapDeleteElem, bpfasm.FnLoop, bpfasm.FnForEachMapElem, bpfasm.FnMapLookupPercpuElem, bpf.HelperMapCell, bpf.HelperExit:
		default:
			return true
		}
	}
	return false
}

// TestVerifiedRunAlike changes random programs at random. What the verifier
// still accepts must run in the target as in the interpreter, which sees every
// access that is not allowed; the target's registers and its stack below are
// checked too.
func TestVerifiedRunAlike(t *testing.T) {
	seeds := uint64(400)
	if testing.Short() {
		seeds = 60
	}
	for _, at := range []abi.Addr{arenaNear, arenaFar} {
		h := newHelperHarness(t, at, kernelMaps)
		m := newModel(h)
		ran := 0
		for seed := range seeds {
			for range 8 {
				if h.verifiedAlike(t, m, rand.New(rand.NewPCG(seed, uint64(ran)))) {
					ran++
				}
			}
		}
		if ran < int(seeds)/10 {
			t.Errorf("only %d programs were accepted", ran)
		}
		t.Logf("%d programs were accepted and run", ran)
	}
}

func (h *harness) verifiedAlike(t testing.TB, m *model, r *rand.Rand) bool {
	t.Helper()
	p := (&mapRandomizer{Rand: r, strict: true}).program(1 + r.IntN(6))
	if r.IntN(2) == 0 {
		p = (&flowRandomizer{Rand: r, strict: true}).program()
	}
	var b bytes.Buffer
	if err := p.Insns.Marshal(&b, binary.LittleEndian); err != nil {
		t.Fatal(err)
	}
	insns, err := bpfasm.AppendInstructions(nil, bytes.NewReader(mutant(r, b.Bytes())), binary.LittleEndian, "linux")
	if err != nil {
		return false
	}
	const size = 96
	q := &bpf.Program{Name: "mutant", Insns: insns, Maps: kernelMaps, Input: bpf.Input{Memory: true, Size: size}}
	v, err := bpf.Verify(q)
	if err != nil || tells(v) {
		return false
	}
	memory := make([]byte, size)
	for i := range memory {
		memory[i] = byte(r.IntN(5))
	}
	return h.alike(t, m, v, q, memory)
}

// alike runs a program in both engines and compares.
func (h *harness) alike(t testing.TB, m *model, v *bpf.Verified, p *bpf.Program, memory []byte) bool {
	t.Helper()
	got, err := h.callFunction(v, memory)
	if errors.Is(err, ErrCompile) {
		return false
	}
	if err != nil {
		t.Fatalf("%v\n%v", err, p)
	}
	m.reset(max(h.slotOf(h.tp), abi.SlotShared))
	want := bytes.Clone(memory)
	wantR0, err := m.RunMemory(v, want)
	spent := errors.Is(err, bpf.ErrFuel)
	if err != nil && !spent {
		t.Fatalf("the verifier accepts what the interpreter does not: %v\n%v", err, p)
	}
	if spent {
		binary.LittleEndian.PutUint64(m.Arena[abi.HdrMisses:], binary.LittleEndian.Uint64(m.Arena[abi.HdrMisses:])+1)
	} else if pointer := wantR0>>40 != 0 && wantR0>>40 < 64; got != wantR0 && !pointer { // each engine has its own addresses
		t.Fatalf("returns %#x, not %#x\n%v", got, wantR0, p)
	}
	if left := h.code[memoryBase-codeBase:][:len(want)]; !bytes.Equal(left, want) {
		t.Fatalf("leaves %x, not %x (out of fuel: %v)\n%v", left, want, spent, p)
	}
	if err := h.compare(m); err != nil {
		t.Fatalf("%v (out of fuel: %v)\n%v", err, spent, p)
	}
	return true
}

// FuzzVerifiedRunAlike does the same with as many seeds as one has time for.
func FuzzVerifiedRunAlike(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) {
		h := newHelperHarness(t, []abi.Addr{arenaNear, arenaFar, arenaLow}[seed%3], kernelMaps)
		m := newModel(h)
		for i := range uint64(16) {
			h.verifiedAlike(t, m, rand.New(rand.NewPCG(seed, i)))
		}
	})
}
