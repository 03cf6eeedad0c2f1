package bpf

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf/asm"
)

// FuzzValidate gives the verifier any bytes. What it accepts must run without
// a fault, and every register must hold what it is known to hold.
func FuzzValidate(f *testing.F) {
	for _, p := range []*Program{
		program(concat(LoadArg(asm.R3, asm.R1, 0), asm.StoreMem(asm.R10, -8, asm.R3, asm.DWord), lookup(1),
			asm.JEq.Imm(asm.R0, 0, "out"), asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 8),
			r0is(0).WithSymbol("out"), ret)...),
		program(concat(asm.StoreImm(asm.R10, -8, 0, asm.Word), lookup(0), asm.JEq.Imm(asm.R0, 0, "out"),
			asm.LoadMem(asm.R0, asm.R0, 0, asm.DWord), r0is(0).WithSymbol("out"), ret)...),
		program(asm.StoreMem(asm.R10, -16, asm.R1, asm.DWord), asm.LoadMem(asm.R2, asm.R10, -16, asm.DWord),
			asm.LoadMem(asm.R0, asm.R2, PtRegsSP, asm.DWord), asm.JSGT.Imm32(asm.R0, 3, "out"), asm.Div.Imm(asm.R0, 3), ret.WithSymbol("out")),
		program(asm.Mov.Imm(asm.R0, 7), asm.StoreMem(asm.R10, -8, asm.R0, asm.DWord), asm.FetchAdd.Mem(asm.R10, asm.R0, asm.DWord, -8), ret),
	} {
		var b bytes.Buffer
		if err := p.Insns.Marshal(&b, binary.LittleEndian); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes(), uint64(5))
	}
	m := newMachine(f)
	f.Fuzz(func(t *testing.T, code []byte, arg uint64) {
		insns, err := asm.AppendInstructions(nil, bytes.NewReader(code), binary.LittleEndian, "linux")
		if err != nil {
			return
		}
		v, err := Validate(program(insns...))
		if err != nil {
			return
		}
		_ = v.String()
		ctx := new(Regs)
		for i := range ctx {
			ctx[i] = arg >> i
		}
		x := m.newRun(v.code, ctx, nil)
		for more := true; more; {
			for r, val := range v.before[x.at].Regs {
				if val.Known && x.r[r] != val.Const {
					t.Fatalf("before %d r%d is %#x, not %#x\n%v", x.at, r, x.r[r], val.Const, v)
				}
			}
			if more, err = x.step(); err != nil {
				t.Fatalf("%v\n%v", err, v)
			}
		}
	})
}
