package x86

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
	"trapless/internal/testkit"
)

// Where the harness maps things: a page with the gate, then the runtime and
// the code under test, in one file, and the arena in another.
const (
	codeBase    abi.Addr = 0x7_0000_0000
	runtimeBase          = codeBase + abi.PageSize
	entryBase            = codeBase + 0x10000
	codeSize             = 1 << 20
	arenaNear   abi.Addr = 0x7_2000_0000
	arenaFar    abi.Addr = 0x5000_0000_0000
	arenaLow    abi.Addr = 0x3000_0000
)

// harness is the program of testdata/harness.c, a target that calls what the
// tests compile.
type harness struct {
	t      testing.TB
	env    *Env
	arena  []byte
	code   []byte
	in     io.Writer
	out    io.Reader
	tp     uint64 // thread pointer of its main thread
	pid    int
	uid    int
	gid    int
	comm   string
	stderr bytes.Buffer
}

// Operations of the harness.
const (
	opRun = iota + 1
	opLoop
	opThreadPointer
	opStorm
	opExact
)

// request and reply are the structures of the same names in harness.c.
type request struct {
	Op, Entry, Threads, Iterations, Keys uint64
	Regs                                 [16]uint64
	Flags                                uint64
}

type reply struct {
	Regs          [16]uint64
	Flags, Result uint64
	Depth         uint64
	RedZone       [128]byte
}

// newHarness starts a target with an open gate and an arena with these maps.
func newHarness(t testing.TB, arenaAt abi.Addr, c abi.Config) *harness {
	t.Helper()
	return newThreadHarness(t, arenaAt, c, SelfPointer)
}

// newThreadHarness is newHarness for code that reads the thread pointer in one way.
func newThreadHarness(t testing.TB, arenaAt abi.Addr, c abi.Config, tp ThreadPointer) *harness {
	t.Helper()
	if tp == FSBase {
		requireFSGSBASE(t)
	}
	bin := testkit.CompileFile(t, filepath.Join("testdata", "harness.c"), testkit.NoPIE)
	l, err := abi.NewLayout(c)
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{t: t, env: &Env{Gate: codeBase, Arena: arenaAt, Layout: l, TGID: 4711, Thread: tp}}
	var codePath, arenaPath string
	h.code, codePath = shared(t, codeSize)
	h.arena, arenaPath = shared(t, int(l.Size))
	h.putWord(l.TPTable+8*abi.SlotTracer, ^uint64(0))
	h.putWord(l.TPTable+8*abi.SlotShared, ^uint64(0))
	code, rt, err := NewRuntime(runtimeBase, h.env)
	if err != nil {
		t.Fatal(err)
	}
	if len(code) > int(entryBase-runtimeBase) {
		t.Fatalf("the runtime has %d bytes", len(code))
	}
	copy(h.code[runtimeBase-codeBase:], code)
	h.env.Runtime = rt
	h.openGate(true)
	h.start(exec.Command(bin, codePath, codeBase.String(), arenaPath, arenaAt.String()))
	h.tp = h.do(request{Op: opThreadPointer}).Result
	os.Remove(codePath) // it has mapped them
	os.Remove(arenaPath)
	return h
}

// requireFSGSBASE skips a test where the kernel has not enabled rdfsbase.
func requireFSGSBASE(t testing.TB) {
	t.Helper()
	const hwcap2, fsgsbase = 26, 1 << 1 // AT_HWCAP2, HWCAP2_FSGSBASE
	aux, err := os.ReadFile("/proc/self/auxv")
	if err != nil {
		t.Skipf("needs %v", err)
	}
	for ; len(aux) >= 16; aux = aux[16:] {
		if binary.LittleEndian.Uint64(aux) == hwcap2 && binary.LittleEndian.Uint64(aux[8:])&fsgsbase != 0 {
			return
		}
	}
	t.Skip("needs rdfsbase, which the kernel has not enabled (AT_HWCAP2)")
}

// shared makes a file in memory and maps it.
func shared(t testing.TB, size int) ([]byte, string) {
	t.Helper()
	f, err := os.CreateTemp("/dev/shm", "trapless-jit-")
	if err != nil {
		f, err = os.CreateTemp(t.TempDir(), "jit-")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	t.Cleanup(func() { os.Remove(f.Name()) })
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	mem, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Munmap(mem) })
	return mem, f.Name()
}

func (h *harness) start(cmd *exec.Cmd) {
	h.t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	cmd.Stderr = &h.stderr
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.in, h.out = in, out
	h.pid, h.uid, h.gid = cmd.Process.Pid, os.Getuid(), os.Getgid()
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", h.pid))
	if err != nil {
		h.t.Fatal(err)
	}
	h.comm = strings.TrimSpace(string(comm))
	h.t.Cleanup(func() {
		in.Close() // ends it
		if err := cmd.Wait(); err != nil {
			h.t.Errorf("harness: %v\n%s", err, h.stderr.String())
		}
	})
}

func (h *harness) do(rq request) reply {
	h.t.Helper()
	var rp reply
	if err := binary.Write(h.in, binary.LittleEndian, &rq); err != nil {
		h.t.Fatalf("harness: %v", err)
	}
	if err := binary.Read(h.out, binary.LittleEndian, &rp); err != nil {
		h.t.Fatalf("harness ended in request %+v: %v", rq, err)
	}
	return rp
}

func (h *harness) openGate(open bool) {
	h.code[0] = 0
	if open {
		h.code[0] = 1
	}
}

func (h *harness) word(off uint64) uint64        { return binary.LittleEndian.Uint64(h.arena[off:]) }
func (h *harness) putWord(off, v uint64)         { binary.LittleEndian.PutUint64(h.arena[off:], v) }
func (h *harness) slotBase(slot int) uint64      { return slotBase(h.env.Layout, slot) }
func slotBase(l *abi.Layout, slot int) uint64    { return l.Slots + uint64(slot)<<l.StrideShift }
func (h *harness) mapLayout(m int) abi.MapLayout { return h.env.Layout.Maps[m] }

// slotOf finds the slot of the harness's main thread, -1 if it has none.
func (h *harness) slotOf(tp uint64) int {
	for i := range 1 << h.env.Layout.SlotBits {
		if h.word(h.env.Layout.TPTable+8*uint64(i)) == tp {
			return i
		}
	}
	return -1
}

// sum adds up the first words of all cells of a map, over all slots.
func (h *harness) sum(m int) uint64 {
	ml := h.mapLayout(m)
	var n uint64
	for slot := range 1 << h.env.Layout.SlotBits {
		for pos := range ml.Positions() {
			n += h.word(h.slotBase(slot) + ml.Cells + uint64(pos*ml.ValueSize))
		}
	}
	return n
}

// install compiles a function that consists of a detour and a return.
func (h *harness) install(site Site, progs ...*bpf.Verified) {
	h.t.Helper()
	h.put(entryBase, h.compile(entryBase, site, progs...))
}

func (h *harness) compile(at abi.Addr, site Site, progs ...*bpf.Verified) []byte {
	h.t.Helper()
	a := asm.New(at)
	d, err := Emit(a, progs, site, h.env)
	if err != nil {
		h.t.Fatal(err)
	}
	a.Ret()
	d.EmitCold(a)
	code, err := a.Bytes()
	if err != nil {
		h.t.Fatal(err)
	}
	return code
}

func (h *harness) put(at abi.Addr, code []byte) { copy(h.code[at-codeBase:], code) }

// randomRun is a request to run the installed function with random registers
// and arithmetic flags.
func randomRun(r *rand.Rand) request {
	rq := request{Op: opRun, Entry: uint64(entryBase), Flags: uint64(r.Uint32())&arithmeticFlags | 2}
	for i := range rq.Regs {
		rq.Regs[i] = r.Uint64() >> (r.UintN(4) * 21)
	}
	return rq
}

const arithmeticFlags = 0x8d5 // CF PF AF ZF SF OF

// check requires that a run left alone what the site needs.
func (rp *reply) check(rq *request, site Site) error {
	if rp.Regs[asm.RSP] != 8 {
		return fmt.Errorf("the stack pointer moved by %d", rp.Regs[asm.RSP])
	}
	for r := asm.RAX; r <= asm.R15; r++ {
		if site.LiveRegs.Has(r) && r != asm.RSP && rp.Regs[r] != rq.Regs[r] {
			return fmt.Errorf("%v was %#x and is %#x", r, rq.Regs[r], rp.Regs[r])
		}
	}
	if site.FlagsLive && (rp.Flags^rq.Flags)&arithmeticFlags != 0 {
		return fmt.Errorf("flags were %#x and are %#x", rq.Flags, rp.Flags)
	}
	if site.RedZoneLive {
		for i, b := range rp.RedZone {
			if b != 0xa5 {
				return fmt.Errorf("the red zone is %#x at rsp-%d", b, len(rp.RedZone)-i)
			}
		}
	}
	return nil
}

// context is what a program sees of a run.
func (rq *request) context(site Site, rp *reply) *bpf.Regs {
	var c bpf.Regs
	for off, r := range contextRegs {
		c[off/8] = rq.Regs[r]
	}
	for n, r := range site.Args.registers() {
		c[bpf.ArgOffset(n)/8] = rq.Regs[r]
	}
	c[bpf.PtRegsIP/8] = uint64(site.Addr)
	c[bpf.PtRegsSP/8] = rp.Result
	return &c
}

const allRegs = asm.RegSet(0xffff)

func layoutOf(m int) abi.MapLayout {
	l, err := abi.NewLayout(testConfig)
	if err != nil {
		panic(err)
	}
	return l.Maps[m]
}
