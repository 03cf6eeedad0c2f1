package x86

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand"
	"os"
	"os/exec"
	"sort"
	"strings"
	"testing"

	"trapless/internal/testkit"
)

const (
	runBatch    = 512            // as in testdata/run.c
	runMemoryAt = 0x100000000000 // where its 8 KiB of memory are
	runFlags    = StatusFlags | DF | ID
)

// runQuestion and runAnswer are the structs of testdata/run.c.
type runQuestion struct {
	Len   uint8
	Code  [15]byte
	Seed  uint64
	Regs  [16]uint64
	Flags uint64
}

type runAnswer struct {
	Signal, Memory uint64
	Regs           [16]uint64
	Flags          uint64
}

// variant is a run that differs from the first in one respect.
type variant struct {
	what string
	reg  Reg   // the register that differs, if what is "register"
	flag Flags // the flag, if what is "flag"
}

// trial is an instruction with its runs: the first twice, then the variants.
type trial struct {
	inst     Inst
	effects  Effects
	code     []byte
	variants []variant
	first    int // index of its first question in the batch
}

// runner runs trials in batches.
type runner struct {
	t         *testing.T
	r         *rand.Rand
	in        io.Writer
	out       io.Reader
	questions []runQuestion
	trials    []trial
	wrong     map[string]string
	ran       map[string]bool // mnemonics that ran
	runs      int
	faulted   int
	unsteady  map[string]bool // rdtsc and the like
}

func startRunner(t *testing.T) *runner {
	cmd := exec.Command(testkit.CompileFile(t, "testdata/run.c"))
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
	return &runner{t: t, r: rand.New(rand.NewSource(4)), in: in, out: bufio.NewReaderSize(out, 1<<20),
		wrong: map[string]string{}, ran: map[string]bool{}, unsteady: map[string]bool{}}
}

// runnable reports whether a process may run the instruction without losing
// control of itself: no branches, nothing that other runs would feel.
func runnable(i Inst) bool {
	if i.Branch != BranchNone || i.Prefixes&PrefixFS != 0 || i.Mode != Mode64 {
		return false
	}
	e := i.Effects()
	if e.Read == AllRegs || e.Faults&(FaultPrivilege|FaultTrap) != 0 || (e.Read|e.Write)>>16 != 0 {
		return false
	}
	if s := rows[i.row].ops[0] & opPlace; s == opSeg {
		return false // loads a segment register
	}
	switch n := i.Mnemonic(); n {
	case "wrfsbase", "wrgsbase", "wrpkru", "xrstor", "lfs", "lgs", "lss", "popf", "xabort", "xend", "incssp", "umwait", "tpause":
		return false
	case "pop":
		return i.Map == 0 // pop fs, pop gs
	}
	return true
}

// add asks for the runs that show whether the instruction's effects are right.
func (u *runner) add(code []byte, i Inst) {
	tr := trial{inst: i, effects: i.Effects(), code: code, variants: []variant{{what: "again"}}}
	e := tr.effects
	for r := RAX; r <= R15; r++ {
		if !e.Read.Has(r) {
			tr.variants = append(tr.variants, variant{what: "register", reg: r})
		}
	}
	for f := Flags(1); f <= ID; f <<= 1 {
		if f&runFlags != 0 && e.FlagsRead&f == 0 {
			tr.variants = append(tr.variants, variant{what: "flag", flag: f})
		}
	}
	if !e.MemRead {
		tr.variants = append(tr.variants, variant{what: "memory"})
	}
	if len(u.questions)+len(tr.variants)+1 > runBatch {
		u.flush()
	}
	tr.first = len(u.questions)
	base := u.state(code, i)
	u.questions = append(u.questions, base)
	for _, v := range tr.variants {
		q := base
		switch v.what {
		case "register":
			q.Regs[v.reg] = ^q.Regs[v.reg] ^ uint64(u.r.Intn(1<<20))
		case "flag":
			q.Flags ^= uint64(v.flag)
		case "memory":
			q.Seed++
		}
		u.questions = append(u.questions, q)
	}
	u.trials = append(u.trials, tr)
}

// state is a state in which the instruction may well not fault.
func (u *runner) state(code []byte, i Inst) runQuestion {
	q := runQuestion{Len: i.Len, Seed: u.r.Uint64(), Flags: u.r.Uint64()&uint64(runFlags) | 0x202}
	copy(q.Code[:], code[:i.Len])
	for k := range q.Regs {
		switch u.r.Intn(5) {
		case 0:
			q.Regs[k] = u.r.Uint64()
		case 1:
			q.Regs[k] = uint64(u.r.Intn(70))
		case 2:
			q.Regs[k] = runMemoryAt + 1024 + uint64(u.r.Intn(256))*16
		case 3:
			q.Regs[k] = uint64(int64(u.r.Intn(1<<16) - 1<<15))
		case 4:
			q.Regs[k] = -uint64(u.r.Intn(2)) // none or all of the bits
		}
	}
	pointer := func(n Reg) { q.Regs[n] = runMemoryAt + 2048 + uint64(u.r.Intn(256))*16 }
	pointer(RSP)
	if e := i.Effects(); e.MemRead || e.MemWrite {
		q.Regs[RCX] = uint64(u.r.Intn(40))
		pointer(RSI)
		pointer(RDI)
	}
	if i.Mnemonic() == "leave" {
		pointer(RBP)
	}
	if x, ok := i.Index(); ok {
		q.Regs[x] = uint64(u.r.Intn(64))
	}
	if b, ok := i.Base(); ok {
		pointer(b)
		if x, ok := i.Index(); ok && x == b {
			q.Regs[b] = runMemoryAt / uint64(1+1<<(i.SIB>>6))
		} else {
			q.Regs[b] -= uint64(int64(i.Disp))
		}
	}
	return q
}

// flush runs what was asked and judges it.
func (u *runner) flush() {
	n := len(u.questions)
	u.runs += n
	u.questions = append(u.questions, make([]runQuestion, runBatch-n)...)
	answers := make([]runAnswer, runBatch)
	if err := binary.Write(u.in, binary.LittleEndian, u.questions); err != nil {
		u.t.Fatal("run: ", err)
	}
	if err := binary.Read(u.out, binary.LittleEndian, answers); err != nil {
		u.t.Fatal("run: ", err)
	}
	for _, tr := range u.trials {
		u.judge(tr, u.questions[tr.first:], answers[tr.first:])
	}
	u.questions, u.trials = u.questions[:0], u.trials[:0]
}

// judge compares the runs of one trial.
func (u *runner) judge(tr trial, q []runQuestion, a []runAnswer) {
	base := &a[0]
	name := tr.inst.Mnemonic()
	if base.Signal != 0 {
		u.faulted++
		return
	}
	if *base != a[1] {
		u.unsteady[name] = true
		return
	}
	u.ran[name] = true
	u.changes(tr, &q[0], base)
	for k, v := range tr.variants {
		u.compare(tr, v, &q[k+1], base, &a[k+1])
	}
}

// changes: what one run changes has to be in Write, FlagsWrite and MemWrite.
func (u *runner) changes(tr trial, q *runQuestion, a *runAnswer) {
	for r := RAX; r <= R15; r++ {
		if q.Regs[r] != a.Regs[r] && !tr.effects.Write.Has(r) {
			u.fail(tr, fmt.Sprintf("writes %v", r), q)
		}
	}
	if f := Flags(q.Flags^a.Flags) & runFlags &^ tr.effects.FlagsWrite; f != 0 {
		u.fail(tr, fmt.Sprintf("writes the flags %v", f), q)
	}
}

// compare: a register, flag or memory that is not read must not matter, except
// to itself where it is not overwritten.
func (u *runner) compare(tr trial, v variant, q *runQuestion, base, a *runAnswer) {
	e := tr.effects
	if a.Signal != 0 {
		u.fail(tr, fmt.Sprintf("faults depending on %v", v), q)
		return
	}
	for r := RAX; r <= R15; r++ {
		same := a.Regs[r] == base.Regs[r]
		if v.what == "register" && v.reg == r {
			switch {
			case !e.Write.Has(r):
				same = a.Regs[r] == q.Regs[r]
			case !e.FullWrite.Has(r):
				same = true // part of it is kept
			}
		}
		if !same {
			u.fail(tr, fmt.Sprintf("%v depends on %v", r, v), q)
		}
	}
	differ := Flags(a.Flags^base.Flags) & runFlags &^ e.FlagsUndef
	if v.what == "flag" && e.FlagsMust&v.flag == 0 {
		differ &^= v.flag
	}
	if differ != 0 {
		u.fail(tr, fmt.Sprintf("the flags %v depend on %v", differ, v), q)
	}
	if v.what != "memory" && a.Memory != base.Memory {
		u.fail(tr, fmt.Sprintf("memory depends on %v", v), q)
	}
}

// fail records a wrong claim.
func (u *runner) fail(tr trial, what string, q *runQuestion) {
	key := tr.inst.Mnemonic() + ": " + what
	if _, seen := u.wrong[key]; !seen {
		u.wrong[key] = fmt.Sprintf("% x: %+v; registers %x, flags %#x", tr.code[:tr.inst.Len], tr.effects, q.Regs, q.Flags)
	}
}

func (u *runner) report() {
	u.flush()
	n := 0
	for key, example := range u.wrong {
		if n++; n <= 30 {
			u.t.Errorf("%s\n\t%s", key, example)
		}
	}
	var unsteady []string
	for name := range u.unsteady {
		unsteady = append(unsteady, name)
	}
	sort.Strings(unsteady)
	u.t.Logf("%d kinds of instruction judged in %d runs; %d trials faulted; not judged, for they differ each time: %s",
		len(u.ran), u.runs, u.faulted, strings.Join(unsteady, " "))
}

// TestEffectsByProcessor runs instructions of every opcode that this processor
// has and a process may use, and checks Effects against what happens: nothing
// else is written, and nothing that is not read makes a difference.
func TestEffectsByProcessor(t *testing.T) {
	u := startRunner(t)
	pick := rand.New(rand.NewSource(5))
	for _, c := range opcodeCases {
		sample := 16 * c.sample
		if long() {
			sample = 8
		}
		c.walk(rand.New(rand.NewSource(6)), Mode64, func(b []byte) {
			if pick.Intn(sample) != 0 {
				return
			}
			if i, err := Decode(b, Mode64); err == nil && runnable(i) {
				u.add(b, i)
			}
		})
	}
	u.report()
}
