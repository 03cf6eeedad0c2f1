package saturation

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"trapless/internal/ptrace"
	"trapless/internal/testkit"
)

// service is a program of testdata/targets that checks itself until it is told
// to stop. It is probed while it runs, and the probes are taken out again.
type service struct {
	source  string
	args    []string
	modules []string // besides its own file

	build testkit.GoBuild // of a Go program
	own   string          // how the names of its own functions begin, which are all probed
	again string          // a line that makes it do what it does only when asked, "" for none
}

func (s *service) name() string { return strings.Join(append([]string{s.source}, s.args...), ",") }

func (s *service) compile(t *testing.T) string {
	t.Helper()
	if filepath.Ext(s.source) == ".go" {
		return testkit.CompileGo(t, s.source, s.build)
	}
	return testkit.Compile(t, s.source)
}

// saturate probes a running service, gives it time to run into its probes, takes
// them out, and compares its text with its files.
func (s *service) saturate(t *testing.T, c probing, work time.Duration) *run {
	t.Helper()
	p := testkit.StartCommand(t, exec.Command(s.compile(t), s.args...))
	if line := p.Line(); strings.HasPrefix(line, "unavailable") {
		t.Skip(line)
	}
	meanwhile := func() {
		if s.again != "" {
			p.Ask(s.again)
		}
		time.Sleep(work)
	}
	r := newRun()
	if err := r.visit(p.Pid, c.modules, c.choice, meanwhile); err != nil {
		if p.Ended() {
			t.Fatalf("%v, %v\n%s", err, p.Wait(), p.Output())
		}
		t.Fatalf("%v\n%s", err, p.Output())
	}
	if changes := testkit.TextChanges(t, p.Pid); len(changes) != 0 {
		t.Errorf("the text differs: %q", changes)
	}
	if last := p.Stop(); last[len(last)-1] != "ok" {
		t.Errorf("last lines %q", last)
	}
	return r
}

// visit probes a process while something is done.
func (r *run) visit(pid int, patterns []string, c choice, meanwhile func()) error {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	tracer, err := ptrace.Start()
	if err != nil {
		return err
	}
	defer tracer.Close()
	g, err := tracer.Seize(ctx, pid)
	if err != nil {
		return err
	}
	defer g.Close()
	mods, target, err := r.probe(ctx, g, patterns, c)
	if err != nil {
		return err
	}
	defer release(mods, target)
	meanwhile()
	if err := g.Seize(ctx); err != nil {
		return err
	}
	if err := target.Disarm(ctx, func() error { return g.Detach(ctx) }); err != nil {
		return fmt.Errorf("taking the probes out: %w", err)
	}
	return r.collect(target.Arena(), mods)
}
