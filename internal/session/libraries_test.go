package session

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"trapless/internal/proc"
	"trapless/internal/testkit"
)

// runFor lets a session run for a while and calls look now and then.
func runFor(t *testing.T, s *Session, d time.Duration, look func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for until := time.Now().Add(d); time.Now().Before(until); time.Sleep(time.Millisecond) {
		look()
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestLibraryComesAndGoes: a program loads and unloads a library all the time, at
// places that change. Its probes go and come back with it.
func TestLibraryComesAndGoes(t *testing.T) {
	library := testkit.Compile(t, "dl_library.c", testkit.Shared)
	p := startDL(t, library, "80", "60")
	s, r := attach(t, p.Pid, fmt.Sprintf("uprobe:%q:library_work { @ = count(); } uretprobe:%q:library_work { @r = count(); }", library, library))
	states := map[State]int{}
	addrs := map[string]bool{}
	runFor(t, s, time.Duration(rounds(3))*time.Second, func() {
		for _, info := range s.Probes() {
			states[info.State]++
			if info.State == Optimized {
				addrs[info.Addr.String()] = true
			}
		}
	})
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	restored(t, p.Pid)
	last := p.Stop()
	calls := testkit.Counts(last)["library_work"]
	if last[len(last)-1] != "ok" {
		t.Errorf("last lines %q", last)
	}
	if len(r.maps["@"]) != 1 {
		t.Fatalf("no counts: %v", r.maps)
	}
	hits := r.maps["@"][0].Value[0]
	t.Logf("%d hits of %d calls, at %d addresses, %v", hits, calls, len(addrs), states)
	if hits == 0 || hits > calls || states[Optimized] == 0 || states[Gone] == 0 {
		t.Errorf("%d hits of %d calls, %v", hits, calls, states)
	}
}

// TestLibraryThatIsLoadedLater: a session waits for a library, which then is probed.
func TestLibraryThatIsLoadedLater(t *testing.T) {
	library := testkit.Compile(t, "dl_library.c", testkit.Shared)
	path := testkit.Compile(t, "dl.c")
	for _, pattern := range []string{library, library[:strings.LastIndexByte(library, '/')+1] + "dl_lib*"} {
		c, r := config(t, fmt.Sprintf("uprobe:%q:library_work { @ = count(); }", pattern))
		lines := lifeUntil(t, []string{path, library, "keep"}, c, allHit)
		if len(lines) == 0 || lines[len(lines)-1] != "ok" {
			t.Fatalf("the target said %q", lines)
		}
		calls := testkit.Counts(lines)["library_work"]
		if e := r.maps["@"]; len(e) != 1 || e[0].Value[0] == 0 || e[0].Value[0] > calls {
			t.Errorf("%s: counted %v of %d calls", pattern, e, calls)
		}
	}
}

// TestRefusalsInLibrariesThatAreLoadedLater: what cannot be probed in a library that is
// loaded while a session is at work is told then, once.
func TestRefusalsInLibrariesThatAreLoadedLater(t *testing.T) {
	library := testkit.Compile(t, "dl_library.c", testkit.Shared)
	c, _ := config(t, fmt.Sprintf("uprobe:%q:library_work { @ = count(); } uretprobe:%q:library_endless { @e = count(); } uprobe:%q:library_work+1 { @b = count(); }",
		library, library, library))
	var mu sync.Mutex // guards warnings
	var warnings []string
	c.Warn = func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		warnings = append(warnings, fmt.Sprintf(format, args...))
	}
	lifeUntil(t, []string{testkit.Compile(t, "dl.c"), library, "80", "20"}, c, func(*Session) bool {
		mu.Lock()
		defer mu.Unlock()
		return len(warnings) >= 2
	})
	slices.Sort(warnings)
	if len(warnings) != 2 || !strings.HasPrefix(warnings[0], "library_endless is not probed: exit: it never returns") ||
		!strings.HasPrefix(warnings[1], "library_work+1 is not probed: ") {
		t.Errorf("warned %q", warnings)
	}
}

// TestGoneProbesCanBeChanged changes probes while their library comes and goes.
func TestGoneProbesCanBeChanged(t *testing.T) {
	library := testkit.Compile(t, "dl_library.c", testkit.Shared)
	p := startDL(t, library, "20", "5")
	s, _ := attach(t, p.Pid, fmt.Sprintf("uprobe:%q:library_work { @a = count(); } uprobe:%q:library_work { @b = count(); }", library, library))
	ctx := context.Background()
	runFor(t, s, time.Duration(rounds(2))*time.Second, func() {
		probes := s.Probes()
		i := slices.IndexFunc(probes, func(p ProbeInfo) bool { return p.Program == 0 })
		var err error
		switch {
		case i < 0:
			_, err = s.Register(ctx, ProbeSpec{At: library + ":library_work"})
			if err != nil { // it was just not there
				err = nil
			}
		case probes[i].Enabled:
			err = s.SetEnabled(false, probes[i].ID)
		default:
			err = s.Unregister(ctx, probes[i].ID)
		}
		if err != nil {
			t.Error(err)
		}
	})
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	restored(t, p.Pid)
	if last := p.Stop(); last[len(last)-1] != "ok" {
		t.Errorf("last lines %q", last)
	}
}

// startDL starts dl.c, which says first what it has loaded.
func startDL(t *testing.T, args ...string) *testkit.Target {
	t.Helper()
	p := testkit.StartCommand(t, exec.Command(testkit.Compile(t, "dl.c"), args...))
	for !strings.HasPrefix(p.Line(), "ready ") {
	}
	return p
}

// restored requires that the text is as it was, of a process whose mappings change
// unless it is stopped.
func restored(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for stopped := false; !stopped; time.Sleep(time.Millisecond) {
		st, err := proc.ReadStat(pid, pid)
		if err != nil {
			t.Fatal(err)
		}
		stopped = st.State == proc.Stopped
	}
	if changes := testkit.TextChanges(t, pid); len(changes) != 0 {
		t.Errorf("the text differs: %q", changes)
	}
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}

// TestMissingProbes: places that are not there are an error, unless the script says
// that they may be missing. A library that can still come is none of them.
func TestMissingProbes(t *testing.T) {
	p := testkit.Busy(t, 1)
	here := "uprobe:" + exe(t, p.Pid()) + ":work"
	for _, c := range []struct {
		script string
		works  bool
	}{
		{here + ", uprobe:libc:no_such_function { @ = count(); }", false},
		{"config = { missing_probes = warn } " + here + ", uprobe:libc:no_such_function { @ = count(); }", true},
		{"config = { missing_probes = ignore } " + here + " { @ = count(); } uprobe:libnosuch:f { @f = count(); }", true},
		{"config = { missing_probes = ignore } uprobe:libnosuch:f { @f = count(); }", false},
		{here + " { @ = count(); } uprobe:libdl:dlopen { @f = count(); }", true},
	} {
		s, r, err := tryAttach(t, p.Pid(), c.script)
		if (err == nil) != c.works {
			t.Errorf("%s: %v", c.script, err)
		}
		if err != nil {
			continue
		}
		run(t, p, 100, "work", 1)
		finish(t, s)
		if e := r.maps["@"]; len(e) != 1 || e[0].Value[0] != 100 {
			t.Errorf("%s: counted %v", c.script, e)
		}
	}
}
