package x86

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// zydisBatch is how many questions testdata/zydis.c takes at once.
const zydisBatch = 4096

// question is struct question of testdata/zydis.c.
type question struct {
	Mode, Len uint8
	Bytes     [16]byte
}

// ask makes a question of the first bytes of code.
func ask(m Mode, code []byte) question {
	q := question{Mode: 64}
	if m == Mode32 {
		q.Mode = 32
	}
	q.Len = uint8(copy(q.Bytes[:], code))
	return q
}

func (q *question) code() []byte { return q.Bytes[:q.Len] }

func (q *question) mode() Mode {
	if q.Mode == 32 {
		return Mode32
	}
	return Mode64
}

// answer is struct answer of testdata/zydis.c.
type answer struct {
	Status                               uint8
	Len, Encoding, Map                   uint8
	ModRMOff, DispOff, DispLen, ImmOff   uint8
	ImmLen, Imm2Off, Imm2Len, Opcode     uint8
	Mem, Exception, Branch, OperandWidth uint8
	Read, Write, Full                    uint32
	FlagsRead, FlagsWrite, FlagsMust     uint32
	Disp                                 int64
	Attributes                           uint64
	Mnemonic                             [24]byte
}

const (
	zydisMemRead  = 1
	zydisMemWrite = 2
	zydisRelative = 4
)

func (a *answer) mnemonic() string {
	n := bytes.IndexByte(a.Mnemonic[:], 0)
	return string(a.Mnemonic[:n])
}

// zydis is the running program.
type zydis struct {
	in  io.WriteCloser
	out *bufio.Reader
}

// startZydis compiles and starts testdata/zydis.c; it installs the library when
// it may, and skips the test when it cannot.
func startZydis(t testing.TB) *zydis {
	needPackage(t, "/usr/include/Zydis/Zydis.h", "libzydis-dev")
	exe := filepath.Join(t.TempDir(), "zydis")
	if out, err := exec.Command("gcc", "-O2", "-Wall", "-o", exe, "testdata/zydis.c", "-lZydis").CombinedOutput(); err != nil {
		t.Fatalf("gcc testdata/zydis.c: %v\n%s", err, out)
	}
	cmd := exec.Command(exe)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	return &zydis{in, bufio.NewReaderSize(out, 1<<20)}
}

// needPackage makes sure that a file of a Debian package is there.
func needPackage(t testing.TB, file, pkg string) {
	if _, err := os.Stat(file); err == nil {
		return
	}
	if os.Getuid() != 0 {
		t.Skipf("needs %s: install the package %s", file, pkg)
	}
	if out, err := exec.Command("apt-get", "install", "-y", pkg).CombinedOutput(); err != nil {
		t.Skipf("needs %s, and apt-get install %s failed: %v\n%s", file, pkg, err, out)
	}
}

// answers asks a batch.
func (z *zydis) answers(t testing.TB, qs []question) []answer {
	batch := make([]question, zydisBatch)
	copy(batch, qs)
	if err := binary.Write(z.in, binary.LittleEndian, batch); err != nil {
		t.Fatal(err)
	}
	as := make([]answer, zydisBatch)
	if err := binary.Read(z.out, binary.LittleEndian, as); err != nil {
		t.Fatal(err)
	}
	return as[:len(qs)]
}

// userFlags are those that matter to a program's liveness.
const userFlags = uint32(StatusFlags | DF | AC | ID)

// differences lists where Decode and Zydis disagree, one word each.
func differences(q *question, a *answer) []string {
	i, err := Decode(q.code(), q.mode())
	if (err == nil) != (a.Status == 0) {
		if err == nil {
			return []string{"accepts"}
		}
		return []string{"refuses"}
	}
	if err != nil {
		return nil
	}
	var d []string
	same := func(what string, ok bool) {
		if !ok {
			d = append(d, what)
		}
	}
	same("length", i.Len == a.Len)
	same("opcode", i.Opcode == a.Opcode)
	same("modrm", i.ModRMOff == a.ModRMOff)
	if i.ImmLen != 0 && i.Branch == BranchNone && a.ImmLen == 0 { // Zydis calls moffs a displacement
		same("moffs", i.ImmOff == a.DispOff && i.ImmLen == a.DispLen)
	} else {
		same("disp", i.DispOff == a.DispOff && i.DispLen == a.DispLen)
		same("disp-value", i.DispLen == 0 || int64(i.Disp) == a.Disp)
		same("imm", i.ImmOff == a.ImmOff && i.ImmLen == a.ImmLen)
	}
	same("imm2", i.Imm2Off == a.Imm2Off && i.Imm2Len == a.Imm2Len)
	same("rip", i.RIPRel() == (a.Mem&zydisRelative != 0))
	e := i.Effects()
	same("read", uint32(e.Read)&a.Read == a.Read)
	same("write", uint32(e.Write)&a.Write == a.Write)
	same("full", uint32(e.FullWrite)&^a.Full == 0)
	same("flags-read", a.FlagsRead&userFlags&^uint32(e.FlagsRead) == 0)
	same("flags-write", a.FlagsWrite&userFlags&^uint32(e.FlagsWrite) == 0)
	same("flags-must", uint32(e.FlagsMust)&^a.FlagsMust == 0)
	same("mem-read", e.MemRead || a.Mem&zydisMemRead == 0)
	same("mem-write", e.MemWrite || a.Mem&zydisMemWrite == 0)
	return d
}
