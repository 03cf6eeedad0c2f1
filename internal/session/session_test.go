package session

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"trapless/internal/arena"
	"trapless/internal/bench/busy"
	"trapless/internal/lang"
	"trapless/internal/proc"
	"trapless/internal/testkit"
)

// recorder keeps what a session prints.
type recorder struct {
	Sink   // the rest is not called
	t      *testing.T
	values [][]lang.Value
	maps   map[string][]arena.Entry
	keys   map[string][][]lang.Value
}

func (r *recorder) Printf(_ *lang.Action, values []lang.Value) error {
	r.values = append(r.values, values)
	return nil
}

func (r *recorder) PrintMap(m *lang.Map, entries []arena.Entry, _, _ uint32) error {
	if r.maps == nil {
		r.maps, r.keys = map[string][]arena.Entry{}, map[string][][]lang.Value{}
	}
	r.maps[m.Name] = entries
	for _, e := range entries {
		r.keys[m.Name] = append(r.keys[m.Name], m.KeyParts(e.Key))
	}
	return nil
}

func (r *recorder) End() error { return nil }

func config(t *testing.T, src string) (Config, *recorder) {
	t.Helper()
	script, err := lang.Compile(src, t.Name(), lang.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{t: t}
	return Config{Script: script, Sink: r, Warn: t.Logf, Log: t.Logf}, r
}

func attach(t *testing.T, pid int, src string) (*Session, *recorder) {
	t.Helper()
	c, r := config(t, src)
	return attachWith(t, pid, c), r
}

// attachWith attaches, and takes everything out at the end of the test.
func attachWith(t *testing.T, pid int, c Config) *Session {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := Attach(ctx, pid, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// finish ends a session that is attached and returns when it is over.
func finish(t *testing.T, s *Session) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// exe is the path of a process's program.
func exe(t *testing.T, pid int) string {
	t.Helper()
	path, err := proc.Exe(pid)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func run(t *testing.T, p *busy.Process, calls uint64, function string, threads int) {
	t.Helper()
	if _, err := p.Run(function, threads, calls); err != nil {
		t.Fatal(err)
	}
}

func TestCountsAreExact(t *testing.T) {
	for _, threads := range []int{1, 2, 8} {
		for _, function := range []string{"work", "work_push", "work_nop5", "work_mov"} {
			p := testkit.Busy(t, threads)
			src := "uprobe:" + exe(t, p.Pid()) + ":" + function + " { @ = count(); @keys[arg0] = count(); @size = sum(arg1); }"
			s, r := attach(t, p.Pid(), src)
			run(t, p, 200000, function, threads)
			finish(t, s)
			want, err := p.Counts(function)
			if err != nil {
				t.Fatal(err)
			}
			if got := r.maps["@"]; len(got) != 1 || got[0].Value[0] != want.Calls {
				t.Errorf("%s, %d threads: counted %v, the target %d", function, threads, got, want.Calls)
			}
		}
	}
}

// TestEveryInstructionIsCounted probes all instructions of a function, which
// then share windows; some threads stand among them while they are patched.
func TestEveryInstructionIsCounted(t *testing.T) {
	offsets := []int{0, 1, 4, 8, 11, 14, 15} // push, mov, imul, add, add, pop, ret
	for _, threads := range []int{1, 8} {
		p := testkit.Busy(t, threads)
		var src strings.Builder
		for _, off := range offsets {
			fmt.Fprintf(&src, "uprobe:%s:work_push+%d { @at%d = count(); @keys%d[arg0] = count(); }\n", exe(t, p.Pid()), off, off, off)
		}
		run(t, p, 1, "work_push", threads) // threads start with signals blocked; these have started
		for range 3 {
			before, err := p.Counts("work_push")
			if err != nil {
				t.Fatal(err)
			}
			s, r := attach(t, p.Pid(), src.String())
			if n := len(s.target.Detours()); n >= len(offsets) || s.sites != len(offsets) {
				t.Errorf("%d detours for %d of %d sites", n, s.sites, len(offsets))
			}
			run(t, p, 100000, "work_push", threads)
			finish(t, s)
			after, err := p.Counts("work_push")
			if err != nil {
				t.Fatal(err)
			}
			for _, off := range offsets {
				if got := r.maps[fmt.Sprintf("@at%d", off)]; len(got) != 1 || got[0].Value[0] != after.Calls-before.Calls {
					t.Errorf("+%d, %d threads: counted %v, the target %d", off, threads, got, after.Calls-before.Calls)
				}
				if got := r.maps[fmt.Sprintf("@keys%d", off)]; len(got) != len(after.Keys) {
					t.Errorf("+%d: %d keys, the target %d", off, len(got), len(after.Keys))
				}
			}
		}
	}
}

// TestSitesAreEnteredInTheMiddle attaches and detaches while all threads run
// through the probed instructions: each site sees as many hits as the others but
// for the calls that were under way.
func TestSitesAreEnteredInTheMiddle(t *testing.T) {
	p := testkit.Busy(t, 4)
	if err := p.Spin("work_push", 4); err != nil {
		t.Fatal(err)
	}
	var src strings.Builder
	for _, off := range []int{0, 1, 4, 8, 11, 14, 15} {
		fmt.Fprintf(&src, "uprobe:%s:work_push+%d { @at%d = count(); }\n", exe(t, p.Pid()), off, off)
	}
	for range 20 {
		s, r := attach(t, p.Pid(), src.String())
		finish(t, s)
		least, most := ^uint64(0), uint64(0)
		for _, entries := range r.maps {
			n := uint64(0)
			if len(entries) == 1 {
				n = entries[0].Value[0]
			}
			least, most = min(least, n), max(most, n)
		}
		if most-least > 2*4 { // a thread may be inside at both ends
			t.Errorf("from %d to %d hits", least, most)
		}
	}
	if _, err := p.Stop(); err != nil {
		t.Error(err)
	}
}
