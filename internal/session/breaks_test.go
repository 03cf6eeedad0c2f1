package session

import (
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
