package bpf

import (
	"fmt"
	"strings"
	"testing"
)

// lines counts the instructions of a text.
func lines(text string) (n int) {
	for _, l := range strings.FieldsFunc(text, func(r rune) bool { return r == ';' || r == '\n' }) {
		if strings.TrimSpace(l) != "" {
			n++
		}
	}
	return n
}

// largePrograms have the largest number of instructions.
func largePrograms() map[string]string {
	repeat := func(head, part string, tail string) string {
		var b strings.Builder
		b.WriteString(head)
		for i := 0; ; i++ {
			p := strings.ReplaceAll(part, "#", fmt.Sprint(i))
			if lines(b.String())+lines(p)+lines(tail) > MaxInsns {
				break
			}
			b.WriteString(p)
		}
		return b.String() + tail
	}
	return map[string]string{
		"straight": repeat("r6 = *(u64 *)(r1 +112);", "r6 += 7; r6 ^= 5; *(u64 *)(r10 -8) = r6; r7 = *(u64 *)(r10 -8);", "r0 = 0; exit"),
		"branches": repeat("r6 = *(u64 *)(r1 +112); r7 = 0;", "if r6 > # goto a#; r7 += 1; goto b#; a#: r7 += 2; b#: r6 -= 3;", "r0 = r7; exit"),
		"maps": repeat("r6 = *(u64 *)(r1 +112);", `*(u64 *)(r10 -8) = r6; r1 = map keyed; r2 = r10; r2 += -8; call map_cell
			if r0 == 0 goto a#; r1 = 1; lock add *(u64 *)(r0 +0), r1; a#: r6 += 1;`, "r0 = 0; exit"),
		"loops":     repeat("r6 = *(u64 *)(r1 +112);", "r1 = 0; l#: r2 = r10; r2 += -64; r2 += r1; *(u8 *)(r2 +0) = 0; r1 += 1; if r1 != 64 goto l#;", "r0 = 0; exit"),
		"long loop": repeat("r6 = 0; l:", "r2 = r10; r2 += -64; r2 += r6; *(u8 *)(r2 +0) = 0;", "r6 += 1; if r6 != 64 goto l; r0 = 0; exit"),
	}
}

func BenchmarkVerify(b *testing.B) {
	for name, text := range largePrograms() {
		p := textProgram(b, name, text)
		b.Run(fmt.Sprintf("%s-%d", name, len(p.Insns)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Verify(p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
