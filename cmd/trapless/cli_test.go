package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"trapless/internal/testkit"
)

// program is the program under test, where every user can run it.
var program string

func TestMain(m *testing.M) {
	os.Exit(build(m))
}

func build(m *testing.M) int {
	dir, err := os.MkdirTemp("", "trapless-cli-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	program = filepath.Join(dir, "trapless")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	if err = errors.Join(err, os.Chmod(dir, 0o755)); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// tracer is a running trapless.
type tracer struct {
	t      *testing.T
	cmd    *exec.Cmd
	stdout bytes.Buffer
	stderr bytes.Buffer
	armed  chan struct{} // closed when its probes are in place; needs -v
	ended  chan error
}

// start starts trapless.
func start(t *testing.T, args ...string) *tracer {
	t.Helper()
	return startCmd(t, exec.Command(program, args...))
}

func startCmd(t *testing.T, cmd *exec.Cmd) *tracer {
	t.Helper()
	r := &tracer{t: t, cmd: cmd, armed: make(chan struct{}), ended: make(chan error, 1)}
	if cmd.Stdout == nil {
		cmd.Stdout = &r.stdout
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	go func() {
		armed := false
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			r.stderr.WriteString(lines.Text() + "\n")
			if strings.Contains(lines.Text(), "probes are in place") && !armed {
				armed = true
				close(r.armed)
			}
		}
		r.ended <- cmd.Wait()
	}()
	return r
}

// traceArmed starts "trapless trace -v" and returns when the probes are in place.
func traceArmed(t *testing.T, args ...string) *tracer {
	t.Helper()
	return start(t, append([]string{"trace", "-v"}, args...)...).waitArmed()
}

func (r *tracer) waitArmed() *tracer {
	r.t.Helper()
	select {
	case <-r.armed:
	case err := <-r.ended:
		r.t.Fatalf("%q ended before its probes were in place: %v\n%s%s", r.cmd.Args, err, &r.stdout, &r.stderr)
	case <-time.After(testkit.Deadline):
		r.t.Fatalf("%q: no probes within %v", r.cmd.Args, testkit.Deadline)
	}
	return r
}

// result is how trapless ended.
type result struct {
	stdout, stderr string
	status         int
}

// wait waits for its end.
func (r *tracer) wait() result {
	r.t.Helper()
	select {
	case <-r.ended:
	case <-time.After(testkit.Deadline):
		_ = r.cmd.Process.Signal(syscall.SIGQUIT) // for the stacks
		<-r.ended
		r.t.Fatalf("%q has not ended within %v\n%s%s", r.cmd.Args, testkit.Deadline, &r.stdout, &r.stderr)
	}
	return result{r.stdout.String(), r.stderr.String(), r.cmd.ProcessState.ExitCode()}
}

// end sends a signal, waits and requires exit status 0.
func (r *tracer) end(sig os.Signal) result {
	r.t.Helper()
	if err := r.cmd.Process.Signal(sig); err != nil {
		r.t.Fatal(err)
	}
	res := r.wait()
	if res.status != 0 {
		r.t.Fatalf("%q: exit status %d\n%s%s", r.cmd.Args, res.status, res.stdout, res.stderr)
	}
	return res
}

// runToEnd runs trapless to its end.
func runToEnd(t *testing.T, args ...string) result {
	t.Helper()
	return start(t, args...).wait()
}

// value reads the line "NAME: VALUE" of printed maps.
func (r result) value(t *testing.T, name string) int64 {
	t.Helper()
	for line := range strings.Lines(r.stdout) {
		if rest, ok := strings.CutPrefix(line, name+": "); ok {
			var n int64
			if _, err := fmt.Sscan(rest, &n); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			return n
		}
	}
	t.Fatalf("no %s in the output:\n%s%s", name, r.stdout, r.stderr)
	return 0
}

// untouched takes what a target is and returns a check that it is so still.
func untouched(t *testing.T, pid int) func() {
	t.Helper()
	before := testkit.TakeFootprint(t, pid)
	return func() {
		t.Helper()
		if diff := before.Diff(testkit.TakeFootprint(t, pid)); len(diff) != 0 {
			t.Errorf("the target was changed: %q", diff)
		}
		if changes := testkit.TextChanges(t, pid); len(changes) != 0 {
			t.Errorf("the target's text was changed: %q", changes)
		}
	}
}
