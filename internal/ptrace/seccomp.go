package ptrace

import (
	"encoding/binary"
	"errors"
	"syscall"

	"trapless/internal/abi"
	"trapless/internal/proc"
	"trapless/internal/unix"
)

// A seccomp filter can kill a thread for a system call. So filters are read and
// asked before a thread is made to perform one.

// Actions of a filter that let a call pass (seccomp(2)).
const (
	actionMask  = 0xffff0000
	actionLog   = 0x7ffc0000
	actionAllow = 0x7fff0000
)

const (
	auditX8664  = 0xc000003e // AUDIT_ARCH_X86_64
	seccompData = 64         // sizeof(struct seccomp_data)
	maxFilters  = 1 << 10
)

// Syscall is a system call with all of its arguments.
type Syscall struct {
	Number uint64
	Args   []uint64
}

// CheckSyscalls says whether the seccomp filters of a stopped thread let it make some
// system calls at a PC: nil, or ErrSeccomp, also when that cannot be known.
func (th *Thread) CheckSyscalls(pc abi.Addr, calls ...Syscall) error {
	return th.g.t.do(func() error {
		var list []sysCall
		for _, s := range calls {
			c := sysCall{nr: s.Number}
			for _, a := range s.Args {
				c.args = append(c.args, Const(a))
			}
			list = append(list, c)
		}
		return th.checkCalls(list, pc)
	})
}

func (th *Thread) checkCalls(calls []sysCall, pc abi.Addr) error {
	st, err := proc.ReadStatus(th.PID, th.TID)
	if err != nil {
		return err
	}
	switch st.Seccomp {
	case proc.SeccompOff:
		return nil
	case proc.SeccompStrict:
		return refuse(th.PID, ReasonSeccomp, "%v is in strict mode, which allows read, write and exit alone", th)
	}
	filters, err := th.filters()
	if err != nil {
		return err
	}
	for i := range calls {
		for _, sample := range samples {
			data := calls[i].seccompData(pc, sample)
			for _, f := range filters {
				act, ok := evaluate(f, data)
				if a := act & actionMask; !ok || a != actionAllow && a != actionLog {
					return refuse(th.PID, ReasonSeccomp, "the filter of %v does not let system call %d pass (%#x)", th, calls[i].nr, act)
				}
			}
		}
	}
	return nil
}

// samples stand for arguments that are not known yet, mostly file descriptors.
var samples = []uint64{3, 1023, 0x7f0000000000}

func (c *sysCall) seccompData(pc abi.Addr, unknown uint64) []byte {
	d := make([]byte, seccompData)
	binary.LittleEndian.PutUint32(d, uint32(c.nr))
	binary.LittleEndian.PutUint32(d[4:], auditX8664)
	binary.LittleEndian.PutUint64(d[8:], uint64(pc))
	for i, a := range c.args {
		v := unknown
		if a.kind == argConst {
			v = a.value
		}
		binary.LittleEndian.PutUint64(d[16+8*i:], v)
	}
	return d
}

// filters reads all filters of a stopped thread.
func (th *Thread) filters() ([][]unix.BPFInsn, error) {
	var out [][]unix.BPFInsn
	for i := range maxFilters {
		f, err := unix.PtraceSeccompFilter(th.TID, i)
		switch {
		case errors.Is(err, syscall.ENOENT):
			return out, nil
		case errors.Is(err, syscall.ESRCH):
			return nil, th.lost(err)
		case err != nil:
			return nil, refuse(th.PID, ReasonSeccomp, "%v has a filter that cannot be read (%v): become root, or give trapless CAP_SYS_ADMIN", th, err)
		}
		out = append(out, f)
	}
	return nil, refuse(th.PID, ReasonSeccomp, "%v has more than %d filters", th, maxFilters)
}

// Fields of a classic BPF instruction (include/uapi/linux/bpf_common.h).
const (
	classLD, classLDX, classST, classSTX = 0, 1, 2, 3
	classALU, classJMP, classRET         = 4, 5, 6
	classMISC                            = 7

	aluDiv = 0x30

	modeIMM, modeABS, modeMEM, modeLEN = 0x00, 0x20, 0x60, 0x80
)

// machine is the state of a classic BPF program.
type machine struct {
	a, x uint32
	mem  [16]uint32
}

// evaluate runs a filter. It fails for an instruction that the kernel would not
// have accepted; jumps go forward only, so it ends.
func evaluate(prog []unix.BPFInsn, data []byte) (action uint32, ok bool) {
	var m machine
	for pc := 0; pc < len(prog); pc++ {
		in := &prog[pc]
		operand := in.K
		if in.Code&0x08 != 0 {
			operand = m.x
		}
		switch in.Code & 7 {
		case classLD, classLDX:
			v, ok := m.load(in, data)
			if !ok {
				return 0, false
			}
			if in.Code&7 == classLD {
				m.a = v
			} else {
				m.x = v
			}
		case classST:
			m.mem[in.K&15] = m.a
		case classSTX:
			m.mem[in.K&15] = m.x
		case classALU:
			switch op := in.Code & 0xf0; {
			case op == aluDiv && operand == 0:
				return 0, true // the program ends with 0, which kills the thread
			case !m.alu(op, operand):
				return 0, false
			}
		case classJMP:
			skip, ok := m.jump(in, operand)
			if !ok {
				return 0, false
			}
			pc += skip
		case classRET:
			if in.Code&0x18 == 0x10 {
				return m.a, true
			}
			return in.K, true
		case classMISC:
			if in.Code&0xf8 == 0x80 {
				m.a = m.x
			} else {
				m.x = m.a
			}
		}
	}
	return 0, false
}

func (m *machine) load(in *unix.BPFInsn, data []byte) (uint32, bool) {
	switch in.Code & 0xe0 {
	case modeIMM:
		return in.K, true
	case modeMEM:
		return m.mem[in.K&15], true
	case modeLEN:
		return seccompData, true
	case modeABS:
		if in.K%4 == 0 && in.K <= seccompData-4 {
			return binary.LittleEndian.Uint32(data[in.K:]), true
		}
	}
	return 0, false
}

func (m *machine) alu(op uint16, v uint32) bool {
	switch op {
	case 0x00:
		m.a += v
	case 0x10:
		m.a -= v
	case 0x20:
		m.a *= v
	case aluDiv:
		m.a /= v
	case 0x40:
		m.a |= v
	case 0x50:
		m.a &= v
	case 0x60:
		m.a <<= v & 31
	case 0x70:
		m.a >>= v & 31
	case 0x80:
		m.a = -m.a
	case 0xa0:
		m.a ^= v
	default:
		return false
	}
	return true
}

// jump is how many instructions are skipped.
func (m *machine) jump(in *unix.BPFInsn, v uint32) (int, bool) {
	var taken bool
	switch in.Code & 0xf0 {
	case 0x00:
		return int(in.K), in.K < 1<<16
	case 0x10:
		taken = m.a == v
	case 0x20:
		taken = m.a > v
	case 0x30:
		taken = m.a >= v
	case 0x40:
		taken = m.a&v != 0
	default:
		return 0, false
	}
	if taken {
		return int(in.JT), true
	}
	return int(in.JF), true
}
