package session

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"trapless/internal/abi"
	"trapless/internal/inject"
	"trapless/internal/ptrace"
	"trapless/internal/testkit"
)

// TestTakenAddresses maps memory, as a busy target may, just where a session is about to
// map its own: what a running process, a new one and a probe that is registered later
// need is planned anew, and BEGIN runs once.
func TestTakenAddresses(t *testing.T) {
	path := testkit.Compile(t, "busy.c", testkit.Exported)
	region := func(r abi.Range) bool { return r.Len() > 2*abi.PageSize }
	script := fmt.Sprintf("BEGIN { @begun = count(); } uprobe:%q:work { @ = count(); }", path)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Deadline)
	defer cancel()
	t.Run("attach", func(t *testing.T) {
		p := testkit.StartBusy(t, path, 2)
		s := collide(t, script, region, func(s *Session) error { s.PID = p.Pid(); return s.attachTo(ctx) })
		run(t, p, 1000, "work", 2)
		if got := counted(s, 0); got != 2000 {
			t.Errorf("counted %d", got)
		}
		taken := takeNext(t, s, region)
		if _, err := s.Register(ctx, ProbeSpec{At: "libc:getpid", Program: 1}); err != nil {
			t.Fatal(err)
		}
		if *taken == (abi.Range{}) {
			t.Error("nothing was mapped for the C library")
		}
		finish(t, s)
		noChanges(t, p.Pid())
	})
	t.Run("springboards", func(t *testing.T) {
		p := testkit.StartBusy(t, path, 2)
		board := func(r abi.Range) bool { return !region(r) }
		s := collide(t, "BEGIN { @begun = count(); } uretprobe:libc:get* { @ = count(); }", board, func(s *Session) error { s.PID = p.Pid(); return s.attachTo(ctx) })
		run(t, p, 1000, "work", 2)
		finish(t, s)
		noChanges(t, p.Pid())
	})
	t.Run("launch", func(t *testing.T) {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		cmd := &ptrace.Command{Path: path, Args: []string{path, "1", "0.2"}, Env: os.Environ(), Files: []*os.File{null, null, null}}
		s := collide(t, script, region, func(s *Session) error { return s.launch(ctx, cmd) })
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
		if status, err := s.Wait(ctx); err != nil || status.ExitStatus() != 0 {
			t.Errorf("the program ended with %v, %v", status, err)
		}
		if got := counted(s, 0); got == 0 {
			t.Error("nothing was counted")
		}
	})
}

// collide starts a session of which one mapping finds its place taken.
func collide(t *testing.T, script string, which func(abi.Range) bool, start func(*Session) error) *Session {
	t.Helper()
	c, _ := config(t, script)
	s, err := newSession(c)
	if err != nil {
		t.Fatal(err)
	}
	taken := takeNext(t, s, which)
	if err := start(s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if *taken == (abi.Range{}) {
		t.Error("no place was taken")
	}
	if got := counted(s, 1); got != 1 {
		t.Errorf("BEGIN ran %d times", got)
	}
	return s
}

// takeNext maps a page in the target where a session is about to map memory of a kind
// the next time, and says where that is.
func takeNext(t *testing.T, s *Session, which func(abi.Range) bool) *abi.Range {
	taken := new(abi.Range)
	inject.AtMappings(func(r abi.Range) {
		if !which(r) {
			return
		}
		inject.AtMappings(nil)
		*taken = r
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		const sysMmap, readWrite, privateAnonymousNoReplace = 9, 3, 0x100022
		var b ptrace.Blob
		b.Call(sysMmap, ptrace.AddrArg(r.Start), ptrace.Const(abi.PageSize), ptrace.Const(readWrite), ptrace.Const(privateAnonymousNoReplace),
			ptrace.Const(^uint64(0)), ptrace.Const(0))
		b.Expect(uint64(r.Start))
		if _, err := s.group.Run(ctx, &b); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { inject.AtMappings(nil) })
	return taken
}
