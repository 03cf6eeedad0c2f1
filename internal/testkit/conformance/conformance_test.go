package conformance

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

// Encodings are from RFC 9669, 3 to 5, and those of lddw and ja32 from its
// appendix.
func TestAssemble(t *testing.T) {
	word := func(opcode, regs uint8, off int16, imm int32) uint64 {
		return uint64(opcode) | uint64(regs)<<8 | uint64(uint16(off))<<16 | uint64(uint32(imm))<<32
	}
	for text, want := range map[string][]uint64{
		"add %r1, %r2":                        {word(0x0f, 0x21, 0, 0)},
		"add32 %r1, -2":                       {word(0x04, 0x01, 0, -2)},
		"mov32 %r1, 0x87654321":               {word(0xb4, 0x01, 0, -0x789abcdf)},
		"neg %r3":                             {word(0x87, 0x03, 0, 0)},
		"sdiv %r1, %r2":                       {word(0x3f, 0x21, 1, 0)},
		"smod32 %r1, 3":                       {word(0x94, 0x01, 1, 3)},
		"movsx832 %r1, %r2":                   {word(0xbc, 0x21, 8, 0)},
		"movsx3264 %r1, %r2":                  {word(0xbf, 0x21, 32, 0)},
		"be16 %r1":                            {word(0xdc, 0x01, 0, 16)},
		"le64 %r1":                            {word(0xd4, 0x01, 0, 64)},
		"swap32 %r1":                          {word(0xd7, 0x01, 0, 32)},
		"lddw %r1, 0x1122334455667788":        {word(0x18, 0x01, 0, 0x55667788), word(0, 0, 0, 0x11223344)},
		"ldxdw %r1, [%r2-8]":                  {word(0x79, 0x21, -8, 0)},
		"ldxsb %r1, [%r2]":                    {word(0x91, 0x21, 0, 0)},
		"stb [%r1+2], 0x44":                   {word(0x72, 0x01, 2, 0x44)},
		"stxw [%r1+0x10], %r2":                {word(0x63, 0x21, 16, 0)},
		"lock add [%r10-8], %r1":              {word(0xdb, 0x1a, -8, 0)},
		"lock fetch xor32 [%r10-8], %r1":      {word(0xc3, 0x1a, -8, 0xa1)},
		"lock cmpxchg [%r10-8], %r1":          {word(0xdb, 0x1a, -8, 0xf1)},
		"call 5":                              {word(0x85, 0, 0, 5)},
		"call %r2":                            {word(0x8d, 0x02, 0, 0)},
		"call local f\nf:\nexit":              {word(0x85, 0x10, 0, 0), word(0x95, 0, 0, 0)},
		"l:\nja32 l":                          {word(0x06, 0, 0, -1)},
		"jsgt32 %r1, %r2, +3":                 {word(0x6e, 0x21, 3, 0)},
		"jne %r0, 1, exit\nexit":              {word(0x55, 0, 0, 1), word(0x95, 0, 0, 0)},
		"jset %r1, 0x10, l\nlddw %r0, 1\nl:":  {word(0x45, 0x01, 2, 16), word(0x18, 0, 0, 1), 0},
		"mov %r1,%r2 \n  # nothing\n\texit  ": {word(0xbf, 0x21, 0, 0), word(0x95, 0, 0, 0)},
	} {
		c, err := Parse("-- asm\n" + text + "\n-- result\n0")
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var b []byte
		for _, w := range want {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
		if !bytes.Equal(c.Code, b) {
			t.Errorf("%s: % x, not % x", text, c.Code, b)
		}
	}
}

func TestParse(t *testing.T) {
	c, err := Parse("# who\n-- asm\nexit\n-- mem\naa bb 0x01\n02\n-- c\nint x;\n-- result\n0x10\n")
	if err != nil || !bytes.Equal(c.Memory, []byte{0xaa, 0xbb, 1, 2}) || c.Result != 16 || len(c.Code) != 8 {
		t.Errorf("%+v, %v", c, err)
	}
	c, err = Parse("-- asm\nlddw %r0, 1\n-- raw\n0x0000000000000095\n-- error\nsome\n")
	if err != nil || len(c.Code) != 8 || c.Code[0] != 0x95 || c.Error != "some\n" || c.Memory != nil {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"-- asm\nfly %r1\n-- result\n0":           "unknown instruction fly",
		"-- asm\nmov %r16, 1\n-- result\n0":       "not a register",
		"-- asm\nmov %r1\n-- result\n0":           "operand is missing",
		"-- asm\nmov %r1, 1, 2\n-- result\n0":     "operands are left",
		"-- asm\nmov %r1, 4294967296\n-- result0": "out of range",
		"-- asm\nja nowhere\n-- result\n0":        "no label nowhere",
		"-- asm\nl:\nl:\nexit\n-- result\n0":      "defined twice",
		"-- asm\nlock fly [%r1], %r2\n":           "unknown atomic",
		"-- asm\nldxw %r1, %r2\n":                 "brackets",
		"-- asm\nexit\n":                          "the result has 0 lines",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, not %q", text, err, want)
		}
	}
}
