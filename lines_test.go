package trapless_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"trapless"
	"trapless/internal/testkit"
)

// TestLinesOfSource probes a line in the middle of a function and the function itself: both see every call.
func TestLinesOfSource(t *testing.T) {
	target := testkit.Compile(t, "types.c", testkit.Flags{"-O0"})
	text, err := os.ReadFile(testkit.TargetSource(t, "types.c"))
	if err != nil {
		t.Fatal(err)
	}
	line := slices.IndexFunc(strings.Split(string(text), "\n"), func(l string) bool { return strings.Contains(l, "return shape->at.x") }) + 1
	p := testkit.Start(t, target)
	script, err := trapless.CompileWith("t", "uprobe:"+target+"@types.c:$1 { @line = count(); } uprobe:"+target+":draw { @entry = count(); }",
		trapless.CompileOptions{Params: []string{strconv.Itoa(line)}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := trapless.Attach(t.Context(), p.Pid, script, trapless.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		p.Ask("call")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := errors.Join(s.Run(ctx), s.Close()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"@line", "@entry"} {
		if m, err := s.Map(name); err != nil || len(m) != 1 || m[0].Value != 10 {
			t.Errorf("%s is %v %v, want 10", name, m, err)
		}
	}
}
