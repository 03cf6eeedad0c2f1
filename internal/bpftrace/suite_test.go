// Package bpftrace_test runs bpftrace's own runtime tests on trapless: what they expect is an outside
// check of the language, of the output and of the command line.
//
// The tests are not part of this repository. TRAPLESS_BPFTRACE names a directory with bpftrace's sources
// (https://github.com/bpftrace/bpftrace, 0.26 or newer); without it the test is skipped. TRAPLESS_CASES
// takes a regular expression of cases as FILE.NAME, TRAPLESS_REPORT a file for the result of each,
// TRAPLESS_PROGRAM a trapless that is built already.
package bpftrace_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"trapless/internal/testkit"
)

// least is the share of the selected cases that has to pass, in percent.
const least = 85

// TestMain runs everything in a pid namespace of its own: some cases probe whatever process has a file mapped,
// and those of this machine shall have no part in it.
func TestMain(m *testing.M) {
	const inside = "TRAPLESS_BPFTRACE_INSIDE"
	if os.Getenv("TRAPLESS_BPFTRACE") == "" || os.Getenv(inside) != "" || !testkit.IsRoot() {
		os.Exit(m.Run())
	}
	cmd := exec.Command("unshare", append([]string{"--pid", "--fork", "--mount-proc", "--kill-child", os.Args[0]}, os.Args[1:]...)...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func TestRuntime(t *testing.T) {
	dir := os.Getenv("TRAPLESS_BPFTRACE")
	if dir == "" {
		t.Skip("TRAPLESS_BPFTRACE names no directory with bpftrace's sources")
	}
	if !testkit.IsRoot() {
		t.Skip("the cases probe processes of others: needs root")
	}
	cases := selectCases(t, dir)
	if len(cases) == 0 {
		t.Fatal("no case is selected")
	}
	runAll(t, dir, cases).report(t)
}

func selectCases(t *testing.T, dir string) []*testCase {
	files, err := filepath.Glob(filepath.Join(dir, "tests", "runtime", "*"))
	if err != nil {
		t.Fatal(err)
	}
	only, err := regexp.Compile(os.Getenv("TRAPLESS_CASES"))
	if err != nil {
		t.Fatal(err)
	}
	var out []*testCase
	total := 0
	for _, f := range files {
		if st, err := os.Stat(f); err != nil || st.IsDir() {
			continue
		}
		all, err := readCases(f)
		if err != nil {
			t.Fatal(err)
		}
		total += len(all)
		for _, c := range all {
			if c.selected(dir) && only.MatchString(c.id()) {
				out = append(out, c)
			}
		}
	}
	t.Logf("%d of %d cases selected", len(out), total)
	return out
}

// results are the outcomes, by case.
type results struct {
	cases    []*testCase
	outcomes []outcome
}

// runAll runs the cases on a few benches at once: most of a case's time is waiting.
func runAll(t *testing.T, dir string, cases []*testCase) *results {
	r := &results{cases, make([]outcome, len(cases))}
	command := build(t)
	model := newBench(t, dir, command)
	next := make(chan int)
	var wg sync.WaitGroup
	for range 2 * runtime.NumCPU() {
		b := &bench{dir: copyBench(t, model.dir, dir), command: command}
		wg.Go(func() {
			for i := range next {
				r.outcomes[i] = b.run(cases[i])
			}
		})
	}
	for i := range cases {
		next <- i
	}
	close(next)
	wg.Wait()
	return r
}

// build builds trapless and returns the command that stands for bpftrace.
func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	program := os.Getenv("TRAPLESS_PROGRAM")
	if program == "" {
		program = filepath.Join(dir, "trapless")
		cmd := exec.Command("go", "build", "-o", program, "./cmd/trapless")
		cmd.Dir = testkit.Root(t)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	link := filepath.Join(dir, "bpftrace") // by this name it is 'trapless trace'
	if err := os.Symlink(program, link); err != nil {
		t.Fatal(err)
	}
	return link + flags
}

// flags: many of the suite's programs have fixed addresses and functions so short that the jump needs an
// address that is not free in every run (no-springboard).
const flags = " --breakpoints --hold"

// report prints the outcomes by file, and the reasons of failures.
func (r *results) report(t *testing.T) {
	files := map[string][3]int{}
	var lines []string
	var sum [3]int
	for i, c := range r.cases {
		o := &r.outcomes[i]
		kind, text := 0, "pass"
		switch {
		case o.skipped != "":
			kind, text = 2, "skip: "+o.skipped
		case o.failed != "":
			kind, text = 1, "FAIL: "+o.failed+"\n\t"+strings.ReplaceAll(first(o.output, 600), "\n", "\n\t")
		}
		n := files[c.file]
		n[kind]++
		sum[kind]++
		files[c.file] = n
		lines = append(lines, fmt.Sprintf("%s (%d ms): %s", c.id(), o.took.Milliseconds(), text))
		if kind == 1 {
			t.Logf("%s: %s", c.id(), reason(o))
		}
	}
	for _, name := range sortedKeys(files) {
		n := files[name]
		t.Logf("%-16s %4d pass %4d fail %4d skipped", name, n[0], n[1], n[2])
	}
	if name := os.Getenv("TRAPLESS_REPORT"); name != "" {
		if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Error(err)
		}
	}
	share := 100 * float64(sum[0]) / float64(max(1, sum[0]+sum[1]))
	t.Logf("all: %d pass, %d fail, %d skipped: %.1f %%", sum[0], sum[1], sum[2], share)
	if share < least {
		t.Errorf("less than %d %% pass", least)
	}
}

// reason is the first error that a failed case printed, or what was expected.
func reason(o *outcome) string {
	for _, line := range strings.Split(o.output, "\n") {
		if _, text, ok := strings.Cut(line, "ERROR: "); ok {
			return text
		}
	}
	return first(o.failed, 200)
}

func first(s string, n int) string { return s[:min(len(s), n)] }

func sortedKeys[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
