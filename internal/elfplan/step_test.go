package elfplan

import (
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"trapless/internal/abi"
	"trapless/internal/image"
	insn "trapless/internal/insn/x86"
	"trapless/internal/plan"
	"trapless/internal/testkit"
)

// TestEveryStepIsForeseen single-steps programs: wherever an indirect jump, an
// indirect call or a return leads, there is no inside of a window that was
// planned for a target without trap handlers, and a jump whose table is known
// leads where the table says.
func TestEveryStepIsForeseen(t *testing.T) {
	clang := exec.Command(testkit.Command(t, "clang-14", "clang-14"), "-O2", "-o", t.TempDir()+"/switches", "testdata/switches.c")
	if out, err := clang.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, program := range [][]string{
		{testkit.CompileFile(t, "testdata/switches.c", testkit.PIE)},
		{testkit.CompileFile(t, "testdata/switches.c", testkit.NoPIE, testkit.Flags{"-O3", "-s"})},
		{clang.Args[3]},
		{testkit.CompileFile(t, "testdata/throws.cpp", testkit.Static)},
		{"/bin/ls", "-l", "/usr"},
	} {
		s := &stepper{T: t, modules: map[string]*Module{}, edges: map[[2]abi.Addr]bool{}}
		s.run(program)
		s.judge()
	}
}

// stepper runs a program by single steps.
type stepper struct {
	*testing.T
	maps    []testkit.Mapping
	modules map[string]*Module // by path
	edges   map[[2]abi.Addr]bool
	insts   map[abi.Addr]insn.Inst
	steps   int
}

const mostSteps = 300_000

func (s *stepper) run(program []string) {
	s.Helper()
	runtime.LockOSThread() // all requests must come from the tracer's thread
	defer runtime.UnlockOSThread()
	cmd := exec.Command(program[0], program[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	cmd.Env = []string{}
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	pid := cmd.Process.Pid
	defer cmd.Wait()
	defer syscall.Kill(pid, syscall.SIGKILL)
	s.insts = map[abi.Addr]insn.Inst{}
	var last abi.Addr
	for ; s.steps < mostSteps; s.steps++ {
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || status.Exited() || status.Signaled() {
			break
		}
		var regs syscall.PtraceRegs
		if err := syscall.PtraceGetRegs(pid, &regs); err != nil {
			s.Fatal(err)
		}
		at := abi.Addr(regs.Rip)
		if last != 0 {
			s.step(pid, last, at)
		}
		last = at
		if err := syscall.PtraceSingleStep(pid); err != nil {
			s.Fatal(err)
		}
	}
}

// step notes a step if it is one that only the run can tell.
func (s *stepper) step(pid int, from, to abi.Addr) {
	in, known := s.insts[from]
	if !known {
		var b [insn.MaxLen]byte
		if _, err := syscall.PtracePeekText(pid, uintptr(from), b[:]); err != nil {
			return
		}
		in, _ = insn.Decode(b[:], insn.Mode64)
		s.insts[from] = in
		if s.moduleOf(pid, from) == nil {
			delete(s.insts, from)
		}
	}
	switch in.Branch {
	case insn.BranchJmpInd, insn.BranchCallInd, insn.BranchRet:
		if !s.edges[[2]abi.Addr{from, to}] {
			s.edges[[2]abi.Addr{from, to}] = true
			s.moduleOf(pid, to)
		}
	}
}

// moduleOf is the file that is mapped at an address, nil for what is none.
func (s *stepper) moduleOf(pid int, at abi.Addr) *Module {
	if m := s.known(at); m != nil {
		return m
	}
	s.maps = testkit.Mappings(s.T, pid)
	return s.known(at)
}

func (s *stepper) known(at abi.Addr) *Module {
	for i := range s.maps {
		m := &s.maps[i]
		if uint64(at) < m.Start || uint64(at) >= m.End || !strings.HasPrefix(m.Path, "/") {
			continue
		}
		if s.modules[m.Path] == nil {
			mod := load(s.T, m.Path, 0)
			bias, err := mod.Image.BiasOf(abi.Addr(m.Start), image.Offset(m.Offset), true)
			if err != nil {
				s.Fatal(err)
			}
			mod.Bias = bias
			s.modules[m.Path] = mod
		}
		return s.modules[m.Path]
	}
	return nil
}

// planned is a function with windows for all its instructions.
type planned struct {
	jumps   []plan.ComputedJump
	windows []*plan.Window
}

func (s *stepper) judge() {
	s.Helper()
	cache := map[abi.Addr]*planned{}
	byTable, windows := 0, 0
	for edge := range s.edges {
		from, to := edge[0], edge[1]
		if p := s.plan(cache, from); p != nil {
			for _, j := range p.jumps {
				if j.At == from && j.Kind == plan.Tabled {
					byTable++
					if !slices.Contains(j.To, to) {
						s.Errorf("the jump at %v leads to %v, not to one of %v", from, to, j.To)
					}
				}
			}
		}
		p := s.plan(cache, to)
		if p == nil {
			continue
		}
		for _, w := range p.windows {
			end := w.End()
			if w.Sites[len(w.Sites)-1].Addr == end {
				end++
			}
			if to > w.Start && to < end {
				s.Errorf("the %s at %v leads to %v, into the window of %s at %v to %v", s.insts[from].Mnemonic(), from, to, w.Func.Name, w.Start, w.End())
			}
		}
	}
	for _, p := range cache {
		if p != nil {
			windows += len(p.windows)
		}
	}
	s.Logf("%d steps: %d indirect ways, %d of them by tables; %d functions with %d windows", s.steps, len(s.edges), byTable, len(cache), windows)
	if len(s.edges) < 100 || windows < 100 {
		s.Error("too little to tell")
	}
}

func (s *stepper) plan(cache map[abi.Addr]*planned, at abi.Addr) *planned {
	m := s.known(at)
	if m == nil {
		return nil
	}
	fn, ok := m.Funcs.At(m.Bias.VAddr(at))
	if !ok || fn.Len() == 0 {
		return nil
	}
	start := m.Bias.Addr(fn.Start)
	if p, ok := cache[start]; ok {
		return p
	}
	f := m.function(s.T, fn.Start)
	planner := plan.Prepare(f, &plan.Facts{FaultsDefault: true, Costliest: plan.Earlier})
	windows, _ := planner.Together(planner.Instructions(func(abi.Addr, insn.Inst) bool { return true }))
	cache[start] = &planned{planner.Jumps(), windows}
	return cache[start]
}
