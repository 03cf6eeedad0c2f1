package ptrace

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"trapless/internal/abi"
	"trapless/internal/proc"
)

// TestLeftoversAreRestored lets tracers die while their first code is in the slack,
// and the next one restore it, but not while an address in it is in memory.
func TestLeftoversAreRestored(t *testing.T) {
	tg := start(t, build(t, "ptrace_calls.c"), "crash")
	some := func() bool {
		g, err := tracer(t).Seize(within(t, 20*time.Second), tg.pid)
		check(t, err)
		defer g.Close()
		defer func() { check(t, g.Detach(within(t, 20*time.Second))) }()
		return len(leftovers(t, g)) > 0
	}
	at := 1
	for ; !some(); at++ {
		if at == 100 || crashOnce(t, tg, at, 0, true, 0) {
			t.Fatalf("no tracer of %d left anything", at)
		}
	}
	g, err := tracer(t).Seize(within(t, 20*time.Second), tg.pid)
	check(t, err)
	defer g.Close()
	home, err := g.Foothold(within(t, 20*time.Second), 0, abi.PageSize)
	check(t, err)
	found := leftovers(t, g)
	address := binary.LittleEndian.AppendUint64(nil, uint64(found[0].Start)+syscallInsnLen)
	check(t, g.mem.WriteAt(address, home.End+64)) // in the mailbox
	if n, err := g.RestoreSlack(within(t, 20*time.Second)); err != nil || n != 0 {
		t.Errorf("restored %d, %v; wanted none, because somebody may return there", n, err)
	}
	check(t, g.mem.WriteAt(make([]byte, 8), home.End+64))
	if n, err := g.RestoreSlack(within(t, 20*time.Second)); err != nil || n != len(found) {
		t.Errorf("restored %d, %v; wanted %d", n, err, len(found))
	}
	for _, l := range found {
		now := make([]byte, len(l.file))
		check(t, g.mem.ReadAt(now, l.Start))
		if !bytes.Equal(now, l.file) {
			t.Errorf("at %v there is % x", l.Start, now)
		}
	}
	check(t, g.Detach(within(t, 20*time.Second)))
	t.Logf("after fault point %d: %s", at, tg.finish())
}

// leftovers lists those of an attached process.
func leftovers(t *testing.T, g *Group) []leftover {
	t.Helper()
	maps, err := proc.ReadMaps(g.PID)
	check(t, err)
	return g.leftovers(maps)
}
