package x86

import (
	"debug/elf"
	"testing"
)

// BenchmarkDecode walks the C library's text.
func BenchmarkDecode(b *testing.B) {
	f, err := elf.Open("/usr/lib/x86_64-linux-gnu/libc.so.6")
	if err != nil {
		b.Skip("no C library to decode: ", err)
	}
	text, err := f.Section(".text").Data()
	if err != nil {
		b.Fatal(err)
	}
	pos := 0
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
}
