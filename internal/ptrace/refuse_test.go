package ptrace

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"trapless/internal/abi"
	"trapless/internal/proc"
	"trapless/internal/unix"
)

// refuser starts a target of ptrace_refuse.c; exit status 77 says that this
// kernel has not what it needs.
func refuser(t *testing.T, args ...string) *target {
	t.Helper()
	exe := build(t, "ptrace_refuse.c")
	if args[0] != "rseq" { // which does not end
		if out, err := exec.Command(exe, args...).CombinedOutput(); err != nil {
			t.Skipf("the target cannot be made here: %v %s", err, out)
		}
	}
	return start(t, exe, args...)
}

func TestInjectionIsRefused(t *testing.T) {
	for _, c := range []struct {
		args []string
		want error
		says string
	}{
		{[]string{"seccomp-kill", "9"}, ErrSeccomp, "system call 9"},
		{[]string{"seccomp-allow"}, nil, ""},
		{[]string{"seccomp-kill", "59"}, nil, ""},
		{[]string{"seccomp-strict"}, ErrSeccomp, "strict mode"},
		{[]string{"dispatch"}, ErrDispatch, "catches its system calls itself"},
		{[]string{"nospace"}, ErrFailed, "ulimit -v"},
	} {
		t.Run(strings.Join(c.args, "-"), func(t *testing.T) {
			tg := refuser(t, c.args...)
			time.Sleep(5 * time.Millisecond) // into strict mode
			g := seize(t, tg)
			ctx := within(t, 10*time.Second)
			for range 3 {
				_, err := g.Foothold(ctx, 0, abi.PageSize)
				if !errors.Is(err, c.want) || c.want != nil && !strings.Contains(err.Error(), c.says) {
					t.Fatalf("Foothold says %v, want %v with %q", err, c.want, c.says)
				}
			}
			check(t, g.Detach(ctx))
			tg.finish()
		})
	}
}

// A call that the filter kills for is refused, another one is made.
func TestFilterIsAskedForEachCall(t *testing.T) {
	tg := refuser(t, "seccomp-kill", "39")
	g := seize(t, tg)
	ctx := within(t, 10*time.Second)
	_, err := g.Foothold(ctx, 0, abi.PageSize)
	check(t, err)
	var bad, good Blob
	good.Call(186)
	bad.Call(186)
	bad.Call(sysGetpid)
	if res, err := g.Run(ctx, &bad); !errors.Is(err, ErrSeccomp) || res[0] != Missing {
		t.Errorf("Run says %v, results %#x", err, res)
	}
	if res, err := g.Run(ctx, &good); err != nil || res[0] != uint64(tg.pid) {
		t.Errorf("gettid: %v, results %#x", err, res)
	}
	check(t, g.Stop(ctx))
	th := g.Threads()[0]
	if err := th.CheckSyscalls(0x1000, Syscall{Number: 39}); !errors.Is(err, ErrSeccomp) {
		t.Errorf("CheckSyscalls(39) says %v", err)
	}
	check(t, th.CheckSyscalls(0x1000, Syscall{Number: 186}))
	check(t, g.Detach(ctx))
	tg.finish()
}

// A thread in a restartable sequence is neither moved nor made to run code.
func TestRestartableSequence(t *testing.T) {
	tg := refuser(t, "rseq")
	g := seize(t, tg)
	ctx := within(t, 20*time.Second)
	inside := 0
	for range 200 {
		check(t, g.Stop(ctx))
		th := g.Threads()[0]
		r, err := th.Regs()
		check(t, err)
		in := false
		check(t, g.t.do(func() (err error) {
			in, err = th.inRseq(abi.Addr(r.RIP))
			return err
		}))
		err = th.SetPC(abi.Addr(r.RIP))
		if in != errors.Is(err, ErrRseq) {
			t.Fatalf("in a sequence: %v; SetPC says %v", in, err)
		}
		if in {
			inside++
		}
		check(t, g.Resume())
	}
	if inside == 0 {
		t.Error("the thread was never stopped in its sequence")
	}
	// It leaves the sequence for a few instructions now and then.
	region, err := g.Foothold(ctx, 0, abi.PageSize)
	t.Logf("%d of 200 stops were in the sequence; Foothold says %v, %v", inside, region, err)
	if err != nil && !errors.Is(err, ErrNoThread) {
		t.Error(err)
	}
	check(t, g.Detach(ctx))
}

// SetPC keeps its hands off a call that is to be restarted.
func TestSetPCInSystemCall(t *testing.T) {
	tg := life(t, "sleep")
	g := seize(t, tg)
	ctx := within(t, 10*time.Second)
	// It may still be on its way from the line that it printed.
	for {
		nr, ok := proc.CurrentCall(g.PID, g.PID)
		if ok && nr == 232 {
			break
		}
		if ctx.Err() != nil {
			t.Fatal("it never comes to epoll_wait")
		}
		time.Sleep(time.Millisecond)
	}
	check(t, g.Stop(ctx))
	th := g.Threads()[0]
	r, err := th.Regs()
	check(t, err)
	if err := th.SetPC(abi.Addr(r.RIP)); !errors.Is(err, ErrInCall) {
		t.Errorf("SetPC says %v", err)
	}
	if r.OrigRAX != 232 || r.FSBase == 0 {
		t.Errorf("in epoll_wait orig_rax is %d and fs_base %#x", r.OrigRAX, r.FSBase)
	}
	if _, err := th.SigMask(); err != nil {
		t.Error(err)
	}
	check(t, g.Resume())
	if _, err := th.Regs(); !errors.Is(err, ErrRunning) {
		t.Errorf("Regs of a running thread says %v", err)
	}
	check(t, g.Detach(ctx))
	tg.finish()
}

func init() { helpers["filter"] = filterHelper }

// filterHelper installs the filter that it is given in hexadecimal and makes the
// system calls on its input ("nr a0 a1 a2 a3 a4 a5"), saying each error number.
func filterHelper(args []string) {
	runtime.LockOSThread()
	raw, _ := hex.DecodeString(args[0])
	prog := struct {
		n    uint16
		_    [6]byte
		insn *byte
	}{n: uint16(len(raw) / 8), insn: &raw[0]}
	const prSetNoNewPrivs, seccompSetFilter, sysPrctl, sysSeccomp = 38, 1, 157, 317
	_, _, e := syscall.RawSyscall6(sysPrctl, prSetNoNewPrivs, 1, 0, 0, 0, 0)
	if e == 0 {
		_, _, e = syscall.RawSyscall(sysSeccomp, seccompSetFilter, 0, uintptr(unsafe.Pointer(&prog)))
	}
	if e != 0 {
		fmt.Println("seccomp:", e)
		os.Exit(1)
	}
	for {
		var a [7]uint64
		for i := range a {
			if _, err := fmt.Scan(&a[i]); err != nil {
				return
			}
		}
		_, _, e := syscall.RawSyscall6(uintptr(a[0]), uintptr(a[1]), uintptr(a[2]), uintptr(a[3]), uintptr(a[4]), uintptr(a[5]), uintptr(a[6]))
		fmt.Println(int(e))
	}
}

// randomFilter lets every system call below 5000 pass and computes an error
// number for the others from their arguments.
func randomFilter() []unix.BPFInsn {
	ld := func(off uint32) unix.BPFInsn { return unix.BPFInsn{Code: 0x20, K: off} }
	p := []unix.BPFInsn{ld(0), {Code: 0x35, JT: 1, JF: 0, K: 5000}, {Code: 0x06, K: actionAllow}}
	for m := range uint32(16) { // the kernel refuses loads of what was not stored
		p = append(p, unix.BPFInsn{Code: 0x02, K: m})
	}
	p = append(p, unix.BPFInsn{Code: 0x07})
	n := 10 + rand.IntN(60)
	for i := range n {
		k := rand.Uint32()
		if rand.IntN(2) == 0 {
			k = rand.Uint32N(40)
		}
		var in unix.BPFInsn
		switch rand.IntN(10) {
		case 0:
			in = ld(4 * rand.Uint32N(16))
		case 1:
			in = unix.BPFInsn{Code: []uint16{0x00, 0x01}[rand.IntN(2)], K: k}
		case 2:
			in = unix.BPFInsn{Code: []uint16{0x60, 0x61, 0x02, 0x03}[rand.IntN(4)], K: rand.Uint32N(16)}
		case 3:
			in = unix.BPFInsn{Code: []uint16{0x07, 0x87}[rand.IntN(2)]}
		case 4:
			in = unix.BPFInsn{Code: []uint16{0x80, 0x81}[rand.IntN(2)]}
		case 5, 6: // jumps forward
			left := n - i
			in = unix.BPFInsn{Code: []uint16{0x15, 0x25, 0x35, 0x45, 0x1d, 0x2d, 0x3d, 0x4d}[rand.IntN(8)], K: k,
				JT: uint8(rand.IntN(min(left, 5))), JF: uint8(rand.IntN(min(left, 5)))}
		default:
			op := []uint16{0x04, 0x14, 0x24, 0x34, 0x44, 0x54, 0x64, 0x74, 0x84, 0xa4}[rand.IntN(10)]
			switch src := uint16(rand.IntN(2)) * 8; {
			case op == aluDiv|4 && src != 0:
				in = unix.BPFInsn{Code: op, K: k | 1} // dividing by 0 kills
			case op == 0x84:
				in = unix.BPFInsn{Code: op}
			case op == 0x34 && src == 0:
				in = unix.BPFInsn{Code: op, K: k | 1}
			case (op == 0x64 || op == 0x74) && src == 0:
				in = unix.BPFInsn{Code: op, K: k & 31}
			default:
				in = unix.BPFInsn{Code: op | src, K: k}
			}
		}
		p = append(p, in)
	}
	// No load may see the instruction pointer, which differs.
	for i := range p {
		if p[i].Code == 0x20 && (p[i].K == 8 || p[i].K == 12) {
			p[i].K = 16
		}
	}
	return append(p, unix.BPFInsn{Code: 0x54, K: 0x3ff}, unix.BPFInsn{Code: 0x04, K: 1},
		unix.BPFInsn{Code: 0x44, K: 0x50000}, unix.BPFInsn{Code: 0x16})
}

// Division by zero ends a filter with 0, and that kills (net/core/filter.c,
// bpf_convert_filter).
func TestFilterDividesByZero(t *testing.T) {
	prog := []unix.BPFInsn{{Code: 0x01, K: 0}, {Code: 0x00, K: 5}, {Code: 0x3c}, {Code: 0x06, K: actionAllow}}
	if act, ok := evaluate(prog, make([]byte, seccompData)); !ok || act != 0 {
		t.Errorf("%#x, %v", act, ok)
	}
}

// The kernel says what a filter does.
func TestFiltersAgainstKernel(t *testing.T) {
	for range rounds(60) {
		prog := randomFilter()
		var raw []byte
		for _, in := range prog {
			raw = binary.LittleEndian.AppendUint16(raw, in.Code)
			raw = append(raw, in.JT, in.JF)
			raw = binary.LittleEndian.AppendUint32(raw, in.K)
		}
		var input strings.Builder
		var calls []sysCall
		for range 20 {
			c := sysCall{nr: 5000 + rand.Uint64N(1000)}
			fmt.Fprintf(&input, "%d", c.nr)
			for range 6 {
				v := rand.Uint64() >> rand.UintN(64)
				c.args = append(c.args, Const(v))
				fmt.Fprintf(&input, " %d", v)
			}
			input.WriteString("\n")
			calls = append(calls, c)
		}
		cmd := helper(t, "filter", hex.EncodeToString(raw))
		cmd.Stdin = strings.NewReader(input.String())
		out, err := cmd.CombinedOutput()
		if strings.HasPrefix(string(out), "seccomp: invalid") {
			continue // a filter that the kernel does not accept
		}
		check(t, err)
		said := strings.Fields(string(out))
		if len(said) != len(calls) {
			t.Fatalf("the helper says %q", out)
		}
		for i := range calls {
			act, ok := evaluate(prog, calls[i].seccompData(0, 0))
			if !ok || fmt.Sprint(act&0xffff) != said[i] {
				t.Fatalf("call %v: %#x (%v), the kernel says %s; filter %x", calls[i], act, ok, said[i], prog)
			}
		}
	}
}
