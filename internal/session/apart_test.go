package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"trapless/internal/testkit"
)

// TestProcessesApart: a process that shares the memory of the target, but not the handlers
// of its signals, is named where a trap might kill it. Children of vfork are not meant.
func TestProcessesApart(t *testing.T) {
	p := testkit.Start(t, testkit.Compile(t, "states.c"), "sharing")
	if got, _, err := ofThreads(p.Pid, false); err != nil || !strings.Contains(got, "shares the memory, but not the signal handlers") {
		t.Errorf("%q, %v", got, err)
	}
	p.Stop()
	storm := testkit.Start(t, testkit.Compile(t, "forker.c"))
	for range rounds(30) {
		if got, _, err := ofThreads(storm.Pid, false); err != nil || strings.Contains(got, "shares") {
			t.Errorf("%q, %v", got, err)
		}
	}
	storm.Stop()
}

// TestOwnChildrenAreNotFollowed: who waits for a child takes what a tracer that stays
// attached would have to know.
func TestOwnChildrenAreNotFollowed(t *testing.T) {
	p := testkit.Busy(t, 1)
	c, _ := config(t, fmt.Sprintf("uprobe:%q:work { @ = count(); }", exe(t, p.Pid())))
	c.Follow = true
	if s, err := Attach(context.Background(), p.Pid(), c); s != nil || !errors.Is(err, ErrOwnChild) {
		t.Errorf("attached: %v", err)
	}
	run(t, p, 100, "work", 1)
	noChanges(t, p.Pid())
}
