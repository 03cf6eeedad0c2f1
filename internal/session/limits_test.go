package session

import (
	"testing"

	"trapless/internal/testkit"
)

// TestLimits attaches to processes that have little left. Each session is either
// refused or exact, and leaves nothing behind but what every session does.
func TestLimits(t *testing.T) {
	for _, c := range []struct {
		what, limit string
		works       bool
	}{
		{"fsize", "0", true}, // the size of the arena is no business of the target's
		{"fsize", "4096", true},
		{"nofile", "4", true},
		{"nofile", "3", false},
		{"as", "2", false},
		{"as", "4096", true},
		{"maps", "100", false},
		{"maps", "4000", true},
	} {
		t.Run(c.what+" "+c.limit, func(t *testing.T) {
			p := testkit.Start(t, testkit.Compile(t, "limits.c"), c.what, c.limit)
			p.Ask("calls 1")
			before := testkit.TakeFootprint(t, p.Pid).FDs
			s, r, err := tryAttach(t, p.Pid, "uprobe:"+exe(t, p.Pid)+":work { @ = count(); }")
			if (err == nil) != c.works {
				t.Errorf("attach: %v", err)
			}
			if got := p.Ask("calls 1000"); got != "called=1000" {
				t.Errorf("answered %s", got)
			}
			if err == nil {
				finish(t, s)
				if n := r.maps["@"][0].Value[0]; n != 1000 {
					t.Errorf("counted %d", n)
				}
			}
			if after := testkit.TakeFootprint(t, p.Pid).FDs; len(after) != len(before) {
				t.Errorf("descriptors before %q, after %q", before, after)
			}
			if changes := testkit.TextChanges(t, p.Pid); len(changes) != 0 {
				t.Errorf("the text differs: %q", changes)
			}
			p.Stop()
		})
	}
}
