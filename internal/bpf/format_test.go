package bpf

import (
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

// A format that the kernel refuses is refused, each for its own reason, and so is one
// of more arguments than there are.
func TestFormatsAreRefused(t *testing.T) {
	number := func(n int64) asm.Instruction { return asm.LoadImm(asm.R5, n, asm.DWord) }
	for _, c := range []struct {
		format string
		size   asm.Instruction // of the arguments
		word   Reason
		text   string
	}{
		{"%d", number(8), "", ""},
		{"%d", number(0), ReasonFormat, `takes 1 arguments, there are 0`},
		{"%d %s %px", number(16), ReasonFormat, `takes 3 arguments, there are 2`},
		{"%d", number(4), ReasonSize, "up to 12 arguments of 8 bytes"},
		{"%d", number(104), ReasonSize, "up to 12 arguments of 8 bytes"},
		{"%d", asm.LoadMem(asm.R5, asm.R6, PtRegsDI, asm.Byte), ReasonSize, "the size in r5 must be a constant"},
		{"%", number(8), ReasonFormat, "the conversion %"},
		{"%f", number(8), ReasonFormat, "the conversion %f"},
		{"%n", number(8), ReasonFormat, "the conversion %n"},
		{"%#x", number(8), ReasonFormat, "the conversion %#x"},
		{"%.3d", number(8), ReasonFormat, "the conversion %.3d"},
		{"%*d", number(8), ReasonFormat, "the conversion %*d"},
		{"%hd", number(8), ReasonFormat, "the conversion %hd"},
		{"%llld", number(8), ReasonFormat, "the conversion"},
		{"%lc", number(8), ReasonFormat, "the conversion %lc"},
		{"%ls", number(8), ReasonFormat, "the conversion %ls"},
		{"%lp", number(8), ReasonFormat, "the conversion %lp"},
		{"%sx", number(8), ReasonFormat, "the conversion %sx"},
		{"%pz", number(8), ReasonFormat, "the conversion %pz"},
		{"%pI5", number(8), ReasonFormat, "the conversion %pI5"},
		{"%pusx", number(8), ReasonFormat, "the conversion %pus"},
		{"%pS", number(8), ReasonFormat, "%pS in a format is a symbol of the kernel"},
		{"%pB", number(8), ReasonFormat, "%pB in a format is a symbol of the kernel"},
		{"%1000d", number(8), ReasonFormat, "a field of 1000 characters"},
		{"\x01", number(8), ReasonFormat, "the byte 0x1 in a format"},
		{"\xc3\xa4", number(8), ReasonFormat, "the byte 0xc3 in a format"},
		{strings.Repeat("x", 64), number(8), ReasonArgument, "a constant string, with a zero byte at its end"},
	} {
		contents := make([]byte, 64)
		copy(contents, c.format)
		insns := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1), asm.Mov.Imm(asm.R0, 0)}
		for off := int16(-256); off < 0; off += 8 {
			insns = append(insns, asm.StoreMem(asm.R10, off, asm.R0, asm.DWord))
		}
		_, err := Verify(&Program{Name: "format", Maps: []abi.MapSpec{{Name: ".rodata", Kind: abi.Array, KeySize: 4, ValueSize: 64, MaxEntries: 1}},
			Constants: map[int][]byte{0: contents}, Insns: append(insns,
				asm.Mov.Reg(asm.R1, asm.R10), asm.Add.Imm(asm.R1, -400), asm.Mov.Imm(asm.R2, 100), asm.LoadMapValue(asm.R3, 0, 0),
				asm.Mov.Reg(asm.R4, asm.R10), asm.Add.Imm(asm.R4, -256), c.size, asm.FnSnprintf.Call(), asm.Return())})
		var e *InsnError
		switch {
		case c.word == "" && err != nil:
			t.Errorf("%q: %v", c.format, err)
		case c.word != "" && (!errors.As(err, &e) || e.Word != c.word || !strings.Contains(e.Reason, c.text)):
			t.Errorf("%q: %v, not %s: %s", c.format, err, c.word, c.text)
		}
	}
}
