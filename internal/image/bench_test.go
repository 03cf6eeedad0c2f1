package image

import (
	"os"
	"testing"
)

// Reading all functions of an interpreter (10,000 functions) and of a large C++ program (80,000).
func BenchmarkFunctions(b *testing.B) {
	for _, path := range []string{"/usr/bin/python3", "/usr/bin/node"} {
		b.Run(path, func(b *testing.B) {
			file := mustOpen(b, path)
			n := 0
			for b.Loop() {
				n = len(functions(b, headers(b, file)).All())
			}
			b.ReportMetric(float64(n), "functions")
		})
	}
}

// A wildcard over a C++ program, with all names demangled anew.
func BenchmarkMatch(b *testing.B) {
	f := headers(b, mustOpen(b, "/usr/bin/node"))
	n := 0
	for b.Loop() {
		b.StopTimer()
		fs := functions(b, f)
		b.StartTimer()
		n = len(fs.Match("*Vector*push*"))
	}
	b.ReportMetric(float64(n), "matches")
}

func mustOpen(b *testing.B, path string) *os.File {
	b.Helper()
	file, err := os.Open(path)
	if err != nil {
		b.Skipf("needs %v", err)
	}
	b.Cleanup(func() { file.Close() })
	return file
}
