package plan

import (
	"fmt"
	"testing"

	"trapless/internal/abi"
)

func TestExits(t *testing.T) {
	for _, row := range []struct{ name, code, want string }{
		{"a return", "55 5d c3", "2:0"},
		{"two returns, one pops", "7401 c3 c20800", "2:0 3:0"},
		{"a tail jump", "55 5d e900100000", "2:1"},
		{"a jump to a part", "7405 31c0 c3 9090 e9f00f0000", "4:0"},
		{"a jump to what does not return", "85c0 7401 c3 e9f41f0000", "4:0"},
		{"a branch to another function", "85c0 0f8500300000 c3", "2:2 8:0"},
		{"a loop", "ffc9 75fc c3", "4:0"},
		{"its own start", "85c0 74fc c3", "4:0"},
		{"through a pointer, the frame gone", "55 5d ffe0", "2:1"},
		{"through a pointer in memory", "488b4708 ffe0", "4:1"},
		{"a computed jump", "488d0502000000 ffe0 c3", "9:0"},
		{"a jump of which nothing is known", "4801c8 ffe0 c3", "3:3 5:0"},
		{"no return", "0f0b", ""},
	} {
		f := function(row.code)
		f.NoReturn = []abi.Addr{f.Start + 0x1ffe, f.Start + 0x1fff, f.Start + 0x2000}
		got := ""
		for _, e := range Exits(f, func(a abi.Addr) bool { return a >= f.Start+0xff0 && a < f.Start+0x1000 }) {
			got += fmt.Sprintf(" %d:%d", e.At-f.Start, e.Kind)
		}
		if row.want != "" {
			row.want = " " + row.want
		}
		if got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
}
