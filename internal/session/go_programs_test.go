package session

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// goTool is the path of a program of the Go that runs the tests.
func goTool(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("go", args...).Output()
	path := strings.TrimSpace(string(out))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Skipf("needs go %v: %v", args, err)
	}
	return path
}

// goProbes count calls of whole packages in a program.
func goProbes(path string, patterns ...string) string {
	var b strings.Builder
	for i, p := range patterns {
		fmt.Fprintf(&b, "uprobe:%s:%s { @p%d = count(); @total = count(); }\n", path, p, i)
	}
	return b.String()
}

// TestGofmtFormatsTheSame formats all of a package, with more and more probes in
// the formatter.
func TestGofmtFormatsTheSame(t *testing.T) {
	gofmt := filepath.Join(filepath.Dir(goTool(t, "env", "GOROOT")+"/bin/"), "gofmt")
	if _, err := os.Stat(gofmt); err != nil {
		t.Skipf("needs gofmt: %v", err)
	}
	files, err := filepath.Glob(filepath.Join(runtime.GOROOT(), "src/encoding/json/*.go"))
	if err != nil || len(files) < 10 {
		t.Skipf("needs Go's sources: %v, %d files", err, len(files))
	}
	argv := append([]string{gofmt}, files...)
	want, err := exec.Command(argv[0], argv[1:]...).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		patterns []string
		sites    int // at least
	}{
		{[]string{"runtime.mallocgc", "strconv.*"}, 10},
		{[]string{"go/*"}, 500},
		{[]string{"go/*", "runtime.*"}, 1500},
		{[]string{"*"}, 2500},
	} {
		t.Run(strings.Join(row.patterns, " "), func(t *testing.T) {
			got, s, r := launchOutput(t, argv, goProbes(gofmt, row.patterns...))
			if got != string(want) {
				t.Errorf("gofmt printed %d bytes, without probes %d", len(got), len(want))
			}
			if s.Sites() < row.sites {
				t.Errorf("%d sites, want at least %d", s.Sites(), row.sites)
			}
			if total := r.maps["@total"]; len(total) != 1 || total[0].Value[0] < 10000 {
				t.Errorf("counted %v", total)
			}
			t.Logf("%d sites, %d refused, hits %v", s.Sites(), len(s.refused), r.maps["@total"])
		})
	}
}

// manyFunctions is a Go program without imports that gives a compiler work.
func manyFunctions() string {
	var b strings.Builder
	b.WriteString("package main\n\ntype T struct { a, b int; m map[int]string }\n\nfunc main() {}\n")
	for i := range 300 {
		fmt.Fprintf(&b, `
func (t *T) f%[1]d(x int, s []string) (r int) {
	for i, v := range s {
		switch {
		case x > %[1]d:
			r += len(v) * i
		case t.m[x] == v:
			r -= x / (t.a + 1)
		default:
			defer func() { r += recover().(int) }()
		}
	}
	return r + t.b
}
`, i)
	}
	return b.String()
}

// TestGoCompilerCompilesTheSame compiles with more and more probes in the
// compiler, which runs many goroutines.
func TestGoCompilerCompilesTheSame(t *testing.T) {
	compiler := goTool(t, "tool", "-n", "compile")
	dir := t.TempDir()
	source := filepath.Join(dir, "main.go")
	if err := os.WriteFile(source, []byte(manyFunctions()), 0o644); err != nil {
		t.Fatal(err)
	}
	object := filepath.Join(dir, "main.o")
	argv := []string{compiler, "-p", "main", "-c", "4", "-o", object, source}
	compiled := func() []byte {
		b, err := os.ReadFile(object)
		if err != nil {
			t.Fatal(err)
		}
		os.Remove(object)
		return b
	}
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Skipf("needs a compiler: %v\n%s", err, out)
	}
	want := compiled()
	for _, row := range []struct {
		patterns []string
		sites    int
	}{
		{[]string{"runtime.mallocgc", "runtime.*grow*"}, 5},
		{[]string{"cmd/compile/internal/ssa.*"}, 1000},
		{[]string{"cmd/compile/*", "runtime.*"}, 10000},
	} {
		t.Run(strings.Join(row.patterns, " "), func(t *testing.T) {
			_, s, r := launchOutput(t, argv, goProbes(compiler, row.patterns...))
			if !bytes.Equal(compiled(), want) {
				t.Error("the compiler made another object file")
			}
			if s.Sites() < row.sites {
				t.Errorf("%d sites, want at least %d", s.Sites(), row.sites)
			}
			t.Logf("%d sites, %d refused, hits %v", s.Sites(), len(s.refused), r.maps["@total"])
		})
	}
}

// TestGoCommandBuilds launches the go command, which reads many files, hashes
// and runs other programs.
func TestGoCommandBuilds(t *testing.T) {
	command, err := exec.LookPath("go")
	if err != nil {
		t.Skipf("needs %v", err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nfunc main() { println(\"made\") }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GO111MODULE", "off")
	t.Setenv("CGO_ENABLED", "0")
	program := filepath.Join(dir, "made")
	argv := []string{command, "build", "-o", program, filepath.Join(dir, "main.go")}
	_, s, r := launchOutput(t, argv, goProbes(command, "main.*", "cmd/go/*", "os/exec.*", "syscall.*", "crypto/sha256.*", "runtime.*"))
	out, err := exec.Command(program).CombinedOutput()
	if err != nil || string(out) != "made\n" {
		t.Errorf("the program that was built says %q, %v", out, err)
	}
	if s.Sites() < 3000 {
		t.Errorf("%d sites", s.Sites())
	}
	t.Logf("%d sites, %d refused, hits %v", s.Sites(), len(s.refused), r.maps["@total"])
}
