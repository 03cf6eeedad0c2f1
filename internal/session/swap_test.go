package session

import (
	"cmp"
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trapless/internal/inject"
	"trapless/internal/testkit"
)

// A target that maps other text over a library's, without a word to the dynamic
// loader: what is not the library's is never written, and what is gone is noticed.

// startSwap starts swap.c with a library, and returns a copy of the library, with a
// breakpoint at library_work if it is to have one.
func startSwap(t *testing.T, breakpoint bool) (p *testkit.Target, library, other string) {
	t.Helper()
	library = testkit.Compile(t, "dl_library.c", testkit.Shared)
	text, err := os.ReadFile(library)
	if err != nil {
		t.Fatal(err)
	}
	if breakpoint {
		text[offsetOf(t, library, "library_work")] = 0xcc
	}
	other = filepath.Join(t.TempDir(), "other.so")
	if err := os.WriteFile(other, text, 0o700); err != nil {
		t.Fatal(err)
	}
	return testkit.StartCommand(t, exec.Command(testkit.Compile(t, "swap.c"), library)), library, other
}

// offsetOf is where a function lies in a file.
func offsetOf(t *testing.T, name, function string) uint64 {
	t.Helper()
	f, err := elf.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.Name != function {
			continue
		}
		for _, p := range f.Progs {
			if p.Type == elf.PT_LOAD && s.Value >= p.Vaddr && s.Value < p.Vaddr+p.Filesz {
				return p.Off + s.Value - p.Vaddr
			}
		}
	}
	t.Fatalf("%s has no %s", name, function)
	return 0
}

// ask wants an answer.
func ask(t *testing.T, p *testkit.Target, line, want string) {
	t.Helper()
	if got := p.Ask(line); got != want {
		t.Fatalf("%s: %q", line, got)
	}
}

// TestForeignTextIsLeftAlone takes probes out of a library that is not there any
// more. What is there has a breakpoint of its own, where the probe had one.
func TestForeignTextIsLeftAlone(t *testing.T) {
	for _, boosted := range []bool{true, false} {
		p, library, other := startSwap(t, true)
		if got := p.Line(); got[:6] != "ready " {
			t.Fatal(got)
		}
		c, _ := config(t, fmt.Sprintf("uprobe:%q:library_work { @ = count(); }", library))
		c.Breakpoints = true
		s := attachWith(t, p.Pid, c)
		if boosted {
			if err := s.Optimize(context.Background(), false); err != nil {
				t.Fatal(err)
			}
			if got := s.Probes()[0].State; got != Boosted {
				t.Fatalf("the probe is %s", got)
			}
		}
		ask(t, p, "call", "called")
		ask(t, p, "map "+other, "mapped")
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		noChanges(t, p.Pid)
		p.Stop()
	}
}

// TestForeignTextIsNotPatched changes the text between the plan of a probe and the
// patch to that of another file, which is the same to the byte.
func TestForeignTextIsNotPatched(t *testing.T) {
	p, library, other := startSwap(t, false)
	if got := p.Line(); got[:6] != "ready " {
		t.Fatal(got)
	}
	s, _ := attach(t, p.Pid, fmt.Sprintf("uprobe:libc:getpid { @ = count(); } uprobe:%q:library_work { @ = count(); }", library))
	if err := s.Unregister(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	patterns, err := s.specPatterns([]ProbeSpec{{At: library + ":library_work", Program: 1}})
	if err != nil {
		t.Fatal(err)
	}
	added, err := s.registry.add(patterns)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.registry.plan(); err != nil {
		t.Fatal(err)
	}
	ask(t, p, "map "+other, "mapped")
	if err := s.apply(context.Background()); err != nil {
		t.Fatal(err)
	}
	if info := s.infos(added)[0]; info.State != RefusedAt || info.Reason != inject.ModifiedText {
		t.Errorf("the probe is %+v", info)
	}
	ask(t, p, "call", "called")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	noChanges(t, p.Pid)
	p.Stop()
}

// TestTextThatIsMappedAnew: probes come back when the original text does, at the same
// place.
func TestTextThatIsMappedAnew(t *testing.T) {
	p, library, other := startSwap(t, false)
	if got := p.Line(); got[:6] != "ready " {
		t.Fatal(got)
	}
	s, _ := attach(t, p.Pid, fmt.Sprintf("uprobe:%q:library_work { @ = count(); }", library))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	await := func(want State, hits uint64) {
		t.Helper()
		for until := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			ask(t, p, "call", "called")
			switch info := s.Probes()[0]; {
			case info.State == want && info.Hits >= hits:
				return
			case time.Now().After(until):
				t.Fatalf("the probe is %+v, wanted %s and %d hits", info, want, hits)
			}
		}
	}
	await(Optimized, 100)
	ask(t, p, "map "+library, "mapped")
	await(Optimized, s.Probes()[0].Hits+100)
	ask(t, p, "map "+other, "mapped")
	await(Gone, 0)
	ask(t, p, "map "+library, "mapped")
	await(Optimized, s.Probes()[0].Hits+100)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	noChanges(t, p.Pid)
	p.Stop()
}

// TestTextsOfAllKinds probes a library whose text is mapped in other ways than the loader does: what other processes
// share is refused by name, the rest is probed.
func TestTextsOfAllKinds(t *testing.T) {
	for _, kind := range []struct{ how, path, refused string }{
		{"share", "", "is mapped shared, so a patch would reach other processes"},
		{"write", "", ""},
		{"memory", "/memfd:text", ""},
	} {
		t.Run(kind.how, func(t *testing.T) {
			if kind.path != "" && !testkit.IsRoot() {
				t.Skip("what has no name can be read by root alone")
			}
			p, library, _ := startSwap(t, false)
			if got := p.Line(); got[:6] != "ready " {
				t.Fatal(got)
			}
			ask(t, p, kind.how+" "+library, "mapped")
			s, _ := attach(t, p.Pid, fmt.Sprintf("uprobe:libc:getpid { @ = count(); } uprobe:%q:library_work { @ = count(); }", cmp.Or(kind.path, library)))
			ask(t, p, "call", "called")
			switch info := s.Probes()[1]; {
			case kind.refused != "":
				if info.State != RefusedAt || info.Reason != inject.ModifiedText || !strings.Contains(info.Detail, kind.refused) {
					t.Errorf("the probe is %+v", info)
				}
			case info.State != Optimized || info.Hits != 100:
				t.Errorf("the probe is %+v", info)
			}
			finish(t, s)
			noChanges(t, p.Pid)
			p.Stop()
		})
	}
}
