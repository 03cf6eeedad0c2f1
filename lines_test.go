package trapless_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"trapless"
	"trapless/internal/testkit"
)

// TestLinesOfSource probes a line in the middle of a function and the function itself: both see every call.
func TestLinesOfSource(t *testing.T) {
	target := testkit.Compile(t, "types.c", testkit.Flags{"-O0"})
	text, err := os.ReadFile(testkit.TargetSource(t, "types.c"))
	if err != nil {
		t.Fatal(err)
	}
	line := slices.IndexFunc(strings.Split(string(text), "\n"), func(l string) bool { return strings.Contains(l, "return shape->at.x") }) + 1
	p := testkit.Start(t, target)
	script, err := trapless.CompileWith("t", "uprobe:"+target+"@types.c:$1 { @line = count(); } uprobe:"+target+":draw { @entry = count(); }",
		trapless.CompileOptions{Params: []string{strconv.Itoa(line)}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := trapless.Attach(t.Context(), p.Pid, script, trapless.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tenCalls(t, p, s)
	for _, name := range []string{"@line", "@entry"} {
		if m, err := s.Map(name); err != nil || len(m) != 1 || m[0].Value != 10 {
			t.Errorf("%s is %v %v, want 10", name, m, err)
		}
	}
}

// tenCalls lets a program make ten rounds, and ends the session.
func tenCalls(t *testing.T, p *testkit.Target, s *trapless.Session) {
	t.Helper()
	for range 10 {
		p.Ask("call")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := errors.Join(s.Run(ctx), s.Close()); err != nil {
		t.Fatal(err)
	}
}

// runOn runs a script on a program while it makes ten rounds, and returns what it prints.
func runOn(t *testing.T, p *testkit.Target, src string) string {
	t.Helper()
	script, err := trapless.CompileWith("t", src, trapless.CompileOptions{PID: p.Pid})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	s, err := trapless.Attach(t.Context(), p.Pid, script, trapless.Options{Output: &out, Warn: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	tenCalls(t, p, s)
	return out.String()
}

// TestNamesOfPlaces: a probe with a pattern knows the name of the place that was hit, as a string.
func TestNamesOfPlaces(t *testing.T) {
	target := testkit.Compile(t, "types.c", testkit.Flags{"-O0"})
	p := testkit.Start(t, target)
	out := runOn(t, p, "uprobe:"+target+":by_*, uprobe:"+target+":ta*l { @[probe] = count(); if (strcontains(probe, \"by_val\")) { @by = count(); } }")
	for _, want := range []string{"@[uprobe:" + target + ":by_value]: 10\n", "@[uprobe:" + target + ":tail]: 10\n", "@by: 10\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
}

// TestAddressesOfSymbols reads variables by their names, wherever the program is.
func TestAddressesOfSymbols(t *testing.T) {
	for _, flags := range []testkit.Flags{nil, testkit.NoPIE} {
		target := testkit.Compile(t, "types.c", flags)
		p := testkit.Start(t, target)
		out := runOn(t, p, "uprobe:"+target+":by_value { @a[*uaddr(\"answer\")] = count(); } uretprobe:"+target+":draw { @b[*uaddr(\"small_answer\")] = count(); }")
		if !strings.Contains(out, "@a[305419896]: 10\n") || !strings.Contains(out, "@b[66]: 10\n") {
			t.Errorf("%v: %s", flags, out)
		}
		for src, want := range map[string]string{
			"uprobe:" + target + ":by_value { print(uaddr(\"nothing\")); }":                    "Could not resolve symbol",
			"uprobe:" + target + ":by_value+4 { print(uaddr(\"answer\")); }":                   "uaddr() needs a probe at a function",
			"begin { print(uaddr(\"answer\")); } uprobe:" + target + ":by_value { print(1); }": "uaddr() exists only in uprobes",
		} {
			if _, err := trapless.CompileWith("t", src, trapless.CompileOptions{PID: p.Pid}); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", src, err, want)
			}
		}
	}
}

// TestStacksWithLines: frames have their lines of source, unless that is switched off, and dw_ustack is ustack.
func TestStacksWithLines(t *testing.T) {
	target := testkit.Compile(t, "types.c", testkit.Flags{"-O0"})
	p := testkit.Start(t, target)
	out := runOn(t, p, "uprobe:"+target+":by_value { @[ustack(2)] = count(); @b[ustack(build_id, 1)] = count(); }")
	// The program may have been compiled from another copy of its source.
	if !regexp.MustCompile(`by_value\+0@/\S*/testdata/targets/types\.c:\d+\n`).MatchString(out) || !strings.Contains(out, "main+") {
		t.Errorf("with lines: %s", out)
	}
	out = runOn(t, p, "config = { show_debug_info = 0 } uprobe:"+target+":by_value { @[dw_ustack(1)] = count(); }")
	if !strings.Contains(out, "by_value+0\n") {
		t.Errorf("without lines: %s", out)
	}
}
