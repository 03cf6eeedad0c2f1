package session

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"trapless/internal/testkit"
)

// manyFlags make many.c as large as TRAPLESS_ROUNDS says, or of 10,000 functions.
func manyFlags() (int, testkit.Flags) {
	n := rounds(10000)
	return n, testkit.Flags{fmt.Sprintf("-DMANY=%d", n)}
}

// TestManyProbesAreCountedExactly has probes at all functions of a program for its
// whole life.
func TestManyProbesAreCountedExactly(t *testing.T) {
	n, flags := manyFlags()
	path := testkit.Compile(t, "many.c", flags)
	c, r := config(t, fmt.Sprintf("uprobe:%q:many_* { @ = count(); }", path))
	c.Log = nil
	var probed int
	lines := life(t, []string{path, "50"}, c)
	want := testkit.Counts(lines)["many"]
	if probed = len(r.maps["@"]); probed != 1 || want == 0 || r.maps["@"][0].Value[0] != want {
		t.Errorf("counted %v, the target %d", r.maps["@"], want)
	}
	t.Logf("%d functions, %d calls", n, want)
}

// TestManyProbesComeAndGo attaches to and detaches from a program all of whose
// functions are probed, with 50 threads at work in them.
func TestManyProbesComeAndGo(t *testing.T) {
	n, flags := manyFlags()
	p := testkit.Start(t, testkit.Compile(t, "many.c", flags), "50")
	for range 3 {
		c, r := config(t, fmt.Sprintf("uprobe:%q:many_* { @ = count(); }", exe(t, p.Pid)))
		c.Log = nil
		began := time.Now()
		s, err := Attach(t.Context(), p.Pid, c)
		if err != nil {
			t.Fatal(err)
		}
		attached := time.Since(began)
		if s.Sites() != n {
			t.Errorf("%d of %d functions are probed", s.Sites(), n)
		}
		waitForHits(t, s)
		began = time.Now()
		finish(t, s)
		if len(r.maps["@"]) != 1 || r.maps["@"][0].Value[0] == 0 {
			t.Error("nothing was counted")
		}
		t.Logf("attached in %v, detached in %v, stopped %d times, at most for %v",
			attached, time.Since(began), len(s.Pauses()), slices.Max(s.Pauses()))
		if changes := testkit.TextChanges(t, p.Pid); len(changes) != 0 {
			t.Fatalf("the text differs in %d places", len(changes))
		}
	}
	if last := p.Stop(); last[len(last)-1] != "ok" {
		t.Errorf("last lines %q", last)
	}
}
