package x86

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
)

// decodeRow is one instruction: its bytes up to the bar, junk behind it, and
// what is to be known of it.
type decodeRow struct {
	code string
	want string // as summary writes it
}

// bytes are the instruction and the junk, and the instruction's length.
func (r decodeRow) bytes(t testing.TB) ([]byte, int) {
	code, junk, ok := strings.Cut(strings.ReplaceAll(r.code, " ", ""), "|")
	b, err := hex.DecodeString(code + junk)
	if err != nil || !ok {
		t.Fatalf("bad row %q: %v", r.code, err)
	}
	return b, len(code) / 2
}

func TestDecodeRows(t *testing.T) {
	for _, r := range decodeRows {
		b, n := r.bytes(t)
		i, err := Decode(b, Mode64)
		if err != nil || int(i.Len) != n {
			t.Errorf("%s: length %d, error %v", r.code, i.Len, err)
			continue
		}
		if s := summary(i); s != r.want {
			t.Errorf("%s:\n have %s\n want %s", r.code, s, r.want)
		}
		checkDecode(t, b, Mode64)
	}
}

func TestDecodeRows32(t *testing.T) {
	for _, r := range decodeRows32 {
		b, n := r.bytes(t)
		i, err := Decode(b, Mode32)
		if err != nil || int(i.Len) != n {
			t.Errorf("%s: length %d, error %v", r.code, i.Len, err)
			continue
		}
		if s := summary(i); s != r.want {
			t.Errorf("%s:\n have %s\n want %s", r.code, s, r.want)
		}
	}
}

func TestRefusedRows(t *testing.T) {
	for _, r := range refusedRows {
		b, err := hex.DecodeString(strings.ReplaceAll(r.code, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(b, Mode64); err != r.err {
			t.Errorf("%s (%s): %v, want %v", r.code, r.why, err, r.err)
		}
	}
}

// summary writes what is known of an instruction: its name, then its parts,
// its branch, its registers (read, perhaps written, overwritten), its flags
// likewise, its memory and its faults.
func summary(i Inst) string {
	var s []string
	add := func(key, value string) {
		if value != "" {
			s = append(s, key+":"+strings.ReplaceAll(value, " ", ","))
		}
	}
	e := i.Effects()
	s = append(s, i.Mnemonic())
	if i.RIPRel() {
		s = append(s, "rip")
	}
	if i.DispLen != 0 {
		add("disp", fmt.Sprintf("%d@%d/%d", i.Disp, i.DispOff, i.DispLen))
	}
	if i.ImmLen != 0 {
		add("imm", fmt.Sprintf("%#x@%d/%d", i.Imm, i.ImmOff, i.ImmLen))
	}
	if i.Imm2Len != 0 {
		add("imm2", fmt.Sprintf("%#x@%d/%d", i.Imm2, i.Imm2Off, i.Imm2Len))
	}
	if to, ok := i.Target(0x1000); ok {
		add("to", to.String())
	}
	add("pin", string(i.Pin()))
	if e.Read == AllRegs {
		return strings.Join(append(s, "all"), " ")
	}
	add("r", e.Read.String())
	add("w", (e.Write &^ e.FullWrite).String())
	add("full", e.FullWrite.String())
	add("fr", e.FlagsRead.String())
	add("fw", (e.FlagsWrite &^ e.FlagsMust).String())
	add("fm", e.FlagsMust.String())
	add("mem", map[[2]bool]string{{true, false}: "r", {false, true}: "w", {true, true}: "rw"}[[2]bool{e.MemRead, e.MemWrite}])
	add("fault", faultNames(e.Faults))
	return strings.Join(s, " ")
}

func faultNames(f Faults) string {
	var s []string
	for k, n := range []string{"memory", "stack", "divide", "float", "privilege", "trap"} {
		if f>>k&1 != 0 {
			s = append(s, n)
		}
	}
	return strings.Join(s, ",")
}

func TestDecodeDoesNotAllocate(t *testing.T) {
	rows := [][]byte{{0x62, 0xf1, 0x7c, 0x48, 0x10, 0x40, 0x01}, {0x0f, 0x04}, {0x48}, {0x66, 0xe9, 1, 2, 3, 4}, {0x48, 0x8b, 0x05, 1, 2, 3, 4}}
	if n := testing.AllocsPerRun(100, func() {
		for _, b := range rows {
			i, _ := Decode(b, Mode64)
			_ = i.Effects()
			_ = i.Pin()
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
