package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"trapless/internal/testkit"
)

// said is the object file of testdata/said.bpf.c.
func said(t *testing.T) string {
	t.Helper()
	return testkit.CompileObject(t, filepath.Join("testdata", "said.bpf.c"), "v3", testkit.LibbpfFlags(t)...)
}

// runObject runs an object on 16 calls, of which the first arguments are
// 0 1 0 2 0 1 0 3 0 1 0 2 0 1 0 4.
func runObject(t *testing.T, args ...string) result {
	t.Helper()
	p := startBusy(t)
	args = append([]string{"run", "-v", "-p", p.pid, "--attach", "say=uprobe:" + p.path + ":work"}, args...)
	r := start(t, args...).waitArmed()
	p.call("work", 16)
	res := r.end(syscall.SIGINT)
	p.restored()
	return res
}

// TestRunPrints looks at all that 'run' prints.
func TestRunPrints(t *testing.T) {
	const want = `calls: {.key = 3, .tag = "ab", .bytes = {1, 2, 0, 0}}
calls: {.key = 4, .tag = "ab", .bytes = {1, 2, 0, 0}}
key 4

total: 48
last: {0, 4}

seen[{.key = 0, .tag = "ab", .bytes = {1, 2, 0, 0}}]: -5
seen[{.key = 1, .tag = "ab", .bytes = {1, 2, 0, 0}}]: -5
seen[{.key = 2, .tag = "ab", .bytes = {1, 2, 0, 0}}]: -5
seen[{.key = 3, .tag = "ab", .bytes = {1, 2, 0, 0}}]: -5
seen[{.key = 4, .tag = "ab", .bytes = {1, 2, 0, 0}}]: -5

sums[0]: 9
sums[1]: 4
sums[2]: 2
sums[3]: 1
`
	res := runObject(t, "--set", "step=3", "--records", "calls=call", said(t))
	if got := sortedLines(res.stdout, "seen["); !strings.Contains(got, "sums[1]") || stripSums(got) != stripSums(want) {
		t.Errorf("printed\n%s", got)
	}
}

// stripSums cuts off the sums, which depend on the sizes.
func stripSums(s string) string {
	before, _, _ := strings.Cut(s, "\nsums[")
	return before
}

// sortedLines sorts those lines, next to each other, that begin with a prefix.
func sortedLines(s, prefix string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		for k := i; k > 0 && strings.HasPrefix(lines[k], prefix) && strings.HasPrefix(lines[k-1], prefix) && lines[k] < lines[k-1]; k-- {
			lines[k], lines[k-1] = lines[k-1], lines[k]
		}
	}
	return strings.Join(lines, "\n")
}

// TestRunPrintsJSON looks at the same as JSON.
func TestRunPrintsJSON(t *testing.T) {
	res := runObject(t, "--json", said(t))
	types := map[string]int{}
	for line := range strings.Lines(res.stdout) {
		var o struct {
			Type, Map string
			Data      any
			Entries   []struct {
				Key    any
				Values []any
			}
		}
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		types[o.Type+" "+o.Map]++
		switch o.Map {
		case "calls":
			if call, ok := o.Data.(map[string]any); !ok || call["tag"] != "ab" {
				t.Errorf("%s", line)
			}
		case "seen":
			if len(o.Entries) != 5 || o.Entries[0].Values[0] != -5.0 {
				t.Errorf("%s", line)
			}
		}
	}
	for what, n := range map[string]int{"record calls": 2, "print ": 1, "map seen": 1, "map sums": 1, "map .bss": 1} {
		if types[what] != n {
			t.Errorf("%d lines of %q, not %d", types[what], what, n)
		}
	}
}

// TestRunRefuses says what is wrong.
func TestRunRefuses(t *testing.T) {
	object := said(t)
	text := filepath.Join(t.TempDir(), "text.o")
	if err := os.WriteFile(text, []byte("no object"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{[]string{"-p", "1", object}, exitUsage, "not said: say; use --attach"},
		{[]string{"-p", "1"}, exitUsage, "expected one BPF object file"},
		{[]string{object}, exitUsage, "no target"},
		{[]string{"-p", "1", "--attach", "say", object}, exitUsage, "expected PROGRAM=PROBE"},
		{[]string{"-p", "1", "--set", "step", object}, exitUsage, "expected VARIABLE=VALUE"},
		{[]string{"-p", "1", "--set", "stop=1", object}, exitFailed, "it has no variable stop; it has last, step, total"},
		{[]string{"-p", "1", "--set", "step=4294967296", object}, exitFailed, "does not fit into 4 bytes"},
		{[]string{"-p", "1", "--set", "step=many", object}, exitFailed, "is no number"},
		{[]string{"-p", "1", "--records", "seen=call", object}, exitFailed, "it has no ring seen"},
		{[]string{"-p", "1", "--records", "calls=cell", object}, exitFailed, "struct cell"},
		{[]string{"-p", "1", "--attach", "nay=libc:malloc", object}, exitFailed, "it has no program nay; it has say"},
		{[]string{"-p", "1", "--attach", "say=interval:s:1", object}, exitFailed, "attach point"},
		{[]string{"-p", "1", text}, exitFailed, "text.o: it is no ELF file"},
		{[]string{"-p", "1", "/nowhere.o"}, exitFailed, "no such file"},
	} {
		res := runToEnd(t, append([]string{"run"}, c.args...)...)
		if res.status != c.status || !strings.Contains(res.stderr, c.want) {
			t.Errorf("%q: status %d: %s", c.args, res.status, res.stderr)
		}
	}
}
