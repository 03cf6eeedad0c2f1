package session

import (
	"fmt"
	"testing"

	"trapless/internal/testkit"
)

// TestHeir cleans a child that was forked during a session, while that session is
// at work or after its end: the child's text and actions are copies of their own,
// and the journal that it shares speaks of its parent.
func TestHeir(t *testing.T) {
	for _, ended := range []bool{false, true} {
		p := testkit.Start(t, testkit.Compile(t, "heir.c"))
		before := testkit.TakeFootprint(t, p.Pid).Actions
		s, _ := attach(t, p.Pid, "uprobe:"+exe(t, p.Pid)+":probed { @ = count(); }")
		var child int
		if _, err := fmt.Sscanf(p.Ask("fork"), "child %d", &child); err != nil {
			t.Fatal(err)
		}
		if ended {
			finish(t, s)
		}
		clean(t, child)
		if changes := testkit.TextChanges(t, child); len(changes) != 0 {
			t.Errorf("ended %v: the child's text differs: %q", ended, changes)
		}
		if after := testkit.TakeFootprint(t, child).Actions; fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("ended %v: the child's actions are %v, those of its parent were %v", ended, after, before)
		}
		if !ended {
			finish(t, s)
		}
		if changes := testkit.TextChanges(t, p.Pid); len(changes) != 0 {
			t.Errorf("ended %v: the parent's text differs: %q", ended, changes)
		}
		p.Stop()
	}
}
