package session

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"trapless/internal/inject"
	"trapless/internal/lang"
	"trapless/internal/testkit"
)

// holdVar makes a tracer (see tracerVar) attach and stay.
const holdVar = "TRAPLESS_TEST_HOLD"

// hold is that tracer.
func hold(pid int) {
	script, err := lang.Compile(os.Getenv(scriptVar), "test", lang.Options{})
	if err == nil {
		_, err = Attach(context.Background(), pid, Config{Script: script, Sink: &recorder{}, Warn: func(string, ...any) {}})
	}
	if err != nil {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	fmt.Println("holding")
	select {}
}

// contained starts a copy of a program as the first process of a pid namespace, in a
// mount namespace in which alone the copy is there.
func contained(t *testing.T, path string) (p *testkit.Target, copied string) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root may make pid and mount namespaces")
	}
	dir := t.TempDir()
	copied = filepath.Join(dir, "contained")
	cmd := exec.Command("sh", "-c", `mount --make-rprivate / && mount -t tmpfs none "$0" && cp "$1" "$2" && mount -t proc proc /proc && exec "$2"`, dir, path, copied)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	p = testkit.StartCommand(t, cmd)
	if line := p.Line(); line != "ready pid=1" {
		t.Fatalf("it began with %q", line)
	}
	if _, err := os.Stat(copied); err == nil {
		t.Fatal("the copy is seen from outside")
	}
	return p, copied
}

// inside runs the test binary as a tracer in the namespaces of a contained process,
// until it has said a line.
func inside(t *testing.T, p *testkit.Target, script, as string) (line string, tracer *exec.Cmd) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	tracer = exec.Command("nsenter", "--target", fmt.Sprint(p.Pid), "--pid", "--mount", self)
	tracer.Env = append(os.Environ(), tracerVar+"=1", scriptVar+"="+script, as)
	tracer.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := tracer.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := tracer.Start(); err != nil {
		t.Skipf("nsenter (Debian: util-linux): %v", err)
	}
	t.Cleanup(func() { kill(tracer) })
	lines := bufio.NewScanner(out)
	lines.Scan()
	return lines.Text(), tracer
}

// kill kills a tracer with nsenter, its parent.
func kill(tracer *exec.Cmd) {
	if tracer.ProcessState == nil {
		_ = syscall.Kill(-tracer.Process.Pid, syscall.SIGKILL)
		_ = tracer.Wait()
	}
}

// TestContainers probes a process of other pid and mount namespaces from outside and
// from inside: symbols come from the file that only the target sees, and one tracer
// sees the other.
func TestContainers(t *testing.T) {
	p, path := contained(t, testkit.Compile(t, "signals.c"))
	script := "uprobe:" + path + ":probed { @[pid] = count(); @total = count(); }"
	s, r := attach(t, p.Pid, script)
	line, tracer := inside(t, p, script, stepVar+"=0")
	if !strings.Contains(line, "already probed by process") || !strings.Contains(line, "of another pid namespace") {
		t.Errorf("inside, with a tracer outside: %q", line)
	}
	kill(tracer)
	waitForHits(t, s)
	finish(t, s)
	if total := r.maps["@total"]; len(total) != 1 || total[0].Value[0] == 0 {
		t.Errorf("counted %v", total)
	}
	if line, tracer = inside(t, p, script, stepVar+"=0"); !strings.HasPrefix(line, "steps ") {
		t.Errorf("inside: %q", line)
	}
	kill(tracer)
	if line, tracer = inside(t, p, script, holdVar+"=1"); line != "holding" {
		t.Fatalf("inside: %q", line)
	}
	_, _, err := tryAttach(t, p.Pid, script)
	if !errors.Is(err, inject.ErrProbed) || strings.Contains(err.Error(), "namespace") {
		t.Errorf("outside, with a tracer inside: %v", err)
	}
	kill(tracer)
	if len(testkit.TextChanges(t, p.Pid)) == 0 {
		t.Error("the killed tracer left no probe")
	}
	clean(t, p.Pid)
	// An upgrade: the name is another file's now, and the target still runs the old one.
	if err := os.Rename(filepath.Join("/proc", fmt.Sprint(p.Pid), "root", path), filepath.Join("/proc", fmt.Sprint(p.Pid), "root", path+".old")); err != nil {
		t.Fatal(err)
	}
	s, _ = attach(t, p.Pid, "uprobe:"+path+".old:probed { @ = count(); }")
	finish(t, s)
	if err := os.Remove(filepath.Join("/proc", fmt.Sprint(p.Pid), "root", path+".old")); err != nil {
		t.Fatal(err)
	}
	s, _ = attach(t, p.Pid, "uprobe:"+path+".old:probed { @ = count(); }")
	finish(t, s)
	finishTarget(t, p)
}

// waitForHits waits until a session has counted something.
func waitForHits(t *testing.T, s *Session) {
	t.Helper()
	for range 1000 {
		for _, p := range s.Probes() {
			if p.Hits > 0 {
				return
			}
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Error("no hit was counted")
}
