package elfplan

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"trapless/internal/abi"
	"trapless/internal/image"
	"trapless/internal/plan"
)

// TestGoSwitchTables takes what the Go compiler says of its jump tables as the
// oracle.
func TestGoSwitchTables(t *testing.T) {
	for _, flags := range [][]string{nil, {"-buildmode=pie"}, {"-ldflags=-s -w"}} {
		listing, bias := goBuild(t, flags), image.Bias(0)
		if slices.Contains(flags, "-buildmode=pie") {
			bias = 0x555555554000
		}
		m := load(t, listing.path, bias)
		if len(listing.tables) < 2 {
			t.Fatalf("%v: %d tables", flags, len(listing.tables))
		}
		for name, offsets := range listing.tables {
			found, err := m.Funcs.Lookup(name)
			if err != nil || len(found) != 1 {
				t.Fatalf("%v: %s: %v, %v", flags, name, found, err)
			}
			f := m.function(t, found[0].Start)
			var want, got []abi.Addr
			for _, off := range offsets {
				want = append(want, f.Start+off)
			}
			slices.Sort(want)
			for _, j := range plan.Prepare(f, &plan.Facts{}).Jumps() {
				if j.Kind != plan.Tabled {
					t.Errorf("%v: %s: the jump at %v is of kind %d", flags, name, j.At, j.Kind)
				}
				got = append(got, j.To...)
			}
			slices.Sort(got)
			if !slices.Equal(slices.Compact(got), slices.Compact(want)) {
				t.Errorf("%v: %s: %v; want %v", flags, name, got, want)
			}
		}
	}
}

// goListing is a program, and where its jump tables lead: offsets in functions.
type goListing struct {
	path   string
	tables map[string][]abi.Addr
}

var (
	goTable = regexp.MustCompile(`^(\S+)\.jump\d+ SRODATA`)
	goEntry = regexp.MustCompile(`^\s+rel \d+\+8 t=R_ADDR (\S+)\+(\d+)$`)
)

// goBuild builds testdata/switches.go.
func goBuild(t *testing.T, flags []string) goListing {
	t.Helper()
	dir := t.TempDir()
	source, err := os.ReadFile("testdata/switches.go")
	if err != nil {
		t.Fatal(err)
	}
	// The compiler lists what it compiles, not what it finds in its cache.
	file := filepath.Join(dir, "main.go")
	if err := os.WriteFile(file, append(source, "\n// "+dir+"\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	l := goListing{filepath.Join(dir, "program"), map[string][]abi.Addr{}}
	cmd := exec.Command("go", append(append([]string{"build", "-gcflags=-S", "-o", l.path}, flags...), file)...)
	cmd.Env = append(os.Environ(), "GO111MODULE=off", "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	inTable := false
	for line := range strings.Lines(string(out)) {
		if m := goTable.FindStringSubmatch(line); m != nil {
			inTable = true
		} else if !strings.HasPrefix(line, "\t") {
			inTable = false
		}
		if m := goEntry.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil && inTable {
			off, err := strconv.ParseUint(m[2], 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			l.tables[m[1]] = append(l.tables[m[1]], abi.Addr(off))
		}
	}
	return l
}
