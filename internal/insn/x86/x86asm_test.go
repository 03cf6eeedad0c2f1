package x86

import (
	"path/filepath"
	"testing"

	"golang.org/x/arch/x86/x86asm"
)

// TestCorpusByX86asm compares the length of each instruction of real code with
// golang.org/x/arch/x86/x86asm, which knows neither VEX nor what came later and
// takes some of it for something else. Each difference has a name.
func TestCorpusByX86asm(t *testing.T) {
	for _, f := range corpus(t) {
		t.Run(filepath.Base(f.path), func(t *testing.T) {
			same, unknown, known := 0, 0, map[string]int{}
			for _, w := range f.windows(4, 1<<18) {
				for pos := w[0]; pos+MaxLen < w[1]; {
					b := f.text[pos : pos+MaxLen]
					i, err := Decode(b, Mode64)
					if err != nil {
						pos++
						continue
					}
					pos += int(i.Len)
					other, err := x86asm.Decode(b, 64)
					switch name := x86asmDifference(&i, other); {
					case err != nil:
						unknown++
					case other.Len == int(i.Len):
						same++
					case name != "":
						known[name]++
					default:
						t.Errorf("% x: %s of %d bytes; x86asm reads %v in %d", b[:i.Len], i.Mnemonic(), i.Len, other, other.Len)
					}
				}
			}
			t.Logf("%d instructions of the same length, %d that x86asm refuses; other lengths: %v", same, unknown, known)
			if unknown > same/2 {
				t.Errorf("x86asm refuses %d of %d", unknown, same+unknown)
			}
		})
	}
}

// x86asmDifference names what x86asm is known to read in another way, "" if this is
// nothing of the kind.
func x86asmDifference(i *Inst, other x86asm.Inst) string {
	switch {
	case i.Enc == EncVEX:
		return "VEX"
	case i.Enc == EncEVEX:
		return "EVEX"
	case i.Enc == EncXOP:
		return "XOP"
	case other.Op == 0 && other.Len == 1:
		return "not known to it: the first prefix alone (endbr64, adcx, adox, padlock, several prefixes of one group)"
	case i.Map == 1 && i.Opcode >= 0x20 && i.Opcode <= 0x23:
		return "moves of control and debug registers, whose ModRM never means memory"
	}
	return ""
}
