package inject

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/bpf"
	"trapless/internal/testkit"
)

// Where a filter watches the target's system calls, no program makes one.
func TestSyscallsUnderSeccompAreRefused(t *testing.T) {
	reqs := func(insns ...asm.Instruction) []Request {
		v, err := bpf.Trust(&bpf.Program{Name: "p", Insns: append(insns, asm.Return())})
		if err != nil {
			t.Fatal(err)
		}
		return []Request{{Programs: [][]*bpf.Verified{{v}}}}
	}
	p := testkit.StartCommand(t, exec.Command(testkit.Compile(t, "ptrace_refuse.c"), "seccomp-allow"))
	p.Line() // it is ready
	filtered, free := &Target{PID: p.Pid}, &Target{PID: os.Getpid()}
	read, clock := reqs(asm.FnProbeReadUser.Call()), reqs(asm.FnKtimeGetNs.Call())
	if err := filtered.checkSyscalls(read); err == nil || !strings.Contains(err.Error(), "seccomp: a program calls the helper probe_read_user") {
		t.Errorf("a read: %v", err)
	}
	if err := filtered.checkSyscalls(clock); err != nil {
		t.Errorf("no system call: %v", err)
	}
	if err := free.checkSyscalls(read); err != nil {
		t.Skipf("this test runs under a filter itself: %v", err)
	}
}
