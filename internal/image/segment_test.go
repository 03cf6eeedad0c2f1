package image

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"trapless/internal/abi"
	"trapless/internal/testkit"
)

// mappingsOf returns the executable mappings of a process by the file's base name.
func mappingsOf(t *testing.T, pid int) map[string]testkit.Mapping {
	t.Helper()
	m := map[string]testkit.Mapping{}
	for _, mapping := range testkit.Mappings(t, pid) {
		if strings.Contains(mapping.Perms, "x") && mapping.Inode != 0 {
			m[mapping.Path] = mapping
		}
	}
	return m
}

// The bias computed from each mapping must lead from every function in the file to the same bytes in the
// process.
func TestBiasLeadsToTheSameBytes(t *testing.T) {
	for _, flags := range []testkit.Flags{testkit.PIE, testkit.NoPIE, testkit.Static, {"-static-pie"}, {"-Wl,-z,noseparate-code"}} {
		t.Run(fmt.Sprint(flags), func(t *testing.T) {
			p := startSymbols(t, flags)
			mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", p.Pid))
			if err != nil {
				t.Skipf("needs to read another process's memory: %v", err)
			}
			defer mem.Close()
			checked := 0
			for path, m := range mappingsOf(t, p.Pid) {
				f := open(t, path)
				bias, err := f.BiasOf(abi.Addr(m.Start), Offset(m.Offset), true)
				if err != nil {
					t.Fatalf("%v: %v", m, err)
				}
				checked += compareFunctions(t, f, bias, mem)
				checkSlack(t, f, bias, abi.Addr(m.End))
			}
			if checked < 20 {
				t.Errorf("only %d functions compared", checked)
			}
		})
	}
}

// startSymbols starts the target and passes over the addresses that it prints first.
func startSymbols(t *testing.T, flags ...testkit.Flags) *testkit.Target {
	t.Helper()
	p, _ := symbolsAddresses(t, testkit.Compile(t, "symbols.c", flags...))
	return p
}

func compareFunctions(t *testing.T, f *File, bias Bias, mem *os.File) int {
	t.Helper()
	fs := functions(t, f)
	for _, fn := range fs.All() {
		code, err := fs.Code(fn)
		if err != nil {
			t.Errorf("%v %s: %v", fn.Range, fn.Name(), err)
			continue
		}
		live := make([]byte, len(code))
		if _, err := mem.ReadAt(live, int64(bias.Addr(fn.Start))); err != nil || !bytes.Equal(code, live) {
			t.Errorf("%v %s differs in memory at %v (%v)", fn.Range, fn.Name(), bias.Addr(fn.Start), err)
		}
		if back := bias.VAddr(bias.Addr(fn.Start)); back != fn.Start {
			t.Errorf("%v became %v", fn.Start, back)
		}
	}
	return len(fs.All())
}

// The slack of the executable segment must reach to the end of the mapping.
func checkSlack(t *testing.T, f *File, bias Bias, end abi.Addr) {
	t.Helper()
	executable := slices.IndexFunc(f.Segments, func(s Segment) bool { return s.Exec })
	segmentEnd := bias.Addr(f.Segments[executable].inFile().End)
	slack := f.Slack()
	if segmentEnd == end {
		if len(slack) != 0 {
			t.Errorf("slack %v of a segment that fills its pages", slack)
		}
		return
	}
	want := abi.Range{Start: segmentEnd, End: end}
	if len(slack) != 1 || bias.Range(slack[0]) != want {
		t.Errorf("slack %v, want %v", slack, want)
	}
}

func TestOffsetsAndAddressesAreInverse(t *testing.T) {
	for name, path := range samples(t) {
		f := open(t, path)
		for _, s := range f.Segments {
			if s.FileSize == 0 {
				continue
			}
			for _, v := range []VAddr{s.Addr, s.Addr + VAddr(s.FileSize)/2, s.Addr + VAddr(s.FileSize) - 1} {
				off, ok := f.OffsetOf(v)
				if !ok {
					t.Errorf("%s: no offset of %v", name, v)
				}
				if back, ok := f.VAddrOf(off); !ok || back != v {
					t.Errorf("%s: %v is at offset %#x, which is loaded at %v", name, v, uint64(off), back)
				}
			}
			if off, ok := f.OffsetOf(s.Addr + VAddr(s.MemSize)); ok && name != "one code page" {
				if _, inSegment := f.VAddrOf(off); !inSegment {
					t.Errorf("%s: an offset behind a segment", name)
				}
			}
		}
	}
}

// One page of a file is often mapped twice, as the end of a segment and as the start of the next.
func TestBiasOfAPageMappedTwice(t *testing.T) {
	f := &File{Kind: Dyn, Segments: []Segment{
		{Off: 0, Addr: 0, FileSize: 0x1800, MemSize: 0x1800, Exec: true},
		{Off: 0x1800, Addr: 0x3800, FileSize: 0x400, MemSize: 0x800, Write: true},
	}}
	for _, row := range []struct {
		start abi.Addr
		off   Offset
		exec  bool
		want  Bias
		ok    bool
	}{
		{0x7f0000000000, 0, true, 0x7f0000000000, true},
		{0x7f0000001000, 0x1000, true, 0x7f0000000000, true},  // the end of the text
		{0x7f0000003000, 0x1000, false, 0x7f0000000000, true}, // the start of the data
		{0x7f0000000000, 0, false, 0x7f0000000000, true},      // text made unexecutable since
		{0x7f0000000000, 0x2000, true, 0, false},
		{0x7f0000000010, 0, true, 0, false},
	} {
		got, err := f.BiasOf(row.start, row.off, row.exec)
		if got != row.want || (err == nil) != row.ok {
			t.Errorf("BiasOf(%v, %#x, %v) = %#x, %v; want %#x, %v", row.start, uint64(row.off), row.exec, uint64(got), err, uint64(row.want), row.ok)
		}
	}
	f.Kind = Exec
	if _, err := f.BiasOf(0x7f0000000000, 0, true); err == nil {
		t.Error("a program at fixed addresses was accepted elsewhere")
	}
}

func TestSlackIsNotMappedOver(t *testing.T) {
	text := Segment{Addr: 0x1000, FileSize: 0x800, MemSize: 0x800, Exec: true}
	for _, row := range []struct {
		name     string
		segments []Segment
		want     string
	}{
		{"alone", []Segment{text}, "[[0x1800, 0x2000)]"},
		{"data pages later", []Segment{text, {Addr: 0x2000, MemSize: 8}}, "[[0x1800, 0x2000)]"},
		{"data in the same page", []Segment{text, {Addr: 0x1900, MemSize: 8}}, "[]"},
		{"full pages", []Segment{{Addr: 0x1000, FileSize: 0x1000, MemSize: 0x1000, Exec: true}}, "[]"},
		{"zero-filled tail", []Segment{{Addr: 0x1000, FileSize: 0x800, MemSize: 0x900, Exec: true}}, "[]"},
	} {
		f := &File{Segments: row.segments}
		if got := fmt.Sprint(f.Slack()); got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
}

func TestLinkageAgreesWithReadelf(t *testing.T) {
	for name, path := range samples(t) {
		var want []string
		for line := range strings.Lines(oracle(t, "readelf", "-SW", path)) {
			_, line, _ = strings.Cut(line, "] ")
			fields := strings.Fields(line)
			if len(fields) > 5 && slices.Contains(linkage, fields[0]) {
				var at, size uint64
				fmt.Sscanf(fields[2]+" "+fields[4], "%x %x", &at, &size)
				want = append(want, fmt.Sprintf("%s [%#x, %#x)", fields[0], at, at+size))
			}
		}
		var got []string
		for _, r := range open(t, path).Linkage() {
			got = append(got, r.Name+" "+r.Range.String())
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, readelf says %q", name, got, want)
		}
	}
}

// The program says itself where its restartable sequence is.
func TestCriticals(t *testing.T) {
	for _, flags := range []testkit.Flags{testkit.PIE, testkit.NoPIE, testkit.Static, testkit.Stripped, {"-Wl,-z,pack-relative-relocs"}} {
		path := testkit.Compile(t, "rseq.c", flags, testkit.Exported)
		p := testkit.StartCommand(t, command(path))
		var start, length, abort int64
		if _, err := fmt.Sscanf(p.Line(), "critical %d %d %d", &start, &length, &abort); err != nil {
			t.Fatal(err)
		}
		f := open(t, path)
		bump := VAddr(0)
		if found, err := functions(t, f).Lookup("bump"); err == nil {
			bump = found[0].Start
		} else if !slices.Equal(flags, testkit.Stripped) { // a static program that is stripped has no names
			t.Fatal(err)
		}
		criticals, err := f.Criticals()
		if err != nil || len(criticals) != 1 {
			t.Fatalf("%v: %v, %v; want one sequence", flags, criticals, err)
		}
		c := criticals[0]
		if c.Body.Start != bump+VAddr(start) || int64(c.Body.Len()) != length || c.Abort != bump+VAddr(abort) {
			t.Errorf("%v: %+v, want bump (%v) + %d, length %d, abort + %d", flags, c, bump, start, length, abort)
		}
		if sig, err := f.Code(c.Signature()); err != nil || !bytes.Equal(sig, []byte{0x53, 0x30, 0x05, 0x53}) {
			t.Errorf("%v: signature %x, %v", flags, sig, err)
		}
		p.Stop()
	}
	if criticals, err := open(t, filepath.Clean("/proc/self/exe")).Criticals(); err != nil || len(criticals) != 0 {
		t.Errorf("this test has restartable sequences: %v, %v", criticals, err)
	}
}
