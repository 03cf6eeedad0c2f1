package saturation

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"trapless/internal/abi"
	insn "trapless/internal/insn/x86"
	"trapless/internal/proc"
	"trapless/internal/testkit"
)

// stepped are programs that do the same each time when they lie at the same
// addresses, and so little that they can be run by single steps.
func stepped(t *testing.T) []*program {
	all := []*program{
		{name: "relocated", argv: []string{testkit.Compile(t, "relocated.c"), "1"}, modules: []string{"relocated*"}, small: true},
		{name: "gzip", argv: []string{debianProgram(t, "gzip", "gzip"), "-9", "-c"}, stdin: input(t, "text", text(2<<10)), modules: []string{"gzip", "libc.so.6"}},
		{name: "sqlite3", argv: []string{debianProgram(t, "sqlite3", "sqlite3"), "-init", "/dev/null"}, stdin: input(t, "script.sql", []byte(
			"create table t(a, b); insert into t values (1, 'x'), (2, 'y'); select sum(a), group_concat(b) from t;\n")),
			modules: []string{"libsqlite3.so*"}},
	}
	if long() {
		all = append(all, &program{name: "throws", argv: []string{testkit.Compile(t, "throws.cpp"), "8"}, modules: []string{"throws*", "libstdc++.so*", "libgcc_s.so*"}},
			&program{name: "mathematics", argv: []string{testkit.Compile(t, "mathematics.c", mathLibrary), "20"}, modules: []string{"libm.so*"}})
	}
	return all
}

// TestSingleStepping: each site is hit as often as its instruction is run, by a
// count of single steps. It runs itself where the kernel does not choose
// addresses at random.
func TestSingleStepping(t *testing.T) {
	if !fixedAddresses(t) {
		cmd := exec.Command(testkit.Command(t, "setarch", "util-linux"), "-R", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		if err != nil {
			t.Error(err)
		}
		return
	}
	for i, p := range stepped(t) {
		t.Run(p.name, func(t *testing.T) {
			want, steps := p.step(t)
			t.Logf("%d steps", steps)
			for _, c := range p.choices(uint64(i)) {
				r := p.saturate(t, c)
				t.Logf("%v: %v", c, r)
				compareCounts(t, r, want)
			}
		})
	}
}

func compareCounts(t *testing.T, r *run, want map[place]uint64) {
	t.Helper()
	compared, wrong := 0, 0
	for _, p := range r.probed {
		if r.counts[p] != want[p] {
			if wrong++; wrong < 10 {
				t.Errorf("%s at %v: %d hits, %d steps", p.module, p.at, r.counts[p], want[p])
			}
		}
		if want[p] > 0 {
			compared++
		}
	}
	t.Logf("%d of %d sites were hit, %d wrong", compared, len(r.probed), wrong)
	if compared == 0 {
		t.Error("no site was hit")
	}
}

// addrNoRandomize is ADDR_NO_RANDOMIZE (personality(2)).
const addrNoRandomize = 0x0040000

func fixedAddresses(t *testing.T) bool {
	t.Helper()
	now, _, errno := syscall.RawSyscall(syscall.SYS_PERSONALITY, 0xffffffff, 0, 0)
	if errno != 0 {
		t.Skipf("personality: %v", errno)
	}
	return now&addrNoRandomize != 0
}

// step runs the program by single steps from its entry point on and counts how
// often each instruction of its modules is begun. An instruction that repeats
// itself begins once.
func (p *program) step(t *testing.T) (map[place]uint64, int) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	in, out := p.files(t)
	c := p.command(in, out)
	var files []uintptr
	for _, f := range c.Files {
		files = append(files, f.Fd())
	}
	pid, err := syscall.ForkExec(c.Path, c.Args, &syscall.ProcAttr{Env: c.Env, Files: files, Sys: &syscall.SysProcAttr{Ptrace: true}})
	if err != nil {
		t.Fatal(err)
	}
	s := &stepper{pid: pid, repeats: map[uint64]bool{}, counts: map[uint64]uint64{}}
	if err := s.run(p.modules); err != nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		t.Fatalf("%s: %v\n%s", p.name, err, contents(t, out))
	}
	return s.places(), s.steps
}

// stepper single-steps a process of one thread.
type stepper struct {
	pid     int
	mods    []*module
	repeats map[uint64]bool // whether the instruction at an address repeats itself
	counts  map[uint64]uint64
	steps   int
}

func (s *stepper) run(patterns []string) error {
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(s.pid, &ws, 0, nil); err != nil || !ws.Stopped() {
		return fmt.Errorf("it did not stop after execve: %v, %w", ws, err)
	}
	if err := s.toEntry(); err != nil {
		return err
	}
	var err error
	if s.mods, err = modules(s.pid, patterns); err != nil {
		return err
	}
	defer func() { _ = closeAll(s.mods) }()
	return s.all()
}

// toEntry runs to the entry point, when the loader is done.
func (s *stepper) toEntry() error {
	const atEntry = 9
	aux, err := proc.Auxv(s.pid)
	if err != nil {
		return err
	}
	entry := uintptr(aux[atEntry])
	old := make([]byte, 1)
	if _, err := syscall.PtracePeekText(s.pid, entry, old); err != nil {
		return err
	}
	if _, err := syscall.PtracePokeText(s.pid, entry, []byte{0xcc}); err != nil {
		return err
	}
	if err := syscall.PtraceCont(s.pid, 0); err != nil {
		return err
	}
	var ws syscall.WaitStatus
	if _, err := syscall.Wait4(s.pid, &ws, 0, nil); err != nil || !ws.Stopped() || ws.StopSignal() != syscall.SIGTRAP {
		return fmt.Errorf("it did not come to its entry point: %v, %w", ws, err)
	}
	if _, err := syscall.PtracePokeText(s.pid, entry, old); err != nil {
		return err
	}
	var regs syscall.PtraceRegs
	if err := syscall.PtraceGetRegs(s.pid, &regs); err != nil {
		return err
	}
	regs.Rip = uint64(entry)
	return syscall.PtraceSetRegs(s.pid, &regs)
}

// all steps to the end.
func (s *stepper) all() error {
	last, signal := uint64(0), 0
	for {
		rip, err := s.rip()
		if err != nil {
			return err
		}
		if signal == 0 && (rip != last || !s.repeating(rip)) {
			s.counts[rip]++
		}
		last = rip
		if _, _, errno := syscall.RawSyscall6(syscall.SYS_PTRACE, syscall.PTRACE_SINGLESTEP, uintptr(s.pid), 0, uintptr(signal), 0, 0); errno != 0 {
			return errno
		}
		s.steps++
		var ws syscall.WaitStatus
		if _, err := syscall.Wait4(s.pid, &ws, 0, nil); err != nil {
			return err
		}
		switch {
		case ws.Exited() || ws.Signaled():
			return nil
		case ws.StopSignal() != syscall.SIGTRAP:
			signal = int(ws.StopSignal()) // to be delivered; the instruction has been counted
		default:
			signal = 0
		}
	}
}

func (s *stepper) rip() (uint64, error) {
	var regs syscall.PtraceRegs
	err := syscall.PtraceGetRegs(s.pid, &regs)
	return regs.Rip, err
}

// repeating reports whether the instruction at an address has a repeat prefix
// and is one of those that heed it.
func (s *stepper) repeating(at uint64) bool {
	repeats, known := s.repeats[at]
	if !known {
		code := make([]byte, 15)
		n, _ := syscall.PtracePeekText(s.pid, uintptr(at), code)
		in, err := insn.Decode(code[:n], insn.Mode64)
		repeats = err == nil && isString(in)
		s.repeats[at] = repeats
	}
	return repeats
}

// isString reports string instructions with a repeat prefix.
func isString(in insn.Inst) bool {
	name := strings.TrimRight(in.Mnemonic(), "bwdq")
	switch name {
	case "movs", "stos", "lods", "scas", "cmps", "ins", "outs":
		return in.Enc == insn.EncLegacy && in.Map == 0 && in.Prefixes&(insn.PrefixRep|insn.PrefixRepne) != 0
	}
	return false
}

// places turns addresses into places of modules.
func (s *stepper) places() map[place]uint64 {
	out := map[place]uint64{}
	for at, n := range s.counts {
		for _, m := range s.mods {
			if m.text.Contains(abi.Addr(at)) {
				out[m.place(abi.Addr(at))] = n
			}
		}
	}
	return out
}
