package ptrace

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"trapless/internal/abi"
	"trapless/internal/proc"
)

func TestLaunch(t *testing.T) {
	for _, flags := range [][]string{nil, {"-static"}, {"-static-pie"}, {"-no-pie"}} {
		t.Run(strings.Join(append([]string{"cc"}, flags...), " "), func(t *testing.T) {
			exe := build(t, "ptrace_life.c", flags...)
			tr := tracer(t)
			ctx := within(t, 20*time.Second)
			in, inW, err := os.Pipe()
			check(t, err)
			outR, out, err := os.Pipe()
			check(t, err)
			g, err := tr.Launch(ctx, &Command{Path: exe, Args: []string{exe, "threads", "3"}, Env: os.Environ(), Files: []*os.File{in, out, os.Stderr}})
			check(t, err)
			in.Close()
			out.Close()
			aux, err := proc.Auxv(g.PID)
			check(t, err)
			r, err := g.Threads()[0].Regs()
			check(t, err)
			static := len(flags) > 0 && strings.HasPrefix(flags[0], "-static")
			if static && r.FSBase == 0 {
				t.Error("it is stopped without a thread pointer")
			}
			if !static && r.RIP != aux[atEntry] {
				t.Errorf("it is stopped at %#x, and its entry point is %#x", r.RIP, aux[atEntry])
			}
			var b [1]byte
			check(t, g.Mem().ReadAt(b[:], abi.Addr(r.RIP)))
			if b[0] == breakpoint {
				t.Error("the breakpoint is still there")
			}
			_, err = g.Foothold(ctx, 0, abi.PageSize)
			check(t, err)
			runPid(t, g, g.PID)
			check(t, g.Detach(ctx))
			s := bufio.NewScanner(outR)
			if s.Scan(); s.Text() != "ready" {
				t.Errorf("it says %q", s.Text())
			}
			check(t, g.Seize(ctx))
			check(t, g.Stop(ctx))
			runPid(t, g, g.PID)
			check(t, g.Detach(ctx))
			inW.Close()
			if s.Scan(); !strings.HasPrefix(s.Text(), "ok") {
				t.Errorf("it says %q", s.Text())
			}
			ws, err := g.Wait(ctx)
			if err != nil || !ws.Exited() || ws.ExitStatus() != 0 {
				t.Errorf("Wait says %v, %v", ws, err)
			}
		})
	}
}

func TestLaunchEndsWhileAttached(t *testing.T) {
	exe := build(t, "ptrace_life.c")
	tr := tracer(t)
	ctx := within(t, 20*time.Second)
	g, err := tr.Launch(ctx, &Command{Path: exe, Args: []string{exe, "exit", "1"}})
	check(t, err)
	check(t, g.Resume())
	ws, err := g.Wait(ctx)
	if err != nil || ws.ExitStatus() != 7 {
		t.Errorf("Wait says %v, %v", ws, err)
	}
	if err := g.Stop(ctx); !errors.Is(err, ErrGone) {
		t.Errorf("Stop says %v", err)
	}
}

func TestLaunchFails(t *testing.T) {
	tr := tracer(t)
	ctx := within(t, 5*time.Second)
	for _, c := range []struct {
		path string
		want error
	}{
		{"/nonexistent", syscall.ENOENT},
		{"/", syscall.EACCES},
		{tiny32(t), proc.ErrNot64},
	} {
		g, err := tr.Launch(ctx, &Command{Path: c.path, Args: []string{c.path}})
		if !errors.Is(err, c.want) || g != nil {
			t.Errorf("%s: %v, want %v", c.path, err, c.want)
		}
	}
}

// tiny32 is a 32-bit program: an ELF header, one segment, and jmp to itself.
func tiny32(t *testing.T) string {
	t.Helper()
	le := func(vs ...uint32) (b []byte) {
		for _, v := range vs {
			b = append(b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
		}
		return b
	}
	elf := append([]byte{0x7f, 'E', 'L', 'F', 1, 1, 1}, make([]byte, 9)...)
	elf = append(elf, 2, 0, 3, 0)                                   // ET_EXEC, EM_386
	elf = append(elf, le(1, 0x8048054, 52, 0, 0)...)                // version, entry, phoff, shoff, flags
	elf = append(elf, 52, 0, 32, 0, 1, 0, 0, 0, 0, 0, 0, 0)         // sizes and counts
	elf = append(elf, le(1, 0, 0x8048000, 0x8048000, 86, 86, 5)...) // PT_LOAD, R-X
	elf = append(elf, append(le(0x1000), 0xeb, 0xfe)...)            // alignment; jmp .
	path := t.TempDir() + "/tiny32"
	check(t, os.WriteFile(path, elf, 0o755))
	return path
}

func init() {
	helpers["launch"] = func(args []string) {
		null, _ := os.OpenFile("/dev/null", os.O_RDWR, 0)
		t, err := Start()
		var g *Group
		if err == nil {
			g, err = t.Launch(context.Background(), &Command{Path: args[0], Args: []string{args[0], "spin"}, Files: []*os.File{null, null, null}})
		}
		if err == nil && args[1] == "released" {
			err = g.Resume()
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(g.PID)
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
}

// A program that was not released dies with its tracer; a released one does not.
func TestTracerOfLaunchedDies(t *testing.T) {
	exe := build(t, "ptrace_life.c")
	for _, what := range []string{"held", "released"} {
		t.Run(what, func(t *testing.T) {
			out, err := helper(t, "launch", exe, what).Output()
			var status *exec.ExitError
			if !errors.As(err, &status) {
				t.Fatalf("the helper ended with %v and said %q", err, out)
			}
			pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
			if err != nil {
				t.Fatalf("the helper said %q", out)
			}
			defer syscall.Kill(pid, syscall.SIGKILL)
			lives := func() bool {
				st, err := proc.ReadStat(pid, pid)
				return err == nil && !st.Dead()
			}
			for range 500 {
				if lives() == (what == "released") {
					break
				}
				time.Sleep(time.Millisecond)
			}
			if lives() != (what == "released") {
				t.Errorf("after its tracer's death it lives: %v", lives())
			}
		})
	}
}

// The target is a child of this very process and somebody waits for it, which
// takes away reports of its stops.
func TestStolenStops(t *testing.T) {
	cmd := exec.Command(build(t, "ptrace_life.c"), "threads", "3")
	in, err := cmd.StdinPipe()
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	defer cmd.Process.Kill()
	s := bufio.NewScanner(out)
	s.Scan()
	quit, ended := make(chan bool), make(chan bool)
	go func() { // like a careless Wait
		defer close(ended)
		for {
			select {
			case <-quit:
				return
			default:
			}
			var ws syscall.WaitStatus
			_, _ = syscall.Wait4(cmd.Process.Pid, &ws, syscall.WNOHANG, nil)
		}
	}()
	g, err := tracer(t).Seize(within(t, 10*time.Second), cmd.Process.Pid)
	check(t, err)
	for range rounds(50) {
		check(t, g.Stop(within(t, 10*time.Second)))
		check(t, g.Resume())
	}
	check(t, g.Detach(within(t, 10*time.Second)))
	close(quit)
	<-ended
	in.Close()
	if s.Scan(); !strings.HasPrefix(s.Text(), "ok") {
		t.Errorf("it says %q", s.Text())
	}
	check(t, cmd.Wait())
}

// TestSignalAfterTheEnd: a launched program has ended, and another process has its number.
func TestSignalAfterTheEnd(t *testing.T) {
	const last = "/proc/sys/kernel/ns_last_pid" // Documentation/admin-guide/sysctl/kernel.rst
	if f, err := os.OpenFile(last, os.O_WRONLY, 0); err != nil {
		t.Skipf("the number of the next process cannot be chosen: %v", err)
	} else {
		f.Close()
	}
	ctx := within(t, 20*time.Second)
	for range 100 { // somebody else may be faster
		g, err := tracer(t).Launch(ctx, &Command{Path: "/bin/true", Args: []string{"true"}, Env: os.Environ(), Files: []*os.File{nil, nil, os.Stderr}})
		check(t, err)
		check(t, g.Detach(ctx))
		_, err = g.Wait(ctx)
		check(t, err)
		check(t, os.WriteFile(last, fmt.Append(nil, g.PID-1), 0))
		other := exec.Command("/bin/sleep", "1000")
		check(t, other.Start())
		if other.Process.Pid != g.PID {
			_ = other.Process.Kill()
			_ = other.Wait()
			continue
		}
		if err := g.Signal(syscall.SIGKILL); !errors.Is(err, ErrGone) {
			t.Errorf("Signal says %v", err)
		}
		_ = other.Process.Signal(syscall.SIGTERM)
		if err := other.Wait(); err == nil || err.Error() != "signal: terminated" {
			t.Errorf("the other process ended by %v", err)
		}
		return
	}
	t.Skip("in 100 tries no process got the number of the one before it")
}

// TestFailedLaunchLeavesNoZombie: what cannot be traced is killed and waited for.
func TestFailedLaunchLeavesNoZombie(t *testing.T) {
	exe := build(t, "ptrace_life.c")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	tr := tracer(t)
	_, err := tr.Launch(ctx, &Command{Path: exe, Args: []string{exe, "spin"}, Env: os.Environ(), Files: []*os.File{nil, nil, os.Stderr}})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("Launch says %v", err)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", tr.tid))
	check(t, err)
	if len(children) != 0 {
		t.Errorf("processes %s are left", children)
	}
}
