package reloc

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os/exec"
	"runtime"
	"testing"

	"trapless/internal/abi"
	"trapless/internal/insn/x86"
	"trapless/internal/testkit"
)

// The addresses that testdata/run.c maps.
const (
	runFrom abi.Addr = 0x200000000000
	runData abi.Addr = 0x200030000000
	runGoal abi.Addr = 0x200038000000
	runTo   abi.Addr = 0x200070000000
	runSize          = 1 << 14 // of the data
)

// Places of registers in struct sigcontext, which piece and outcome follow.
const (
	ctxRDI = 8
	ctxRCX = 14
	ctxRSP = 15
)

const (
	sigTrap = 5
	cpuHole = 64 // distance of a piece from others
)

// piece and outcome are the structs of testdata/run.c.
type piece struct {
	At, Seed, Flags uint64
	Regs            [16]uint64
	Len             uint64
	Code            [48]byte
}

type outcome struct {
	Sig, PC, Fault, Flags uint64
	Regs                  [16]uint64
	Data, Vector          uint64
}

// run executes the pieces in a process of their own.
func run(t *testing.T, pieces []piece) []outcome {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("this processor cannot run x86-64 code: ", runtime.GOARCH)
	}
	var in bytes.Buffer
	if err := binary.Write(&in, binary.LittleEndian, pieces); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(testkit.CompileFile(t, "testdata/run.c"))
	cmd.Stdin = &in
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("after %d of %d pieces: %v", len(out)/binary.Size(outcome{}), len(pieces), err)
	}
	outcomes := make([]outcome, len(pieces))
	if err := binary.Read(bytes.NewReader(out), binary.LittleEndian, outcomes); err != nil {
		t.Fatal(err)
	}
	return outcomes
}

// twin is an instruction and its moved form, to be run in the same state.
type twin struct {
	in         x86.Inst
	code       []byte
	sample     []byte // the code before what it refers to was changed
	from, to   abi.Addr
	size       int // of the moved form
	was, is    piece
	wasOutcome outcome
	isOutcome  outcome
}

// state is a random state in which most memory operands are readable, and rsp
// leads to a goal as often as not.
func state(r *rand.Rand) (p piece) {
	p.Seed, p.Flags = r.Uint64(), r.Uint64()
	for i := range p.Regs {
		switch r.IntN(4) {
		case 0:
			p.Regs[i] = uint64(r.IntN(70))
		case 1:
			p.Regs[i] = r.Uint64()
		default:
			p.Regs[i] = uint64(runData) + runSize/4 + uint64(r.IntN(runSize/2))&^15
		}
	}
	if r.IntN(4) == 0 {
		p.Regs[ctxRCX] = uint64(r.IntN(3))
	}
	p.Regs[ctxRSP] = uint64(runData) + runSize/2 + uint64(r.IntN(64)*8)
	return p
}

// newTwin moves an instruction after its own references were made to lead to
// data and goals. It reports false if the instruction cannot be run.
func newTwin(r *rand.Rand, s sample) (twin, bool) {
	w := twin{in: s.in, code: bytes.Clone(s.code), sample: s.code}
	w.from = runFrom + 0x800 + abi.Addr(r.IntN(cpuHole))
	w.to = runTo + 0x800 + abi.Addr(r.IntN(cpuHole))
	end := w.from + abi.Addr(s.in.Len)
	if s.in.RIPRel() {
		to := runData + runSize/4 + abi.Addr(r.IntN(runSize/32)*16)
		binary.LittleEndian.PutUint32(w.code[s.in.DispOff:], uint32(to-end))
	}
	if s.in.Branch == x86.BranchJmp || s.in.Branch == x86.BranchJcc || s.in.Branch == x86.BranchCall {
		if s.in.ImmLen == 4 {
			binary.LittleEndian.PutUint32(w.code[s.in.ImmOff:], uint32(runGoal+abi.Addr(r.IntN(256))-end))
		}
	}
	in, err := x86.Decode(w.code, x86.Mode64)
	if err != nil {
		return w, false
	}
	w.in = in
	if to, ok := in.Target(w.from); ok && to >= w.from && to < end {
		return w, false // into itself
	}
	move := Move
	if CanEmulate(in) {
		move = EmulateCall
	}
	moved, err := move(in, w.code, w.from, w.to)
	if err != nil {
		return w, false
	}
	w.size = len(moved)
	w.was = state(r)
	w.is = w.was
	w.was.set(w.from, w.code)
	w.is.set(w.to, moved)
	return w, true
}

func (p *piece) set(at abi.Addr, code []byte) {
	p.At, p.Len = uint64(at), uint64(len(code))
	copy(p.Code[:], code)
}

// runnable passes over what would disturb the process that runs it, or whose
// result differs by itself from one time to the next.
func runnable(in x86.Inst) bool {
	if in.Prefixes&(x86.PrefixFS|x86.PrefixGS) != 0 {
		return false
	}
	switch in.Mnemonic() {
	case "rdtsc", "rdtscp", "rdrand", "rdseed", "cpuid", "rdpid", "rdpru", "rdpmc",
		"popf", "popfd", "popfq", "ldmxcsr", "vldmxcsr", "fxrstor", "fxrstor64", "xrstor", "xrstor64", "wrpkru",
		"wrfsbase", "wrgsbase", "rdfsbase", "rdgsbase", "lfs", "lgs", "lss", "stui", "clui", "senduipi",
		"fxsave", "fxsave64", "xsave", "xsave64", "xsaveopt", "xsaveopt64", "xsavec", "xsavec64",
		"fnsave", "frstor", "fnstenv", "fldenv", "xgetbv", "slwpcb", "llwpcb", "umonitor", "umwait", "tpause", "mwaitx", "monitorx":
		return false
	case "mov": // to a segment register
		return in.Map != 0 || in.Opcode != 0x8e
	}
	return in.Map != 1 || (in.Opcode != 0xa1 && in.Opcode != 0xa9) // pop fs, pop gs
}

// TestMovedRunsTheSame executes real instructions and their moved forms in the
// same random states and compares registers, flags, memory, vector registers,
// and how they ended.
func TestMovedRunsTheSame(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var twins []twin
	add := func(s sample, times int) {
		for range times {
			if w, ok := newTwin(r, s); ok {
				twins = append(twins, w)
			}
		}
	}
	for _, s := range corpus(t, 1) {
		if runnable(s.in) {
			add(s, 2)
		}
	}
	for _, code := range branches() {
		add(sample{in: decode(t, code), code: code}, 40)
	}
	compare(t, twins, fewestEncodings)
}

// branches is every short branch, at several distances.
func branches() (all [][]byte) {
	for op := 0x70; op <= 0x7f; op++ {
		all = append(all, []byte{byte(op), 0x30}, []byte{byte(op), 0x90}, []byte{0x2e, byte(op), 0x7f})
	}
	for _, op := range []byte{0xe0, 0xe1, 0xe2, 0xe3, 0xeb} {
		all = append(all, []byte{op, 0x30}, []byte{op, 0x90}, []byte{op, 0x80})
	}
	for _, op := range []byte{0xe0, 0xe1, 0xe2, 0xe3} {
		all = append(all, []byte{0x67, op, 0x30}, []byte{0x67, op, 0x90})
	}
	return append(all, []byte{0xc3}, []byte{0xf3, 0xc3}, []byte{0xc2, 0x10, 0x00}, []byte{0xff, 0x24, 0x24}, []byte{0xff, 0xe7})
}

// fewestEncodings are to be compared at least.
const fewestEncodings = 10_000

// compare runs twins, of which so many encodings have to run to their end.
func compare(t *testing.T, twins []twin, fewest int) {
	t.Helper()
	var pieces []piece
	for _, w := range twins {
		pieces = append(pieces, w.was, w.is)
	}
	outcomes := run(t, pieces)
	ends, bad := map[uint64]int{}, 0
	for i, w := range twins {
		was, is := outcomes[2*i], outcomes[2*i+1]
		ends[was.Sig]++
		was.PC = w.expect(was.PC)
		if CanEmulate(w.in) && was.PC == uint64(w.to) && was.Fault == 0 && is.PC != was.PC {
			// The callee's address is not canonical: the fault is the jump's, behind the push.
			was.PC += uint64(EmulateCallSize(w.in) - quadLen - CalleeJumpSize(w.in))
			was.Regs[ctxRSP] -= quadLen
		}
		if was != is {
			t.Errorf("%s %x at %v and moved to %x at %v:\n%+v\n%+v\nfrom %+v",
				w.in.Mnemonic(), w.code, w.from, w.is.Code[:w.size], w.to, was, is, w.was.Regs)
			if bad++; bad > 5 {
				t.FailNow()
			}
		}
	}
	encodings, whole := map[string]bool{}, map[string]bool{}
	for i, w := range twins {
		encodings[string(w.sample)] = true
		if outcomes[2*i].Sig == sigTrap {
			whole[string(w.sample)] = true
		}
	}
	t.Logf("%d pairs of %d encodings ran alike, %d of them to the end; ended by signal: %v", len(twins), len(encodings), len(whole), ends)
	if len(whole) < fewest {
		t.Errorf("only %d encodings ran to their end, want %d", len(whole), fewest)
	}
	if ends[sigTrap] < len(twins)/4 {
		t.Errorf("only %d of %d pairs ran to their end", ends[sigTrap], len(twins))
	}
}

// expect is where the moved form must end when the first one ended at pc:
// at its own start after a fault, behind its own end when it fell through,
// at the same place when it branched.
func (w *twin) expect(pc uint64) uint64 {
	switch abi.Addr(pc) {
	case w.from:
		return uint64(w.to)
	case w.from + abi.Addr(w.in.Len) + 1:
		return uint64(w.to) + uint64(w.size) + 1
	}
	return pc
}
