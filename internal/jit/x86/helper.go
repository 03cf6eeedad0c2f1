package x86

import (
	bpfasm "github.com/cilium/ebpf/asm"

	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
	"trapless/internal/bpf/routine"
)

// helper emits a helper that has nothing to do with maps and rings.
func (g *generator) helper(o *op) {
	d := g.r(bpfasm.R0)
	switch h := o.in.Helper(); h {
	case bpfasm.FnKtimeGetNs, bpfasm.FnKtimeGetCoarseNs:
		g.clock()
	case bpfasm.FnGetSmpProcessorId:
		g.callRuntime(g.env.Runtime.cpu)
	case bpfasm.FnGetNumaNodeId:
		g.callRuntime(g.env.Runtime.node)
	case bpfasm.FnGetPrandomU32:
		g.callRuntime(g.env.Runtime.random)
	case bpfasm.FnGetFuncIp:
		g.MovRI(d, uint64(g.site.function(o.prog)))
	case bpfasm.FnGetAttachCookie:
		g.MovRI(d, 0) // see bpf.Verified.WithCookie
	case bpf.HelperGetCurrentPidTgid:
		g.pidTgid(o, d)
	case routine.Syscall:
		g.syscall(d)
	case routine.Swap16:
		g.swap16(d)
	case routine.ThreadWord:
		g.Load(8, d, asm.FS(int32(o.val(bpfasm.R1).Const)))
	case routine.StackPointer:
		g.MovRR(8, d, asm.RSP)
	case routine.Increment:
		g.IncM(8, asm.At(g.r(bpfasm.R1), 0))
	default:
		g.callHelper(o, d)
	}
}

// pidTgid emits get_current_pid_tgid where not only the process is wanted.
func (g *generator) pidTgid(o *op, d asm.Reg) {
	if at := g.env.ThreadID; at != 0 {
		g.Load(4, d, asm.FS(at))
	} else {
		sp := g.enterCall(1)
		r := g.env.Runtime.helpers[bpf.HelperGetCurrentPidTgid]
		g.callRoutine(&r, d)
		g.leaveCall(sp)
	}
	if o.tidOnly {
		return
	}
	t := g.v(temp1)
	g.MovRI(t, uint64(g.env.TGID)<<32)
	g.OpRR(asm.Or, 8, d, t)
}

// syscall emits a system call.
func (g *generator) syscall(d asm.Reg) {
	g.into(asm.RAX, asm.RDI, asm.RSI, asm.RDX, asm.R10)
	g.Syscall()
	g.copy(d, asm.RAX)
}

// swap16 emits an exchange of 16 bytes.
func (g *generator) swap16(d asm.Reg) {
	g.into(asm.RSI, asm.RAX, asm.RDX, asm.RBX, asm.RCX)
	g.Lock()
	g.Cmpxchg16b(asm.At(asm.RSI, 0))
	g.Setcc(asm.E, asm.RAX)
	g.MovZX(1, d, asm.RAX)
}

// into moves r1, r2 ... into registers, through the stack, for they may be in each
// other's.
func (g *generator) into(into ...asm.Reg) {
	sp := g.enterCall(len(into))
	for i := range into {
		g.Store(8, asm.At(asm.RSP, int32(8*i)), g.r(bpfasm.R1+bpfasm.Register(i)))
	}
	for i, r := range into {
		g.Load(8, r, asm.At(asm.RSP, int32(8*i)))
	}
	g.leaveCall(sp)
}

// routineOperands finds what a helper reads that is a routine of the runtime.
func (u *unit) routineOperands(o *op) error {
	h, reason := bpf.LookupHelper(o.in.Helper())
	if reason != "" {
		return o.fail("%s", reason)
	}
	if _, ok := u.env.Runtime.helpers[h.ID]; !ok {
		return o.fail("the helper has no code yet")
	}
	o.defs, o.temps = reg(bpfasm.R0), vars(temp1)
	for i := range h.NumArgs() {
		r := bpfasm.R1 + bpfasm.Register(i)
		if _, ok := immediate(o.val(r), 8); !ok {
			o.uses |= u.pointer(o, r)
		}
	}
	if routine.LookupHelper(h.ID).Slot {
		o.uses |= vars(slotVar)
	}
	return nil
}

// callHelper calls the routine of a helper.
func (g *generator) callHelper(o *op, d asm.Reg) {
	h, _ := bpf.LookupHelper(o.in.Helper())
	sp := g.enterCall(h.NumArgs() + 1)
	if routine.LookupHelper(h.ID).Slot {
		g.Store(8, asm.At(asm.RSP, int32(8*h.NumArgs())), g.v(slotVar))
	}
	for i := range h.NumArgs() {
		r := bpfasm.R1 + bpfasm.Register(i)
		if _, ok := immediate(o.val(r), 8); ok {
			g.putNumber(o, r, int32(i))
		} else {
			g.putPointer(o, r, d, int32(i))
		}
	}
	c := g.env.Runtime.helpers[h.ID]
	g.callRoutine(&c, d)
	g.leaveCall(sp)
}

// cpu tells the processor that the thread runs on. Linux keeps its number in
// the low 12 bits of what RDTSCP leaves in ECX (arch/x86/include/asm/segment.h).
func (r *assembler) cpu() {
	r.save(asm.RAX, asm.RCX, asm.RDX)
	r.Rdtscp()
	r.OpRI(asm.And, 4, asm.RCX, 1<<cpuBits-1)
	r.Store(8, r.arg(0), asm.RCX)
	r.end()
}

// cpuBits is the number of those bits. The others are the number of the NUMA node.
const cpuBits = 12

// numaNode tells the NUMA node of that processor.
func (r *assembler) numaNode() {
	r.save(asm.RAX, asm.RCX, asm.RDX)
	r.Rdtscp()
	r.ShiftI(asm.Shr, 4, asm.RCX, cpuBits)
	r.Store(8, r.arg(0), asm.RCX)
	r.end()
}

// random scatters the time stamp counter over 32 bits.
func (r *assembler) random() {
	r.save(asm.RAX, asm.RDX)
	r.Rdtsc()
	r.MovRI(asm.RDX, randomMul)
	r.Imul(8, asm.RAX, asm.RDX)
	r.MovRR(8, asm.RDX, asm.RAX)
	r.ShiftI(asm.Shr, 8, asm.RDX, 32)
	r.OpRR(asm.Xor, 8, asm.RAX, asm.RDX)
	r.MovRI(asm.RDX, randomMul)
	r.Imul(8, asm.RAX, asm.RDX)
	r.ShiftI(asm.Shr, 8, asm.RAX, 32)
	r.Store(8, r.arg(0), asm.RAX)
	r.end()
}

// randomMul is an odd number whose multiples are spread well (Vigna, 2014: a
// multiplier of SplitMix64).
const randomMul = 0xbf58476d1ce4e5b9
