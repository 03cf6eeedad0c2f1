package image

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"trapless/internal/testkit"
)

// goPrograms are the same source, built in every way.
func goPrograms(t testing.TB) map[string]string {
	return map[string]string{
		"pure":     testkit.CompileGo(t, "goshapes.go", testkit.PureGo),
		"PIE":      testkit.CompileGo(t, "goshapes.go", testkit.GoPIE),
		"stripped": testkit.CompileGo(t, "goshapes.go", testkit.GoStripped),
		"cgo":      testkit.CompileGo(t, "gocgo.go", testkit.CGO),
		"cgo PIE":  testkit.CompileGo(t, "gocgo.go", testkit.CGOPIE),
		"Go 1.19":  testkit.CompileGo(t, "goshapes.go", testkit.OldGo),
	}
}

// strip is a copy of a file without symbols, by the linker's own tool.
func strip(t *testing.T, path string) string {
	t.Helper()
	out := t.TempDir() + "/stripped"
	if text, err := exec.Command("strip", "-o", out, path).CombinedOutput(); err != nil {
		t.Fatalf("strip: %v\n%s", err, text)
	}
	return out
}

// What the symbol table says of Go's functions, the function table says too, also without symbols.
func TestGoTableAgreesWithSymbols(t *testing.T) {
	for name, path := range goPrograms(t) {
		if name == "stripped" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			whole := functions(t, open(t, path))
			stripped := functions(t, open(t, strip(t, path)))
			if whole.Go == nil || stripped.Go == nil {
				t.Fatal(whole.GoProblem, stripped.GoProblem)
			}
			checked := 0
			for _, fn := range whole.All() {
				if !fn.Go || fn.Bounds != Stated {
					continue
				}
				got, ok := stripped.At(fn.Start)
				if !ok || got.Range != fn.Range || !got.Go || got.Asm != fn.Asm || got.Wrapper != fn.Wrapper {
					t.Errorf("%s: %+v, stripped %+v", fn.Name(), fn, got)
				}
				if got.Name() != strings.TrimSuffix(fn.Name(), ".abi0") {
					t.Errorf("%v: %q, stripped %q", fn.Start, fn.Names, got.Names)
				}
				checked++
			}
			if checked < 1000 {
				t.Errorf("only %d functions compared", checked)
			}
			t.Logf("%d functions", checked)
		})
	}
}

// Which code is Go's: all that Go's own tool lists from Go packages, and no C function.
func TestGoTableTellsGoFromC(t *testing.T) {
	fs := functions(t, open(t, testkit.CompileGo(t, "gocgo.go", testkit.CGO)))
	for name, want := range map[string]bool{
		"main.probedCall": true, "main.goSquare": true, "runtime.mallocgc": true, "runtime.memmove": true,
		"goSquare": false, "_start": false, "c_add": false, "_cgo_export_init": false, "x_cgo_thread_start": false,
	} {
		found, err := fs.Lookup(name)
		if err != nil {
			t.Logf("%v", err) // C's names differ between versions
			continue
		}
		if found[0].Go != want {
			t.Errorf("%s: Go is %v", name, found[0].Go)
		}
	}
	asm, err := fs.Lookup("runtime.memmove")
	if err != nil || len(asm) != 1 || !asm[0].Asm {
		t.Errorf("runtime.memmove: %+v, %v", asm, err)
	}
}

// A name that stands for a function and its wrapper means the function, stripped or not.
func TestGoWrappersAreLeftOut(t *testing.T) {
	for _, name := range []string{"pure", "stripped"} {
		fs := functions(t, open(t, goPrograms(t)[name]))
		wrappers := 0
		for _, fn := range fs.All() {
			if !fn.Wrapper {
				continue
			}
			wrappers++
			found, err := fs.Lookup(strings.TrimSuffix(fn.Name(), ".abi0"))
			if err != nil || len(found) != 1 || found[0].Wrapper {
				t.Errorf("%s: %s: %d functions, %v", name, fn.Name(), len(found), err)
			}
		}
		if wrappers < 10 {
			t.Errorf("%s: %d wrappers", name, wrappers)
		}
		for _, m := range fs.Match("runtime.*") {
			if m.Wrapper {
				t.Errorf("%s: the wildcard found the wrapper %s", name, m.Name())
			}
		}
	}
}

func TestGoNames(t *testing.T) {
	for _, name := range []string{"pure", "stripped", "PIE"} {
		fs := functions(t, open(t, goPrograms(t)[name]))
		for _, want := range []string{"main.leaf", "main.(*tree).Sum", "main.number.Twice", "main.main.func1", "main.largest[go.shape.int]"} {
			if found, err := fs.Lookup(want); err != nil || !found[0].Entry {
				t.Errorf("%s: %s: %v", name, want, err)
			}
		}
		if n := len(fs.Match("main.*")); n < 8 || n > 40 {
			t.Errorf("%s: main.* are %d functions", name, n)
		}
		if n := len(fs.Match("strings.*")); n < 5 {
			t.Errorf("%s: strings.* are %d functions", name, n)
		}
	}
}

// The depth of the stack, against the debugger's table (.debug_frame) as readelf interprets it.
func TestGoDepthsAgreeWithDebugFrame(t *testing.T) {
	path := testkit.CompileGo(t, "goshapes.go", testkit.PureGo)
	fs := functions(t, open(t, path))
	rows, functions := 0, 0
	var at VAddr
	for line := range strings.Lines(oracle(t, "readelf", "-W", "--debug-dump=frames-interp", path)) {
		if _, pc, ok := strings.Cut(line, " pc="); ok {
			fmt.Sscanf(pc, "%x", &at)
			functions++
			continue
		}
		var loc VAddr
		var cfa int32
		if n, _ := fmt.Sscanf(line, "%x rsp+%d", &loc, &cfa); n != 2 || loc < 0x1000 || at == 0 {
			continue
		}
		fn, ok := fs.At(loc)
		if !ok || !fn.Go || fn.Start != at || fn.SPWrite {
			continue
		}
		depth, known := int32(-1), false
		fs.Go.Depths(fn.Start, func(end VAddr, d int32) bool {
			depth, known = d, loc < end
			return !known
		})
		if !known || depth != cfa-8 {
			t.Errorf("%s at %v: depth %d (%v), readelf has a frame of %d", fn.Name(), loc, depth, known, cfa)
		}
		rows++
	}
	if functions < 1000 || rows < 2*functions {
		t.Errorf("only %d rows of %d functions compared", rows, functions)
	}
	t.Logf("%d rows of %d functions", rows, functions)
}

// A Go file whose table cannot be read says so: nobody may take its functions for C.
func TestGoTableProblems(t *testing.T) {
	path := testkit.CompileGo(t, "goshapes.go", testkit.GoStripped)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	section, err := elf.NewFile(bytes.NewReader(whole))
	if err != nil {
		t.Fatal(err)
	}
	at := section.Section(".gopclntab").Offset
	for _, row := range []struct {
		name string
		off  uint64
		put  []byte
	}{
		{"of Go 1.16", 0, []byte{0xfa}},
		{"too many functions", 8, []byte{0xff, 0xff, 0xff, 0xff}},
		{"names outside", 32, []byte{0xff, 0xff, 0xff, 0xff}},
		{"another word size", 7, []byte{4}},
	} {
		b := bytes.Clone(whole)
		copy(b[at+row.off:], row.put)
		f, err := New(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		fs := functions(t, f)
		if fs.Go != nil || !errors.Is(fs.GoProblem, ErrNoGoTable) {
			t.Errorf("%s: %v", row.name, fs.GoProblem)
		}
	}
}

// Without section headers the table is found by how it begins.
func TestGoTableWithoutSections(t *testing.T) {
	for _, name := range []string{"stripped", "cgo PIE"} {
		f := open(t, goPrograms(t)[name])
		want := functions(t, f)
		if name == "stripped" { // where the relocations stand is a matter of sections
			f.sections = nil
		} else {
			for i := range f.sections {
				f.sections[i].Name = 0
			}
		}
		got := functions(t, f)
		if got.Go == nil || len(got.Go.funcs) != len(want.Go.funcs) || got.Go.funcs[9] != want.Go.funcs[9] {
			t.Errorf("%s: %v", name, got.GoProblem)
		}
	}
}

// smallGo is a file with a function table of two functions, at fixed addresses.
func smallGo() []byte {
	const code, data, table = 0x400000, 0x401000, 0x1100
	var b bytes.Buffer
	put := func(parts ...any) {
		for _, part := range parts {
			if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
				panic("BUG: " + err.Error())
			}
		}
	}
	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: 1, Entry: code, Phoff: 64,
		Ehsize: 64, Phentsize: 56, Phnum: 3, Shentsize: 64}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	put(h, elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: code, Filesz: 0x1000, Memsz: 0x1000, Align: 4096},
		elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_W), Off: 0x1000, Vaddr: data, Filesz: 0x300, Memsz: 0x300, Align: 4096},
		elf.Prog64{Type: uint32(elf.PT_NOTE), Off: 0xf00, Filesz: 20, Align: 4})
	b.Write(make([]byte, 0xf00-b.Len()))
	put(uint32(3), uint32(4), uint32(4), []byte("Go\x00\x00"), uint32(0))
	b.Write(make([]byte, 0x1000-b.Len()))
	module := make([]uint64, goModuleWords)
	module[0], module[goModuleText] = data+table-0x1000, code+0x800
	module[goModuleMinPC], module[goModuleMinPC+1] = code+0x800, code+0x820
	put(module)
	b.Write(make([]byte, table-b.Len()))
	put(goHeader{Magic: goMagic120, MinLC: 1, PtrSize: 8, NFunc: 2, Names: 0x48, Values: 0x60, FunctionTab: 0x70},
		[]byte("\x00main.f\x00main.g\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
		[]byte{0, 2, 4, 16, 16, 15, 4, 0, 2, 8, 0, 0, 0, 0, 0, 0}, // f: 0, then 8, then 0; g: 0
		[]uint32{0, 24, 0x10 + 8, 24 + goFuncSize, 0x20, 0},
		[]uint32{0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, []uint32{0x18, 8, 0, 0, 8, 0, 0, 0, 0, 0, 0x0417})
	b.Write(make([]byte, 0x1300-b.Len()))
	return b.Bytes()
}

func TestSmallGoFile(t *testing.T) {
	b := smallGo()
	f, err := New(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	fs := functions(t, f)
	if fs.Go == nil {
		t.Fatal(fs.GoProblem)
	}
	var got []string
	for _, fn := range fs.All() {
		s := fmt.Sprint(fn.Name(), fn.Range, fn.Asm, ":")
		fs.Go.Depths(fn.Start, func(end VAddr, depth int32) bool {
			s += fmt.Sprint(" ", depth, " to ", end)
			return true
		})
		got = append(got, s)
	}
	want := "main.f[0x400800, 0x400818) false: 0 to 0x400804 8 to 0x400814 0 to 0x400818|" +
		"main.g[0x400818, 0x400820) true: 0 to 0x400820"
	if s := strings.Join(got, "|"); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
}

// A function table that says anything ends in functions inside the code, or in a reason.
func FuzzGoTable(f *testing.F) {
	small := smallGo()
	const head = 0x1000 // what follows is fuzzed
	f.Add(small[head:])
	f.Fuzz(func(t *testing.T, b []byte) {
		b = append(bytes.Clone(small[:head]), b...)
		b = append(b, make([]byte, max(0, len(small)-len(b)))...)
		file, err := New(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		fs, err := file.Functions()
		if err != nil {
			return
		}
		if (fs.Go == nil) != (fs.GoProblem != nil) {
			t.Fatal("neither a table nor a reason, or both")
		}
		for _, fn := range fs.All() {
			useFunction(t, fs, fn)
		}
		fs.Lookup("main.f")
	})
}
