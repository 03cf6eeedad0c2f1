package x86

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"trapless/internal/abi"
)

const testBase abi.Addr = 0x401000

// TestRows shows each kind of encoding once: what is called, the bytes, and
// what objdump says of them.
func TestRows(t *testing.T) {
	rows := []struct {
		emit func(a *Asm)
		hex  string
		text string
	}{
		{func(a *Asm) { a.MovRR(8, RDI, R12) }, "4c89e7", "mov rdi,r12"},
		{func(a *Asm) { a.MovRR(1, RSI, RBX) }, "4088de", "mov sil,bl"},
		{func(a *Asm) { a.MovRR(1, RCX, RBX) }, "88d9", "mov cl,bl"},
		{func(a *Asm) { a.MovRI(RAX, 0) }, "b800000000", "mov eax,0x0"},
		{func(a *Asm) { a.MovRI(R8, 0xffffffff) }, "41b8ffffffff", "mov r8d,0xffffffff"},
		{func(a *Asm) { a.MovRI(RAX, ^uint64(0)) }, "48c7c0ffffffff", "mov rax,0xffffffffffffffff"},
		{func(a *Asm) { a.MovRI(R9, 1<<32) }, "49b90000000001000000", "movabs r9,0x100000000"},
		{func(a *Asm) { a.Load(8, RAX, FS(0)) }, "64488b042500000000", "mov rax,QWORD PTR fs:0x0"},
		{func(a *Asm) { a.Load(8, RAX, At(RSP, 0)) }, "488b0424", "mov rax,QWORD PTR [rsp]"},
		{func(a *Asm) { a.Load(8, RAX, At(R12, 8)) }, "498b442408", "mov rax,QWORD PTR [r12+0x8]"},
		{func(a *Asm) { a.Load(8, RAX, At(RBP, 0)) }, "488b4500", "mov rax,QWORD PTR [rbp+0x0]"},
		{func(a *Asm) { a.Load(8, RAX, At(R13, -128)) }, "498b4580", "mov rax,QWORD PTR [r13-0x80]"},
		{func(a *Asm) { a.Load(8, RAX, At(R13, 128)) }, "498b8580000000", "mov rax,QWORD PTR [r13+0x80]"},
		{func(a *Asm) { a.LoadZX(2, R8, AtIndex(R13, R12, 8, 0)) }, "470fb744e500", "movzx r8d,WORD PTR [r13+r12*8+0x0]"},
		{func(a *Asm) { a.LoadSX(4, RCX, At(RDX, 4)) }, "48634a04", "movsxd rcx,DWORD PTR [rdx+0x4]"},
		{func(a *Asm) { a.StoreI(8, At(RBX, 0), -1) }, "48c703ffffffff", "mov QWORD PTR [rbx],0xffffffffffffffff"},
		{func(a *Asm) { a.StoreI(2, At(RBX, 0), 0xffff) }, "66c703ffff", "mov WORD PTR [rbx],0xffff"},
		{func(a *Asm) { a.Lea(RSP, At(RSP, -128)) }, "488d642480", "lea rsp,[rsp-0x80]"},
		{func(a *Asm) { a.OpRI(Sub, 8, RSP, 0x80) }, "4881ec80000000", "sub rsp,0x80"},
		{func(a *Asm) { a.OpRI(Cmp, 4, RAX, -1) }, "83f8ff", "cmp eax,0xffffffff"},
		{func(a *Asm) { a.Lock(); a.OpMI(Add, 8, At(R11, 16), 1) }, "f04983431001", "lock add QWORD PTR [r11+0x10],0x1"},
		{func(a *Asm) { a.Lock(); a.Cmpxchg16b(At(RSI, 0)) }, "f0480fc70e", "lock cmpxchg16b OWORD PTR [rsi]"},
		{func(a *Asm) { a.Lock(); a.Cmpxchg(8, At(RDI, 0), RCX) }, "f0480fb10f", "lock cmpxchg QWORD PTR [rdi],rcx"},
		{func(a *Asm) { a.Lock(); a.Xadd(4, At(RDI, 0), R9) }, "f0440fc10f", "lock xadd DWORD PTR [rdi],r9d"},
		{func(a *Asm) { a.Bswap(8, R15) }, "490fcf", "bswap r15"},
		{func(a *Asm) { a.Rdfsbase(R10) }, "f3490faec2", "rdfsbase r10"},
		{func(a *Asm) { a.Setcc(O, RSI) }, "400f90c6", "seto sil"},
		{func(a *Asm) { a.JmpMem(At(R12, 0)) }, "41ff2424", "jmp QWORD PTR [r12]"},
		{func(a *Asm) { a.CallMem(Abs(testBase + 0x106)) }, "ff1500010000", "call QWORD PTR [rip+0x100] # 0x401106"},
		{func(a *Asm) { a.JmpAddr(testBase) }, "e9fbffffff", "jmp 0x401000"},
		{func(a *Asm) { a.JccAddr(NE, testBase+6) }, "0f8500000000", "jne 0x401006"},
		{func(a *Asm) { a.CallAddr(testBase + 0x105) }, "e800010000", "call 0x401105"},
		{func(a *Asm) { a.PushI(-1) }, "6aff", "push 0xffffffffffffffff"},
		{func(a *Asm) { a.PushI(128) }, "6880000000", "push 0x80"},
		{func(a *Asm) { a.Rdtsc() }, "0f31", "rdtsc"},
		{func(a *Asm) { a.Rdtscp() }, "0f01f9", "rdtscp"},
		{func(a *Asm) { a.Syscall() }, "0f05", "syscall"},
		{func(a *Asm) { a.Pushfq() }, "9c", "pushf"},
		{func(a *Asm) { a.Popfq() }, "9d", "popf"},
		{func(a *Asm) { a.Lahf() }, "9f", "lahf"},
		{func(a *Asm) { a.Sahf() }, "9e", "sahf"},
		{func(a *Asm) { a.Cdq() }, "99", "cdq"},
		{func(a *Asm) { a.Cqo() }, "4899", "cqo"},
		{func(a *Asm) { a.Ret() }, "c3", "ret"},
		{func(a *Asm) { a.Int3() }, "cc", "int3"},
		{func(a *Asm) { a.Ud2() }, "0f0b", "ud2"},
		{func(a *Asm) { a.Pause() }, "f390", "pause"},
	}
	for _, row := range rows {
		a := New(testBase)
		row.emit(a)
		code, err := a.Bytes()
		if err != nil || hex.EncodeToString(code) != row.hex {
			t.Errorf("%s: got %x, %v; want %s", row.text, code, err, row.hex)
			continue
		}
		if got := objdump(t, code, testBase); len(got) != 1 || got[testBase].text != row.text {
			t.Errorf("%s: objdump says %v", row.hex, got)
		}
	}
}

func TestLabels(t *testing.T) {
	a := New(testBase)
	back, ahead, data := a.NewLabel(), a.NewLabel(), a.NewLabel()
	a.Bind(back)
	a.Jrcxz(ahead)                      // 401000
	a.Jmp(ahead)                        // 401002
	a.Jcc(E, ahead)                     // 401007
	a.Jmp(back)                         // 40100d
	a.Jcc(NE, back)                     // 40100f
	a.Call(back)                        // 401011
	a.OpMI(Cmp, 8, AtLabel(data), 1000) // 401016: an immediate follows the displacement
	a.Bind(ahead)
	a.Lea(RAX, AtLabel(data)) // 401021
	a.Bind(data)
	a.QuadLabel(ahead) // 401028
	if got := a.LabelAddr(data); got != 0x401028 {
		t.Errorf("data is at %v", got)
	}
	code, err := a.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	want := "e31f" + "e91a000000" + "0f8414000000" + "ebf1" + "75ef" + "e8eaffffff" +
		"48813d07000000e8030000" + "488d0500000000" + "2110400000000000"
	if got := hex.EncodeToString(code); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestBackwardBranchTurnsLong pins the distance at which the two-byte form no
// longer reaches.
func TestBackwardBranchTurnsLong(t *testing.T) {
	for _, row := range []struct{ pad, want int }{{126, 2}, {127, 5}} {
		a := New(testBase)
		l := a.NewLabel()
		a.Bind(l)
		a.Nop(row.pad)
		a.Jmp(l)
		if got := a.Len() - row.pad; got != row.want {
			t.Errorf("a jump over %d bytes has %d bytes, want %d", row.pad, got, row.want)
		}
	}
}

func TestAlign(t *testing.T) {
	for pad := range 16 {
		a := New(testBase)
		a.Nop(pad)
		a.Align(16)
		if a.PC()%16 != 0 || a.Len() > 16 {
			t.Errorf("%d bytes are aligned to %v", pad, a.PC())
		}
	}
}

func TestMistakes(t *testing.T) {
	rows := []struct {
		name string
		emit func(a *Asm)
		want string
	}{
		{"label never bound", func(a *Asm) { a.Jmp(a.NewLabel()) }, "not bound"},
		{"label bound twice", func(a *Asm) { l := a.NewLabel(); a.Bind(l); a.Bind(l) }, "bound twice"},
		{"foreign label", func(a *Asm) { a.Bind(7) }, "not made"},
		{"foreign label used", func(a *Asm) { a.Call(7) }, "not bound"},
		{"address too early", func(a *Asm) { a.LabelAddr(a.NewLabel()) }, "before it is bound"},
		{"jrcxz too far", func(a *Asm) { l := a.NewLabel(); a.Jrcxz(l); a.Nop(128); a.Bind(l) }, "128 bytes"},
		{"jump out of reach", func(a *Asm) { a.JmpAddr(testBase + 1<<31 + 5) }, "out of reach"},
		{"operand out of reach", func(a *Asm) { a.Load(8, RAX, Abs(testBase+1<<31+7)) }, "out of reach"},
		{"rsp as index", func(a *Asm) { a.Lea(RAX, AtIndex(RAX, RSP, 1, 0)) }, "index"},
		{"scale of three", func(a *Asm) { a.Lea(RAX, AtIndex(RAX, RCX, 3, 0)) }, "scale 3"},
		{"size of three", func(a *Asm) { a.MovRR(3, RAX, RAX) }, "size 3"},
		{"byte imul", func(a *Asm) { a.Imul(1, RAX, RAX) }, "size 1"},
		{"no such register", func(a *Asm) { a.Push(16) }, "register 16"},
		{"word bswap", func(a *Asm) { a.Bswap(2, RAX) }, "bswap"},
		{"byte too large", func(a *Asm) { a.OpRI(Add, 1, RAX, 256) }, "fit a byte"},
		{"word too small", func(a *Asm) { a.StoreI(2, At(RAX, 0), -32769) }, "16 bits"},
		{"odd alignment", func(a *Asm) { a.Align(3) }, "power of two"},
	}
	for _, row := range rows {
		a := New(testBase)
		row.emit(a)
		a.Nop(200)
		if code, err := a.Bytes(); !errors.Is(err, ErrEncode) || code != nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: got %d bytes, %v", row.name, len(code), err)
		}
	}
}

// TestReachIsExact takes the last byte that each relative operand reaches.
func TestReachIsExact(t *testing.T) {
	a := New(1 << 33)
	a.JmpAddr(1<<33 + 5 + 1<<31 - 1)
	a.JmpAddr(1<<33 + 10 - 1<<31)
	a.OpMI(Add, 8, Abs(1<<33+21+1<<31-1), 1000)
	code, err := a.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	want, _ := hex.DecodeString("e9ffffff7f" + "e900000080" + "488105ffffff7fe8030000")
	if !bytes.Equal(code, want) {
		t.Errorf("got %x", code)
	}
}

func TestRegSet(t *testing.T) {
	s := Regs(RAX, R9, RDI)
	if !s.Has(R9) || s.Has(R8) || s.Len() != 3 || s.String() != "{rax rdi r9}" {
		t.Errorf("%v", s)
	}
	if got := s.Del(RDI).Add(R15).String(); got != "{rax r9 r15}" {
		t.Error(got)
	}
}

func TestCondNot(t *testing.T) {
	for _, c := range []Cond{O, B, E, BE, S, P, L, LE} {
		if c.Not() != c+1 || c.Not().Not() != c {
			t.Errorf("not %d is %d", c, c.Not())
		}
	}
}
