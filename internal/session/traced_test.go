package session

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"trapless/internal/inject"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
	"trapless/internal/testkit"
)

// TestAnotherTracerAtTheEnd attaches another tracer while a session is at work,
// as a debugger or "trapless clean" does. The session waits for it.
func TestAnotherTracerAtTheEnd(t *testing.T) {
	p := testkit.Busy(t, 1)
	s, _ := attach(t, p.Pid(), "uprobe:"+exe(t, p.Pid())+":work { @ = count(); }")
	other, err := ptrace.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g, err := other.Seize(ctx, p.Pid())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := inject.Clean(ctx, g); !errors.Is(err, inject.ErrProbed) {
		t.Errorf("cleaning a session at work: %v", err)
	}
	time.AfterFunc(300*time.Millisecond, func() {
		if err := g.Detach(ctx); err != nil {
			t.Error(err)
		}
	})
	finish(t, s)
	if changes := testkit.TextChanges(t, p.Pid()); len(changes) != 0 {
		t.Errorf("the text differs: %q", changes)
	}
}

// TestErrorAfterArming lets a session fail between arming and letting go.
func TestErrorAfterArming(t *testing.T) {
	p := testkit.Busy(t, 1)
	c, _ := config(t, "uprobe:"+exe(t, p.Pid())+":work { @ = count(); }")
	s, err := newSession(c)
	if err != nil {
		t.Fatal(err)
	}
	s.PID = p.Pid()
	if err := s.plan(); err != nil {
		t.Fatal(err)
	}
	if s.tracer, err = ptrace.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if s.group, err = s.tracer.Seize(ctx, p.Pid()); err != nil {
		t.Fatal(err)
	}
	layout, err := s.layout(s.registry.windows())
	if err != nil {
		t.Fatal(err)
	}
	if s.target, err = inject.Open(ctx, s.group, layout, s.traits); err != nil {
		t.Fatal(err)
	}
	if err := s.arm(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if changes := testkit.TextChanges(t, p.Pid()); len(changes) != 0 {
		t.Errorf("the text differs: %q", changes)
	}
	run(t, p, 1000, "work", 1)
}

// TestTracerThatStays gives up, and leaves a target that the next tracer cleans.
func TestTracerThatStays(t *testing.T) {
	p := testkit.Busy(t, 1)
	s, _ := attach(t, p.Pid(), "uprobe:"+exe(t, p.Pid())+":work { @ = count(); }")
	run(t, p, 1000, "work", 1)
	other, err := ptrace.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g, err := other.Seize(ctx, p.Pid())
	if err != nil {
		t.Fatal(err)
	}
	s.within = 100 * time.Millisecond
	ended, stop := context.WithCancel(ctx)
	stop()
	if err := s.Run(ended); !errors.Is(err, proc.ErrTraced) || !strings.Contains(err.Error(), "trapless clean") {
		t.Errorf("ended with %v", err)
	}
	before := s.Entries(0)[0].Value[0]
	if u, err := inject.Clean(ctx, g); err != nil || u.Patches != 1 {
		t.Errorf("cleaned %+v, %v", u, err)
	}
	if err := g.Detach(ctx); err != nil {
		t.Error(err)
	}
	run(t, p, 1000, "work", 1)
	if after := s.Entries(0)[0].Value[0]; after != before {
		t.Errorf("%d calls were counted after the end", after-before)
	}
	if changes := testkit.TextChanges(t, p.Pid()); len(changes) != 0 {
		t.Errorf("the text differs: %q", changes)
	}
}
