package x86

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"

	"trapless/internal/testkit"
)

// zydisBatch is how many questions testdata/zydis.c takes at once.
const zydisBatch = 4096

// question is struct question of testdata/zydis.c.
type question struct {
	Mode, Len uint8
	Bytes     [16]byte
}

// ask makes a question of at most 16 bytes of code.
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
	Status                             uint8
	Len, Encoding, Map                 uint8
	ModRMOff, DispOff, DispLen, ImmOff uint8
	ImmLen, Imm2Off, Imm2Len, Opcode   uint8
	Facts, Branch                      uint8
	_                                  [2]uint8
	Read, Write, Full                  uint32
	FlagsRead, FlagsWrite, FlagsMust   uint32
	Disp, Imm                          int64
	Mnemonic                           [24]byte
}

// Bits of answer.Facts.
const (
	zydisMemRead  = 1
	zydisMemWrite = 2
	zydisRelative = 4
	zydisKNC      = 8
	zydisFloat    = 16
	zydisPriv     = 32
)

// zydisBranch are the values of answer.Branch that suit a kind of branch.
var zydisBranch = map[Branch]uint8{
	BranchJcc: 1, BranchLoop: 1, BranchXBegin: 1,
	BranchJmp: 2, BranchJmpInd: 2, BranchFarJmp: 2,
	BranchCall: 3, BranchCallInd: 3, BranchFarCall: 3,
	BranchRet: 4, BranchFarRet: 4, BranchIRet: 4,
	BranchSyscall: 5,
	BranchTrap:    7,
}

func (a *answer) mnemonic() string {
	n := bytes.IndexByte(a.Mnemonic[:], 0)
	return string(a.Mnemonic[:n])
}

// String shows the answer as Effects are shown.
func (a *answer) String() string {
	return fmt.Sprint(Effects{Read: RegSet(a.Read), Write: RegSet(a.Write), FullWrite: RegSet(a.Full),
		FlagsRead: Flags(a.FlagsRead), FlagsWrite: Flags(a.FlagsWrite), FlagsMust: Flags(a.FlagsMust),
		MemRead: a.Facts&zydisMemRead != 0, MemWrite: a.Facts&zydisMemWrite != 0}, " facts ", a.Facts, " branch ", a.Branch)
}

// zydis is the running program, and what it was asked so far.
type zydis struct {
	in    io.Writer
	out   io.Reader
	batch []question
	check func(q *question, a *answer)
	asked int
}

// startZydis compiles and starts testdata/zydis.c. Each answer goes to check.
func startZydis(t testing.TB, check func(q *question, a *answer)) *zydis {
	testkit.RequirePackage(t, "libzydis-dev")
	cmd := exec.Command(testkit.CompileFile(t, "testdata/zydis.c", testkit.Flags{"-Wl,--no-as-needed", "-lZydis"}))
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
	return &zydis{in: in, out: bufio.NewReaderSize(out, 1<<20), check: check}
}

// ask asks about one instruction; the answer may come later.
func (z *zydis) ask(t testing.TB, m Mode, code []byte) {
	z.batch = append(z.batch, ask(m, code))
	if len(z.batch) == zydisBatch {
		z.flush(t)
	}
}

// flush asks what was not asked yet.
func (z *zydis) flush(t testing.TB) {
	n := len(z.batch)
	z.asked += n
	z.batch = append(z.batch, make([]question, zydisBatch-n)...)
	if err := binary.Write(z.in, binary.LittleEndian, z.batch); err != nil {
		t.Fatal("zydis: ", err)
	}
	answers := make([]answer, zydisBatch)
	if err := binary.Read(z.out, binary.LittleEndian, answers); err != nil {
		t.Fatal("zydis: ", err)
	}
	for k := range n {
		z.check(&z.batch[k], &answers[k])
	}
	z.batch = z.batch[:0]
}

// userFlags are those that matter to a program's liveness.
const userFlags = uint32(StatusFlags | DF | AC | ID)

// ends reports whether a branch is of a kind that ends a plan's view, whatever
// it is called.
func ends(k Branch) bool {
	return k == BranchTrap || k == BranchSyscall || k == BranchIRet
}

// differences lists where Decode and Zydis disagree, one word each. What may
// claim too much (reads, writes) has to hold all that Zydis says; what may
// claim too little (full writes) may hold no more.
func differences(q *question, i *Inst, err error, a *answer) []string {
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
		bits := 8 * uint(i.ImmLen)
		same("imm-value", i.ImmLen == 0 || (i.Imm^a.Imm)<<(64-bits) == 0)
	}
	same("imm2", i.Imm2Off == a.Imm2Off && i.Imm2Len == a.Imm2Len)
	same("rip", i.RIPRel() == (a.Facts&zydisRelative != 0))
	e := i.Effects()
	same("read", a.Read&^uint32(e.Read) == 0)
	same("write", a.Write&^uint32(e.Write) == 0)
	same("full", uint32(e.FullWrite)&^a.Full == 0)
	same("flags-read", a.FlagsRead&userFlags&^uint32(e.FlagsRead) == 0)
	same("flags-write", a.FlagsWrite&userFlags&^uint32(e.FlagsWrite) == 0)
	same("flags-must", uint32(e.FlagsMust)&^a.FlagsMust == 0)
	same("mem-read", e.MemRead || a.Facts&zydisMemRead == 0)
	same("mem-write", e.MemWrite || a.Facts&zydisMemWrite == 0)
	same("float", e.Faults&FaultFloat != 0 || a.Facts&zydisFloat == 0)
	same("privilege", e.Faults&FaultPrivilege != 0 || a.Facts&zydisPriv == 0)
	same("branch", zydisBranch[i.Branch] == a.Branch || a.Branch == 0 && ends(i.Branch))
	return d
}
