package session

import (
	"context"
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
	t      *testing.T
	values [][]lang.Value
	maps   map[string][]arena.Entry
}

func (r *recorder) Printf(_ *lang.Action, values []lang.Value) error {
	r.values = append(r.values, values)
	return nil
}

func (r *recorder) PrintMap(m *lang.Map, entries []arena.Entry, _, _ uint32) error {
	r.maps[m.Name] = entries
	return nil
}

func (r *recorder) End() error { return nil }

func config(t *testing.T, src string) (Config, *recorder) {
	t.Helper()
	script, err := lang.Compile(src, t.Name(), lang.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{t: t, maps: map[string][]arena.Entry{}}
	return Config{Script: script, Sink: r, Warn: t.Logf, Log: t.Logf}, r
}

func attach(t *testing.T, pid int, src string) (*Session, *recorder) {
	t.Helper()
	c, r := config(t, src)
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
	return s, r
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
