package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"trapless/internal/testkit"
)

// everywhere starts a script without a process.
func everywhere(t *testing.T, script string) *tracer {
	t.Helper()
	if !testkit.IsRoot() {
		t.Skip("programs are held in execve by fanotify, which needs root")
	}
	return traceArmed(t, "--hold", "-e", script)
}

// Of programs that are started while a script waits for them, not one call is missed.
func TestProgramsThatStartAreProbed(t *testing.T) {
	t.Parallel()
	path := copyProgram(t, testkit.Compile(t, "brief.c"))
	r := everywhere(t, fmt.Sprintf(`begin { @base = 5; } uprobe:%q:probed { @ = count(); @n += 1; @sum = sum(arg0); @max = max(arg0); @of[arg0 %% 2] = count(); @seen = @base; @pids[pid] = count(); }`, path))
	const runs, calls = 4, 100
	for range runs {
		if out, err := exec.Command(path, fmt.Sprint(calls)).CombinedOutput(); err != nil {
			t.Fatalf("the program was harmed: %v\n%s", err, out)
		}
	}
	res := r.end(os.Interrupt)
	for name, want := range map[string]int64{"@": runs * calls, "@n": runs * calls, "@sum": runs * calls * (calls - 1) / 2,
		"@max": calls - 1, "@of[0]": runs * calls / 2, "@seen": 5, "@base": 5} {
		if got := res.value(t, name); got != want {
			t.Errorf("%s is %d, want %d", name, got, want)
		}
	}
	if n := strings.Count(res.stdout, "@pids["); n != runs {
		t.Errorf("%d processes were counted, want %d\n%s", n, runs, res.stderr)
	}
}

// Those that run already are probed too; one that is killed leaves what it has counted, and one that is probed
// when the session ends is as it was.
func TestProgramsThatRunAreProbed(t *testing.T) {
	t.Parallel()
	path := copyProgram(t, testkit.Compile(t, "brief.c"))
	start := func() *testkit.Target { return testkit.Start(t, path, "100", "wait") }
	ended, killed, left := start(), start(), start()
	r := everywhere(t, fmt.Sprintf(`uprobe:%q:probed { @[pid] = count(); printf("%%d\n", arg0); }`, path))
	late := start()
	late.Send("")
	late.Wait()
	ended.Send("")
	ended.Wait()
	killed.Kill()
	res := r.end(os.Interrupt)
	for name, want := range map[int]int64{ended.Pid: 50, late.Pid: 100} {
		if got := res.value(t, fmt.Sprintf("@[%d]", name)); got != want {
			t.Errorf("process %d was counted %d times, want %d\n%s", name, got, want, res.stderr)
		}
	}
	if n := strings.Count(strings.SplitN(res.stdout, "@", 2)[0], "\n"); n != 150+2 {
		t.Errorf("%d lines were printed, want 150 and two empty ones", n)
	}
	if changes := testkit.TextChanges(t, left.Pid); len(changes) != 0 {
		t.Errorf("the text of a process differs: %q", changes)
	}
	left.Send("")
	left.Wait()
}

// A tracer that is stopped holds nobody, unless it was asked to hold programs; and
// Ctrl-Z stops only the process that waits for the one that traces.
func TestStoppedTracerHoldsNobody(t *testing.T) {
	t.Parallel()
	if !testkit.IsRoot() {
		t.Skip("executions are seen by fanotify, which needs root")
	}
	path := copyProgram(t, testkit.Compile(t, "brief.c"))
	r := traceArmed(t, "-e", fmt.Sprintf(`uprobe:%q:probed { @ = count(); }`, path))
	worker := children(t, r.cmd.Process.Pid)[0]
	signal := func(pid int, sig syscall.Signal) {
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
	}
	signal(worker, syscall.SIGTSTP)
	p := testkit.Start(t, path, "100", "wait")
	for deadline := time.Now().Add(testkit.Deadline); len(testkit.TextChanges(t, p.Pid)) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a program that started was not probed")
		}
	}
	signal(worker, syscall.SIGSTOP)
	if out, err := exec.Command(path, "100").CombinedOutput(); err != nil {
		t.Errorf("the program was harmed: %v\n%s", err, out)
	}
	p.Send("")
	p.Wait()
	signal(worker, syscall.SIGCONT)
	if res := r.end(os.Interrupt); res.value(t, "@") < 50 {
		t.Errorf("%+v: 50 calls at least were made when the program was probed", res)
	}
}

// What is not there is an error before anything is waited for.
func TestNothingToWaitFor(t *testing.T) {
	t.Parallel()
	path := testkit.Compile(t, "brief.c")
	for script, want := range map[string]string{
		"uprobe:/no/such/file:main { }":            "no such file",
		"uprobe:" + path + ":no_such_function { }": "no_such_function",
		"uprobe:main { }":                          "name a file, or a process by -p",
		"uprobe:nosuchlib:main { }":                "neither a program in PATH nor a library",
	} {
		if res := runToEnd(t, "trace", "-e", script); res.status != exitFailed || !strings.Contains(res.stderr, want) {
			t.Errorf("%s: %+v, want %q", script, res, want)
		}
	}
}
