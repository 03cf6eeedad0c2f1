package coverage

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"

	"trapless/internal/testkit"
)

// cover measures a file that may be corrupt: what it says must make sense.
func cover(t *testing.T, b []byte, sites Sites) {
	t.Helper()
	r, err := File(context.Background(), "f", bytes.NewReader(b), int64(len(b)), sites)
	if err != nil {
		return
	}
	sum := 0
	for _, n := range r.ByTactic {
		sum += n
	}
	for _, n := range r.Refused {
		sum += n
	}
	if sum != r.N || r.N > len(b) || r.TrapFree < 0 || r.TrapFree > 1 {
		t.Errorf("%d tactics and refusals: %+v", sum, r)
	}
}

// samples are small files with tables, landing pads and parts elsewhere.
func samples(t testing.TB) [][]byte {
	t.Helper()
	var all [][]byte
	for _, path := range []string{
		testkit.CompileFile(t, "../elfplan/testdata/switches.c", testkit.PIE, testkit.Flags{"-g0"}),
		testkit.CompileFile(t, "../elfplan/testdata/switches.c", testkit.NoPIE, testkit.Flags{"-g0", "-s"}),
		testkit.CompileFile(t, "../elfplan/testdata/throws.cpp", testkit.Flags{"-g0"}),
	} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	return all
}

func FuzzFile(f *testing.F) {
	for _, b := range samples(f) {
		f.Add(b, uint8(2))
	}
	f.Fuzz(func(t *testing.T, b []byte, which uint8) {
		cover(t, b, []Sites{Entries, Returns, All}[which%3])
	})
}

// TestCorruptFiles changes bytes, and words to what is likely to hurt, all over
// files: an error or a smaller answer, in memory that the size of the file bounds.
func TestCorruptFiles(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 22))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	total := 0
	for _, whole := range samples(t) {
		for range 60 {
			b := bytes.Clone(whole[:len(whole)-r.IntN(2)*r.IntN(len(whole))])
			for range 1 + r.IntN(40) {
				at := r.IntN(len(b))
				switch {
				case r.IntN(2) == 0 || at+8 > len(b):
					b[at] = byte(r.Uint32())
				case r.IntN(2) == 0:
					binary.LittleEndian.PutUint32(b[at:], []uint32{0, 1, 1 << 31, 1<<32 - 1, uint32(len(b))}[r.IntN(5)])
				default:
					from := r.IntN(len(b))
					copy(b[at:], b[from:min(from+64, len(b))])
				}
			}
			total += len(b)
			cover(t, b, []Sites{Entries, Returns, All}[r.IntN(3)])
		}
	}
	runtime.ReadMemStats(&after)
	if perByte := float64(after.TotalAlloc-before.TotalAlloc) / float64(total); perByte > 3000 {
		t.Errorf("%.0f bytes of memory for each byte of the files", perByte)
	}
}
