package ptrace

import (
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"trapless/internal/abi"
	"trapless/internal/proc"
)

// rounds is how often a test repeats what it does. PTRACE_TEST_ROUNDS multiplies
// it for a longer run.
func rounds(n int) int {
	if f, err := strconv.Atoi(os.Getenv("PTRACE_TEST_ROUNDS")); err == nil {
		return n * f
	}
	if testing.Short() {
		return max(n/10, 1)
	}
	return n
}

func TestStopResume(t *testing.T) {
	tg := start(t, build(t, "ptrace_calls.c"))
	tr := tracer(t)
	g, err := tr.Seize(within(t, 5*time.Second), tg.pid)
	check(t, err)
	if n := len(g.Threads()); n != 16 {
		t.Errorf("%d threads, want 16", n)
	}
	for range rounds(200) {
		check(t, g.Stop(within(t, 5*time.Second)))
		for _, th := range g.Threads() {
			if th.Kind() == NotStopped {
				t.Errorf("%v is not stopped", th)
			}
		}
		check(t, g.Resume())
		time.Sleep(300 * time.Microsecond)
	}
	check(t, g.Detach(within(t, 5*time.Second)))
	t.Log(tg.finish())
}

const sysGetpid, sysMunmap = 39, 11

func TestBlobRounds(t *testing.T) {
	tg := start(t, build(t, "ptrace_calls.c"))
	tr := tracer(t)
	ctx := within(t, 120*time.Second)
	g, err := tr.Seize(ctx, tg.pid)
	check(t, err)
	before, err := proc.ReadMaps(tg.pid)
	check(t, err)
	region, err := g.Foothold(ctx, 0, 4*abi.PageSize)
	check(t, err)
	check(t, g.Detach(ctx))
	for i := range rounds(200) {
		check(t, g.Seize(ctx))
		found, ok, err := g.FindFoothold(ctx)
		if err != nil || !ok || found != region {
			t.Fatalf("round %d: FindFoothold says %v %v %v, want %v", i, found, ok, err, region)
		}
		runPid(t, g, tg.pid)
		if i%3 == 0 {
			check(t, g.Stop(ctx))
			runPid(t, g, tg.pid)
			check(t, g.Resume())
		}
		check(t, g.Detach(ctx))
	}
	after, err := proc.ReadMaps(tg.pid)
	check(t, err)
	if len(after) > len(before)+8 { // the region, the mailbox, and stacks and heaps of its own
		t.Errorf("%d mappings before, %d after", len(before), len(after))
	}
	t.Log(tg.finish())
}

// runPid maps and unmaps a page and asks for the process id in one blob.
func runPid(t *testing.T, g *Group, pid int) {
	t.Helper()
	var b Blob
	page := b.Call(sysMmap, Const(0), Const(4096), Const(protRead), Const(mapPrivate|mapAnonymous), Const(^uint64(0)), Const(0))
	b.Call(sysGetpid)
	b.Call(sysMunmap, page, Const(4096))
	b.Expect(0)
	res, err := g.Run(within(t, 10*time.Second), &b)
	if err != nil {
		var r *Refusal
		errors.As(err, &r)
		t.Fatalf("%v (results %#x)", err, res)
	}
	if res[1] != uint64(pid) || res[2] != 0 || res[0]%4096 != 0 {
		t.Fatalf("results %#x, want a page, %d, 0", res, pid)
	}
}
