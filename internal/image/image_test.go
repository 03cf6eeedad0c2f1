package image

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"trapless/internal/testkit"
)

// open reads a file's headers.
func open(t testing.TB, path string) *File {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return headers(t, file)
}

func headers(t testing.TB, file *os.File) *File {
	t.Helper()
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	f, err := New(file, info.Size())
	if err != nil {
		t.Fatalf("%s: %v", file.Name(), err)
	}
	return f
}

func functions(t testing.TB, f *File) *Functions {
	t.Helper()
	fs, err := f.Functions()
	if err != nil {
		t.Fatal(err)
	}
	return fs
}

// samples are files of every kind: what the system has, and what the compiler makes of one source.
func samples(t *testing.T) map[string]string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"PIE":           testkit.Compile(t, "symbols.c", testkit.PIE),
		"no PIE":        testkit.Compile(t, "symbols.c", testkit.NoPIE),
		"static":        testkit.Compile(t, "symbols.c", testkit.Static),
		"static PIE":    testkit.Compile(t, "symbols.c", testkit.Flags{"-static-pie"}),
		"stripped":      testkit.Compile(t, "symbols.c", testkit.Stripped),
		"exported":      testkit.Compile(t, "symbols.c", testkit.Stripped, testkit.Exported),
		"one code page": testkit.Compile(t, "symbols.c", testkit.Flags{"-Wl,-z,noseparate-code"}),
		"C++":           testkit.Compile(t, "names.cpp"),
		"Go":            self,
	}
	for _, path := range []string{
		"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2", "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
		"/usr/bin/python3", "/bin/sh",
	} {
		if _, err := os.Stat(path); err == nil {
			files[path] = path
		}
	}
	return files
}

// oracle runs a tool of binutils in the C locale.
func oracle(t testing.TB, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(testkit.Command(t, name, "binutils"), args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return string(out)
}

func TestHeadersAgreeWithReadelf(t *testing.T) {
	for name, path := range samples(t) {
		t.Run(name, func(t *testing.T) {
			f := open(t, path)
			var got strings.Builder
			fmt.Fprintf(&got, "%v entry %v\n", f.Kind, f.Entry)
			for _, s := range f.Segments {
				fmt.Fprintf(&got, "LOAD %#x %v %#x %#x exec %v write %v\n", uint64(s.Off), s.Addr, s.FileSize, s.MemSize, s.Exec, s.Write)
			}
			fmt.Fprintf(&got, "interp %q\n", f.Interp)
			fmt.Fprintf(&got, "dynamic %v\n", f.Dynamic)
			fmt.Fprintf(&got, "build id %s\n", hex.EncodeToString(f.BuildID))
			if want := headersOfReadelf(t, path); got.String() != want {
				t.Errorf("got:\n%s\nreadelf:\n%s", got.String(), want)
			}
		})
	}
}

// headersOfReadelf writes what readelf says in the form of the test above.
func headersOfReadelf(t *testing.T, path string) string {
	var kind, entry, interp, id string
	var loads strings.Builder
	dynamic := false
	for line := range strings.Lines(oracle(t, "readelf", "-hlnW", path)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch {
		case fields[0] == "Type:":
			kind = fields[1]
		case fields[0] == "Entry" && fields[1] == "point":
			entry = fields[3]
		case fields[0] == "LOAD":
			var off, vaddr, paddr, filesz, memsz uint64
			fmt.Sscanf(strings.Join(fields[1:6], " "), "0x%x 0x%x 0x%x 0x%x 0x%x", &off, &vaddr, &paddr, &filesz, &memsz)
			flags := strings.Join(fields[6:len(fields)-1], "")
			fmt.Fprintf(&loads, "LOAD %#x %#x %#x %#x exec %v write %v\n", off, vaddr, filesz, memsz,
				strings.Contains(flags, "E"), strings.Contains(flags, "W"))
		case fields[0] == "[Requesting":
			interp = strings.TrimSuffix(fields[len(fields)-1], "]")
		case fields[0] == "DYNAMIC":
			dynamic = true
		}
		if _, rest, ok := strings.Cut(line, "Build ID: "); ok {
			id = strings.TrimSpace(rest)
		}
	}
	return fmt.Sprintf("%s entry %s\n%sinterp %q\ndynamic %v\nbuild id %s\n", kind, entry, &loads, interp, dynamic, id)
}

func TestKindsOfProgram(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		path             string
		kind             Kind
		static, pie, goo bool
	}{
		{testkit.Compile(t, "symbols.c", testkit.PIE), Dyn, false, true, false},
		{testkit.Compile(t, "symbols.c", testkit.NoPIE), Exec, false, false, false},
		{testkit.Compile(t, "symbols.c", testkit.Static), Exec, true, false, false},
		{testkit.Compile(t, "symbols.c", testkit.Flags{"-static-pie"}), Dyn, true, true, false},
		{"/usr/lib/x86_64-linux-gnu/libm.so.6", Dyn, false, false, false},
		{self, Exec, true, false, true},
	} {
		if _, err := os.Stat(row.path); err != nil {
			t.Logf("not checked: %v", err)
			continue
		}
		f := open(t, row.path)
		if row.path == self && f.Dynamic { // go test links the C library for some packages
			row.static = false
		}
		if f.Kind != row.kind || f.Static() != row.static || f.PIE != row.pie || f.Go != row.goo {
			t.Errorf("%s: %v static %v PIE %v Go %v, want %+v", row.path, f.Kind, f.Static(), f.PIE, f.Go, row)
		}
	}
}

// smallELF is a sound file with one executable segment and no sections.
func smallELF() []byte {
	var b bytes.Buffer
	h := elf.Header64{
		Type: uint16(elf.ET_DYN), Machine: uint16(elf.EM_X86_64), Version: 1, Entry: 0x78, Phoff: 64,
		Ehsize: 64, Phentsize: 56, Phnum: 1, Shentsize: 64,
	}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	p := elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Filesz: 0x80, Memsz: 0x80, Align: 4096}
	for _, part := range []any{h, p, [8]byte{0xc3}} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			panic("BUG: " + err.Error())
		}
	}
	return b.Bytes()
}

func TestRefusedFiles(t *testing.T) {
	set := func(off int, value ...byte) func([]byte) []byte {
		return func(b []byte) []byte { copy(b[off:], value); return b }
	}
	const segment = 64
	for _, row := range []struct {
		name   string
		change func([]byte) []byte
		want   error
	}{
		{"sound", set(0), nil},
		{"empty", func(b []byte) []byte { return nil }, ErrNotELF},
		{"script", func(b []byte) []byte { return []byte("#!/usr/bin/python3\nprint('hello')\n") }, ErrNotELF},
		{"32-bit", set(elf.EI_CLASS, byte(elf.ELFCLASS32)), Err32Bit},
		{"big-endian", set(elf.EI_DATA, byte(elf.ELFDATA2MSB)), ErrMachine},
		{"arm64", set(18, byte(elf.EM_AARCH64)), ErrMachine},
		{"object file", set(16, byte(elf.ET_REL)), ErrType},
		{"core", set(16, byte(elf.ET_CORE)), ErrType},
		{"header cut", func(b []byte) []byte { return b[:40] }, ErrMalformed},
		{"no program headers", set(56, 0), ErrMalformed},
		{"too many program headers", set(56, 0xff, 0xff), ErrMalformed},
		{"program headers of another size", set(54, 32), ErrMalformed},
		{"program headers outside", set(32, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), ErrMalformed},
		{"nothing loaded", set(segment, byte(elf.PT_NOTE)), ErrMalformed},
		{"segment longer than the file", set(segment+32, 0xff, 0xff), ErrMalformed},
		{"segment smaller in memory", set(segment+40, 1), ErrMalformed},
		{"segment that cannot be mapped", set(segment+16, 1), ErrMalformed},
		{"segment around the end of memory", set(segment+16, 0, 0xf0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0x20), ErrMalformed},
		{"sections outside", set(40, 0xff, 0xff, 0xff), ErrMalformed},
		{"section count outside", set(40, 64), ErrMalformed},
	} {
		b := row.change(smallELF())
		_, err := New(bytes.NewReader(b), int64(len(b)))
		var format *FormatError
		if row.want == nil && err == nil {
			continue
		}
		if !errors.Is(err, row.want) || !errors.As(err, &format) || format.Detail == "" {
			t.Errorf("%s: %v, want %v with a detail", row.name, err, row.want)
		}
	}
}

// A file that shrinks while it is read gives an error, not a short table.
func TestFileThatShrinks(t *testing.T) {
	b := smallELF()
	if _, err := New(bytes.NewReader(b[:70]), int64(len(b))); err == nil {
		t.Error("no error")
	}
}

func TestSegmentsOfAnImageInMemoryOnly(t *testing.T) {
	b := smallELF()
	f, err := New(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	fs := functions(t, f)
	if n := len(fs.All()); n != 0 {
		t.Errorf("%d functions in a file without symbols", n)
	}
	var notFound *NotFoundError
	if _, err := fs.Lookup("main"); !errors.As(err, &notFound) || !notFound.NoSymtab {
		t.Errorf("lookup: %v, want not found in a stripped file", err)
	}
}
