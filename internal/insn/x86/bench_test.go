package x86

import (
	"debug/elf"
	"syscall"
	"testing"
)

// BenchmarkDecode walks the C library's text. "cpu-ns/op" is processor time,
// which means something on a busy machine too.
func BenchmarkDecode(b *testing.B) {
	text := libcText(b)
	pos := 0
	start := userTime(b)
	for b.Loop() {
		i, err := Decode(text[pos:], Mode64)
		if err != nil {
			pos++
		}
		pos += int(i.Len)
		if pos >= len(text)-MaxLen {
			pos = 0
		}
	}
	b.ReportMetric(float64(userTime(b)-start)/float64(b.N), "cpu-ns/op")
}

// BenchmarkEffects asks for the effects of the C library's instructions.
func BenchmarkEffects(b *testing.B) {
	text := libcText(b)
	var list []Inst
	for pos := 0; pos < 1<<16; {
		i, err := Decode(text[pos:], Mode64)
		if err != nil {
			pos++
			continue
		}
		list = append(list, i)
		pos += int(i.Len)
	}
	k := 0
	start := userTime(b)
	for b.Loop() {
		_ = list[k].Effects()
		if k++; k == len(list) {
			k = 0
		}
	}
	b.ReportMetric(float64(userTime(b)-start)/float64(b.N), "cpu-ns/op")
}

// libcText is the code of the C library.
func libcText(b *testing.B) []byte {
	f, err := elf.Open("/usr/lib/x86_64-linux-gnu/libc.so.6")
	if err != nil {
		b.Skip("no C library to decode: ", err)
	}
	defer f.Close()
	text, err := f.Section(".text").Data()
	if err != nil {
		b.Fatal(err)
	}
	return text
}

// userTime is the processor time the process has spent, in nanoseconds.
func userTime(b *testing.B) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano()
}
