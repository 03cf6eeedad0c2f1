// Package x86 compiles verified eBPF programs to x86-64 machine code that runs
// inside a target, inlined in a detour.
//
// Emit writes the programs of one site at the place where the site's
// instructions are about to run: what it emits finds the registers as the
// target left them, runs the programs, restores what it used and falls through.
// EmitCold then writes the code that is seldom run, anywhere near. The code
// calls the routines of a Runtime, which is compiled once for a code region,
// and works on an arena whose layout and address are in Env.
//
// A detour's path is: test the gate, save the registers that are live at the
// site and written by the programs, find the thread's slot by its thread
// pointer, run the programs, restore. All of it holds no lock, uses no vector
// register and may be interrupted at any instruction by a signal whose handler
// comes to the same site. Each update of a cell in the thread's own slot is one
// plain instruction, and therefore exact. A thread that has no slot of its own
// continues in a second copy of the programs, in the cold part, in which
// updates are locked.
//
// The package is pure: programs, facts and addresses come in, bytes go out, the
// same for the same input. Nothing that the code loads from the arena becomes
// part of an address unless it is masked or checked.
package x86

import (
	"errors"
	"fmt"
	"slices"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
	"trapless/internal/bpf/routine"
)

// Env is where the code runs.
type Env struct {
	Gate    abi.Addr // a byte, nonzero while any program may run; within 2 GB of the code
	Arena   abi.Addr // where the target has mapped the arena
	Layout  *abi.Layout
	TGID    uint32 // of the target, as HelperGetCurrentPidTgid tells it
	Thread  ThreadPointer
	Runtime *Runtime // of the same Gate, Arena, Layout and Helpers; within 2 GB of the code

	// ThreadID is where every thread keeps its number, in bytes from its thread
	// pointer; 0 if that is not known, and the kernel has to be asked.
	ThreadID int32

	Memory routine.Memory // what helpers may read without asking

	// Helpers says that programs call helpers which are routines of the
	// runtime, as NeedsHelpers tells.
	Helpers bool

	// Constants is where the contents of bpf.Program.Constants lie, by the maps'
	// numbers: in memory that nothing but the tracer can write to.
	Constants map[int]abi.Addr

	// Analyses keeps what was found out about programs, for the next site
	// that runs them; nil keeps nothing. It belongs to one Layout, Thread and
	// Helpers.
	Analyses *Analyses
}

// ThreadPointer says how code reads the running thread's pointer, which tells it from all others of its
// address space.
type ThreadPointer uint8

const (
	// SelfPointer: the word at fs:0 points to itself (ELF handling for TLS, 3.4.6), as C libraries have it.
	SelfPointer ThreadPointer = iota
	// FSBase: by rdfsbase, because fs:0 may hold anything. The kernel must have enabled the instruction:
	// bit 1 of AT_HWCAP2 says so (Documentation/arch/x86/x86_64/fsgs.rst).
	FSBase
)

// Site is what is known where the programs run.
type Site struct {
	Addr        abi.Addr   // the site's address, which programs see as the instruction pointer
	LiveRegs    asm.RegSet // registers whose value the target may still need
	FlagsLive   bool       // the target may still need a flag
	RedZoneLive bool       // the target may use the 128 bytes below its stack pointer
	Result      bool       // RAX is to hold what the one program returns
	Args        Args

	// Gate is a byte within 2 GB of the code, nonzero while one of the programs
	// may run; 0 stands for Env.Gate. Gates are those of the programs, one for
	// each, or none: then all of them run.
	Gate  abi.Addr
	Gates []abi.Addr
	// Hits are the numbers of the programs' counters (abi.Layout.Hits), one for
	// each or none; -1 for a program without. Programs that do nothing count
	// nothing.
	Hits []int
	// Funcs are what get_func_ip returns, for each program; 0 or none at all for Addr.
	Funcs []abi.Addr

	stackArgs int // of a routine of the runtime: how many arguments it takes from the stack
}

// counts reports whether a program counts its hits.
func (s *Site) counts(program int) bool { return s.Hits != nil && s.Hits[program] >= 0 }

// function is what get_func_ip returns to a program.
func (s *Site) function(program int) abi.Addr {
	if s.Funcs == nil || s.Funcs[program] == 0 {
		return s.Addr
	}
	return s.Funcs[program]
}

// Args says in which registers the probed function finds its integer arguments.
type Args uint8

const (
	SysVArgs Args = iota // System V ABI for x86-64, 3.2.3
	GoArgs               // Go's ABIInternal (cmd/compile/abi-internal.md)
)

func (a Args) registers() [bpf.NumArgs]asm.Reg {
	if a == GoArgs {
		return [...]asm.Reg{asm.RAX, asm.RBX, asm.RCX, asm.RDI, asm.RSI, asm.R8}
	}
	return [...]asm.Reg{asm.RDI, asm.RSI, asm.RDX, asm.RCX, asm.R8, asm.R9}
}

// ErrCompile wraps every reason why verified programs cannot be compiled for a
// site.
var ErrCompile = errors.New("compile for x86-64")

// Detour is the code of one site that Emit has begun and EmitCold ends.
type Detour struct{ g *generator }

// Emit emits the programs, one after the other. Nothing is emitted when they
// have no effect. The caller emits what comes next at the site, and calls
// EmitCold later.
func Emit(a *asm.Asm, progs []*bpf.Verified, site Site, env *Env) (*Detour, error) {
	if err := checkEnv(progs, env); err != nil {
		return nil, err
	}
	g, err := generate(a, progs, site, env)
	if err != nil {
		return nil, err
	}
	return &Detour{g}, nil
}

// generate emits the path that is taken by a hit.
func generate(a *asm.Asm, progs []*bpf.Verified, site Site, env *Env) (*generator, error) {
	p, err := env.Analyses.prepare(progs, site, env)
	if err != nil {
		return nil, err
	}
	u := *p.unit
	u.progs = slices.Clone(u.progs)
	g := &generator{Asm: a, unit: &u, site: site, env: env, alloc: p.alloc, frame: p.frame}
	if size := g.frame.deepest; size > MaxFrame && !u.routine {
		return nil, fmt.Errorf("%w: the programs need %d bytes of the stack; a probe may use %d", ErrCompile, size, MaxFrame)
	}
	g.detour()
	return g, nil
}

// MaxFrame is how much of the target's stack programs may use, in bytes, with
// the red zone: who writes C expects to have a few kilobytes left.
const MaxFrame = 1024 + redZone

// NeedsHelpers reports whether a program calls helpers that are routines of the
// runtime.
func NeedsHelpers(p *bpf.Verified) bool {
	for i, in := range p.Code().Insns {
		switch {
		case isCall(&in, bpf.HelperRingbufOutput) && outputsToMap(p):
			return true
		case in.Kind == bpf.CallReg, in.Kind == bpf.CallHelper && isRoutine(in.Helper()):
			return true
		case isCall(&in, bpf.HelperGetCurrentPidTgid) && !shiftsTid(&p.Code().Insns[i+1]):
			return true
		}
	}
	return false
}

// shiftsTid reports whether an instruction leaves only the process of what
// get_current_pid_tgid has put into r0.
func shiftsTid(in *bpf.Insn) bool {
	return in.Kind == bpf.ALU && in.ALU == bpfasm.RSh && in.Wide && in.Dst == bpfasm.R0 && !in.UseSrc && in.Imm == 32
}

// EmitCold emits the code that the detour seldom runs. It is called once.
func (d *Detour) EmitCold(a *asm.Asm) {
	d.g.Asm = a
	d.g.emitCold()
}

// FrameSize is how far below the target's stack pointer the programs' own data
// reach, in bytes; calls of the runtime need at most RuntimeStack more. Routines
// that need more are counted here.
func (d *Detour) FrameSize() int {
	return int(d.g.frame.deepest) + max(0, d.g.routineStack-RuntimeStack)
}

// RuntimeStack is what a call of the runtime needs of the stack, in bytes.
const RuntimeStack = 128

func checkEnv(progs []*bpf.Verified, env *Env) error {
	l := env.Layout
	if l.StrideShift > 30 {
		return fmt.Errorf("%w: slots of %d bytes; the maps are too large", ErrCompile, uint64(1)<<l.StrideShift)
	}
	if env.Runtime == nil {
		return fmt.Errorf("%w: there is no runtime", ErrCompile)
	}
	for _, p := range progs {
		if NeedsHelpers(p) && !env.Helpers {
			return fmt.Errorf("%w: program %s calls helpers that the runtime lacks", ErrCompile, p.Name())
		}
		if err := bpf.CheckMaps(p, l); err != nil {
			return fmt.Errorf("%w: %w", ErrCompile, err)
		}
		for n := range p.Code().Constants {
			if env.Constants[n] == 0 {
				// What the verifier knows of them must not lie where others can write.
				return fmt.Errorf("%w: program %s has constants (%s), for which there is no private place in the target", ErrCompile, p.Name(), l.Maps[n].Name)
			}
		}
		if l.RingSize == 0 && usesRing(p) {
			return fmt.Errorf("%w: program %s writes events, but the arena has no rings", ErrCompile, p.Name())
		}
	}
	return nil
}

func usesRing(p *bpf.Verified) bool {
	for _, in := range p.Code().Insns {
		if isCall(&in, bpf.HelperRingbufOutput) || isCall(&in, bpfasm.FnRingbufSubmit) || isCall(&in, bpfasm.FnPerfEventOutput) ||
			isCall(&in, bpfasm.FnTracePrintk) || isCall(&in, bpfasm.FnTraceVprintk) {
			return true
		}
	}
	return false
}

// outputsToMap reports whether an instruction is a ringbuf_output to a map, as
// far as can be seen: the reference comes from a map, not from the script's ring.
func outputsToMap(p *bpf.Verified) bool {
	for _, m := range p.Code().Maps {
		if m.IsRing() {
			return true
		}
	}
	return false
}
