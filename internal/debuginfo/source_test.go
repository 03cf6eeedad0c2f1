package debuginfo

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"trapless/internal/image"
	"trapless/internal/lang"
	"trapless/internal/testkit"
)

// source is that of one file.
func source(t *testing.T, path string) *Source {
	t.Helper()
	s := New("", func(*lang.AttachPoint) string { return path })
	t.Cleanup(s.Close)
	return s
}

// describe is a layout as text.
func describe(l *lang.Layout) string {
	var parts []string
	for _, f := range l.Fields {
		parts = append(parts, f.Type.String()+" "+f.Name)
	}
	return strings.Join(parts, ", ")
}

func TestParameters(t *testing.T) {
	for _, flags := range []testkit.Flags{nil, {"-gdwarf-4"}, {"-O0"}, {"-gdwarf-4", "-O0", "-gz=zlib"}, testkit.NoPIE} {
		s := source(t, testkit.Compile(t, "types.c", flags))
		for name, want := range map[string]string{
			"draw":     "struct shape * shape, int32 count, enum colour colour, int8* title, uint8 low, int16 last -> int64",
			"mix":      "int32 first, int64 second -> double",
			"by_value": "struct point p, int32 after -> int32",
			"large":    "uint8[8] , int32 n -> struct big",
			"tail":     "struct shape * s -> struct shape *",
			"nothing":  "unknown",
			"silent":   "int32 n -> none",
		} {
			got := "unknown"
			if l, result, ok := s.Args(&lang.AttachPoint{Kind: lang.Uprobe, Func: name}); ok {
				got = describe(l) + " -> " + result.String()
			}
			if got != want {
				t.Errorf("%v %s: %s, want %s", flags, name, got, want)
			}
		}
	}
}

// A variant that the compiler has made for itself has lost a parameter: what is left is not where the ABI has it.
func TestParametersOfAVariantAreRefused(t *testing.T) {
	s := source(t, testkit.Compile(t, "types.c"))
	file := s.fileOf(&lang.AttachPoint{})
	fs, err := file.image.Functions()
	if err != nil {
		t.Fatal(err)
	}
	found := fs.Match("altered*")
	if len(found) == 0 || !found[0].Altered {
		t.Skipf("the compiler has made no variant: %v", found)
	}
	if l, _, ok := s.Args(&lang.AttachPoint{Func: found[0].Symbol}); ok && len(l.Fields) > 0 && l.Fields[0].Name == "unused" {
		t.Errorf("%s has %s", found[0].Symbol, describe(l))
	}
}

func TestTypesByName(t *testing.T) {
	s := source(t, testkit.Compile(t, "types.c"))
	s.Use(&lang.AttachPoint{Kind: lang.Uprobe})
	shape, ok := s.Named("struct shape")
	if !ok {
		t.Fatal("there is no struct shape")
	}
	want := "struct shape * next, struct point at, struct point[3] corners, enum colour colour, uint32 flags, uint32 kind, int8 small, " +
		"union number number, int8* name, string label, double area, struct  , bool open"
	if got := describe(shape.Layout); got != want {
		t.Errorf("struct shape has %s\nwant %s", got, want)
	}
	if next := shape.Layout.Fields[0].Type; next.Elem.Layout != shape.Layout {
		t.Error("the next shape is another struct")
	}
	for _, f := range shape.Layout.Fields {
		if f.Name == "kind" && (f.Bits != 5 || 8*f.Offset+f.Shift != 8*44+3) {
			t.Errorf("kind lies at %d.%d, %d bits", f.Offset, f.Shift, f.Bits)
		}
	}
	for _, name := range []string{"enum colour", "union number", "struct point", "point"} {
		if _, ok := s.Named(name); !ok {
			t.Errorf("there is no %s", name)
		}
	}
	if _, ok := s.Named("struct nothing"); ok {
		t.Error("there is a struct nothing")
	}
}

// Debug information and names are found in files of their own, by the build id and by the name that is left.
func TestSeparateFiles(t *testing.T) {
	objcopy := testkit.Command(t, "objcopy", "binutils")
	whole := testkit.Compile(t, "types.c")
	dir := t.TempDir()
	stripped, debug := filepath.Join(dir, "types"), filepath.Join(dir, ".debug", "types.debug")
	if err := os.Mkdir(filepath.Dir(debug), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"--only-keep-debug", "--compress-debug-sections", whole, debug},
		{"--strip-all", "--remove-section=.note.gnu.build-id", "--add-gnu-debuglink=" + debug, whole, stripped},
	} {
		if out, err := exec.Command(objcopy, args...).CombinedOutput(); err != nil {
			t.Fatalf("objcopy %q: %v\n%s", args, err, out)
		}
	}
	s := source(t, stripped)
	l, _, ok := s.Args(&lang.AttachPoint{Kind: lang.Uprobe, Func: "draw"})
	if !ok || !strings.HasPrefix(describe(l), "struct shape * shape") {
		t.Errorf("draw in a stripped file: %v", l)
	}
	if err := os.WriteFile(debug, append(readFile(t, debug), 0), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, ok := source(t, stripped).Args(&lang.AttachPoint{Kind: lang.Uprobe, Func: "draw"}); ok {
		t.Error("a file with another checksum was taken")
	}
}

// Names are found in .gnu_debugdata, as Fedora's programs have them.
func TestMiniDebug(t *testing.T) {
	objcopy, xz := testkit.Command(t, "objcopy", "binutils"), testkit.Command(t, "xz", "xz-utils")
	whole := testkit.Compile(t, "types.c")
	dir := t.TempDir()
	mini, out := filepath.Join(dir, "mini"), filepath.Join(dir, "types")
	for _, cmd := range []*exec.Cmd{
		exec.Command(objcopy, "-S", "--remove-section=.comment", "--keep-symbol=draw", "--keep-symbol=tail", whole, mini),
		exec.Command(xz, "-k", mini),
		exec.Command(objcopy, "-S", "--add-section", ".gnu_debugdata="+mini+".xz", whole, out),
	} {
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", cmd.Args, err, text)
		}
	}
	b := readFile(t, out)
	f, err := image.New(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	if separate := AddSymbols("", out, f); separate != nil {
		separate.Close()
	}
	fs, err := f.Functions()
	if err != nil {
		t.Fatal(err)
	}
	if found, err := fs.Lookup("draw"); err != nil || len(found) != 1 {
		t.Errorf("draw: %v %v", found, err)
	}
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Whatever debug information holds, reading it ends, with an error or types.
func FuzzDWARF(f *testing.F) {
	path := testkit.Compile(f, "types.c")
	b, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	img, err := image.New(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		f.Fatal(err)
	}
	sections, err := img.DWARFSections()
	if err != nil {
		f.Fatal(err)
	}
	fs, err := img.Functions()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sections["info"], sections["abbrev"], sections["loclists"])
	f.Fuzz(func(t *testing.T, info, abbrev, loclists []byte) {
		changed := map[string][]byte{}
		for name, b := range sections {
			changed[name] = b
		}
		changed["info"], changed["abbrev"], changed["loclists"] = info, abbrev, loclists
		main, err := newPart(changed)
		if err != nil {
			return
		}
		file := &debugFile{image: img, functions: fs, main: main}
		for _, name := range []string{"struct shape", "enum colour", "number"} {
			if typ, ok := file.main.named(name); ok {
				_ = typ.String()
			}
		}
		for _, name := range []string{"draw", "by_value", "large"} {
			found, err := fs.Lookup(name)
			if err != nil {
				t.Fatal(err)
			}
			if l, _, err := file.parameters(found[0].Start); err == nil && l != nil && len(l.Fields) > len(integerRegisters) {
				t.Errorf("%d parameters in %d registers", len(l.Fields), len(integerRegisters))
			}
		}
	})
}
