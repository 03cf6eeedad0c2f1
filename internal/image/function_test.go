package image

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"trapless/internal/testkit"
)

func command(path string, args ...string) *exec.Cmd { return exec.Command(path, args...) }

// symbolsAddresses starts the target symbols and returns what it says: offsets of functions from anchor.
func symbolsAddresses(t *testing.T, path string) (*testkit.Target, map[string]int64) {
	t.Helper()
	p := testkit.StartCommand(t, command(path))
	addresses := map[string]int64{}
	for {
		line := p.Line()
		if strings.HasPrefix(line, "ready ") {
			return p, addresses
		}
		var name string
		var offset int64
		if _, err := fmt.Sscanf(line, "address %s %d", &name, &offset); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		addresses[name] = offset
	}
}

// Every function symbol that readelf lists must be there, and no other.
func TestNamesAgreeWithReadelf(t *testing.T) {
	for name, path := range samples(t) {
		t.Run(name, func(t *testing.T) {
			f := open(t, path)
			want := symbolsOfReadelf(t, f, path)
			got := map[string]bool{}
			for _, fn := range functions(t, f).All() {
				for _, n := range fn.Names {
					if fn.Go && !want[fmt.Sprintf("%v %s", fn.Start, n)] {
						continue // of Go's function table
					}
					got[fmt.Sprintf("%v %s", fn.Start, n)] = true
				}
			}
			for key := range want {
				if !got[key] {
					t.Errorf("missing: %s", key)
				}
			}
			for key := range got {
				if !want[key] {
					t.Errorf("not in readelf: %s", key)
				}
			}
			t.Logf("%d names", len(want))
		})
	}
}

func symbolsOfReadelf(t *testing.T, f *File, path string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for line := range strings.Lines(oracle(t, "readelf", "-sW", path)) {
		// Num: Value Size Type Bind Vis Ndx Name
		line = strings.Replace(line, "<OS specific>: 10", "IFUNC", 1) // where strip dropped the mark of the GNU ABI
		fields := strings.Fields(line)
		if len(fields) < 8 || fields[3] != "FUNC" && fields[3] != "IFUNC" || fields[6] == "UND" {
			continue
		}
		var v VAddr
		fmt.Sscanf(fields[1], "%x", &v)
		n := line // Go's names have spaces: what is left of the line behind seven fields
		for _, field := range fields[:7] {
			_, n, _ = strings.Cut(n, field)
		}
		n = strings.TrimSpace(n)
		n, _, _ = strings.Cut(n, "@@") // the default version
		if f.executable(v) != nil {
			all[fmt.Sprintf("%v %s", v, n)] = true
		}
	}
	return all
}

// Sizes, against nm.
func TestSizesAgreeWithNM(t *testing.T) {
	for name, path := range samples(t) {
		f := open(t, path)
		fs := functions(t, f)
		largest := map[VAddr]uint64{}
		for _, table := range []string{"--dynamic", "--synthetic"} {
			for line := range strings.Lines(oracle(t, "nm", "-S", "--format=posix", table, path)) {
				fields := strings.Fields(line)
				if len(fields) < 4 || !strings.Contains("TtWwi", fields[len(fields)-3]) {
					continue
				}
				var v VAddr
				var size uint64
				fmt.Sscanf(fields[len(fields)-2]+" "+fields[len(fields)-1], "%x %x", &v, &size)
				largest[v] = max(largest[v], size)
			}
		}
		checked := 0
		for _, fn := range fs.All() {
			if fn.Bounds != Stated {
				continue
			}
			if size, listed := largest[fn.Start]; listed && fn.Len() != size {
				t.Errorf("%s: %s has %d bytes, nm says %d", name, fn.Name(), fn.Len(), size)
			}
			checked++
		}
		if checked == 0 && name != "stripped" && name != "/bin/sh" && name != "/lib64/ld-linux-x86-64.so.2" {
			t.Errorf("%s: no sizes compared", name)
		}
	}
}

// The unwind table, against readelf's: functions, and what signal handlers return to.
func TestUnwindRangesAgreeWithReadelf(t *testing.T) {
	signals := 0
	for name, path := range samples(t) {
		t.Run(name, func(t *testing.T) {
			f := open(t, path)
			wantFunctions, wantSignals := unwindRangesOfReadelf(t, f, path)
			for _, c := range []struct {
				what string
				read func() ([]Range, error)
				want map[Range]bool
			}{{"functions", f.unwindRanges, wantFunctions}, {"signal frames", f.SignalFrames, wantSignals}} {
				ranges, err := c.read()
				if err != nil {
					t.Fatal(err)
				}
				got := map[Range]bool{}
				for _, r := range ranges {
					got[r] = true
				}
				if !maps.Equal(got, c.want) {
					t.Errorf("%d %s, readelf has %d", len(got), c.what, len(c.want))
				}
				t.Logf("%d %s", len(got), c.what)
			}
			signals += len(wantSignals)
		})
	}
	if signals == 0 {
		t.Error("not one signal frame: a static program has one")
	}
}

func unwindRangesOfReadelf(t *testing.T, f *File, path string) (functions, signals map[Range]bool) {
	t.Helper()
	functions, signals = map[Range]bool{}, map[Range]bool{}
	if f.Go { // its unwind table is .debug_frame, which is not looked at
		return functions, signals
	}
	cie, isSignal := "", map[string]bool{}
	for line := range strings.Lines(oracle(t, "readelf", "-W", "--debug-dump=frames,no-follow-links", path)) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 4 && fields[3] == "CIE":
			cie = fields[0]
		case len(fields) == 2 && fields[0] == "Augmentation:":
			isSignal[cie] = strings.Contains(fields[1], "S")
		case len(fields) == 6 && fields[3] == "FDE":
			var r Range
			if n, _ := fmt.Sscanf(fields[5], "pc=%x..%x", &r.Start, &r.End); n != 2 || r.End <= r.Start || f.executable(r.Start) == nil {
				continue
			}
			if isSignal[strings.TrimPrefix(fields[4], "cie=")] {
				signals[r] = true
			} else {
				functions[r] = true
			}
		}
	}
	return functions, signals
}

// Parts of functions that begin with a frame, against the first row of what readelf makes of each entry.
func TestFramedRangesAgreeWithReadelf(t *testing.T) {
	for _, path := range []string{"/lib/x86_64-linux-gnu/libc.so.6", "/usr/bin/python3"} {
		f := open(t, path)
		want := map[Range]bool{}
		var r Range
		for line := range strings.Lines(oracle(t, "readelf", "-W", "--debug-dump=frames-interp,no-follow-links", path)) {
			fields := strings.Fields(line)
			switch {
			case len(fields) == 6 && fields[3] == "FDE":
				if n, _ := fmt.Sscanf(fields[5], "pc=%x..%x", &r.Start, &r.End); n != 2 {
					t.Fatal(line)
				}
			case len(fields) < 3, fields[0] != fmt.Sprintf("%016x", uint64(r.Start)):
			case fields[1] != "rsp+8", slices.ContainsFunc(fields[2:len(fields)-1], func(s string) bool { return s[0] == 'c' }):
				want[r] = true
			}
		}
		ranges, err := f.framedRanges()
		if err != nil {
			t.Fatal(err)
		}
		got := map[Range]bool{}
		for _, r := range ranges {
			got[r] = true
		}
		signals, err := f.SignalFrames()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range signals {
			delete(want, r)
		}
		if !maps.Equal(got, want) || len(got) < 20 {
			t.Errorf("%s: %d ranges begin with a frame, readelf has %d", path, len(got), len(want))
		}
	}
}

// The header of the unwind table leads to the same entries as the section.
func TestUnwindTableWithoutSections(t *testing.T) {
	f := open(t, testkit.Compile(t, "symbols.c"))
	want, err := f.unwindRanges()
	if err != nil || len(want) == 0 {
		t.Fatal(want, err)
	}
	f.sections = nil
	got, err := f.unwindRanges()
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%d ranges, %v; want %d", len(got), err, len(want))
	}
}

// What strip takes away, the unwind table gives back: every function that the compiler made has the same
// bounds in the stripped program.
func TestStrippedProgramKeepsBounds(t *testing.T) {
	for _, flags := range []testkit.Flags{testkit.PIE, testkit.NoPIE, testkit.Static} {
		whole := functions(t, open(t, testkit.Compile(t, "symbols.c", flags)))
		stripped := functions(t, open(t, testkit.Compile(t, "symbols.c", flags, testkit.Stripped)))
		same, gone := 0, 0
		for _, fn := range whole.All() {
			if fn.Bounds != Stated {
				continue
			}
			got, ok := stripped.At(fn.Start)
			switch {
			case !ok:
				gone++ // assembly without unwind data
			case got.Range == fn.Range:
				same++
			}
			if ok && got.Entry && got.Start != stripped.file.Entry && len(got.Names) == 0 {
				t.Errorf("%v: %v has no name but is said to be an entry", flags, got.Range)
			}
		}
		if same < 9*(same+gone)/10 || same < 10 {
			t.Errorf("%v: %d functions kept their bounds, %d are gone", flags, same, gone)
		}
		t.Logf("%v: %d of %d functions have the same bounds, %d unknown", flags, same, len(whole.All()), gone)
	}
}

func TestUnusualSymbols(t *testing.T) {
	for _, flags := range []testkit.Flags{testkit.PIE, testkit.NoPIE, testkit.Static} {
		path := testkit.Compile(t, "symbols.c", flags)
		_, offsets := symbolsAddresses(t, path)
		fs := functions(t, open(t, path))
		anchor := lookup(t, fs, "anchor").Start
		for name, offset := range offsets {
			if fn := lookup(t, fs, name); fn.Start != anchor+VAddr(offset) {
				t.Errorf("%v: %s is at %v, the program says %v", flags, name, fn.Start, anchor+VAddr(offset))
			}
		}
		for _, row := range []struct {
			name           string
			bounds         Bounds
			len            uint64
			entry, altered bool
		}{
			{"original", Stated, 0, true, false},
			{"sizeless_unwound", Unwound, 5, true, false},
			{"sizeless", Guessed, 16, true, false}, // up to outer, padding and all
			{"outer", Stated, 9, true, false},
			{"inner", Stated, 5, true, false},
			{"unlikely", Stated, 0, true, false},
			{"unlikely.cold", Stated, 0, false, false},
			{"target_fail.constprop.0", Stated, 0, true, true},
		} {
			fn := lookup(t, fs, row.name)
			if fn.Bounds != row.bounds || row.len != 0 && fn.Len() != row.len || fn.Entry != row.entry || fn.Altered != row.altered {
				t.Errorf("%v: %s: %v by %v, entry %v, altered %v; want %+v", flags, row.name, fn.Range, fn.Bounds, fn.Entry, fn.Altered, row)
			}
		}
		checkNesting(t, fs)
		if fn := lookup(t, fs, "alias_of_original"); !slices.Equal(fn.Names, []string{"original", "alias_of_original"}) {
			t.Errorf("names %q, want the alias beside the original", fn.Names)
		}
	}
}

func lookup(t *testing.T, fs *Functions, name string) Func {
	t.Helper()
	found, err := fs.Lookup(name)
	if err != nil || len(found) != 1 {
		t.Fatalf("lookup %s: %d functions, %v", name, len(found), err)
	}
	return found[0].Func
}

func checkNesting(t *testing.T, fs *Functions) {
	t.Helper()
	outer, inner := lookup(t, fs, "outer"), lookup(t, fs, "inner")
	for v := outer.Start; v < outer.End; v++ {
		want := outer.Start
		if v >= inner.Start {
			want = inner.Start
		}
		if fn, ok := fs.At(v); !ok || fn.Start != want {
			t.Errorf("at %v: %v, want %v", v, fn.Range, want)
		}
	}
	if got := fs.Inner(outer.Range); len(got) != 1 || got[0].Start != inner.Start {
		t.Errorf("inside outer: %v, want inner", got)
	}
	if got := fs.Inner(inner.Range); len(got) != 0 {
		t.Errorf("inside inner: %v, want nothing", got)
	}
}

// At and Next against a walk through the whole table.
func TestAtAgreesWithASearch(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for name, path := range samples(t) {
		f := open(t, path)
		fs := functions(t, f)
		all := fs.All()
		text := f.Segments[slices.IndexFunc(f.Segments, func(s Segment) bool { return s.Exec })]
		for range 300 {
			v := text.Addr + VAddr(random.Uint64N(text.FileSize))
			want, next := Func{}, f.codeEnd(v)
			for i := range all {
				if all[i].Contains(v) {
					want = all[i] // the last that holds it starts last
				}
				if all[i].Start > v {
					next = min(next, all[i].Start)
					break
				}
			}
			got, ok := fs.At(v)
			if ok != (want.End > 0) || got.Range != want.Range || fs.Next(v) != next {
				t.Fatalf("%s: at %v: %v next %v, want %v next %v", name, v, got.Range, fs.Next(v), want.Range, next)
			}
		}
	}
}

// Of every function's padding objdump must say, instruction by instruction, that it does nothing.
func TestPaddingIsPadding(t *testing.T) {
	for _, path := range []string{testkit.Compile(t, "symbols.c", testkit.Static), "/lib/x86_64-linux-gnu/libc.so.6"} {
		fs := functions(t, open(t, path))
		starts := map[VAddr]Range{}
		padded, gaps := 0, 0
		for _, fn := range fs.All() {
			code, padding, err := fs.Body(fn)
			if err != nil || uint64(len(code)) != fn.Len() {
				t.Fatalf("%s: %d bytes, %v", fn.Name(), len(code), err)
			}
			r := Range{fn.End, fn.End + VAddr(len(padding))}
			if next := fs.Next(fn.End - 1); next > fn.End && r.Len() == 0 {
				gaps++
			}
			if r.Len() > 0 {
				padded++
				starts[r.Start] = r
			}
		}
		t.Logf("%s: %d functions are padded, %d are followed by something else", path, padded, gaps)
		if padded < 500 {
			t.Errorf("%s: only %d functions are padded", path, padded)
		}
		checkFilling(t, path, starts)
	}
}

func checkFilling(t *testing.T, path string, paddings map[VAddr]Range) {
	t.Helper()
	var in Range
	for line := range strings.Lines(oracle(t, "objdump", "-d", "-z", "-w", "--no-show-raw-insn", path)) {
		var v VAddr
		at, text, ok := strings.Cut(line, ":\t")
		if n, _ := fmt.Sscanf(at, "%x", &v); !ok || n != 1 {
			continue
		}
		if r, starts := paddings[v]; starts {
			in = r
		}
		if !in.Contains(v) {
			continue
		}
		words := strings.Fields(text)
		nothing := slices.ContainsFunc(words, func(w string) bool {
			return strings.HasPrefix(w, "nop") || w == "int3" || w == "xchg"
		}) || strings.HasPrefix(text, "add    %al,(%rax)") || strings.HasPrefix(text, "data16") || strings.HasPrefix(text, "cs")
		if !nothing {
			t.Errorf("%s: padding at %v is %q", path, v, text)
		}
	}
}

func TestForms(t *testing.T) {
	for _, row := range []struct {
		name          string
		cold, altered bool
	}{
		{"work", false, false},
		{"work.cold", true, false},
		{"work.cold.17", true, false},
		{"work.part.0", false, true},
		{"work.isra.0.cold", true, true},
		{"work.constprop.0.isra.0", false, true},
		{"work.lto_priv.0", false, false},
		{"work.llvm.1234", false, false},
		{"coldest", false, false},
		{"_ZN3foo4coldE", false, false},
		{"_ZN3fooEv.cold", true, false},
		{"_ZN68_$LT$core..cold..part$u20$as$u20$core..fmt..Write$GT$9write_str17h0123456789abcdefE", false, false},
		{"_ZN4core3fmt17h0123456789abcdefE.cold", true, false},
	} {
		cold, altered := new(File).form(row.name)
		if cold != row.cold || altered != row.altered {
			t.Errorf("%s: cold %v altered %v, want %v %v", row.name, cold, altered, row.cold, row.altered)
		}
	}
	if cold, _ := (&File{Go: true}).form("main.cold"); cold {
		t.Error("Go's function cold of package main is taken for a part")
	}
}

func TestFillingEndsAtCode(t *testing.T) {
	for _, row := range []struct {
		code string // hexadecimal; everything before | is filling
	}{
		{"90 6690 0f1f00 0f1f4000 0f1f440000 660f1f440000 0f1f8000000000 0f1f840000000000 660f1f840000000000 662e0f1f840000000000|55"},
		{"6666662e0f1f840000000000 cc cc 00|c3"},
		{"|55"},
		{"90|0f1e"},
		{"90|0f1f"},       // cut
		{"90|0f1f44"},     // cut
		{"0f1f0400|f390"}, // pause is no filling
		{"0f1f0500000000 0f1f042500000000 0f1fc0|66"},
	} {
		text := strings.ReplaceAll(row.code, " ", "")
		before, after, _ := strings.Cut(text, "|")
		var code []byte
		if _, err := fmt.Sscanf(before+after, "%x", &code); err != nil {
			t.Fatal(err)
		}
		if got := filling(code); got != len(before)/2 {
			t.Errorf("%s: %d bytes, want %d", row.code, got, len(before)/2)
		}
	}
}
