package session

import (
	"context"
	"testing"
	"time"

	"trapless/internal/testkit"
)

// TestBreakpointOfItsOwn: a site whose text the target has changed is refused,
// and what the breakpoint there does stays the target's business.
func TestBreakpointOfItsOwn(t *testing.T) {
	p := testkit.Start(t, testkit.Compile(t, "selftrap.c"))
	path := exe(t, p.Pid)
	s, r := attach(t, p.Pid, "uprobe:"+path+":trapped, uprobe:"+path+":other { @ = count(); }")
	if s.Sites() != 1 || len(s.refused) != 1 || s.refused[0].Name != "trapped" {
		t.Errorf("%d sites, refused %+v", s.Sites(), s.refused)
	}
	if got := p.Ask("calls 100"); got != "trapped=100 other=100" {
		t.Errorf("with probes: %s", got)
	}
	finish(t, s)
	if n := r.maps["@"][0].Value[0]; n != 100 {
		t.Errorf("counted %d", n)
	}
	if got := p.Ask("calls 100"); got != "trapped=100 other=100" {
		t.Errorf("afterwards: %s", got)
	}
	p.Stop()
}

// TestHandlerThatComesLate: a target that begins to handle faults while a
// faulting instruction is moved has to see that instruction's own address.
func TestHandlerThatComesLate(t *testing.T) {
	p := testkit.Start(t, testkit.Compile(t, "selftrap.c"))
	s, _ := attach(t, p.Pid, "uprobe:"+exe(t, p.Pid)+":load { @ = count(); }")
	if got := p.Ask("handle"); got != "handling" {
		t.Fatal(got)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ran := make(chan error)
	go func() { ran <- s.Run(ctx) }()
	time.Sleep(4 * pollHealth)
	if got := p.Ask("load 100"); got != "recovered=100" {
		t.Errorf("with probes: %s", got)
	}
	cancel()
	if err := <-ran; err != nil {
		t.Error(err)
	}
	if n := s.Entries(0)[0].Value[0]; n != 100 {
		t.Errorf("counted %d", n)
	}
	if got := p.Ask("load 100"); got != "recovered=100" {
		t.Errorf("afterwards: %s", got)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	p.Stop()
}
