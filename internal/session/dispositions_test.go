package session

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"trapless/internal/testkit"
)

// watched is a session whose Run is under way.
type watched struct {
	t    *testing.T
	rec  *recorder
	said chan string // what is logged and warned of
	done chan error
	stop context.CancelFunc
}

func watch(t *testing.T, pid int, src string) *watched {
	t.Helper()
	c, rec := config(t, src)
	w := &watched{t: t, rec: rec, said: make(chan string, 1000), done: make(chan error, 1)}
	c.Log = func(format string, args ...any) { w.said <- fmt.Sprintf(format, args...) }
	c.Warn = c.Log
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Deadline)
	w.stop = cancel
	s, err := Attach(ctx, pid, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	go func() { w.done <- s.Run(ctx) }()
	return w
}

// wait returns when something is logged.
func (w *watched) wait(text string) {
	w.t.Helper()
	timeout := time.After(testkit.Deadline)
	for {
		select {
		case line := <-w.said:
			w.t.Log(line)
			if strings.Contains(line, text) {
				return
			}
		case <-timeout:
			w.t.Fatalf("it never says %q", text)
		}
	}
}

func (w *watched) end() {
	w.t.Helper()
	w.stop()
	if err := <-w.done; err != nil {
		w.t.Error(err)
	}
}

// TestHandlerForFaultsComesLater: a target that begins to handle faults while it
// is probed is told the addresses of its own instructions.
func TestHandlerForFaultsComesLater(t *testing.T) {
	p := testkit.Start(t, testkit.Compile(t, "dispositions.c"))
	w := watch(t, p.Pid, "uprobe:"+exe(t, p.Pid)+":load { @ = count(); }")
	p.Ask("call")
	p.Ask("handle")
	w.wait("has begun to handle")
	p.Ask("fault")
	p.Ask("call")
	w.end()
	if e := w.rec.maps["@"]; len(e) != 1 || e[0].Value[0] != 2001 {
		t.Errorf("counted %v, want 2001", e)
	}
	p.Ask("fault")
	w = watch(t, p.Pid, "uprobe:"+exe(t, p.Pid)+":load { @ = count(); }")
	p.Ask("fault")
	w.end()
	p.Ask("fault")
	finishTarget(t, p)
}

// TestTrapHandlersAreTakenAway: without them the probes must not stay.
func TestTrapHandlersAreTakenAway(t *testing.T) {
	for _, how := range []string{"reset", "ignore"} {
		p := testkit.Start(t, testkit.Compile(t, "dispositions.c"))
		w := watch(t, p.Pid, "uprobe:"+exe(t, p.Pid)+":load { @ = count(); }")
		p.Ask("call")
		p.Ask(how)
		w.wait("changed what it does at SIGTRAP")
		if err := <-w.done; err != nil {
			t.Error(err)
		}
		if e := w.rec.maps["@"]; len(e) != 1 || e[0].Value[0] != 1000 {
			t.Errorf("counted %v, want 1000", e)
		}
		p.Ask("call")
		finishTarget(t, p)
	}
}

func finishTarget(t *testing.T, p *testkit.Target) {
	t.Helper()
	if changes := testkit.TextChanges(t, p.Pid); len(changes) != 0 {
		t.Errorf("the text differs: %q", changes)
	}
	if last := p.Stop(); last[len(last)-1] != "ok" {
		t.Errorf("last lines %q", last)
	}
}

// TestHandlersInAChain: a handler that the target installed during one session
// has trapless' one as the action before it. In the next session, that one must
// not come before it again.
func TestHandlersInAChain(t *testing.T) {
	p := testkit.Start(t, testkit.Compile(t, "chains.c"))
	src := "uprobe:" + exe(t, p.Pid) + ":load { @ = count(); }"
	s, _ := attach(t, p.Pid, src)
	if got := p.Ask("late"); got != "installed" {
		t.Fatal(got)
	}
	finish(t, s)
	for range 3 {
		s, _ = attach(t, p.Pid, src)
		finish(t, s)
	}
	attach(t, p.Pid, src)
	if got := p.Ask("fault"); got != "first handler" {
		t.Error(got)
	}
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
}
