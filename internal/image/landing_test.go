package image

import (
	"bytes"
	"os"
	"slices"
	"testing"

	"trapless/internal/testkit"
)

// TestLandingPads takes gcc as the oracle: with -fcf-protection it begins each
// landing pad, and nothing else inside a function, with endbr64.
func TestLandingPads(t *testing.T) {
	endbr64 := []byte{0xf3, 0x0f, 0x1e, 0xfa}
	for _, flags := range []testkit.Flags{testkit.PIE, testkit.NoPIE, append(testkit.Flags{"-O0"}, testkit.PIE...)} {
		path := testkit.Compile(t, "unwind.cpp", append(testkit.Flags{"-fcf-protection=full"}, flags...))
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		f, err := New(bytes.NewReader(raw), int64(len(raw)))
		if err != nil {
			t.Fatal(err)
		}
		pads, complete, err := f.LandingPads()
		if err != nil || !complete || len(pads) == 0 {
			t.Fatalf("%d landing pads, complete: %v, %v", len(pads), complete, err)
		}
		fs, err := f.Functions()
		if err != nil {
			t.Fatal(err)
		}
		var want []VAddr
		for _, fn := range fs.All() {
			code, err := fs.Code(fn)
			if err != nil {
				t.Fatal(err)
			}
			for i := range code {
				if v := fn.Start + VAddr(i); bytes.HasPrefix(code[i:], endbr64) && (i > 0 || slices.Contains(pads, v)) {
					want = append(want, v)
				}
			}
		}
		if !slices.Equal(pads, want) {
			t.Errorf("%v: landing pads %v; gcc made %v", flags, pads, want)
		}
		t.Logf("%d landing pads", len(pads))
	}
}

// TestLandingPadsOfBadTables: a table that cannot be read is not taken for an
// empty one.
func TestLandingPadsOfBadTables(t *testing.T) {
	fn := Range{0x1000, 0x1100}
	for _, row := range []struct {
		name, table string
		pads        []VAddr
		ok          bool
	}{
		{"no call sites", "\xff\xff\x01\x00", nil, true},
		{"two", "\xff\xff\x01\x08\x00\x05\x10\x00\x05\x05\x20\x00", []VAddr{0x1010, 0x1020}, true},
		{"no pad", "\xff\xff\x01\x04\x00\x05\x00\x00", nil, true},
		{"a base of its own", "\x03\x00\x20\x00\x00\xff\x01\x04\x00\x05\x10\x00", []VAddr{0x2010}, true},
		{"with types", "\xff\x9b\x09\x01\x04\x00\x05\x10\x01", []VAddr{0x1010}, true},
		{"words", "\xff\xff\x03\x0d\x00\x00\x00\x00\x05\x00\x00\x00\x30\x00\x00\x00\x00", []VAddr{0x1030}, true},
		{"cut off", "\xff\xff\x01\x08\x00\x05\x10", nil, false},
		{"longer than it is", "\xff\xff\x01\x03\x00\x05\x10\x00", []VAddr{0x1010}, false},
		{"empty", "", nil, false},
		{"unknown encoding", "\xff\xff\x17\x04\x00\x05\x10\x00", nil, false},
	} {
		pads, _, ok := readLSDA([]byte(row.table), 0x5000, fn)
		if !slices.Equal(pads, row.pads) || ok != row.ok {
			t.Errorf("%s: %v, %v", row.name, pads, ok)
		}
	}
}

func FuzzLSDA(f *testing.F) {
	f.Add([]byte("\xff\x9b\x09\x01\x04\x00\x05\x10\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		pads, size, _ := readLSDA(b, 0x5000, Range{0x1000, 0x1100})
		if size < 0 || size > len(b) || len(pads) > len(b) {
			t.Errorf("%d landing pads of %d bytes, %d read", len(pads), len(b), size)
		}
	})
}

// TestCodePointers: the labels that a static table holds are found, however the
// loader gets to know of them.
func TestCodePointers(t *testing.T) {
	for _, flags := range []testkit.Flags{testkit.PIE, testkit.NoPIE, append(testkit.Flags{"-Wl,-z,pack-relative-relocs"}, testkit.PIE...)} {
		raw, err := os.ReadFile(testkit.CompileFile(t, "testdata/labels.c", append(testkit.Flags{"-O1"}, flags...)))
		if err != nil {
			t.Fatal(err)
		}
		f, err := New(bytes.NewReader(raw), int64(len(raw)))
		if err != nil {
			t.Fatal(err)
		}
		fs, err := f.Functions()
		if err != nil {
			t.Fatal(err)
		}
		found, err := fs.Lookup("interpret")
		if err != nil || len(found) != 1 {
			t.Fatal(found, err)
		}
		pointers, err := f.CodePointers()
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, v := range pointers {
			if v > found[0].Start && v < found[0].End {
				n++
			}
		}
		if n != 4 {
			t.Errorf("%v: %d pointers into the function, which has 4 labels", flags, n)
		}
	}
}
