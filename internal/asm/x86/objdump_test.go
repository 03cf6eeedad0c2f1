package x86

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"trapless/internal/abi"
	"trapless/internal/testkit"
)

// line is one instruction as objdump sees it.
type line struct {
	len  int
	text string
}

var objdumpLine = regexp.MustCompile(`^\s*([0-9a-f]+):\t((?:[0-9a-f]{2} )+)\s*\t(.*)$`)

// objdump disassembles code at an address, with one run for all of it.
func objdump(t *testing.T, code []byte, at abi.Addr) map[abi.Addr]line {
	t.Helper()
	file := filepath.Join(t.TempDir(), "code")
	if err := os.WriteFile(file, code, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(testkit.Command(t, "objdump", "binutils"), "-D", "-w", "-b", "binary", "-m", "i386:x86-64", "-M", "intel",
		fmt.Sprintf("--adjust-vma=%#x", uint64(at)), file).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := map[abi.Addr]line{}
	for row := range strings.Lines(string(out)) {
		m := objdumpLine.FindStringSubmatch(strings.TrimRight(row, "\n"))
		if m == nil {
			continue
		}
		addr, err := strconv.ParseUint(m[1], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		lines[abi.Addr(addr)] = line{len(m[2]) / 3, strings.Join(strings.Fields(m[3]), " ")}
	}
	return lines
}

// batch collects instructions with the text that they should have.
type batch struct {
	a    *Asm
	want map[abi.Addr]string
}

func newBatch() *batch { return &batch{New(testBase), map[abi.Addr]string{}} }

func (b *batch) add(text string, emit func(a *Asm)) {
	b.want[b.a.PC()] = text
	emit(b.a)
}

func (b *batch) check(t *testing.T) {
	t.Helper()
	code, err := b.a.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	lines, bad := objdump(t, code, testBase), 0
	for addr, want := range b.want {
		if got := lines[addr]; got.text != want {
			t.Errorf("%v: %x is %q, want %q", addr, code[addr-testBase:][:got.len], got.text, want)
			if bad++; bad > 20 {
				t.Fatal("and more")
			}
		}
	}
	if len(lines) != len(b.want) {
		t.Errorf("%d instructions were emitted, objdump sees %d", len(b.want), len(lines))
	}
	t.Logf("%d instructions agree with objdump", len(b.want))
}

var allRegs = []Reg{RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15}

// name is a register's name at a size, as objdump writes it.
func name(size int, r Reg) string {
	n := r.String()
	if r >= R8 {
		return n + map[int]string{1: "b", 2: "w", 4: "d", 8: ""}[size]
	}
	switch {
	case size == 8:
		return n
	case size == 4:
		return "e" + n[1:]
	case size == 2:
		return n[1:]
	case strings.HasSuffix(n, "x"):
		return n[1:2] + "l"
	}
	return n[1:] + "l"
}

// text is a memory operand as objdump writes it.
func (m Mem) text(size int) string {
	ptr := map[int]string{1: "BYTE PTR ", 2: "WORD PTR ", 4: "DWORD PTR ", 8: "QWORD PTR "}[size]
	if m.Seg != NoSeg {
		ptr += map[Seg]string{SegFS: "fs:", SegGS: "gs:"}[m.Seg]
	}
	if m.Base == NoReg && m.Index == NoReg {
		if m.Seg == NoSeg {
			ptr += "ds:"
		}
		return fmt.Sprintf("%s%#x", ptr, uint64(int64(m.Disp)))
	}
	var parts []string
	if m.Base != NoReg {
		parts = append(parts, m.Base.String())
	}
	if m.Index != NoReg {
		parts = append(parts, fmt.Sprintf("%v*%d", m.Index, m.Scale))
	}
	s := strings.Join(parts, "+")
	if m.Disp != 0 || m.Base == RBP || m.Base == R13 || m.Base == NoReg {
		s += fmt.Sprintf("%+#x", m.Disp)
	}
	return ptr + "[" + s + "]"
}

// mems has every register as base and as index, with every displacement form.
func mems() []Mem {
	ms := []Mem{FS(0), FS(0x28), FS(-8), At(NoReg, 0x1234)}
	for i, base := range allRegs {
		for _, disp := range []int32{0, 1, -128, 127, 128, -129, 1<<31 - 1, -1 << 31} {
			ms = append(ms, At(base, disp))
			index := allRegs[(i*5+int(disp&7)+1)%16]
			if index == RSP {
				index = R12
			}
			ms = append(ms, AtIndex(base, index, 1<<(i%4), disp))
		}
		if base != RSP {
			ms = append(ms, AtIndex(NoReg, base, 8, 64))
		}
		m := At(base, 16)
		m.Seg = SegGS
		ms = append(ms, m)
	}
	return ms
}

var sizes = []int{1, 2, 4, 8}

var opNames = map[Op]string{Add: "add", Or: "or", Adc: "adc", Sbb: "sbb", And: "and", Sub: "sub", Xor: "xor", Cmp: "cmp"}

func TestRegisterForms(t *testing.T) {
	b := newBatch()
	for _, d := range allRegs {
		for _, s := range allRegs {
			for _, size := range sizes {
				rr(b, size, d, s)
			}
			for _, size := range sizes[1:] {
				wideRR(b, size, d, s)
			}
			b.add("movzx "+name(4, d)+","+name(1, s), func(a *Asm) { a.MovZX(1, d, s) })
			b.add("movzx "+name(4, d)+","+name(2, s), func(a *Asm) { a.MovZX(2, d, s) })
			b.add("mov "+name(4, d)+","+name(4, s), func(a *Asm) { a.MovZX(4, d, s) })
			b.add("movsx "+name(8, d)+","+name(1, s), func(a *Asm) { a.MovSX(1, d, s) })
			b.add("movsx "+name(8, d)+","+name(2, s), func(a *Asm) { a.MovSX(2, d, s) })
			b.add("movsxd "+name(8, d)+","+name(4, s), func(a *Asm) { a.MovSX(4, d, s) })
		}
	}
	b.check(t)
}

func rr(b *batch, size int, d, s Reg) {
	two := name(size, d) + "," + name(size, s)
	for op, n := range opNames {
		b.add(n+" "+two, func(a *Asm) { a.OpRR(op, size, d, s) })
	}
	b.add("mov "+two, func(a *Asm) { a.MovRR(size, d, s) })
	b.add("test "+two, func(a *Asm) { a.TestRR(size, d, s) })
	b.add("xchg "+two, func(a *Asm) { a.XchgRR(size, d, s) })
}

var condNames = []string{"o", "no", "b", "ae", "e", "ne", "be", "a", "s", "ns", "p", "np", "l", "ge", "le", "g"}

func wideRR(b *batch, size int, d, s Reg) {
	two := name(size, d) + "," + name(size, s)
	b.add("imul "+two, func(a *Asm) { a.Imul(size, d, s) })
	b.add("imul "+two+","+imm(size, -5), func(a *Asm) { a.ImulI(size, d, s, -5) })
	b.add("imul "+two+","+imm(size, 1000), func(a *Asm) { a.ImulI(size, d, s, 1000) })
	b.add("bsr "+two, func(a *Asm) { a.Bsr(size, d, s) })
	c := Cond(d+s) % 16
	b.add("cmov"+condNames[c]+" "+two, func(a *Asm) { a.Cmov(c, size, d, s) })
}

// imm is an immediate as objdump writes it: unsigned, of the operand's size.
func imm(size int, v int32) string {
	return fmt.Sprintf("%#x", uint64(int64(v))&(1<<(8*size-1)<<1-1))
}

func TestOneRegisterForms(t *testing.T) {
	b := newBatch()
	shifts := map[Shift]string{Shl: "shl", Shr: "shr", Sar: "sar", Rol: "rol", Ror: "ror"}
	for _, r := range allRegs {
		for _, size := range sizes {
			n := name(size, r)
			for op, opName := range opNames {
				for _, v := range []int32{1, -1, 127, -128} {
					b.add(opName+" "+n+","+imm(size, v), func(a *Asm) { a.OpRI(op, size, r, v) })
				}
			}
			b.add("test "+n+","+imm(size, 0x55), func(a *Asm) { a.TestRI(size, r, 0x55) })
			for op, opName := range shifts {
				b.add(opName+" "+n+",1", func(a *Asm) { a.ShiftI(op, size, r, 1) })
				b.add(opName+" "+n+",0x7", func(a *Asm) { a.ShiftI(op, size, r, 7) })
				b.add(opName+" "+n+",cl", func(a *Asm) { a.ShiftCL(op, size, r) })
			}
			unary := map[string]func(a *Asm){
				"neg ":  func(a *Asm) { a.Neg(size, r) },
				"not ":  func(a *Asm) { a.Not(size, r) },
				"mul ":  func(a *Asm) { a.Mul(size, r) },
				"div ":  func(a *Asm) { a.Div(size, r) },
				"idiv ": func(a *Asm) { a.IDiv(size, r) },
				"inc ":  func(a *Asm) { a.Inc(size, r) },
				"dec ":  func(a *Asm) { a.Dec(size, r) },
			}
			for opName, emit := range unary {
				b.add(opName+n, emit)
			}
		}
		for c, cond := range condNames {
			b.add("set"+cond+" "+name(1, r), func(a *Asm) { a.Setcc(Cond(c), r) })
		}
		b.add("mov "+name(4, r)+",0x7fffffff", func(a *Asm) { a.MovRI(r, 0x7fffffff) })
		b.add("mov "+name(8, r)+",0xffffffff80000000", func(a *Asm) { a.MovRI(r, 0xffffffff80000000) })
		b.add("movabs "+name(8, r)+",0xffffffff7fffffff", func(a *Asm) { a.MovRI(r, 0xffffffff7fffffff) })
		b.add("add "+name(8, r)+",0x1000", func(a *Asm) { a.OpRI(Add, 8, r, 0x1000) })
		b.add("add "+name(2, r)+",0x1000", func(a *Asm) { a.OpRI(Add, 2, r, 0x1000) })
		b.add("bswap "+name(4, r), func(a *Asm) { a.Bswap(4, r) })
		b.add("bswap "+name(8, r), func(a *Asm) { a.Bswap(8, r) })
		b.add("push "+name(8, r), func(a *Asm) { a.Push(r) })
		b.add("pop "+name(8, r), func(a *Asm) { a.Pop(r) })
		b.add("jmp "+name(8, r), func(a *Asm) { a.JmpReg(r) })
		b.add("call "+name(8, r), func(a *Asm) { a.CallReg(r) })
		b.add("rdfsbase "+name(8, r), func(a *Asm) { a.Rdfsbase(r) })
	}
	b.check(t)
}

func TestMemoryForms(t *testing.T) {
	b := newBatch()
	for i, m := range mems() {
		r := allRegs[i%16]
		for _, size := range sizes {
			sizedMem(b, size, r, m)
		}
		q, n8, n4 := m.text(8), name(8, r), name(4, r)
		b.add("movzx "+n4+","+m.text(1), func(a *Asm) { a.LoadZX(1, r, m) })
		b.add("movzx "+n4+","+m.text(2), func(a *Asm) { a.LoadZX(2, r, m) })
		b.add("mov "+n4+","+m.text(4), func(a *Asm) { a.LoadZX(4, r, m) })
		b.add("movsx "+n8+","+m.text(1), func(a *Asm) { a.LoadSX(1, r, m) })
		b.add("movsx "+n8+","+m.text(2), func(a *Asm) { a.LoadSX(2, r, m) })
		b.add("movsxd "+n8+","+m.text(4), func(a *Asm) { a.LoadSX(4, r, m) })
		b.add("lea "+n8+","+m.text(0), func(a *Asm) { a.Lea(r, m) })
		for _, size := range sizes[1:] {
			b.add("imul "+name(size, r)+","+m.text(size), func(a *Asm) { a.ImulM(size, r, m) })
		}
		c := Cond(i % 16)
		b.add("set"+condNames[c]+" "+m.text(1), func(a *Asm) { a.SetccM(c, m) })
		b.add("push "+q, func(a *Asm) { a.PushM(m) })
		b.add("pop "+q, func(a *Asm) { a.PopM(m) })
		b.add("jmp "+q, func(a *Asm) { a.JmpMem(m) })
		b.add("call "+q, func(a *Asm) { a.CallMem(m) })
	}
	b.check(t)
}

func sizedMem(b *batch, size int, r Reg, m Mem) {
	mt, n := m.text(size), name(size, r)
	for op, opName := range opNames {
		b.add(opName+" "+n+","+mt, func(a *Asm) { a.OpRM(op, size, r, m) })
		b.add(opName+" "+mt+","+n, func(a *Asm) { a.OpMR(op, size, m, r) })
		b.add(opName+" "+mt+","+imm(size, -3), func(a *Asm) { a.OpMI(op, size, m, -3) })
	}
	b.add("mov "+n+","+mt, func(a *Asm) { a.Load(size, r, m) })
	b.add("mov "+mt+","+n, func(a *Asm) { a.Store(size, m, r) })
	b.add("mov "+mt+","+imm(size, -1), func(a *Asm) { a.StoreI(size, m, -1) })
	b.add("test "+mt+","+imm(size, 0x41), func(a *Asm) { a.TestMI(size, m, 0x41) })
	b.add("xchg "+mt+","+n, func(a *Asm) { a.Xchg(size, m, r) })
	b.add("cmpxchg "+mt+","+n, func(a *Asm) { a.Cmpxchg(size, m, r) })
	b.add("xadd "+mt+","+n, func(a *Asm) { a.Xadd(size, m, r) })
	b.add("inc "+mt, func(a *Asm) { a.IncM(size, m) })
	b.add("dec "+mt, func(a *Asm) { a.DecM(size, m) })
}

// TestRIPForms has an immediate of every length behind the displacement, which
// counts from the instruction's end.
func TestRIPForms(t *testing.T) {
	b := newBatch()
	const to = testBase + 0x123456
	add := func(op, rest string, emit func(a *Asm)) {
		start := b.a.PC()
		emit(b.a)
		b.want[start] = fmt.Sprintf("%s [rip+%#x]%s # %v", op, uint64(to-b.a.PC()), rest, to)
	}
	for _, r := range allRegs {
		add("mov "+name(8, r)+",QWORD PTR", "", func(a *Asm) { a.Load(8, r, Abs(to)) })
		add("mov BYTE PTR", ","+name(1, r), func(a *Asm) { a.Store(1, Abs(to), r) })
		add("add DWORD PTR", ",0x7", func(a *Asm) { a.OpMI(Add, 4, Abs(to), 7) })
		add("add DWORD PTR", ",0x777", func(a *Asm) { a.OpMI(Add, 4, Abs(to), 0x777) })
		add("mov WORD PTR", ",0x777", func(a *Asm) { a.StoreI(2, Abs(to), 0x777) })
		add("test BYTE PTR", ",0x7", func(a *Asm) { a.TestMI(1, Abs(to), 7) })
		add("movzx "+name(4, r)+",BYTE PTR", "", func(a *Asm) { a.LoadZX(1, r, Abs(to)) })
		add("cmpxchg WORD PTR", ","+name(2, r), func(a *Asm) { a.Cmpxchg(2, Abs(to), r) })
		near := Abs(to - 16)
		near.Disp = 16
		add("xchg QWORD PTR", ","+name(8, r), func(a *Asm) { a.Xchg(8, near, r) })
	}
	b.check(t)
}

func TestNops(t *testing.T) {
	for n := 1; n < len(nops); n++ {
		a := New(testBase)
		a.Nop(n)
		code, err := a.Bytes()
		got := objdump(t, code, testBase)[testBase]
		if err != nil || got.len != n || !(strings.HasPrefix(got.text, "nop") || got.text == "xchg ax,ax") {
			t.Errorf("%d bytes: %q of %d bytes, %v", n, got.text, got.len, err)
		}
	}
}
