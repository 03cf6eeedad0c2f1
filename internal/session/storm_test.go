package session

import (
	"context"
	"fmt"
	"testing"
	"time"

	"trapless/internal/testkit"
)

// TestSignalsAtBreakpoints: signals that come while a breakpoint is handled, which may
// be on an alternate stack, are handled where the target has asked for it. The
// target looks.
func TestSignalsAtBreakpoints(t *testing.T) {
	p := testkit.Start(t, testkit.Compile(t, "storm.c"))
	path := exe(t, p.Pid)
	c, r := config(t, fmt.Sprintf("uprobe:%q:probed { @ = count(); } uprobe:%q:in_handler { @h = count(); }", path, path))
	c.Breakpoints = true
	s := attachWith(t, p.Pid, c)
	if err := s.Optimize(context.Background(), false); err != nil {
		t.Fatal(err)
	}
	runFor(t, s, 500*time.Millisecond, func() {})
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	noChanges(t, p.Pid)
	if last := p.Stop(); last[len(last)-1] != "ok" {
		t.Errorf("last lines %q", last)
	}
	if len(r.maps["@"]) != 1 || len(r.maps["@h"]) != 1 {
		t.Errorf("no counts: %v", r.maps)
	}
}
