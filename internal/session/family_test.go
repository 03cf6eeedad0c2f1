package session

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"trapless/internal/ptrace"
	"trapless/internal/testkit"
)

// said are the calls that a target has counted, by kind of line.
func said(lines []string) map[string]uint64 {
	calls := map[string]uint64{}
	for _, line := range lines {
		var n uint64
		kind, rest, _ := strings.Cut(line, " ")
		if _, err := fmt.Sscanf(rest, "function=probed calls=%d", &n); err == nil {
			calls[kind] = n
		}
	}
	return calls
}

// logged shows what a session logs only if the test fails.
func logged(t *testing.T) func(string, ...any) {
	var mu sync.Mutex
	var lines []string
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(strings.Join(lines, "\n"))
		}
	})
	return func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		lines = append(lines, fmt.Sprintf(format, args...))
	}
}

// TestFollow follows a program that forks, spawns, vforks and calls system() all the
// time: every call in every process is counted, and by the right one.
func TestFollow(t *testing.T) {
	path := testkit.Compile(t, "forker.c")
	c, r := config(t, fmt.Sprintf("uprobe:%q:probed { @ = count(); @pid[pid] = count(); @max = max(arg1); @least = min(arg0); }", path))
	c.Follow, c.Log = true, logged(t)
	lines := life(t, []string{path}, c)
	if len(lines) == 0 || lines[len(lines)-1] != "ok" {
		t.Fatalf("the target said %q", lines)
	}
	calls := said(lines)
	t.Logf("%v, %d processes", calls, len(r.maps["@pid"]))
	var pid uint64
	if _, err := fmt.Sscanf(lines[0], "ready pid=%d", &pid); err != nil {
		t.Fatal(err)
	}
	if e := r.maps["@"]; len(e) != 1 || e[0].Value[0] != calls["counts"]+calls["copies"]+calls["programs"] {
		t.Errorf("counted %v, the processes %v", e, calls)
	}
	for _, e := range r.maps["@pid"] {
		want := uint64(100)
		if e.Key[0] == pid {
			want = calls["counts"]
		}
		if e.Value[0] != want {
			t.Errorf("process %d: counted %d calls of %d", e.Key[0], e.Value[0], want)
		}
	}
	if uint64(len(r.maps["@pid"])) != 1+(calls["copies"]+calls["programs"])/100 {
		t.Errorf("%d processes were counted", len(r.maps["@pid"]))
	}
}

// TestFollowPrograms follows a program that replaces itself all the time, and whose
// children do.
func TestFollowPrograms(t *testing.T) {
	path := testkit.Compile(t, "executor.c")
	c, r := config(t, `BEGIN { @begun = 7; @once = count(); } uprobe:probed { @ = count(); @seen = @begun; }`)
	c.Follow, c.Log = true, logged(t)
	lines := life(t, []string{path}, c)
	if len(lines) == 0 || lines[len(lines)-1] != "ok" {
		t.Fatalf("the target said %q", lines)
	}
	calls := said(lines)["counts"]
	e := r.maps["@"]
	if len(e) != 1 || e[0].Value[0] < calls {
		t.Errorf("counted %v, the target %d calls, and some of its children", e, calls)
	}
	if e := r.maps["@seen"]; len(e) != 1 || e[0].Value[len(e[0].Value)-1] != 7 {
		t.Errorf("what BEGIN assigned was seen as %v", e)
	}
	if e := r.maps["@once"]; len(e) != 1 || e[0].Value[0] != 1 {
		t.Errorf("BEGIN counted %v", e)
	}
}

// TestUnfollowed: without Follow, nothing of the children is counted.
func TestUnfollowed(t *testing.T) {
	path := testkit.Compile(t, "forker.c")
	c, r := config(t, fmt.Sprintf("uprobe:%q:probed { @ = count(); }", path))
	lines := life(t, []string{path}, c)
	if len(lines) == 0 || lines[len(lines)-1] != "ok" {
		t.Fatalf("the target said %q", lines)
	}
	if e := r.maps["@"]; len(e) != 1 || e[0].Value[0] != said(lines)["counts"] {
		t.Errorf("counted %v, the processes %v", e, said(lines))
	}
}

// A session whose planning fails, for a pattern that is refused, ends before it has a tracer.
func TestFamilyEndsWithoutTracer(t *testing.T) {
	f := &family{head: &Session{}}
	f.end()
	if f.others != nil {
		t.Errorf("%d processes are left", len(f.others))
	}
}

// TestFollowedProbesCanBeChanged changes the probes of a program of which some thread
// always waits in vfork for a child, which must not be held for that.
func TestFollowedProbesCanBeChanged(t *testing.T) {
	path := testkit.Compile(t, "forker.c")
	c, _ := config(t, fmt.Sprintf("uprobe:%q:probed { @ = count(); }", path))
	c.Follow, c.Log = true, logged(t)
	in, keep, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Deadline)
	defer cancel()
	s, err := Launch(ctx, &ptrace.Command{Path: path, Args: []string{path}, Env: os.Environ(), Files: []*os.File{in, null, os.Stderr}}, c)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	for i := range rounds(30) {
		if err := s.Arm(ctx, i%2 == 1); err != nil {
			t.Error(err)
		}
	}
	keep.Close() // and the program ends
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if status, err := s.Wait(ctx); err != nil || status.ExitStatus() != 0 {
		t.Errorf("the program ended with %v, %v", status, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
