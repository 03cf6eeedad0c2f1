package lang

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestRandomStrings compares functions of strings with those of Go, on strings of
// two letters, which often begin or contain one another.
func TestRandomStrings(t *testing.T) {
	const body = `uprobe:a:f { $a = str(arg0, 40); $b = str(arg1, 20); @k[$a, 1] = $b; @t = ($b, $a);
		print((strlen($a), strstr($a, $b), strcontains($a, $b), $a == $b, $a != str(arg1), strncmp($a, $b, 5) == 0));
		print(str_concat($a, $b)); print(@k[$a, 1]); print((@t.0, @t.1)); print(arg2 ? $a : $b); print(str($a, 3)); print(memcmp($a, $b, 4) == 0); }`
	b := newBench(t, body, Options{})
	r := rand.New(rand.NewPCG(9, 10))
	var memory [2][64]byte
	b.machine.ReadUser = func(addr uint64, buf []byte) bool {
		n := addr >> 12
		if n < 1 || n > 2 || addr&0xfff+uint64(len(buf)) > 64 {
			return false
		}
		copy(buf, memory[n-1][addr&0xfff:])
		return true
	}
	for range 400 {
		var s [2]string
		for i := range s {
			for range r.IntN(24) {
				s[i] += string("ab"[r.IntN(2)])
			}
			memory[i] = [64]byte{}
			copy(memory[i][:], s[i])
		}
		x, y := s[0], s[1]
		cut := y[:min(len(y), 20)]
		first := func(s string, n int) string { return (s + strings.Repeat("\x00", 8))[:n] }
		choice := r.IntN(2)
		pick := []string{cut, x}[choice]
		want := strings.Join([]string{
			fmt.Sprintf("print (%d,%d,%v,%v,%v,%v)", len(x), strings.Index(x, cut), strings.Contains(x, cut), x == cut, x != y, first(x, 5) == first(cut, 5)),
			"print " + x + cut, "print " + cut, "print (" + cut + "," + x + ")", "print " + pick, "print " + x[:min(len(x), 3)],
			fmt.Sprintf("print %v", first(x, 4) == first(cut, 4)),
		}, "; ")
		trim := func(s string) string { return strings.ReplaceAll(s, "print ;", "print;") }
		if got := b.run(0, 0x1000, 0x2000, uint64(choice)); got != trim(want) {
			t.Fatalf("%q and %q\ngot  %s\nwant %s", x, y, got, trim(want))
		}
	}
}
