package session

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"trapless/internal/ptrace"
	"trapless/internal/testkit"
)

// TestReturns: a return probe sees each return and what is returned. Calls of
// tail end in other, so of them only the number is known.
func TestReturns(t *testing.T) {
	for _, flags := range []testkit.Flags{{"-O0"}, testkit.PIE, testkit.NoPIE, testkit.Static} {
		path := testkit.Compile(t, "returns.c", flags)
		src := ""
		for _, f := range []string{"once", "several", "chooses", "unlikely"} {
			src += fmt.Sprintf("uretprobe:%s:%s { @%s = sum(retval); @%[2]s_calls = count(); }\n", path, f, f)
		}
		src += fmt.Sprintf("uretprobe:%s:tail { @tail_calls = count(); }", path)
		out, _, r := launchOutput(t, []string{path}, src)
		for line := range strings.Lines(out) {
			var name string
			var calls, sum uint64
			fmt.Sscan(line, &name, &calls, &sum)
			if got := r.maps["@"+name+"_calls"]; len(got) != 1 || got[0].Value[0] != calls {
				t.Errorf("%v: %d returns of %s, counted %v", flags, calls, name, got)
			}
			if got := r.maps["@"+name]; name != "tail" && (len(got) != 1 || got[0].Value[1] != sum) {
				t.Errorf("%v: %s returned %d in all, added up %v", flags, name, sum, got)
			}
		}
	}
}

// TestTailCallHidesTheResult: where a function ends by calling another one, its
// result is not known, and that is said.
func TestTailCallHidesTheResult(t *testing.T) {
	path := testkit.Compile(t, "returns.c")
	c, _ := config(t, "uretprobe:"+path+":tail { @ = sum(retval); }")
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Deadline)
	defer cancel()
	_, err := Launch(ctx, &ptrace.Command{Path: path, Args: []string{path}}, c)
	if err == nil || !strings.Contains(err.Error(), string(Exit)) || !strings.Contains(err.Error(), "retval") {
		t.Errorf("got %v", err)
	}
}
