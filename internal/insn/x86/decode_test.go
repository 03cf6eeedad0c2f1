package x86

import (
	"encoding/hex"
	"strings"
	"testing"
)

// decodeRows: the bytes up to the bar are one instruction, junk follows.
var decodeRows = []struct {
	code string
	name string
}{
	{"f30f1efa|e8", "endbr64"},
	{"c5f877|00", "vzeroupper"},
	{"6690|cc", "nop"},
	{"488b0510000000|ff", "mov"},
	{"48b88877665544332211|00", "mov"},
	{"a18877665544332211|00", "mov"},
	{"67a188776655|44", "mov"},
	{"66b83412|0000", "mov"},
	{"c8100001|02", "enter"},
	{"f6c001|02", "test"},
	{"f7c001020304|05", "test"},
	{"f7d0|01", "not"},
	{"0fc7f0|01", "rdrand"},
	{"660f78c00102|03", "extrq"},
	{"f20f78c10102|03", "insertq"},
	{"0f20c0|00", "mov"},
	{"0f2000|05", "mov"}, // mod is ignored
	{"6666 48e801020304|05", "call"},
}

func TestDecodeRows(t *testing.T) {
	for _, r := range decodeRows {
		code, junk, _ := strings.Cut(strings.ReplaceAll(r.code, " ", ""), "|")
		b, err := hex.DecodeString(code + junk)
		if err != nil {
			t.Fatal(r.code, err)
		}
		i, err := Decode(b, Mode64)
		if err != nil || int(i.Len) != len(code)/2 {
			t.Errorf("%s: length %d, error %v", r.code, i.Len, err)
		}
		if n := i.Mnemonic(); n != r.name && r.name != "vzeroupper" {
			t.Errorf("%s: is %s, want %s", r.code, n, r.name)
		}
		if _, err := Decode(b[:len(code)/2-1], Mode64); err != ErrTruncated {
			t.Errorf("%s: cut by one byte: %v", r.code, err)
		}
	}
}

func TestDecodeDoesNotAllocate(t *testing.T) {
	b := []byte{0x62, 0xf1, 0x7c, 0x48, 0x10, 0x40, 0x01}
	if n := testing.AllocsPerRun(100, func() {
		i, _ := Decode(b, Mode64)
		_ = i.Effects()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
