package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"
)

// raw is an instruction as it is encoded (RFC 9669, 3).
func raw(opcode, dst, src byte, off int16, imm int32) []byte {
	b := []byte{opcode, src<<4 | dst}
	b = binary.LittleEndian.AppendUint16(b, uint16(off))
	return binary.LittleEndian.AppendUint32(b, uint32(imm))
}

func decodeRaw(t testing.TB, code ...[]byte) (*Code, error) {
	t.Helper()
	insns, err := asm.AppendInstructions(nil, bytes.NewReader(slices.Concat(code...)), binary.LittleEndian, "linux")
	if err != nil {
		t.Fatal(err)
	}
	return Decode(program(insns...))
}

var rawExit = raw(0x95, 0, 0, 0, 0)

// Fields that an instruction has no use for must be zero (RFC 9669, 3): a later
// instruction set may give them a meaning.
func TestDecodeRefusesUnusedFields(t *testing.T) {
	for name, in := range map[string][]byte{
		"add64 imm with offset":     raw(0x07, 0, 0, 1, 1),
		"add64 imm with source":     raw(0x07, 0, 1, 0, 1),
		"add64 reg with imm":        raw(0x0f, 0, 1, 0, 1),
		"div with offset 2":         raw(0x37, 0, 0, 2, 1),
		"mov with offset 7":         raw(0xbf, 0, 1, 7, 0),
		"32-bit movsx32":            raw(0xbc, 0, 1, 32, 0),
		"movsx of an imm":           raw(0xb7, 0, 0, 8, 1),
		"neg with source register":  raw(0x8f, 0, 1, 0, 0),
		"neg with imm":              raw(0x87, 0, 0, 0, 1),
		"be16 with offset":          raw(0xdc, 0, 0, 1, 16),
		"be16 with source":          raw(0xdc, 0, 1, 0, 16),
		"be of 8 bits":              raw(0xdc, 0, 0, 0, 8),
		"64-bit be":                 raw(0xdf, 0, 0, 0, 16),
		"unknown arithmetic":        raw(0xe7, 0, 0, 0, 0),
		"ja with destination":       raw(0x05, 1, 0, 0, 0),
		"ja with imm":               raw(0x05, 0, 0, 0, 1),
		"ja32 with offset":          raw(0x06, 0, 0, 1, 0),
		"jeq imm with source":       raw(0x15, 0, 1, 0, 0),
		"jeq reg with imm":          raw(0x1d, 0, 1, 0, 1),
		"exit with imm":             raw(0x95, 0, 0, 0, 1),
		"exit of the 32-bit class":  raw(0x96, 0, 0, 0, 0),
		"call with destination":     raw(0x85, 1, 0, 0, 14),
		"call with offset":          raw(0x85, 0, 0, 1, 14),
		"call of the 32-bit class":  raw(0x86, 0, 0, 0, 14),
		"callx with source":         raw(0x8d, 1, 1, 0, 0),
		"callx with imm":            raw(0x8d, 1, 0, 0, 1),
		"call of kind 3":            raw(0x85, 0, 3, 0, 0),
		"ldx with imm":              raw(0x79, 0, 1, 0, 1),
		"64-bit ldxs":               raw(0x99, 0, 1, 0, 0),
		"st with source":            raw(0x7a, 10, 1, -8, 0),
		"stx with imm":              raw(0x7b, 10, 1, -8, 1),
		"atomic of 2 bytes":         raw(0xcb, 10, 1, -8, 0),
		"unknown atomic":            raw(0xdb, 10, 1, -8, 0x20),
		"xchg without fetch":        raw(0xdb, 10, 1, -8, 0xe0),
		"register 11":               raw(0xb7, 11, 0, 0, 0),
		"constant of kind 3":        slices.Concat(raw(0x18, 0, 3, 0, 0), make([]byte, 8)),
		"constant with offset":      slices.Concat(raw(0x18, 0, 0, 1, 0), make([]byte, 8)),
		"map reference with offset": slices.Concat(raw(0x18, 0, 1, 0, 0), raw(0, 0, 0, 0, 8)),
	} {
		if _, err := decodeRaw(t, in, rawExit); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDecodeNamesWhatIsMissing(t *testing.T) {
	for want, in := range map[string][]byte{
		"legacy packet access (ABS, IND)":    raw(0x20, 0, 0, 0, 0),
		"a probe has no packet":              raw(0x40, 0, 1, 0, 0),
		"may_goto is not supported":          raw(0xe5, 0, 0, 0, 0),
		"kernel functions cannot be called":  raw(0x85, 0, 2, 0, 7),
		"there is no map 3":                  slices.Concat(raw(0x18, 0, 2, 0, 3), make([]byte, 8)),
		"the frame pointer is read-only":     raw(0x07, 10, 0, 0, 8),
		"jump by 7 leaves the program":       raw(0x05, 0, 0, 7, 0),
		"jump by 2147483647 leaves the prog": raw(0x06, 0, 0, 0, 1<<31-1),
	} {
		if _, err := decodeRaw(t, in, rawExit); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

func TestDecodeFunctions(t *testing.T) {
	code, err := Decode(program(
		asm.Mov.Imm(asm.R1, 3),
		asm.Call.Label("square"),
		asm.Ja.Label("out"),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("never"),
		ret.WithSymbol("out"),
		asm.Mov.Reg(asm.R0, asm.R1).WithSymbol("square"),
		asm.Mul.Reg(asm.R0, asm.R1),
		asm.Instruction{OpCode: asm.LoadImmOp(asm.DWord), Dst: asm.R2, Src: asm.PseudoFunc, Constant: -1}.WithReference("callback"),
		asm.Call.Label("callback"),
		ret,
		asm.Sub.Imm(asm.R1, 1).WithSymbol("callback"),
		asm.JNE.Imm(asm.R1, 0, "callback"),
		ret,
	))
	if err != nil {
		t.Fatal(err)
	}
	want := []Func{{0, 5, []int{1}, StackSize}, {5, 10, []int{2}, StackSize}, {10, 13, nil, StackSize}}
	if got := fmt.Sprint(code.Funcs); got != fmt.Sprint(want) {
		t.Errorf("functions are %v, not %v", got, want)
	}
	for i, want := range []int{0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 2} {
		if got := code.FuncAt(i); got != want {
			t.Errorf("instruction %d is in function %d, not %d", i, got, want)
		}
	}
	for i, want := range map[int]int{0: 0, 1: 5, 2: 0, 8: 3, 11: 2} {
		if got := code.Charge(i); got != want {
			t.Errorf("instruction %d costs %d, not %d", i, got, want)
		}
	}
}

func TestDecodeRefusesUnsoundFunctions(t *testing.T) {
	chain := func(n int) (out asm.Instructions) {
		for i := range n {
			f := fmt.Sprintf("f%d", i)
			if i == n-1 {
				return append(out, r0is(0).WithSymbol(f), ret)
			}
			out = append(out, asm.Call.Label(fmt.Sprintf("f%d", i+1)).WithSymbol(f), ret)
		}
		return out
	}
	if _, err := Decode(program(chain(MaxFrames)...)); err != nil {
		t.Errorf("%d frames: %v", MaxFrames, err)
	}
	for want, p := range map[string]*Program{
		"8 functions would be active":  program(chain(MaxFrames + 1)...),
		"calls itself":                 program(asm.Call.Label("f"), ret, asm.Call.Label("g").WithSymbol("f"), ret, asm.Call.Label("f").WithSymbol("g"), ret),
		"jumps out of its function":    program(asm.Call.Label("f"), ret.WithSymbol("main"), asm.Ja.Label("main").WithSymbol("f")),
		"runs into the next function":  program(asm.Call.Label("f"), r0is(0).WithSymbol("f"), ret),
		"goes on behind its last":      program(ret, r0is(0)),
		"jump to the unknown symbol l": program(asm.Call.Label("l"), ret),
	} {
		if _, err := Decode(p); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v, for\n%v", want, err, p)
		}
	}
}

func TestHelperTable(t *testing.T) {
	for id, h := range helperByID {
		if h.ID != id || h.Name == "" {
			t.Errorf("helper %d: %+v", id, h)
		}
		for i, a := range h.Args {
			if a != ArgNone && i >= h.NumArgs() {
				t.Errorf("%s has a gap in its arguments", h.Name)
			}
			sized := a == ArgRead || a == ArgReadOrNull || a == ArgWrite || a == ArgWriteOrNull
			if sized && (i == 4 || h.Args[i+1] != ArgSize && h.Args[i+1] != ArgSizeOrZero) {
				t.Errorf("%s: argument %d has no size", h.Name, i+1)
			}
		}
	}
	if len(helperByID) != len(helpers) {
		t.Errorf("%d helpers, %d numbers", len(helpers), len(helperByID))
	}
	for id, want := range map[asm.BuiltinFunc]string{
		asm.FnProbeReadKernel: "(probe_read_kernel) is not supported: a program runs in the process",
		asm.FnSkbLoadBytes:    "helper 26",
	} {
		if _, reason := LookupHelper(id); !strings.Contains(reason, want) {
			t.Errorf("want %q, got %q", want, reason)
		}
	}
}

// FuzzDecode gives the decoder any bytes: it must not panic, and what it
// accepts must be closed.
func FuzzDecode(f *testing.F) {
	f.Add(slices.Concat(raw(0x85, 0, 1, 0, 1), rawExit, rawExit))
	f.Add(slices.Concat(raw(0x05, 0, 0, -1, 0), rawExit))
	f.Fuzz(func(t *testing.T, b []byte) {
		insns, err := asm.AppendInstructions(nil, bytes.NewReader(b), binary.LittleEndian, "linux")
		if err != nil {
			return
		}
		code, err := Decode(program(insns...))
		if err != nil {
			return
		}
		for i := range code.Insns {
			in := &code.Insns[i]
			_ = in.String()
			f := code.Funcs[code.FuncAt(i)]
			if i < f.Start || i >= f.End {
				t.Fatalf("instruction %d is not in its function %+v", i, f)
			}
			if (in.Kind == Jump || in.Kind == JumpAlways) && (in.Target < f.Start || in.Target >= f.End) {
				t.Fatalf("instruction %d leaves its function", i)
			}
			if code.Charge(i) < 0 {
				t.Fatalf("instruction %d earns fuel", i)
			}
		}
	})
}
