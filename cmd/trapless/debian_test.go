package main

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"trapless/internal/testkit"
)

// compared are the probes of scripts that Debian's bpftrace and trapless run on the same program.
var compared = []string{
	"uprobe { @count = count(); }", "uprobe { @by[arg0 % 7] = count(); }", "uprobe { @sum = sum(arg0); }", "uprobe { @sums[arg0 % 3] = sum(arg0); }",
	"uprobe { @avg = avg(arg0); }", "uprobe { @min = min(arg0 + 5); }", "uprobe { @max = max(arg0); }", "uprobe { @hist = hist(arg0); }",
	"uprobe { @hists[arg0 % 2] = hist(arg0); }", "uprobe { @lhist = lhist(arg0, 0, 100, 10); }", "uprobe { @lhists[arg0 & 1] = lhist(arg0, 10, 50, 20); }",
	"uprobe /arg0 > 50/ { @pred = count(); }", "uprobe { @last = arg0; }", "uprobe { @n += 1; }", "uprobe { @odd[(arg0 % 2) * 3] = count(); }",
	"uprobe { @two[arg0 % 2, arg0 % 3] = count(); }", "uprobe { if (arg0 < 10) { @small = count(); } else { @large = count(); } }",
	"uprobe { $x = arg0 * 2; @twice = sum($x); }", "uretprobe { @ret = sum(retval); }", "uretprobe { @rets = lhist(retval, 0, 200, 50); }", "uprobe { @comm[comm] = count(); }",
}

func TestSameAsDebiansBpftrace(t *testing.T) {
	t.Parallel()
	bpftrace, err := exec.LookPath("bpftrace")
	if err != nil || !testkit.IsRoot() {
		t.Skip("needs the program bpftrace (apt-get install bpftrace), and root")
	}
	if out, err := exec.Command(bpftrace, "-e", "BEGIN { exit(); }").CombinedOutput(); err != nil {
		t.Skipf("bpftrace cannot run here: %v: %s", err, out)
	}
	path := copyProgram(t, testkit.Compile(t, "brief.c"))
	var script strings.Builder
	for _, c := range compared {
		kind, rest, _ := strings.Cut(c, " ")
		fmt.Fprintf(&script, "%s:%s:probed %s\n", kind, path, rest)
	}
	theirs, err := exec.Command(bpftrace, "-q", "-c", path+" 100", "-e", script.String()).Output()
	if err != nil {
		t.Fatal(err)
	}
	ours := runToEnd(t, "trace", "-q", "-c", path+" 100", "-e", script.String())
	want, got := trimmed(string(theirs)), trimmed(ours.stdout)
	if got != want || !strings.Contains(want, "@count: 100") {
		t.Errorf("trapless prints\n%s\nbpftrace prints\n%s\n%s", got, want, ours.stderr)
	}
}

// trimmed is the output as entries of maps, sorted, without spaces at the ends of lines: the order of entries with
// equal values is not the same in both.
func trimmed(s string) string {
	var entries []string
	for line := range strings.Lines(s) {
		line = strings.TrimRight(line, " \n")
		switch {
		case strings.HasPrefix(line, "@"):
			entries = append(entries, line)
		case line != "" && len(entries) > 0:
			entries[len(entries)-1] += "\n" + line
		}
	}
	slices.Sort(entries)
	return strings.Join(entries, "\n")
}
