package session

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"trapless/internal/testkit"
)

// TestBreakCanGrow: a program that has no heap yet may get one. Without
// randomization it begins behind the program's data, where the regions of a
// program at a fixed address lie too.
func TestBreakCanGrow(t *testing.T) {
	setarch, err := exec.LookPath("setarch")
	if err != nil {
		t.Skip("no setarch (util-linux): addresses cannot be fixed")
	}
	p := testkit.StartCommand(t, exec.Command(setarch, "-R", testkit.Compile(t, "breaks.c", testkit.NoPIE)))
	if got := p.Line(); got != "ready" {
		t.Fatal(got)
	}
	s, _ := attach(t, p.Pid, "uprobe:"+exe(t, p.Pid)+":work { @ = count(); }")
	if got := p.Ask(""); !strings.HasPrefix(got, "grown 1024") {
		t.Errorf("%s of 1024 MB", got)
	}
	finish(t, s)
	p.Stop()
}

// TestBreakpointsBlockNothing: threads that run into our breakpoints are often in our
// handler, with all signals blocked. They are not taken for threads that block signals.
func TestBreakpointsBlockNothing(t *testing.T) {
	p := testkit.Busy(t, 4)
	c, _ := config(t, fmt.Sprintf("uprobe:%q:work_push { @ = count(); }", exe(t, p.Pid())))
	c.Breakpoints = true
	s := attachWith(t, p.Pid(), c)
	if err := s.Optimize(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if err := p.Spin("work_push", 4); err != nil {
		t.Fatal(err)
	}
	seen := 0
	for range 200 {
		if names, _, err := lookAtThreads(p.Pid()); err == nil {
			seen += len(names)
		}
	}
	for range 20 {
		if blocked, _, err := ofThreads(p.Pid(), s.registry.trapping()); blocked != "" || err != nil {
			t.Errorf("%q blocks signals, %v", blocked, err)
		}
	}
	if _, err := p.Stop(); err != nil {
		t.Error(err)
	}
	if seen == 0 {
		t.Error("no thread was seen in the handler")
	}
	finish(t, s)
}
