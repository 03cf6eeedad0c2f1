package session

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"trapless/internal/lang"
	"trapless/internal/ptrace"
	"trapless/internal/testkit"
)

// stepVar makes a tracer (see tracerVar) go once through all that a session can do,
// and die at the step of that number; 0 for none.
const stepVar = "TRAPLESS_TEST_STEP"

// dieAtStep is that tracer.
func dieAtStep(pid, step int) {
	steps := 0
	ptrace.AtSteps(func() {
		if steps++; steps == step {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	})
	if err := wholeLife(pid); err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	fmt.Println("steps", steps)
	os.Exit(0)
}

// wholeLife attaches, changes probes in all ways, and detaches.
func wholeLife(pid int) error {
	script, err := lang.Compile(os.Getenv(scriptVar), "test", lang.Options{})
	if err != nil {
		return err
	}
	ctx := context.Background()
	s, err := Attach(ctx, pid, Config{Script: script, Sink: &recorder{}, Warn: func(string, ...any) {}})
	if err != nil {
		return err
	}
	more, err := s.Register(ctx, ProbeSpec{At: strings.TrimSpace(strings.SplitN(os.Getenv(scriptVar), "{", 2)[0]), Program: 0})
	if err != nil {
		return err
	}
	for _, f := range []func() error{
		func() error { return s.SetEnabled(false, more[0].ID) },
		func() error { return s.Arm(ctx, false) },
		func() error { return s.SetEnabled(true, more[0].ID) },
		func() error { return s.Arm(ctx, true) },
		func() error { return s.Unregister(ctx, more[0].ID) },
		s.Close,
	} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// TestTargetSurvivesTracersKilledAtEachStep kills tracers at marked steps of all that
// they do: at each write to the target and to the journal, at each change of a
// thread's registers and state. The target checks itself all the time, and after each
// kill clean restores the text to the byte.
//
// In blocking.c an EINTR may be left behind: see TestTargetSurvivesKilledTracers.
func TestTargetSurvivesTracersKilledAtEachStep(t *testing.T) {
	for _, c := range []struct {
		source      string
		interrupted bool // it does not go on after an EINTR that no signal explains
	}{{"signals.c", false}, {"blocking.c", true}} {
		t.Run(c.source, func(t *testing.T) { killAtSteps(t, testkit.Compile(t, c.source), c.interrupted) })
	}
}

func killAtSteps(t *testing.T, path string, mayEnd bool) {
	p := testkit.Start(t, path)
	script, last := roundScript(t, p.Pid), 0
	if _, err := fmt.Sscanf(tracerAt(t, p.Pid, script, 0), "steps %d", &last); err != nil || last < 100 {
		t.Fatalf("%d steps: %v", last, err)
	}
	// Some of them, others each time, or all.
	stride := max(1, last/rounds(30))
	killed, leftPatched, ended := 0, 0, 0
	for step := 1 + os.Getpid()%stride; ; step += stride {
		out := tracerAt(t, p.Pid, script, step)
		if strings.HasPrefix(out, "steps") {
			break // it had fewer: what a session finds makes a difference
		}
		if out != "" {
			t.Fatalf("step %d: %s", step, out)
		}
		killed++
		if patched(p.Pid) {
			leftPatched++
		}
		time.Sleep(10 * time.Millisecond) // the calls in blocking.c return within 8 ms
		err := tryClean(p.Pid)
		if err != nil {
			time.Sleep(time.Second) // for its end to be noticed
		}
		switch {
		case mayEnd && endedByEINTR(t, p):
			ended++
			p = testkit.Start(t, path)
			tracerAt(t, p.Pid, script, 0) // what only a first session does
			continue
		case err != nil || p.Ended():
			t.Fatalf("step %d: %v\n%s", step, err, p.Output())
		}
		if changes := testkit.TextChanges(t, p.Pid); len(changes) != 0 {
			t.Fatalf("step %d: the text differs after clean: %q", step, changes)
		}
	}
	t.Logf("tracers killed at %d of %d steps, %d of them with probes in place; %d left an EINTR", killed, last, leftPatched, ended)
	if leftPatched == 0 {
		t.Error("no tracer was killed with probes in place: the test tests nothing")
	}
	if lines := p.Stop(); !mayEnd && lines[len(lines)-1] != "ok" {
		t.Errorf("last lines %q", lines)
	}
}

// TestFirstTracerIsKilledAtEachStep does so to the first tracer of a process, which makes
// the foothold, the arena, the code regions and the handlers: each tracer has a process
// of its own. TRAPLESS_LONG=1 takes every step, otherwise there are some, others each time.
func TestFirstTracerIsKilledAtEachStep(t *testing.T) {
	path := testkit.Compile(t, "signals.c")
	p := testkit.Start(t, path)
	script, last := roundScript(t, p.Pid), 0
	if _, err := fmt.Sscanf(tracerAt(t, p.Pid, script, 0), "steps %d", &last); err != nil || last < 200 {
		t.Fatalf("%d steps: %v", last, err)
	}
	p.Stop()
	stride := max(1, last/rounds(15))
	if os.Getenv("TRAPLESS_LONG") != "" {
		stride = 1
	}
	killed, leftPatched := 0, 0
	for step := 1 + os.Getpid()%stride; step <= last; step += stride {
		t.Run(strconv.Itoa(step), func(t *testing.T) {
			p := testkit.Start(t, path)
			switch out := tracerAt(t, p.Pid, script, step); {
			case out == "":
				killed++
			case !strings.HasPrefix(out, "steps"): // it had fewer
				t.Fatal(out)
			}
			if patched(p.Pid) {
				leftPatched++
			}
			if err := tryClean(p.Pid); err != nil || p.Ended() {
				t.Fatalf("%v\n%s", err, p.Output())
			}
			noChanges(t, p.Pid)
			if lines := p.Stop(); lines[len(lines)-1] != "ok" {
				t.Errorf("last lines %q", lines)
			}
		})
	}
	t.Logf("first tracers killed at %d of %d steps, %d of them with probes in place", killed, last, leftPatched)
	if leftPatched == 0 {
		t.Error("no tracer was killed with probes in place: the test tests nothing")
	}
}

// tracerAt runs a tracer that dies at a step and returns its last line.
func tracerAt(t *testing.T, pid int, script string, step int) (last string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), tracerVar+"="+strconv.Itoa(pid), scriptVar+"="+script, stepVar+"="+strconv.Itoa(step))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		last = lines.Text()
	}
	_ = cmd.Wait()
	return last
}
