package x86

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// FuzzEmit compiles whatever the verifier accepts. The compiler may refuse a
// program, but not fail over it.
func FuzzEmit(f *testing.F) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 8))
		for _, p := range []*bpf.Program{randomFlow(r), mapOps(r, 6)} {
			var b bytes.Buffer
			if err := p.Insns.Marshal(&b, binary.LittleEndian); err != nil {
				continue // it calls functions by name
			}
			f.Add(b.Bytes(), uint16(p.Input.Size))
			f.Add(b.Bytes(), uint16(0))
		}
	}
	l, err := abi.NewLayout(abi.Config{Threads: 4, Maps: kernelMaps, RingSize: 1 << 12})
	if err != nil {
		f.Fatal(err)
	}
	env := &Env{Gate: codeBase, Arena: arenaFar, Layout: l, TGID: 1, Helpers: true}
	if _, env.Runtime, err = NewRuntime(runtimeBase, env); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, code []byte, memory uint16) {
		insns, err := bpfasm.AppendInstructions(nil, bytes.NewReader(code), binary.LittleEndian, "linux")
		if err != nil {
			return
		}
		p := &bpf.Program{Name: "fuzz", Insns: insns, Maps: kernelMaps}
		site := busySite
		if memory > 0 {
			p.Input, site = bpf.Input{Memory: true, Size: int(memory)}, functionSite
		}
		v, err := bpf.Verify(p)
		if err != nil {
			return
		}
		a := asm.New(entryBase)
		d, err := Emit(a, []*bpf.Verified{v}, site, env)
		if err != nil {
			return
		}
		d.EmitCold(a)
		if _, err := a.Bytes(); err != nil {
			t.Fatalf("%v\n%v", err, p)
		}
	})
}
