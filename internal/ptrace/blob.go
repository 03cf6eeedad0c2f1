package ptrace

import (
	"errors"
	"fmt"
	"math"

	"trapless/internal/abi"
	x86 "trapless/internal/asm/x86"
)

// Arg is an argument of a system call in a Blob.
type Arg struct {
	kind  argKind
	value uint64 // the constant, or the index of a call or of data
}

type argKind uint8

const (
	argConst argKind = iota
	argResult
	argData
)

// Const is a constant argument.
func Const(v uint64) Arg { return Arg{argConst, v} }

// AddrArg is a constant argument that is an address in the target.
func AddrArg(a abi.Addr) Arg { return Arg{argConst, uint64(a)} }

// Blob is a list of system calls to be made by a thread of a target, in order.
// None of them may sleep: the thread has other things to do. The zero Blob is
// empty.
type Blob struct {
	calls []sysCall
	data  [][]byte
	stays bool   // the code does not return: the tracer fetches the thread
	pause uint64 // how many pauses it makes before it returns
}

type sysCall struct {
	nr     uint64
	args   []Arg
	expect bool // the calls after this one are made only if it returns want
	want   uint64
}

// Call adds a system call and returns its result as an argument for later ones.
func (b *Blob) Call(nr int, args ...Arg) Arg {
	if len(args) > len(argRegs) {
		panic("BUG: a system call has at most six arguments")
	}
	b.calls = append(b.calls, sysCall{nr: uint64(nr), args: args})
	return Arg{argResult, uint64(len(b.calls) - 1)}
}

// Expect makes the calls after the last one depend on its result: they are made
// only if it is want.
func (b *Blob) Expect(want uint64) {
	c := &b.calls[len(b.calls)-1]
	c.expect, c.want = true, want
}

// Data adds bytes that calls can read, such as a name, and returns their address
// as an argument. They are gone when Run returns.
func (b *Blob) Data(p []byte) Arg {
	b.data = append(b.data, p)
	return Arg{argData, uint64(len(b.data) - 1)}
}

// The registers of a system call's arguments, and all that injected code may
// change and so restores. RSP is never changed.
var (
	argRegs = []x86.Reg{x86.RDI, x86.RSI, x86.RDX, x86.R10, x86.R8, x86.R9}
	allRegs = []x86.Reg{x86.RAX, x86.RBX, x86.RCX, x86.RDX, x86.RSI, x86.RDI, x86.RBP,
		x86.R8, x86.R9, x86.R10, x86.R11, x86.R12, x86.R13, x86.R14, x86.R15}
)

// regValue is the value of a general register.
func regValue(r *Regs, reg x86.Reg) uint64 {
	switch reg {
	case x86.RAX:
		return r.RAX
	case x86.RCX:
		return r.RCX
	case x86.RDX:
		return r.RDX
	case x86.RBX:
		return r.RBX
	case x86.RSP:
		return r.RSP
	case x86.RBP:
		return r.RBP
	case x86.RSI:
		return r.RSI
	case x86.RDI:
		return r.RDI
	case x86.R8:
		return r.R8
	case x86.R9:
		return r.R9
	case x86.R10:
		return r.R10
	case x86.R11:
		return r.R11
	case x86.R12:
		return r.R12
	case x86.R13:
		return r.R13
	case x86.R14:
		return r.R14
	case x86.R15:
		return r.R15
	}
	panic("BUG: not a general register")
}

// The mailbox is a page of the target that injected code writes to.
const (
	mailDone    = 0 // u64: the number of the run that has published everything
	mailResults = 8 // u64 for each call of the blob
	mailSize    = abi.PageSize
	maxCalls    = (mailSize - mailResults) / 8
)

// notRun is the result of a call that was not made. No system call returns it.
const notRun = uint64(math.MaxInt64)

// program is a blob compiled for one thread.
type program struct {
	code  []byte
	marks []mark // one for each compiled call
	tail  int    // from here on all calls have been made or skipped
}

// mark says where the code of a call stands, in bytes from the code's start.
type mark struct {
	after  int // behind the syscall instruction: rax is the result
	stored int // the result is in the mailbox
}

var errTooLong = errors.New("the code does not fit")

// compile emits the calls from number first on, as many as fit into size bytes,
// for a thread that is to go on with the registers then. known holds the results
// of the calls before.
//
// The code changes no flag: mov, lea, jrcxz and syscall do not, and a target
// interrupted between a comparison and its branch must not notice.
func (b *Blob) compile(at abi.Addr, size int, mailbox abi.Addr, run uint64, first int, known []uint64, then *Regs) (*program, error) {
	for n := len(b.calls); n > first; n-- {
		p, err := b.compileCalls(at, mailbox, run, first, n, known, then)
		if err != nil || len(p.code) <= size {
			return p, err
		}
	}
	return nil, fmt.Errorf("system call %d and its data: %w", b.calls[first].nr, errTooLong)
}

func (b *Blob) compileCalls(at, mailbox abi.Addr, run uint64, first, end int, known []uint64, then *Regs) (*program, error) {
	a := x86.New(at)
	p := &program{}
	out := a.NewLabel()
	data := make([]x86.Label, len(b.data))
	used := make([]bool, len(b.data))
	for i := range data {
		data[i] = a.NewLabel()
	}
	a.MovRI(x86.RBX, uint64(mailbox))
	for i := first; i < end; i++ {
		c := &b.calls[i]
		for j, arg := range c.args {
			switch {
			case arg.kind == argData:
				used[arg.value] = true
				a.Lea(argRegs[j], x86.AtLabel(data[arg.value]))
			case arg.kind == argResult && int(arg.value) >= first:
				a.Load(8, argRegs[j], x86.At(x86.RBX, int32(mailResults+8*arg.value)))
			case arg.kind == argResult:
				a.MovRI(argRegs[j], known[arg.value])
			default:
				a.MovRI(argRegs[j], arg.value)
			}
		}
		a.MovRI(x86.RAX, c.nr)
		a.Syscall()
		m := mark{after: a.Len()}
		a.Store(8, x86.At(x86.RBX, int32(mailResults+8*i)), x86.RAX)
		m.stored = a.Len()
		p.marks = append(p.marks, m)
		if c.expect && i+1 < end {
			next := a.NewLabel()
			a.MovRI(x86.RDX, -c.want)
			a.Lea(x86.RCX, x86.AtIndex(x86.RAX, x86.RDX, 1, 0))
			a.Jrcxz(next)
			a.Jmp(out)
			a.Bind(next)
		}
	}
	a.Bind(out)
	p.tail = a.Len()
	a.MovRI(x86.RCX, run)
	a.Store(8, x86.At(x86.RBX, mailDone), x86.RCX)
	if b.stays {
		emitStay(a)
	} else {
		emitLinger(a, b.pause)
		emitReturn(a, allRegs, then)
	}
	for i := range data {
		a.Bind(data[i])
		if used[i] {
			a.Raw(b.data[i]...)
		}
	}
	code, err := a.Bytes()
	p.code = code
	return p, err
}

// lingers is how many pauses code makes before it returns, for a tenth of a
// millisecond or so. Tests set it to 0 to see code return by itself.
var lingers uint64 = 4096

// staysBorn is lingers for a newborn process, which shall not run before it is
// probed, but must run if the tracer dies: some tenths of a second.
const staysBorn = 8 << 20

// emitLinger lets the thread wait a moment, so that a living tracer can stop it
// in here and give it back the registers that it had, restart and all, before it
// has done anything else. It changes rcx.
func emitLinger(a *x86.Asm, pauses uint64) {
	loop, out := a.NewLabel(), a.NewLabel()
	a.MovRI(x86.RCX, pauses)
	a.Bind(loop)
	a.Jrcxz(out)
	a.Pause()
	a.Lea(x86.RCX, x86.At(x86.RCX, -1))
	a.Jmp(loop)
	a.Bind(out)
}

// emitStay keeps the thread here until the tracer fetches it. It is for a program
// that was launched: it must not go on by itself before it is let go, and it dies
// with the tracer.
func emitStay(a *x86.Asm) {
	here := a.NewLabel()
	a.Bind(here)
	a.Pause()
	a.Jmp(here)
}

// flagAC is EFLAGS.AC: with it, a load from an odd address faults (SDM vol. 3,
// 6.15, interrupt 17).
const flagAC = 1 << 18

// emitReturn restores registers and jumps to where the thread goes on.
func emitReturn(a *x86.Asm, regs []x86.Reg, then *Regs) {
	for _, r := range regs {
		a.MovRI(r, regValue(then, r))
	}
	if d := int64(then.RIP) - int64(a.PC()+5); d == int64(int32(d)) {
		a.JmpAddr(abi.Addr(then.RIP))
		return
	}
	// jmp *0(%rip) needs no register. notrack (3e) lets it pass where indirect
	// branches are checked.
	target := a.NewLabel()
	a.Raw(0x3e)
	a.JmpMem(x86.AtLabel(target))
	if then.EFlags&flagAC != 0 {
		a.Align(8)
	}
	a.Bind(target)
	a.Quad(then.RIP)
}

// done is how many of a program's calls were made by a thread that is at pc, and
// the result of the last one if it is still in rax.
func (p *program) done(pc int, r *Regs) (stored int, last *uint64) {
	for i, m := range p.marks {
		switch {
		case pc >= m.stored:
			stored = i + 1
		case pc >= m.after && !restarts(r):
			v := r.RAX
			return i, &v
		}
	}
	return stored, nil
}
