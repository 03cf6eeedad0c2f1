package session

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"trapless/internal/inject"
	"trapless/internal/plan"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
	"trapless/internal/testkit"
)

// hazard is a target that would notice a tracer's mistake, and its functions.
type hazard struct {
	source    string
	args      []string
	functions []string
	refused   []string // functions that are not probed, in every way of compiling
	attach    bool     // the state is entered too late for a launch to meet it
	glibc     bool     // it uses what musl does not have
}

var hazards = []hazard{
	{source: "threads.c", args: []string{"12"}, functions: []string{"probed"}},
	{source: "forker.c", functions: []string{"probed"}},
	{source: "signals.c", functions: []string{"in_handler", "while_blocked"}},
	{source: "faults.c", functions: []string{"load", "store", "divide"}, attach: true},
	{source: "unwind.cpp", functions: []string{"passer", "tracer"}, glibc: true},
	{source: "coroutines.c", functions: []string{"yielding"}, glibc: true},
	{source: "registers.c", functions: []string{"untouched+7"}}, // the red zone is live there
	{source: "windows.c", functions: []string{
		"loop_to_second", "table_jump", "short_jcc", "flags_at_entry", "jrcxz_first", "call_first", "call_second", "twice",
		"return_address", "returns_its_return_address", "syscall_second", "rip_relative", "rip_relative_store",
		"rip_relative_sse", "own_address", "endbr_first", "long_instruction", "repeated", "only_ret", "three_bytes",
		"four_bytes", "red_zone", "pushes"}},
	{source: "states.c", args: []string{"sharing"}, functions: []string{"probed"}},
	{source: "states.c", args: []string{"sametp"}, functions: []string{"probed"}},
	{source: "states.c", args: []string{"leaderless"}, functions: []string{"probed"}},
	{source: "states.c", args: []string{"mdwe"}, functions: []string{"probed"}},
	{source: "states.c", args: []string{"notsc"}, functions: []string{"probed"}},
	{source: "states.c", args: []string{"undumpable"}, functions: []string{"probed"}},
	{source: "states.c", args: []string{"dispatch"}, functions: []string{"probed"}, attach: true}, // on its first thread alone

}

func (h *hazard) name() string {
	return strings.Join(append([]string{h.source}, h.args...), ",") + "/" + h.functions[0]
}

func (h *hazard) compile(t *testing.T, flags ...testkit.Flags) string {
	t.Helper()
	return testkit.Compile(t, h.source, flags...)
}

// script counts each function in a map of its name.
func (h *hazard) script(path string) string {
	var b strings.Builder
	for _, f := range h.functions {
		fmt.Fprintf(&b, "uprobe:%q:%s { @%s = count(); @arg = sum(arg0); }\n", path, f, mapName(f))
	}
	return b.String()
}

func mapName(function string) string {
	name, _, _ := strings.Cut(function, "+")
	return name
}

// TestHazardsOverAndOver attaches to and detaches from targets that check
// themselves all the time.
func TestHazardsOverAndOver(t *testing.T) {
	for i := range hazards {
		h := &hazards[i]
		t.Run(h.name(), func(t *testing.T) {
			p := testkit.StartCommand(t, exec.Command(h.compile(t), h.args...))
			if line := p.Line(); strings.HasPrefix(line, "unavailable") {
				t.Skip(line)
			}
			script := h.script(exe(t, p.Pid))
			hits := uint64(0)
			for round, until := 0, time.Now().Add(testkit.Deadline/2); round < rounds(12) || hits == 0 && time.Now().Before(until); round++ {
				s, r, err := tryAttach(t, p.Pid, script)
				if err != nil {
					t.Fatalf("round %d: %v\n%s", round, err, p.Output())
				}
				time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond) // any moment is as good as another
				finish(t, s)
				for _, f := range h.functions {
					if e := r.maps["@"+mapName(f)]; len(e) == 1 {
						hits += e[0].Value[0]
					}
				}
			}
			if changes := testkit.TextChanges(t, p.Pid); len(changes) != 0 {
				t.Errorf("the text differs: %q", changes)
			}
			if last := p.Stop(); last[len(last)-1] != "ok" {
				t.Errorf("last lines %q", last)
			}
			if hits == 0 {
				t.Error("not one hit was counted")
			}
		})
	}
}

// life launches a target under a session, asks it to stop after a while, and
// returns what it printed.
func life(t *testing.T, argv []string, c Config) []string {
	t.Helper()
	return lifeUntil(t, argv, c, func(*Session) bool { return true })
}

// allHit reports whether each of the probes that are in place has been hit.
func allHit(s *Session) bool {
	probes := s.Probes()
	return len(probes) > 0 && !slices.ContainsFunc(probes, func(p ProbeInfo) bool { return p.State == Optimized && p.Hits == 0 })
}

// lifeUntil is life, but the target is not asked to stop before enough has happened,
// which takes a while on a busy machine.
func lifeUntil(t *testing.T, argv []string, c Config, enough func(*Session) bool) []string {
	t.Helper()
	stdin, send, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	receive, stdout, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer receive.Close()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Deadline)
	defer cancel()
	s, err := launchWithRoom(ctx, t, &ptrace.Command{Path: argv[0], Args: argv, Env: os.Environ(), Files: []*os.File{stdin, stdout, os.Stderr}}, c)
	stdin.Close()
	stdout.Close()
	if err != nil {
		send.Close()
		t.Fatal(err)
	}
	said := make(chan []string)
	go func() {
		var lines []string
		for in := bufio.NewScanner(receive); in.Scan(); {
			lines = append(lines, in.Text())
			if strings.HasPrefix(in.Text(), "ready ") {
				time.Sleep(300 * time.Millisecond) // for it to work
				for until := time.Now().Add(testkit.Deadline / 2); !enough(s) && time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
				}
				_, _ = io.WriteString(send, "stop\n")
			}
		}
		send.Close()
		said <- lines
	}()
	if err := s.Run(ctx); err != nil {
		t.Error(err)
	}
	status, err := s.Wait(ctx)
	if err != nil || status.ExitStatus() != 0 {
		t.Errorf("%q ended with %v, %v", argv, status, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	return <-said
}

// TestHazardsAreCountedExactly has probes in place for a target's whole life:
// the counts have to be the target's own, and calls of forked children no part
// of them.
func TestHazardsAreCountedExactly(t *testing.T) {
	for i := range hazards {
		h := &hazards[i]
		if h.attach {
			continue
		}
		for _, flags := range []testkit.Flags{testkit.PIE, testkit.NoPIE, {"-O0"}, testkit.Static, {"-static-pie"}, testkit.Musl, testkit.MuslStatic} {
			if flags.IsMusl() && h.glibc {
				continue
			}
			t.Run(h.name()+" "+flags.String(), func(t *testing.T) {
				path := h.compile(t, flags)
				c, r := config(t, h.script(path))
				c.Breakpoints = h.source == "windows.c" // some have no room for a jump, and no signal is blocked
				var warnings []string
				c.Warn = func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
				lines := lifeUntil(t, append([]string{path}, h.args...), c, allHit)
				if len(lines) > 0 && strings.HasPrefix(lines[0], "unavailable") {
					t.Skip(lines[0])
				}
				if len(lines) == 0 || lines[len(lines)-1] != "ok" {
					t.Fatalf("the target said %q", lines)
				}
				h.compare(t, warnings, r, testkit.Counts(lines))
			})
		}
	}
}

func (h *hazard) compare(t *testing.T, warnings []string, r *recorder, want map[string]uint64) {
	t.Helper()
	for _, f := range h.functions {
		name := mapName(f)
		if slices.ContainsFunc(warnings, func(w string) bool { return strings.HasPrefix(w, f+" is not probed: ") }) {
			if !slices.Contains(h.refused, f) && !strings.Contains(strings.Join(warnings, ""), string(plan.NoSpringboard)) {
				t.Errorf("%s is refused", f)
			}
			continue
		}
		got := uint64(0)
		if e := r.maps["@"+name]; len(e) == 1 {
			got = e[0].Value[0]
		}
		if got != want[name] || got == 0 {
			t.Errorf("%s: counted %d calls, the target %d", f, got, want[name])
		}
	}
}

// TestStatesAreRefused: targets that injected code would kill, or that have no
// room for it, are refused by name and live on.
func TestStatesAreRefused(t *testing.T) {
	for _, c := range []struct {
		state string
		is    error
	}{
		{"seccomp", ptrace.ErrSeccomp},
		{"full", inject.ErrNoRoom},
		{"locked", inject.ErrNoRoom},
		{"traced", proc.ErrTraced},
	} {
		t.Run(c.state, func(t *testing.T) {
			p := testkit.StartCommand(t, exec.Command(testkit.Compile(t, "states.c"), c.state))
			if line := p.Line(); strings.HasPrefix(line, "unavailable") {
				t.Skip(line)
			}
			path := exe(t, p.Pid)
			for range 3 {
				s, _, err := tryAttach(t, p.Pid, "uprobe:"+path+":probed { @ = count(); }")
				if err == nil {
					finish(t, s)
					t.Fatal("it is probed")
				}
				t.Log(err)
				if !errors.Is(err, c.is) {
					t.Errorf("refused because %v, want %v", err, c.is)
				}
				if strings.Contains(err.Error(), "\n") {
					t.Errorf("not one line: %v", err)
				}
			}
			if changes := testkit.TextChanges(t, p.Pid); len(changes) != 0 {
				t.Errorf("the text differs: %q", changes)
			}
			if last := p.Stop(); last[len(last)-1] != "ok" {
				t.Errorf("last lines %q", last)
			}
		})
	}
}
