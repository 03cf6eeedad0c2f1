// Package internal_test checks the layering of the packages.
package internal_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "trapless"

// levels is the layering: a package imports only packages of lower levels. The tens are the levels of
// docs/ARCHITECTURE.md, the ones an order within a level. A directory that is not listed takes the level
// of the nearest listed one above it.
var levels = map[string]int{
	"internal/abi":                 0,  // layouts that generated code and the tracer share
	"internal/diag":                0,  // located errors
	"internal/unix":                0,  // system calls
	"internal/tsc":                 0,  // the time stamp counter
	"internal/bench/busy":          0,  // the program that measurements and tests drive
	"internal/bench/crowd":         1,  // another one, of many functions
	"internal/insn":                10, // decoders
	"internal/asm":                 10, // encoders
	"internal/bpf":                 10, // the program type, its verifier and its interpreter
	"internal/bpf/routine":         11, // the runtime in targets
	"internal/bpf/bound":           9,  // what the verifier knows of a number
	"internal/kuprobe":             10, // kernel uprobes, for comparison
	"internal/reloc":               20, // an instruction, moved
	"internal/image":               20, // ELF files
	"internal/usdt":                21, // programs for the places of USDT probes
	"internal/debuginfo":           22, // types and parameters, separate files with debug information
	"internal/jit":                 20, // bpf to machine code
	"internal/lang":                20, // scripts to bpf
	"internal/object":              25, // BPF object files to bpf
	"internal/plan":                30, // windows, tactics, patches
	"internal/elfplan":             35, // ELF files as the planner sees them
	"internal/coverage":            40, // what of a file can be probed
	"internal/arena":               30, // the shared memory, seen from the tracer
	"internal/proc":                30, // /proc
	"internal/ptrace":              31, // the tracer's thread
	"internal/inject":              40, // patches on a live process
	"internal/session":             50, // registry and lifecycle
	"internal/control":             55, // asking and changing a session from another process
	"internal/export":              60, // output
	"internal/ui":                  60,
	"internal/bench":               60, // measurements
	"":                             70, // the public package
	"internal/torture":             75, // random changes, by the public package
	"testdata":                     0,  // sources of programs that are probed
	"cmd":                          80,
	"internal/testkit":             10,
	"internal/testkit/conformance": 11, // it is fetched by testkit's means
	"internal/saturation":          60, // tests alone: whole programs, probed at every instruction
}

// testsOnly may be imported by test files alone (and by itself).
const testsOnly = "internal/testkit"

// onlyImporter names the one package that may import a path.
var onlyImporter = map[string]string{
	"golang.org/x/sys/unix": "internal/unix",
}

// forbidden paths are imported nowhere.
var forbidden = map[string]string{
	"C":      "no cgo: the tracer is one static binary that cross-compiles",
	"plugin": "needs cgo",
}

// A file's import, with directories relative to the module and slashes.
type edge struct {
	file, from, to string
	test           bool
}

func TestPackagesImportOnlyLowerLevels(t *testing.T) {
	for _, e := range edges(t) {
		if problem := judge(e); problem != "" {
			t.Errorf("%s imports %q: %s", e.file, e.to, problem)
		}
	}
}

func judge(e edge) string {
	if why, ok := forbidden[e.to]; ok {
		return why
	}
	if only, ok := onlyImporter[e.to]; ok && e.from != only {
		return "only " + only + " may"
	}
	dir, ours := strings.CutPrefix(e.to+"/", module+"/")
	if !ours || e.test {
		return ""
	}
	dir = strings.TrimSuffix(dir, "/")
	if under(dir, testsOnly) && !under(e.from, testsOnly) {
		return testsOnly + " is for tests"
	}
	from, ok := level(e.from)
	if !ok {
		return "the importing package has no level in this test's table"
	}
	to, ok := level(dir)
	if !ok {
		return "it has no level in this test's table"
	}
	if to >= from {
		return "level " + strconv.Itoa(to) + " from level " + strconv.Itoa(from)
	}
	return ""
}

func under(dir, top string) bool { return dir == top || strings.HasPrefix(dir, top+"/") }

// level looks a directory up, then the directories above it. The root's level is only the root's.
func level(dir string) (int, bool) {
	if dir == "" {
		return levels[""], true
	}
	for ; dir != "."; dir = path.Dir(dir) {
		if l, ok := levels[dir]; ok {
			return l, true
		}
	}
	return 0, false
}

// edges parses the imports of every Go file of the module.
func edges(t *testing.T) []edge {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	var all []edge
	err = fs.WalkDir(os.DirFS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := path.Base(name); base != "." && (base == "testdata" || strings.HasPrefix(base, ".")) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		found, err := imports(root, name)
		all = append(all, found...)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("no imports found: is the test run in its directory?")
	}
	return all
}

func imports(root, name string) ([]edge, error) {
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	from := strings.TrimPrefix(path.Dir(name), ".")
	var found []edge
	for _, spec := range file.Imports {
		to, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		found = append(found, edge{file: name, from: from, to: to, test: strings.HasSuffix(name, "_test.go")})
	}
	return found, nil
}

// The judge itself: one row a rule.
func TestJudge(t *testing.T) {
	for _, row := range []struct {
		from, to string
		test     bool
		allowed  bool
	}{
		{"internal/plan", "trapless/internal/insn/x86", false, true},
		{"internal/insn/x86", "trapless/internal/plan", false, false},
		{"internal/insn/x86", "trapless/internal/plan", true, true},
		{"internal/plan", "trapless/internal/proc", false, false}, // the same level
		{"", "trapless/internal/session", false, true},
		{"internal/session", "trapless", false, false},
		{"cmd/trapless", "trapless", false, true},
		{"internal/session", "trapless/internal/testkit", false, false},
		{"internal/session", "trapless/internal/testkit", true, true},
		{"internal/bench", "trapless/internal/bench/busy", false, true},
		{"internal/unix", "golang.org/x/sys/unix", false, true},
		{"internal/ptrace", "golang.org/x/sys/unix", true, false},
		{"internal/nowhere", "trapless/internal/abi", false, false},
		{"internal/plan", "C", true, false},
		{"internal/plan", "fmt", false, true},
	} {
		problem := judge(edge{from: row.from, to: row.to, test: row.test})
		if (problem == "") != row.allowed {
			t.Errorf("%s imports %s (test %v): %q, want allowed %v", row.from, row.to, row.test, problem, row.allowed)
		}
	}
}
