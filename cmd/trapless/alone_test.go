package main

import (
	"os"
	"path/filepath"
	"testing"
)

// Scripts whose programs all run in the tracer need no target, and end when nothing is left to come.
func TestScriptsWithoutATarget(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, script, want string
		status             int
	}{
		{"begin alone ends", `begin { @ = 1; printf("begin\n"); }`, "begin\n\n\n@: 1\n", 0},
		{"exit status", `begin { exit(69); }`, "\n\n", 69},
		{"end comes last", `begin { @ = 5; exit(); } end { print(@); clear(@); }`, "@: 5\n\n\n", 0},
		{"intervals", `interval:ms:5 { @ += 1; if (@ == 10) { exit(); } }`, "\n\n@: 10\n", 0},
		{"microseconds", `interval:us:500 { @ += 1; if (@ == 10) { exit(); } }`, "\n\n@: 10\n", 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			res := runToEnd(t, "trace", "-q", "-e", row.script)
			if res.stdout != row.want || res.status != row.status || res.stderr != "" {
				t.Errorf("status %d, stdout %q, stderr %q; want %d, %q and none", res.status, res.stdout, res.stderr, row.status, row.want)
			}
		})
	}
}

// With -c or -p, such a script touches no process but ends with it.
func TestScriptBesideAProgram(t *testing.T) {
	t.Parallel()
	res := runToEnd(t, "trace", "-q", "-c", "sleep 0.2", "-e", `interval:ms:20 { @ = count(); } interval:s:50 { printf("late\n"); exit(); }`)
	if res.status != 0 || res.value(t, "@") < 1 {
		t.Errorf("status %d, stdout %q, stderr %q", res.status, res.stdout, res.stderr)
	}
}

func TestOutputFile(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"line", "full", "none"} {
		name := filepath.Join(t.TempDir(), "out")
		res := runToEnd(t, "trace", "-B", mode, "-o", name, "-f", "json", "-e", `begin { @ = 3; printf("x"); }`)
		text, err := os.ReadFile(name)
		want := `{"type": "printf", "data": "x"}
{"type": "attached_probes", "count": 1, "data": {"probes": 1}}
{"type": "map", "data": {"@": 3}}
`
		if err != nil || string(text) != want || res.stdout != "" {
			t.Errorf("-B %s: %v, file %q, stdout %q, stderr %q; want the file %q", mode, err, text, res.stdout, res.stderr, want)
		}
	}
}

func TestListing(t *testing.T) {
	t.Parallel()
	res := runToEnd(t, "trace", "-l", "interval:*")
	if want := "interval:hz:\ninterval:us:\ninterval:ms:\ninterval:s:\n"; res.stdout != want {
		t.Errorf("intervals: %q, want %q", res.stdout, want)
	}
	res = runToEnd(t, "trace", "-l", "-e", "uprobe:"+program+":main.main { } uretprobe:"+program+":main.newRo*t { }")
	if want := "uprobe:" + program + ":main.main\nuretprobe:" + program + ":main.newRoot\n"; res.stdout != want {
		t.Errorf("of a script: %q, want %q (%s)", res.stdout, want, res.stderr)
	}
}
