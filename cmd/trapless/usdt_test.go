package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"trapless/internal/testkit"
)

// A tracer that is killed, with its worker, leaves a semaphore raised; clean lowers it, and so does the
// next session, which raises it for its own time.
func TestSemaphoreIsLoweredAfterACrash(t *testing.T) {
	p := testkit.Start(t, testkit.Compile(t, "usdt.c"))
	semaphore := func(want string) {
		t.Helper()
		if line := p.Ask("guarded 10"); !strings.HasPrefix(line, "semaphore="+want+" ") {
			t.Errorf("the target says %q, want %s", line, want)
		}
	}
	pid := strconv.Itoa(p.Pid)
	crash := func() {
		r := traceArmed(t, "-p", pid, "-e", "usdt::guarded { @ = count(); }")
		semaphore("1")
		for _, worker := range children(t, r.cmd.Process.Pid) {
			if err := syscall.Kill(worker, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		r.wait()
	}
	semaphore("0")
	crash()
	semaphore("1")
	if res := runToEnd(t, "clean", "-p", pid); res.status != 0 {
		t.Fatalf("%+v", res)
	}
	semaphore("0")
	if res := runToEnd(t, "clean", "-p", pid); res.status != 0 {
		t.Fatalf("%+v", res)
	}
	semaphore("0")
	crash()
	semaphore("1")
	r := traceArmed(t, "-p", pid, "-e", "usdt::guarded { @ = count(); }")
	semaphore("1")
	if got := r.end(os.Interrupt).value(t, "@"); got != 10 {
		t.Errorf("counted %d of 10", got)
	}
	semaphore("0")
	p.Stop()
}

// children are the processes that a process's threads have started.
func children(t *testing.T, pid int) (pids []int) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // that thread has ended
		}
		for _, word := range strings.Fields(string(text)) {
			n, _ := strconv.Atoi(word)
			pids = append(pids, n)
		}
	}
	if len(pids) == 0 {
		t.Fatalf("process %d has no children", pid)
	}
	return pids
}
