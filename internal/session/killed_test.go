package session

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"trapless/internal/ptrace"
	"trapless/internal/testkit"
)

// TestTargetIsKilled kills programs at any moment of a session, also while its probes
// are put in, changed and taken out. The session ends with every call that was made
// counted, the program's status is known, and nothing of ours is left.
func TestTargetIsKilled(t *testing.T) {
	path := testkit.Compile(t, "tally.c")
	tally := filepath.Join(t.TempDir(), "tally")
	r := rand.New(rand.NewPCG(5, 6))
	var before holding
	hits := uint64(0)
	for i := range rounds(40) {
		if i == 2 {
			before = takeHolding(t)
		}
		_ = os.Remove(tally) // it may not be there
		hits += killedSession(t, path, tally, i%4 == 3, time.Duration(r.IntN(40_000))*time.Microsecond)
	}
	t.Logf("%d hits", hits)
	if hits == 0 {
		t.Error("nothing was counted")
	}
	var after holding
	for until := time.Now().Add(5 * time.Second); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		if after = takeHolding(t); after == before {
			return
		}
	}
	t.Errorf("left behind: %+v, before %+v", after, before)
}

// holding is what a session holds in its own process.
type holding struct{ files, arenas, goroutines, children int }

func takeHolding(t *testing.T) holding {
	t.Helper()
	runtime.GC()
	f := testkit.TakeFootprint(t, os.Getpid())
	p := holding{files: len(f.FDs), goroutines: runtime.NumGoroutine()}
	for _, m := range f.Mappings {
		if strings.Contains(m.Path, "trapless") && strings.Contains(m.Path, "memfd") {
			p.arenas++
		}
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid()))
	if err == nil {
		p.children = len(strings.Fields(string(children)))
	}
	return p
}

// killedSession is one program and its session. With changes, its probe is changed all
// the time.
func killedSession(t *testing.T, path, tally string, changes bool, after time.Duration) (hits uint64) {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	in, keep, err := os.Pipe() // its end would end the program
	if err != nil {
		t.Fatal(err)
	}
	defer keep.Close()
	defer in.Close()
	c, out := config(t, fmt.Sprintf("uprobe:%q:probed { @ = count(); }", path))
	c.Log = func(string, ...any) {}
	c.Warn = c.Log
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Deadline)
	defer cancel()
	s, err := Launch(ctx, &ptrace.Command{Path: path, Args: []string{path, tally}, Env: os.Environ(), Files: []*os.File{in, null, null}}, c)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(after, func() { _ = syscall.Kill(s.PID, syscall.SIGKILL) })
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	for k := 0; changes && s.atWorkNow(); k++ {
		if err := s.Arm(ctx, k%2 == 1); err != nil && s.atWorkNow() && !gone(err) {
			t.Errorf("arming: %v", err)
		}
	}
	if err := <-ended; err != nil {
		t.Errorf("the session ended with %v", err)
	}
	status, err := s.Wait(ctx)
	if err != nil || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Errorf("the program ended with %v, %v", status, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if e := out.maps["@"]; len(e) == 1 {
		hits = e[0].Value[0]
	}
	if least := tallied(tally); !changes && (hits < least || hits > least+8) {
		t.Errorf("counted %d of %d calls", hits, least)
	}
	return hits
}

// atWorkNow reports whether the session's target is there.
func (s *Session) atWorkNow() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.atWork() == nil
}

// tallied are the calls that a killed program has counted.
func tallied(name string) (n uint64) {
	b, _ := os.ReadFile(name) // it may not have got that far
	for i := 0; i+8 <= len(b); i += 64 {
		n += binary.LittleEndian.Uint64(b[i:])
	}
	return n
}
