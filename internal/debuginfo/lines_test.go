package debuginfo

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"trapless/internal/image"
	"trapless/internal/lang"
	"trapless/internal/testkit"
)

// decodedLines are the addresses of statements of a source file by line, as objdump reads them.
func decodedLines(t *testing.T, program, file string) map[int][]uint64 {
	t.Helper()
	out, err := exec.Command(testkit.Command(t, "objdump", "binutils"), "--dwarf=decodedline", program).Output()
	if err != nil {
		t.Fatal(err)
	}
	all := map[int][]uint64{}
	for in := bufio.NewScanner(bytes.NewReader(out)); in.Scan(); {
		f := strings.Fields(in.Text())
		if len(f) < 4 || f[0] != file || f[len(f)-1] != "x" {
			continue
		}
		line, err1 := strconv.Atoi(f[1])
		addr, err2 := strconv.ParseUint(f[2], 0, 64)
		if err1 == nil && err2 == nil {
			all[line] = append(all[line], addr)
		}
	}
	return all
}

// A line's addresses are the lowest of its statements in each function, as objdump lists them.
func TestLines(t *testing.T) {
	for _, flags := range []testkit.Flags{nil, {"-O0"}, {"-gdwarf-4"}, testkit.NoPIE} {
		path := testkit.Compile(t, "types.c", flags)
		s := source(t, path)
		fs, err := s.fileOf(&lang.AttachPoint{}).functionTable()
		if err != nil {
			t.Fatal(err)
		}
		oracle := decodedLines(t, path, "types.c")
		if len(oracle) < 10 {
			t.Fatalf("objdump knows %d lines", len(oracle))
		}
		for line, addrs := range oracle {
			lowest := map[image.VAddr]uint64{}
			for _, at := range addrs {
				fn, ok := fs.At(image.VAddr(at))
				if old, known := lowest[fn.Start]; ok && (!known || at < old) {
					lowest[fn.Start] = at
				}
			}
			var want []uint64
			for _, at := range lowest {
				want = append(want, at)
			}
			slices.Sort(want)
			if got, err := s.Lines(&lang.AttachPoint{Source: "targets/types.c", Line: line}); err != nil || !slices.Equal(got, want) {
				t.Errorf("%v line %d: %#x %v, want %#x", flags, line, got, err, want)
			}
		}
	}
}

func TestLinesThatAreNot(t *testing.T) {
	s := source(t, testkit.Compile(t, "types.c"))
	for _, row := range []struct {
		a    lang.AttachPoint
		want string
	}{
		{lang.AttachPoint{Source: "types.c", Line: 1}, "there is no code of types.c:1; the nearest is of line "},
		{lang.AttachPoint{Source: "ypes.c", Line: 37}, "there is no code of a file ypes.c"},
		{lang.AttachPoint{Source: "/types.c", Line: 37}, "there is no code of a file /types.c"},
		{lang.AttachPoint{Source: "types.c", Line: 37, Column: 99}, "no statement of types.c:37 begins in column 99; there are ["},
	} {
		if _, err := s.Lines(&row.a); err == nil || !strings.HasPrefix(err.Error(), row.want) {
			t.Errorf("%s:%d: %v, want %s", row.a.Source, row.a.Line, err, row.want)
		}
	}
}

func TestSignatures(t *testing.T) {
	path := testkit.Compile(t, "types.c")
	s, err := OpenSignatures("", path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	fs, err := s.file.functionTable()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"draw":     "long int (struct shape* shape, int count, enum colour colour, const char* title, unsigned char low, short int last)",
		"mix":      "double (double a, int first, float b, long int second)",
		"by_value": "int (struct point p, int after)",
		"tail":     "struct shape* (struct shape* s)",
		"silent":   "void (int n)",
	} {
		found, err := fs.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		params, result, ok := s.Of(found[0].Start)
		if got := fmt.Sprintf("%s (%s)", result, strings.Join(params, ", ")); !ok || got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}

// Debug information that was split off is found in files of its own, and in a pack of them.
func TestSplitFiles(t *testing.T) {
	cc := testkit.Command(t, "gcc", "gcc")
	for _, optimized := range []string{"-O0", "-O2"} {
		t.Run(optimized, func(t *testing.T) {
			dir := t.TempDir()
			cmd := exec.Command(cc, "-g", "-gsplit-dwarf", optimized, "-pthread", "-o", "types", testkit.TargetSource(t, "types.c"))
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			checkSplit(t, filepath.Join(dir, "types"))
			packUp(t, dir)
			checkSplit(t, filepath.Join(dir, "types"))
		})
	}
}

// packUp replaces the files with what was split off from types by a pack.
func packUp(t *testing.T, dir string) {
	t.Helper()
	var said []string
	for _, dwp := range []string{"llvm-dwp", "dwp"} { // of binutils 2.40 it crashes
		cmd := exec.Command(dwp, "-e", "types", "-o", "types.dwp")
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			said = append(said, fmt.Sprintf("%s: %v %s", dwp, err, out))
			continue
		}
		own, err := filepath.Glob(filepath.Join(dir, "*.dwo"))
		if err != nil || len(own) != 1 {
			t.Fatalf("%v %v", own, err)
		}
		if err := os.Remove(own[0]); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Skipf("no program makes a pack: %s", strings.Join(said, "; "))
}

func checkSplit(t *testing.T, path string) {
	t.Helper()
	s := source(t, path)
	const want = "struct shape * shape, int32 count, enum colour colour, int8* title, uint8 low, int16 last -> int64"
	if l, result, ok := s.Args(&lang.AttachPoint{Kind: lang.Uprobe, Func: "draw"}); !ok || describe(l)+" -> "+result.String() != want {
		t.Errorf("draw has %v, want %s", l, want)
	}
	s.Use(&lang.AttachPoint{Kind: lang.Uprobe})
	if _, ok := s.Named("struct big"); !ok {
		t.Error("there is no struct big")
	}
	if _, err := s.Lines(&lang.AttachPoint{Source: "types.c", Line: 37}); err != nil {
		t.Error(err)
	}
}

// Separate files are also looked for in directories that are named.
func TestSeparateFilesInDirectories(t *testing.T) {
	objcopy := testkit.Command(t, "objcopy", "binutils")
	dir := t.TempDir()
	stripped, debug := filepath.Join(dir, "types"), filepath.Join(dir, "kept", "types.debug")
	if err := os.Mkdir(filepath.Dir(debug), 0o755); err != nil {
		t.Fatal(err)
	}
	whole := testkit.Compile(t, "types.c", testkit.Flags{"-Wl,--build-id"})
	for _, args := range [][]string{{"--only-keep-debug", whole, debug}, {"--strip-all", whole, stripped}} {
		if out, err := exec.Command(objcopy, args...).CombinedOutput(); err != nil {
			t.Fatalf("objcopy %q: %v\n%s", args, err, out)
		}
	}
	resolve := func(*lang.AttachPoint) string { return stripped }
	for dirs, want := range map[string]bool{"": false, filepath.Join(dir, "kept"): true, "kept": true, debug: true, dir: false} {
		s := New("", resolve, dirs)
		if _, _, ok := s.Args(&lang.AttachPoint{Kind: lang.Uprobe, Func: "draw"}); ok != want {
			t.Errorf("in %q: %v, want %v", dirs, ok, want)
		}
		s.Close()
	}
}

// Whatever a pack's index holds, reading it ends.
func FuzzPack(f *testing.F) {
	f.Add([]byte{5, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0}, uint64(7))
	f.Fuzz(func(t *testing.T, index []byte, id uint64) {
		var k pack
		k.read(map[string][]byte{"cu_index": index, "info": make([]byte, 64), "abbrev": make([]byte, 8)})
		for _, b := range k.unit(id) {
			if len(b) > 64 {
				t.Errorf("%d bytes of 64", len(b))
			}
		}
	})
}
