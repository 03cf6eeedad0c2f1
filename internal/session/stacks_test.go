package session

import (
	"fmt"
	"strings"
	"testing"

	"trapless/internal/lang"
	"trapless/internal/testkit"
)

// stacksOf are the stacks in the keys [WAY, ustack(raw)] of a map, without the first frame.
func stacksOf(r *recorder, name string) map[string]bool {
	out := map[string]bool{}
	for _, parts := range r.keys[name] {
		text := fmt.Sprint(parts[0].Int)
		for _, f := range parts[1].Elems[1:] {
			text += fmt.Sprintf(" %x", f.Int)
		}
		out[text] = true
	}
	return out
}

// The stacks are those that the compiler's own unwinder finds: with frame pointers and without, through
// functions of libraries, signal frames, aligned stacks and alternate ones.
func TestStacksAsTheCompilersUnwinder(t *testing.T) {
	for _, flags := range []testkit.Flags{{"-fomit-frame-pointer"}, {"-fno-omit-frame-pointer"}, {"-O0"}, testkit.Static} {
		path := testkit.Compile(t, "stacks.c", flags)
		p := testkit.Start(t, path)
		s, r := attach(t, p.Pid, fmt.Sprintf("uprobe:%q:here { @[arg0, ustack(raw)] = count(); @n = count(); }", path))
		lines := p.Stop()
		finish(t, s)
		got, compared := stacksOf(r, "@"), 0
		for _, line := range lines {
			want, ok := strings.CutPrefix(line, "stack ")
			if !ok {
				continue
			}
			if compared++; !got[want] {
				t.Errorf("%v: the unwinder's stack %s is not among those of the probe", flags, want)
			}
			delete(got, want)
		}
		if compared < 12 {
			t.Errorf("%v: %d stacks were compared, the target said %q", flags, compared, lines)
		}
		for stack := range got {
			t.Errorf("%v: the probe's stack %s is none of the unwinder's", flags, stack)
		}
	}
}

// Without call frame information frames are found by their pointers, from the second one on.
func TestStacksByFramePointers(t *testing.T) {
	path := testkit.Compile(t, "stacks.c", testkit.Flags{"-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fno-optimize-sibling-calls"})
	p := testkit.Start(t, path)
	s, r := attach(t, p.Pid, fmt.Sprintf("uprobe:%q:here { @[arg0, ustack(3)] = count(); }", path))
	p.Stop()
	finish(t, s)
	found := false
	for _, parts := range r.keys["@"] {
		if names := frameNames(parts[1]); parts[0].Int == 2 && len(names) == 3 {
			found = true
			if !strings.HasPrefix(names[0], "here+") || !strings.HasPrefix(names[1], "deep+") || !strings.HasPrefix(names[2], "deep+") {
				t.Errorf("frames %q", names)
			}
		}
	}
	if !found {
		t.Errorf("no stack of three frames: %v", r.maps["@"])
	}
}

func frameNames(v lang.Value) (names []string) {
	for _, f := range v.Elems {
		names = append(names, f.Str)
	}
	return names
}
