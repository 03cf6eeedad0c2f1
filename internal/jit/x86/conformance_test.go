package x86

import (
	"bytes"
	"encoding/binary"
	"testing"

	bpfasm "github.com/cilium/ebpf/asm"

	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
	"trapless/internal/testkit/conformance"
)

// memoryBase is where the memory lies that a function under test gets.
const memoryBase = codeBase + 0x80000

// functionSite is the entry of a C function that takes memory and its size and
// returns a number.
var functionSite = Site{LiveRegs: allRegs.Del(asm.RAX), Result: true}

// TestConformance verifies and compiles the suite's cases and runs them in
// the target.
func TestConformance(t *testing.T) {
	cases := conformance.Load(t)
	h := newHelperHarness(t, arenaNear, nil)
	passed, zero := 0, 0
	for _, c := range cases {
		if c.Error == "" && c.Result == 0 {
			zero++
		}
		insns, err := bpfasm.AppendInstructions(nil, bytes.NewReader(c.Code), binary.LittleEndian, "linux")
		if err != nil {
			t.Errorf("%s: %v", c.Name, err)
			continue
		}
		v, err := bpf.Verify(&bpf.Program{Name: c.Name, Input: bpf.Input{Memory: true, Size: len(c.Memory)}, Insns: insns})
		if err != nil {
			t.Error(err)
			continue
		}
		got, err := h.callFunction(v, c.Memory)
		if err != nil || got != c.Result {
			t.Errorf("%s: %#x, not %#x, %v", c.Name, got, c.Result, err)
			continue
		}
		passed++
	}
	t.Logf("compiled, in a target: %d of %d cases pass; one that always returns 0 would pass %d", passed, len(cases), zero)
}

// callFunction compiles a program whose input is memory, calls it in the
// target and returns its result.
func (h *harness) callFunction(v *bpf.Verified, memory []byte) (uint64, error) {
	a := asm.New(entryBase)
	d, err := Emit(a, []*bpf.Verified{v}, functionSite, h.env)
	if err != nil {
		return 0, err
	}
	a.Ret()
	d.EmitCold(a)
	code, err := a.Bytes()
	if err != nil {
		return 0, err
	}
	h.put(entryBase, code)
	rq := request{Op: opRun, Entry: uint64(entryBase), Flags: 2}
	for r := range rq.Regs {
		rq.Regs[r] = 0x1111111111111111 * uint64(r)
	}
	rq.Regs[asm.RDI], rq.Regs[asm.RSI] = 0, 0
	if len(memory) > 0 {
		h.put(memoryBase, memory)
		rq.Regs[asm.RDI], rq.Regs[asm.RSI] = uint64(memoryBase), uint64(len(memory))
	}
	rp := h.do(rq)
	return rp.Regs[asm.RAX], rp.check(&rq, functionSite)
}
