package reloc

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"

	"trapless/internal/abi"
	"trapless/internal/insn/x86"
)

const (
	here  abi.Addr = 0x401000
	there abi.Addr = 0x70000000
)

// TestMove shows each kind of move: the bytes before the relative address,
// where that leads, and the bytes behind it.
func TestMove(t *testing.T) {
	rows := []struct {
		name, from string
		head       string
		target     abi.Addr // 0: there is no relative address
		tail       string
	}{
		{"nothing to do", "4889e5", "4889e5", 0, ""},
		{"ret", "c3", "c3", 0, ""},
		{"repz ret", "f3c3", "f3c3", 0, ""},
		{"ret imm16", "c20800", "c20800", 0, ""},
		{"jmp reg", "ffe0", "ffe0", 0, ""},
		{"notrack jmp reg", "3effe0", "3effe0", 0, ""},
		{"load", "488b0510000000", "488b05", here + 7 + 0x10, ""},
		{"immediate of 1 byte", "803d1000000001", "803d", here + 7 + 0x10, "01"},
		{"immediate of 2 bytes", "66c705100000003412", "66c705", here + 9 + 0x10, "3412"},
		{"immediate of 4 bytes", "48c7051000000078563412", "48c705", here + 11 + 0x10, "78563412"},
		{"lea", "488d05fcffffff", "488d05", here + 7 - 4, ""},
		{"jmp mem", "ff2500010000", "ff25", here + 6 + 0x100, ""},
		{"vex", "c5fb100d10000000", "c5fb100d", here + 8 + 0x10, ""},
		{"vex with immediate", "c4e37d380d1000000001", "c4e37d380d", here + 10 + 0x10, "01"},
		{"evex", "62f17c48100d10000000", "62f17c48100d", here + 10 + 0x10, ""},
		{"jmp rel8", "eb10", "e9", here + 2 + 0x10, ""},
		{"jmp rel8 back", "eb80", "e9", here + 2 - 128, ""},
		{"jmp rel32", "e900010000", "e9", here + 5 + 0x100, ""},
		{"bnd jmp rel32", "f2e900010000", "f2e9", here + 6 + 0x100, ""},
		{"je rel8", "7410", "0f84", here + 2 + 0x10, ""},
		{"jg rel8", "7f10", "0f8f", here + 2 + 0x10, ""},
		{"hinted jne rel8", "3e7510", "3e0f85", here + 3 + 0x10, ""},
		{"jb rel32", "0f8200010000", "0f82", here + 6 + 0x100, ""},
		{"jrcxz", "e310", "e302eb05e9", here + 2 + 0x10, ""},
		{"jecxz", "67e310", "67e302eb05e9", here + 3 + 0x10, ""},
		{"loop", "e2fe", "e202eb05e9", here, ""},
		{"loope", "e1f0", "e102eb05e9", here + 2 - 16, ""},
		{"loopne", "e07f", "e002eb05e9", here + 2 + 127, ""},
	}
	for _, row := range rows {
		want := row.head + row.tail
		if row.target != 0 {
			size := abi.Addr(len(want)/2 + rel32Len)
			want = row.head + rel(row.target, there+size) + row.tail
		}
		code := unhex(t, row.from)
		in := decode(t, code)
		got, err := Move(in, code, here, there)
		if err != nil || hex.EncodeToString(got) != want {
			t.Errorf("%s: %x, %v; want %s", row.name, got, err, want)
		}
		if n, err := Size(in); n != len(got) || err != nil {
			t.Errorf("%s: size %d, %v; moved to %d bytes", row.name, n, err, len(got))
		}
	}
}

// rel is a distance as the four bytes that encode it.
func rel(to, end abi.Addr) string {
	d := uint32(to - end)
	return hex.EncodeToString([]byte{byte(d), byte(d >> 8), byte(d >> 16), byte(d >> 24)})
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRefusals(t *testing.T) {
	rows := []struct {
		name, code string
		want       Reason
	}{
		{"call", "e800000000", Call},
		{"addr32 call", "67e800000000", Call},
		{"call reg", "ffd0", Call},
		{"call mem", "ff1500000000", Call},
		{"syscall", "0f05", Syscall},
		{"sysenter", "0f34", Syscall},
		{"int 80", "cd80", Syscall},
		{"enclu", "0f01d7", Syscall},
		{"int3", "cc", Reason(x86.PinTrap)},
		{"int 3", "cd03", Reason(x86.PinTrap)},
		{"int1", "f1", Reason(x86.PinTrap)},
		{"ud2", "0f0b", Reason(x86.PinTrap)},
		{"hlt", "f4", Reason(x86.PinTrap)},
		{"iretq", "48cf", Reason(x86.PinIRet)},
		{"far jmp", "ff28", Reason(x86.PinFar)},
		{"far call", "ff18", Reason(x86.PinFar)},
		{"far ret", "cb", Reason(x86.PinFar)},
		{"xbegin", "c7f800000000", Reason(x86.PinTransaction)},
		{"eip-relative lea", "67488d0500000000", Reason(x86.PinEIPRel)},
		{"jmp rel8 with operand size", "66eb00", Reason(x86.PinBranch16)},
		{"ret with operand size", "66c3", Reason(x86.PinBranch16)},
		{"in", "ec", Privileged},
		{"out", "e680", Privileged},
		{"rep insb", "f36c", Privileged},
		{"cli", "fa", Privileged},
		{"wrmsr", "0f30", Privileged},
		{"mov cr0", "0f22c0", Privileged},
		{"vmcall", "0f01c1", Privileged},
	}
	for _, row := range rows {
		code := unhex(t, row.code)
		in := decode(t, code)
		got, err := Move(in, code, here, there)
		var r *Refusal
		if !errors.As(err, &r) || r.Reason != row.want || got != nil {
			t.Errorf("%s: %x, %v; want %s", row.name, got, err, row.want)
		}
		if n, err := Size(in); err == nil {
			t.Errorf("%s: has size %d", row.name, n)
		}
	}
}

// TestNotPinned has instructions that look special and are not.
func TestNotPinned(t *testing.T) {
	for _, code := range []string{
		"0f31",       // rdtsc
		"0f01f9",     // rdtscp
		"f30fc7f8",   // rdpid
		"f3480faec0", // rdfsbase
		"0fa2",       // cpuid
		"f30f1efa",   // endbr64
		"c9",         // leave
		"0f01d0",     // xgetbv
		"9c",         // pushf
		"f390",       // pause
		"0f01d5",     // xend
	} {
		b := unhex(t, code)
		if got, err := Move(decode(t, b), b, here, there); err != nil || !bytes.Equal(got, b) {
			t.Errorf("%s: %x, %v", code, got, err)
		}
	}
}

func TestReach(t *testing.T) {
	rows := []struct {
		name, code string
		far        abi.Addr // the farthest place above that still reaches
	}{
		{"load", "488b0510000000", here + 7 + 0x10 + 1<<31 - 7},
		{"load with immediate", "48c7051000000078563412", here + 11 + 0x10 + 1<<31 - 11},
		{"jmp rel8", "eb10", here + 2 + 0x10 + 1<<31 - 5},
		{"jrcxz", "e310", here + 2 + 0x10 + 1<<31 - 9},
	}
	for _, row := range rows {
		code := unhex(t, row.code)
		in := decode(t, code)
		if _, err := Move(in, code, here, row.far); err != nil {
			t.Errorf("%s: %v", row.name, err)
		}
		_, err := Move(in, code, here, row.far+1)
		var r *Refusal
		if !errors.As(err, &r) || r.Reason != RIPRange {
			t.Errorf("%s one byte beyond: %v", row.name, err)
		}
	}
}

func TestMoveBranch(t *testing.T) {
	code := unhex(t, "7410")
	got, err := MoveBranch(decode(t, code), code, here, there, there+100)
	if want := "0f845e000000"; err != nil || hex.EncodeToString(got) != want {
		t.Errorf("%x, %v; want %s", got, err, want)
	}
}

func TestRetargetCall(t *testing.T) {
	for _, row := range []struct{ from, to string }{
		{"e800000000", "e8" + rel(there, here+5)},
		{"67e800000000", "67e8" + rel(there, here+6)},
		{"666648e800000000", "666648e8" + rel(there, here+8)}, // as linkers pad a call of __tls_get_addr
		{"ff1500000000", "2ee8" + rel(there, here+6)},
		{"41ff942488000000", "2e2e2ee8" + rel(there, here+8)},
	} {
		code := unhex(t, row.from)
		got, err := RetargetCall(decode(t, code), code, here, there)
		if err != nil || hex.EncodeToString(got) != row.to {
			t.Errorf("%s: %x, %v; want %s", row.from, got, err, row.to)
		}
	}
	for _, other := range []string{"ffd0", "ff542408", "e900000000", "90", "ff1c2500000000", "66ff1500000000"} {
		code := unhex(t, other)
		if got, err := RetargetCall(decode(t, code), code, here, there); err == nil {
			t.Errorf("%s: %x", other, got)
		}
	}
	code := unhex(t, "e800000000")
	if _, err := RetargetCall(decode(t, code), code, here, here+1<<32); err == nil {
		t.Error("a call reaches 4 GB")
	}
}

// TestMovedIsTheSame moves real instructions and compares what the decoder
// says of both: the same operation on the same addresses.
func TestMovedIsTheSame(t *testing.T) {
	moved, refused := 0, map[Reason]int{}
	for _, s := range corpus(t, 3) {
		to := s.at ^ 0x1234567
		got, err := Move(s.in, s.code, s.at, to)
		var r *Refusal
		if errors.As(err, &r) {
			refused[r.Reason]++
			continue
		}
		if n, _ := Size(s.in); n != len(got) {
			t.Fatalf("%x has %d bytes moved, not %d", s.code, len(got), n)
		}
		moved++
		if s.in.Branch == x86.BranchLoop {
			continue // compared by running it
		}
		in := decode(t, got)
		was, isRef := Reference(s.in, s.at)
		is, _ := Reference(in, to)
		if int(in.Len) != len(got) || in.Mnemonic() != s.in.Mnemonic() || in.Effects() != s.in.Effects() || was != is {
			t.Fatalf("%x at %v, moved to %v, is %x (%v, then %v)", s.code, s.at, to, got, was, is)
		}
		if !isRef && !bytes.Equal(got, s.code) {
			t.Fatalf("%x became %x", s.code, got)
		}
		back, err := Move(in, got, to, s.at)
		if err != nil || len(got) == len(s.code) && !bytes.Equal(back, s.code) {
			t.Fatalf("%x, moved there and back, is %x, %v", s.code, back, err)
		}
	}
	t.Logf("%d instructions moved, refused: %v", moved, refused)
}

func FuzzMove(f *testing.F) {
	f.Add(unhex(f, "488b0510000000"), uint64(here), uint64(there))
	f.Fuzz(func(t *testing.T, code []byte, from, to uint64) {
		in, err := x86.Decode(code, x86.Mode64)
		if err != nil {
			return
		}
		n, err := Size(in)
		got, moveErr := Move(in, code, abi.Addr(from), abi.Addr(to))
		if err != nil && moveErr == nil || moveErr == nil && len(got) != n {
			t.Errorf("%x: size %d, %v; moved %x, %v", code, n, err, got, moveErr)
		}
	})
}
