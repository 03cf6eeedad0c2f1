package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSplitCommand(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []string // nil: an error
	}{
		{"ls -l", []string{"ls", "-l"}},
		{"  a\tb\n", []string{"a", "b"}},
		{`python3 -c 'print("a b")'`, []string{"python3", "-c", `print("a b")`}},
		{`a "" ''`, []string{"a", "", ""}},
		{`a\ b "c\"d" 'e\f'`, []string{"a b", `c"d`, `e\f`}},
		{`$HOME *`, []string{"$HOME", "*"}},
		{`a'b'"c"`, []string{"abc"}},
		{`a 'b`, nil},
		{`a \`, nil},
		{"  ", nil},
	} {
		got, err := splitCommand(c.in)
		if (err != nil) != (c.want == nil) || !cmp.Equal(got, c.want) {
			t.Errorf("splitCommand(%q) = %q, %v; want %q", c.in, got, err, c.want)
		}
	}
}
