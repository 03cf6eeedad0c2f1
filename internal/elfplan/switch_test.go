package elfplan

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"trapless/internal/abi"
	"trapless/internal/image"
	"trapless/internal/plan"
	"trapless/internal/testkit"
)

// load reads a file as it is loaded at a bias.
func load(t testing.TB, path string, bias image.Bias) *Module {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m := &Module{Bias: bias}
	if m.Image, err = image.New(bytes.NewReader(b), int64(len(b))); err != nil {
		t.Fatal(err)
	}
	if m.Funcs, err = m.Image.Functions(); err != nil {
		t.Fatal(err)
	}
	return m
}

// function describes the function at an address with all that leads into it.
func (m *Module) function(t testing.TB, v image.VAddr) *plan.Func {
	t.Helper()
	fn, ok := m.Funcs.At(v)
	if !ok {
		t.Fatalf("no function at %v", v)
	}
	f, err := m.Func(fn)
	if err == nil {
		err = m.FindEntries([]*plan.Func{f})
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// compilation is a way of making a program of testdata/switches.c.
type compilation struct {
	compiler string
	flags    testkit.Flags
	unknown  string // the function whose jumps nobody can follow, "" if none
}

func compilations() []compilation {
	var all []compilation
	for _, level := range []string{"-O0", "-O1", "-O2", "-O3", "-Os"} {
		for _, kind := range []testkit.Flags{testkit.PIE, testkit.NoPIE} {
			all = append(all, compilation{"cc", append(testkit.Flags{level}, kind...), "offsets"})
			all = append(all, compilation{"clang-14", append(testkit.Flags{level}, kind...), "offsets"})
		}
	}
	return append(all,
		compilation{"cc", testkit.Flags{"-O2", "-fPIE", "-pie", "-fcf-protection=full"}, "offsets"},
		compilation{"cc", testkit.Flags{"-O2", "-fPIE", "-pie", "-fno-reorder-blocks-and-partition"}, "offsets"},
		compilation{"cc", testkit.Flags{"-O2", "-fno-pie", "-no-pie", "-mcmodel=large"}, "offsets"},
		compilation{"clang-14", testkit.Flags{"-O2", "-fPIE", "-pie", "-fcf-protection=full"}, "offsets"})
}

// assembly compiles to assembly, and links that with its local labels kept.
func (c compilation) assembly(t *testing.T) (text []byte, path string) {
	t.Helper()
	compile := append([]string{c.compiler}, c.flags...)
	if c.compiler != "cc" {
		compile[0] = testkit.Command(t, c.compiler, c.compiler)
		compile = append(compile, "-fno-addrsig") // the assembler does not know it
	}
	testkit.RequirePackage(t, "gcc")
	dir := t.TempDir()
	asm, path := filepath.Join(dir, "switches.s"), filepath.Join(dir, "switches")
	for _, args := range [][]string{
		append(compile, "-S", "-o", asm, "testdata/switches.c"),
		append([]string{"cc", "-Wa,--keep-locals", "-o", path, asm}, c.flags...),
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	text, err := os.ReadFile(asm)
	if err != nil {
		t.Fatal(err)
	}
	return text, path
}

// tableEntry is an element of a table in assembly: a label of code, less a label of the table perhaps.
var tableEntry = regexp.MustCompile(`^\s*\.(?:long|quad)\s+(\.L[\w.]+)(?:-\.L[\w.]+)?\s*$`)

// switchLabels are the labels that tables hold, by the function in which they are.
func switchLabels(t *testing.T, text []byte, path string) map[string][]image.VAddr {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]image.VAddr{}
	for _, s := range symbols {
		at[s.Name] = image.VAddr(s.Value)
	}
	found := map[string][]image.VAddr{}
	inData := false
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 0 && (fields[0] == ".section" || fields[0] == ".text") {
			inData = len(fields) > 1 && (strings.HasPrefix(fields[1], ".rodata") || strings.HasPrefix(fields[1], ".data.rel.ro"))
		}
		m := tableEntry.FindStringSubmatch(line)
		if m == nil || !inData {
			continue
		}
		v, ok := at[m[1]]
		if !ok {
			t.Fatalf("%s has no address", m[1])
		}
		for _, s := range symbols {
			if elf.ST_TYPE(s.Info) == elf.STT_FUNC && uint64(v) >= s.Value && uint64(v) < s.Value+s.Size {
				name, _, _ := strings.Cut(s.Name, ".")
				found[name] = append(found[name], v)
			}
		}
	}
	return found
}

// partsOf are the addresses of a function and of its parts.
func partsOf(t *testing.T, path, name string) []image.VAddr {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	var parts []image.VAddr
	for _, s := range symbols {
		base, _, _ := strings.Cut(s.Name, ".")
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC && base == name {
			parts = append(parts, image.VAddr(s.Value))
		}
	}
	return parts
}

// TestSwitchTables takes the compilers' assembly as the oracle: each label in a
// table is a place that the jumps of its function are found to lead to. So it
// is when the file has no symbols.
func TestSwitchTables(t *testing.T) {
	for _, c := range compilations() {
		t.Run(fmt.Sprint(c.compiler, c.flags), func(t *testing.T) {
			text, path := c.assembly(t)
			stripped := path + ".stripped"
			if out, err := exec.Command(testkit.Command(t, "strip", "binutils"), "-o", stripped, path).CombinedOutput(); err != nil {
				t.Fatalf("strip: %v\n%s", err, out)
			}
			labels := switchLabels(t, text, path)
			if len(labels) < 6 {
				t.Fatalf("tables of %d functions", len(labels))
			}
			for name, want := range labels {
				for _, file := range []string{path, stripped} {
					checkTables(t, load(t, file, 0), partsOf(t, path, name), name, want, c.unknown)
				}
			}
		})
	}
}

func checkTables(t *testing.T, m *Module, parts []image.VAddr, name string, want []image.VAddr, unknown string) {
	t.Helper()
	var got []abi.Addr
	unresolved := 0
	for _, v := range parts {
		f := m.function(t, v)
		got = append(append(append(got, f.Start), f.Taken...), f.Inbound...)
		for _, j := range plan.Prepare(f, &plan.Facts{}).Jumps() {
			got = append(got, j.To...)
			if j.Kind == plan.Unresolved {
				unresolved++
			}
		}
	}
	if unresolved > 0 && name != unknown {
		t.Errorf("%s: %d jumps are not understood", name, unresolved)
	}
	if unresolved > 0 {
		return
	}
	for _, v := range want {
		if !slices.Contains(got, m.Bias.Addr(v)) {
			t.Errorf("%s: the label at %v is missing", name, v)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	t.Logf("%s: %d places for %d labels", name, len(slices.Compact(got)), len(slices.Compact(slices.Clone(want))))
}
