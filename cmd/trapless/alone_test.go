package main

import (
	"os"
	"path/filepath"
	"testing"

	"trapless/internal/testkit"
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
		{"a loop over a map", `begin { @[1] = 10; @[2] = 20; @[3] = 30; for ($kv : @) { if ($kv.0 == 2) { continue; } print($kv); } clear(@); exit(); }`,
			"(1, 10)\n(3, 30)\n\n\n", 0},
		{"keys of several parts", `begin { @["a", 1] = "x"; for ($kv : @) { printf("%s %d %s\n", $kv.0.0, $kv.0.1, $kv.1); } clear(@); exit(); }`, "a 1 x\n\n\n", 0},
		{"loops in loops", `begin { @[1] = 1; @[2] = 2; for ($a : @) { for ($b : @) { if ($b.0 > $a.0) { break; } print(($a.0, $b.0)); } } clear(@); exit(); }`,
			"(1, 1)\n(2, 1)\n(2, 2)\n\n\n", 0},
		{"a loop over an aggregation", `begin { @[5] = avg(10); @[5] = avg(20); for ($kv : @) { print($kv); } clear(@); exit(); }`, "(5, 15)\n\n\n", 0},
		{"aggregations as numbers", `begin { @s = sum(-5); @s = sum(3); @c[1] = count(); @m = min(-3); @n = max(9);
			if (@s == -2) { printf("%d %d %d %d\n", @s, @c[1], @m, (int64)@n + 1); } clear(@s); clear(@c); clear(@m); clear(@n); exit(); }`, "-2 1 -3 10\n\n\n", 0},
		{"cleared aggregations", `begin { @c = count(); @[1] = 1; } interval:ms:5 { clear(@c); } interval:ms:50 { print(@c + len(@)); exit(); } end { clear(@); clear(@c); }`, "1\n\n\n", 0},
		{"length and presence", `begin { @[1] = 1; @[7] = 2; @c[1] = count(); print((len(@), len(@c), has_key(@c, 1), has_key(@c, 2))); clear(@); clear(@c); exit(); }`,
			"(2, 1, true, false)\n\n\n", 0},
		{"delete of an aggregation", `begin { @["a", 1] = count(); @["b", 2] = count(); $k = ("a", 1); delete(@, $k); print(@["b", 2]); exit(); } end { print(@); clear(@); }`,
			"1\n@[b, 2]: 1\n\n\n", 0},
		{"zero of tuples", `begin { @[1] = (5, "x"); @s = (6, 7); zero(@); zero(@s); print(@); print(@s); clear(@); clear(@s); exit(); }`, "@[1]: (0, )\n@s: (0, 0)\n\n\n", 0},
		{"the name of the probe", `begin, end { print(probe); }`, "begin\nend\n\n\n", 0},
		{"elapsed is short", `begin { if (elapsed < 10s) { print("short"); } exit(); }`, "short\n\n\n", 0},
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
		want := `{"type": "attached_probes", "count": 1, "data": {"probes": 1}}
{"type": "printf", "data": "x"}
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
	types := testkit.Compile(t, "types.c")
	res = runToEnd(t, "trace", "-lv", "uprobe:"+types+":by_*", "--debuginfo", "/nowhere")
	if want := "uprobe:" + types + ":by_value\n    struct point p\n    int after\n"; res.stdout != want {
		t.Errorf("with parameters: %q, want %q (%s)", res.stdout, want, res.stderr)
	}
	res = runToEnd(t, "trace", "-l", "-v", "uretprobe:"+types+":mix")
	if want := "uretprobe:" + types + ":mix\n    double retval\n"; res.stdout != want {
		t.Errorf("with a result: %q, want %q (%s)", res.stdout, want, res.stderr)
	}
}
