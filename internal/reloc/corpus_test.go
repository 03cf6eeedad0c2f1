package reloc

import (
	"debug/elf"
	"testing"

	"trapless/internal/abi"
	"trapless/internal/insn/x86"
)

// binaries are where the tests take real instructions from; those that are
// missing are passed over, but not all may be.
var binaries = []string{
	"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6", "/lib/x86_64-linux-gnu/libm.so.6",
	"/usr/bin/python3", "/usr/bin/bash", "/usr/local/go/bin/gofmt", "/proc/self/exe",
}

// sample is an instruction at its place.
type sample struct {
	in   x86.Inst
	code []byte
	at   abi.Addr
}

// signature tells apart the forms of instructions, but not their operands'
// values.
type signature struct {
	enc             x86.Encoding
	opcodeMap       uint8
	opcode, modrm   byte
	prefixes        x86.Prefixes
	dispLen, immLen uint8
	branch          x86.Branch
	index           bool
}

func (s sample) signature() signature {
	in := s.in
	return signature{enc: in.Enc, opcodeMap: in.Map, opcode: in.Opcode, modrm: in.ModRM, prefixes: in.Prefixes,
		dispLen: in.DispLen, immLen: in.ImmLen, branch: in.Branch, index: in.SIB>>3&7 != 4}
}

// corpus is at most limit instructions of each form, from the text sections of
// the binaries.
func corpus(t testing.TB, limit int) []sample {
	t.Helper()
	var all []sample
	seen := map[signature]int{}
	for _, path := range binaries {
		f, err := elf.Open(path)
		if err != nil {
			continue
		}
		for _, s := range f.Sections {
			if s.Flags&elf.SHF_EXECINSTR == 0 || s.Type != elf.SHT_PROGBITS {
				continue
			}
			code, err := s.Data()
			if err != nil {
				t.Fatal(err)
			}
			all = sweep(all, code, abi.Addr(s.Addr), seen, limit)
		}
		f.Close()
	}
	if len(all) == 0 {
		t.Skipf("none of %v can be read", binaries)
	}
	return all
}

func sweep(all []sample, code []byte, at abi.Addr, seen map[signature]int, limit int) []sample {
	for off := 0; off < len(code); {
		in, err := x86.Decode(code[off:], x86.Mode64)
		if err != nil {
			off++
			continue
		}
		s := sample{in, code[off : off+int(in.Len)], at + abi.Addr(off)}
		off += int(in.Len)
		if sig := s.signature(); seen[sig] < limit {
			seen[sig]++
			all = append(all, s)
		}
	}
	return all
}

func decode(t testing.TB, code []byte) x86.Inst {
	t.Helper()
	in, err := x86.Decode(code, x86.Mode64)
	if err != nil {
		t.Fatalf("%x: %v", code, err)
	}
	return in
}
