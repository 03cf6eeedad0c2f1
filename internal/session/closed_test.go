package session

import (
	"context"
	"errors"
	"slices"
	"testing"

	"trapless/internal/lang"
	"trapless/internal/testkit"
)

// TestClosedSessions asks a session for everything after Close: its maps hold what they
// held then, and all else is refused.
func TestClosedSessions(t *testing.T) {
	p := testkit.Busy(t, 2)
	s, _ := attach(t, p.Pid(), lifeScript(exe(t, p.Pid())))
	run(t, p, 1000, "work", 2)
	byKey := slices.IndexFunc(s.config.Script.Maps, func(m lang.Map) bool { return m.Name == "@keys" })
	ids := []int{s.Probes()[0].ID}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	run(t, p, 1000, "work", 2)
	for range 2 {
		if a, keys := counted(s, 0), len(s.Entries(byKey)); a != 2000 || keys == 0 {
			t.Errorf("closed, it counted %d with %d keys", a, keys)
		}
	}
	s.Poll()
	if n, reads := len(s.Probes()), s.Reads(); n != 0 || reads != (Reads{}) {
		t.Errorf("closed, it has %d probes, and has read %v", n, reads)
	}
	if armed, _ := s.Armed(); armed {
		t.Error("closed, it is armed")
	}
	ctx := context.Background()
	_, readErr := s.ReadMap(0)
	_, keyErr := s.LookupKey(byKey, make([]byte, 8))
	_, registerErr := s.Register(ctx, ProbeSpec{At: "work"})
	for what, err := range map[string]error{
		"ReadMap": readErr, "LookupKey": keyErr, "Register": registerErr,
		"UpdateMap": s.UpdateMap(byKey, make([]byte, 8), make([]byte, 8), 0), "DeleteKey": s.DeleteKey(byKey, make([]byte, 8)),
		"Unregister": s.Unregister(ctx, ids...), "SetEnabled": s.SetEnabled(true, ids...),
		"Arm": s.Arm(ctx, true), "Optimize": s.Optimize(ctx, true), "Run": s.Run(ctx),
	} {
		if !errors.Is(err, ErrEnded) {
			t.Errorf("closed, %s: %v", what, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
}

// TestClosedAlone is the same for a session without a process.
func TestClosedAlone(t *testing.T) {
	c, _ := config(t, `BEGIN { @[3] = 7; exit(); }`)
	s, err := Alone(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Run(context.Background()), s.Close()); err != nil {
		t.Fatal(err)
	}
	if e := s.Entries(0); len(e) != 1 || e[0].Key[0] != 3 || e[0].Value[len(e[0].Value)-1] != 7 {
		t.Errorf("closed, the map holds %v", e)
	}
	if err := s.Run(context.Background()); !errors.Is(err, ErrEnded) {
		t.Errorf("closed, Run: %v", err)
	}
}
