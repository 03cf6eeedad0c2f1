package x86

import (
	"math/rand"
	"syscall"
	"testing"
)

// guardedPage is memory that ends at a page nobody may touch.
func guardedPage(t *testing.T) []byte {
	const page = 4096
	mem, err := syscall.Mmap(-1, 0, 2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Munmap(mem) })
	if err := syscall.Mprotect(mem[page:], syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	return mem[:page] // its capacity reaches into the guard page, as a careless slice would
}

// TestRandomBytesByZydis decodes random bytes right before a page that cannot be
// read: 300,000 times, 20 million times in a long run. Zydis has to agree.
func TestRandomBytesByZydis(t *testing.T) {
	cases := 300_000
	if long() {
		cases = 20_000_000
	}
	page := guardedPage(t)
	j := newJudge(t)
	z := startZydis(t, j.check)
	r := rand.New(rand.NewSource(3))
	for range cases {
		m := Mode(r.Intn(8) / 7) // mostly 64-bit mode
		b := page[len(page)-1-r.Intn(16):]
		randomCode(r, b)
		checkDecode(t, b, m)
		z.ask(t, m, b)
	}
	z.flush(t)
	j.report(z.asked)
}

// randomCode fills b with random bytes that start like an instruction more
// often than chance would have it.
func randomCode(r *rand.Rand, b []byte) {
	r.Read(b)
	k := 0
	put := func(s string) {
		k += copy(b[k:], s[r.Intn(len(s)):][:1])
	}
	for r.Intn(3) == 0 {
		put("\x66\x67\xf0\xf2\xf3\x2e\x64\x3e\x48\x41\x4c\x66")
	}
	switch r.Intn(6) {
	case 0:
		put("\x0f")
	case 1:
		put("\x0f")
		put("\x38\x3a\x0f")
	case 2:
		put("\xc4\xc5\x62\x8f")
		if k < len(b) && r.Intn(2) == 0 {
			b[k] = b[k]&^0x1f | byte(1+r.Intn(10))
		}
	}
}

// checkDecode checks what holds for any bytes.
func checkDecode(t testing.TB, b []byte, m Mode) {
	i, err := Decode(b, m)
	if err != nil {
		if i != (Inst{}) {
			t.Fatalf("% x: %v, and yet %+v", b, err, i)
		}
		return
	}
	n := int(i.Len)
	if n < 1 || n > MaxLen || n > len(b) {
		t.Fatalf("% x: length %d", b, n)
	}
	if again, err := Decode(append(b[:n:n], 0x90, 0x90), m); again != i || err != nil {
		t.Fatalf("% x: what follows matters: %+v, %+v, %v", b[:n], i, again, err)
	}
	for k := range n {
		if _, err := Decode(b[:k], m); err != ErrTruncated {
			t.Fatalf("% x: cut to %d bytes: %v", b[:n], k, err)
		}
	}
	checkParts(t, b[:n], i)
	checkEffects(t, b[:n], i)
}

// checkParts: the parts follow each other, and fill the instruction.
func checkParts(t testing.TB, b []byte, i Inst) {
	end := i.OpcodeOff + 1
	if i.Enc == Enc3DNow {
		end = i.ModRMOff
	}
	for _, p := range []struct{ off, n uint8 }{
		{i.ModRMOff, min(1, i.ModRMOff)}, {i.SIBOff, min(1, i.SIBOff)}, {i.DispOff, i.DispLen}, {i.ImmOff, i.ImmLen}, {i.Imm2Off, i.Imm2Len},
	} {
		if p.n == 0 {
			continue
		}
		if p.off != end {
			t.Fatalf("% x: a part at %d, not %d: %+v", b, p.off, end, i)
		}
		end += p.n
	}
	if i.Enc == Enc3DNow {
		end++
	}
	if end != i.Len {
		t.Fatalf("% x: parts end at %d: %+v", b, end, i)
	}
	if b[i.OpcodeOff] != i.Opcode || i.ModRMOff != 0 && b[i.ModRMOff] != i.ModRM || i.SIBOff != 0 && b[i.SIBOff] != i.SIB {
		t.Fatalf("% x: wrong byte: %+v", b, i)
	}
}

// checkEffects: what surely happens may happen.
func checkEffects(t testing.TB, b []byte, i Inst) {
	e := i.Effects()
	if e.FullWrite&^e.Write != 0 || (e.FlagsMust|e.FlagsUndef)&^e.FlagsWrite != 0 || e.FlagsMust&e.FlagsUndef != 0 {
		t.Fatalf("% x: inconsistent effects %+v", b, e)
	}
	if i.MemRegs()&^e.Read != 0 {
		t.Fatalf("% x: address registers %v are not read: %+v", b, i.MemRegs(), e)
	}
	if (e.MemRead || e.MemWrite) && e.Faults == 0 && e.Read != AllRegs {
		t.Fatalf("% x: memory that cannot fault: %+v", b, e)
	}
}

// FuzzDecode looks for bytes that break Decode's promises.
func FuzzDecode(f *testing.F) {
	for _, r := range decodeRows {
		code, _ := r.bytes(f)
		f.Add(code, false)
		f.Add(code, true)
	}
	f.Fuzz(func(t *testing.T, b []byte, mode32 bool) {
		m := Mode64
		if mode32 {
			m = Mode32
		}
		checkDecode(t, b, m)
	})
}
