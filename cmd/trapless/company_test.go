package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"trapless/internal/testkit"
)

// Others are at work on the target too, or the target is not as usual.

func TestSecondTraplessIsRefused(t *testing.T) {
	p := startBusy(t)
	first := p.attach(`work@ { @ = count(); }`)
	for range 3 {
		refused(t, exitFailed, "it is already probed by process", "trace", "-p", p.pid, "-e", p.script(`work@ { @ = count(); }`))
		refused(t, exitFailed, "it is already probed by process", "clean", "-p", p.pid)
		p.call("work", 1000)
	}
	if got := first.end(os.Interrupt).value(t, "@"); got != 3000 {
		t.Errorf("the first one counted %d calls of 3000", got)
	}
	p.restored()
}

// TestTraplessIsProbed probes a trapless at work, which has the arena of its target mapped,
// too, and is not to be taken for a target that a dead tracer has left.
func TestTraplessIsProbed(t *testing.T) {
	p := startBusy(t)
	first := p.attach(`work@ { @ = count(); }`)
	worker := strconv.Itoa(children(t, first.cmd.Process.Pid)[0])
	if res := runToEnd(t, "clean", "-p", worker); res.status != 0 || !strings.Contains(res.stdout, "restored 0 patches and 0 signal actions") {
		t.Errorf("clean: %+v", res)
	}
	for range 2 {
		p.call("work", 1000)
		res := runToEnd(t, "trace", "-p", worker, "-e", "uprobe:runtime.mallocgc { @ = count(); } interval:ms:500 { exit(); }")
		if res.status != 0 || res.value(t, "@") == 0 {
			t.Errorf("%+v", res)
		}
	}
	if got := first.end(os.Interrupt).value(t, "@"); got != 2000 {
		t.Errorf("the first one counted %d calls of 2000", got)
	}
	p.restored()
}

// TestDebuggerComesLater: gdb attaches to a probed process, looks around, sets a
// breakpoint elsewhere, and leaves; the session ends in order afterwards.
func TestDebuggerComesLater(t *testing.T) {
	gdb := testkit.Command(t, "gdb", "gdb")
	p := startBusy(t)
	r := p.attach(`work@ { @ = count(); }`)
	p.call("work", 1000)
	out, err := exec.Command(gdb, "-nx", "-q", "-batch", "-p", p.pid, "-ex", "bt", "-ex", "x/i work", "-ex", "detach").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "jmp") {
		t.Errorf("gdb: %v\n%s", err, out)
	}
	p.call("work", 1000)
	if got := r.end(os.Interrupt).value(t, "@"); got != 2000 {
		t.Errorf("counted %d calls of 2000", got)
	}
	p.restored()
}

// TestDebuggerStays: with gdb attached the probes cannot be taken out; trapless
// says so and how to do it later.
func TestDebuggerStays(t *testing.T) {
	gdb := testkit.Command(t, "gdb", "gdb")
	p := startBusy(t)
	r := p.attach(`work@ { @ = count(); }`)
	g := testkit.StartCommand(t, exec.Command(gdb, "-nx", "-q", "-batch-silent", "-p", p.pid,
		"-ex", "shell echo attached", "-ex", "shell read line", "-ex", "detach"))
	for g.Line() != "attached" {
	}
	if err := r.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	r.waitFor("(gdb)", func() { g.Send("go on") })
	if res := r.wait(); res.status == exitFailed && !strings.Contains(res.stderr, "trapless clean -p "+p.pid) {
		t.Errorf("%+v", res)
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	runToEnd(t, "clean", "-p", p.pid)
	p.call("work", 1000)
	p.restored()
}

// waitFor calls then once standard error says something, or trapless has ended.
func (r *tracer) waitFor(text string, then func()) {
	r.t.Helper()
	done := make(chan struct{})
	go func() {
		err := <-r.ended
		r.ended <- err
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(2 * time.Second): // it waits for the debugger to go
	}
	then()
}

// states of a process in /proc/PID/stat.
func state(t *testing.T, pid int) string {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	rest := string(stat[strings.LastIndexByte(string(stat), ')')+2:])
	return rest[:1]
}

func waitState(t *testing.T, pid int, want string) {
	t.Helper()
	for deadline := time.Now().Add(testkit.Deadline); state(t, pid) != want; {
		if time.Now().After(deadline) {
			t.Fatalf("process %d is in state %s, want %s", pid, state(t, pid), want)
		}
	}
}

func TestStoppedTargetStaysStopped(t *testing.T) {
	path := testkit.Compile(t, "threads.c", testkit.Exported)
	p := testkit.Start(t, path, "4")
	pid, script := strconv.Itoa(p.Pid), fmt.Sprintf("uprobe:%q:probed { @ = count(); }", path)
	caught := testkit.TakeFootprint(t, p.Pid).Actions["SigCgt"]
	p.Signal(syscall.SIGSTOP)
	waitState(t, p.Pid, "T")
	refused(t, exitFailed, "kill -CONT "+pid, "trace", "-p", pid, "-e", script)
	if s := state(t, p.Pid); s != "T" {
		t.Errorf("the target is in state %s after a refusal", s)
	}
	p.Signal(syscall.SIGCONT)

	for range 5 {
		r := traceArmed(t, "-p", pid, "-e", script)
		session := &running{t: t, pid: pid}
		for until := time.Now().Add(testkit.Deadline); session.status().Probes[0].Hits == 0 && time.Now().Before(until); {
		}
		p.Signal(syscall.SIGSTOP)
		waitState(t, p.Pid, "T")
		if got := r.end(os.Interrupt).value(t, "@"); got == 0 {
			t.Error("nothing was counted")
		}
		if changes := testkit.TextChanges(t, p.Pid); len(changes) != 0 {
			t.Errorf("the text differs: %q", changes)
		}
		if s := state(t, p.Pid); s != "T" {
			t.Errorf("the target is in state %s after detaching", s)
		}
		p.Signal(syscall.SIGCONT)
		if res := runToEnd(t, "clean", "-p", pid); res.status != 0 {
			t.Errorf("%+v", res)
		}
		if after := testkit.TakeFootprint(t, p.Pid).Actions["SigCgt"]; after != caught {
			t.Errorf("it caught the signals %s, and %s afterwards", caught, after)
		}
	}
	if last := p.Stop(); last[len(last)-1] != "ok" {
		t.Errorf("last lines %q", last)
	}
}

// TestOrdinaryUser has nobody probe a process of nobody's.
func TestOrdinaryUser(t *testing.T) {
	path := testkit.Compile(t, "threads.c", testkit.Exported)
	p := testkit.StartCommand(t, testkit.AsOrdinaryUser(t, exec.Command(path, "4")))
	p.Line()
	pid := strconv.Itoa(p.Pid)
	for range 3 {
		r := startCmd(t, testkit.AsOrdinaryUser(t, exec.Command(program, "trace", "-v", "-p", pid, "-e", fmt.Sprintf("uprobe:%q:probed { @ = count(); @keys[arg0] = sum(arg1); }", path))))
		r.waitArmed()
		if res := r.end(os.Interrupt); !strings.Contains(res.stdout, "@: ") {
			t.Errorf("%+v", res)
		}
	}
	if res := startCmd(t, testkit.AsOrdinaryUser(t, exec.Command(program, "clean", "-p", pid))).wait(); res.status != 0 {
		t.Errorf("%+v", res)
	}
	if changes := testkit.TextChanges(t, p.Pid); len(changes) != 0 {
		t.Errorf("the text differs: %q", changes)
	}
	if last := p.Stop(); last[len(last)-1] != "ok" {
		t.Errorf("last lines %q", last)
	}
}

// copyProgram copies a program to where the test can replace it.
func copyProgram(t *testing.T, from string) string {
	t.Helper()
	text, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "copy")
	if err := os.WriteFile(to, text, 0o755); err != nil {
		t.Fatal(err)
	}
	return to
}

// TestRebuiltProgram: the file that a process runs is deleted, or another one
// has its name now. What is probed is what runs.
func TestRebuiltProgram(t *testing.T) {
	path := copyProgram(t, testkit.Compile(t, "threads.c", testkit.Exported))
	other, err := os.ReadFile(testkit.Compile(t, "busy.c", testkit.Exported))
	if err != nil {
		t.Fatal(err)
	}
	p := testkit.Start(t, path, "2")
	script := fmt.Sprintf("uprobe:%q:probed { @ = count(); exit(); }", path)
	for _, change := range []func() error{
		func() error { return os.Remove(path) },
		func() error { return os.WriteFile(path, other, 0o755) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if testkit.IsRoot() {
			if got := runToEnd(t, "trace", "-p", strconv.Itoa(p.Pid), "-e", script).value(t, "@"); got == 0 {
				t.Error("nothing was counted")
			}
			continue
		}
		res := runToEnd(t, "trace", "-p", strconv.Itoa(p.Pid), "-e", script)
		if res.status != exitFailed || strings.Count(res.stderr, "\n") != 1 {
			t.Errorf("%+v", res)
		}
	}
	if last := p.Stop(); last[len(last)-1] != "ok" {
		t.Errorf("last lines %q", last)
	}
}

// TestKilledTracer: SIGKILL to the one that the user sees, and to all of it.
func TestKilledTracer(t *testing.T) {
	p := startBusy(t)
	r := p.attach(`work@ { @ = count(); }`)
	p.call("work", 1000)
	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	r.wait()
	p.call("work", 1000)
	for deadline := time.Now().Add(testkit.Deadline); ; {
		res := runToEnd(t, "clean", "-p", p.pid)
		if res.status == 0 {
			break
		}
		if !strings.Contains(res.stderr, "already probed") && !strings.Contains(res.stderr, "already traced") || time.Now().After(deadline) {
			t.Fatalf("%+v", res)
		}
	}
	p.restored()
	r = p.attach(`work@ { @ = count(); }`)
	p.call("work", 1000)
	if got := r.end(os.Interrupt).value(t, "@"); got != 1000 {
		t.Errorf("counted %d calls of 1000 afterwards", got)
	}
	p.restored()
}
