package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"trapless/internal/testkit"
	"trapless/internal/unix"
)

// counted reads a map of one cell.
func counted(s *Session, number int) uint64 {
	e := s.Entries(number)
	if len(e) == 0 {
		return 0
	}
	return e[0].Value[0]
}

// lifeScript has two programs of its own at work, and two more for anywhere.
func lifeScript(path string) string {
	return fmt.Sprintf(`
uprobe:%q:work { @a = count(); }
uprobe:%q:work { @b = count(); @keys[arg0] = count(); }
uprobe:%q:work_push { @c = count(); }
uprobe:%q:work_mov { @d = count(); }`, path, path, path, path)
}

// stateOf describes one probe.
func stateOf(t *testing.T, s *Session, id int) ProbeInfo {
	t.Helper()
	all := s.Probes()
	i := slices.IndexFunc(all, func(p ProbeInfo) bool { return p.ID == id })
	if i < 0 {
		t.Fatalf("there is no probe %d: %v", id, all)
	}
	return all[i]
}

// TestLifeOfProbes registers, unregisters, enables and disables probes, arms and
// disarms all, and turns optimization off and on, while threads call the functions.
// After each step each program has counted just the calls that it should have.
func TestLifeOfProbes(t *testing.T) {
	for _, threads := range []int{1, 4} {
		p := testkit.Busy(t, threads)
		allowed, _ := config(t, lifeScript(exe(t, p.Pid())))
		allowed.Breakpoints = true
		s := attachWith(t, p.Pid(), allowed)
		want := map[int]uint64{}
		step := func(what string, on ...int) {
			t.Helper()
			const calls = 20000
			for _, f := range []string{"work", "work_push", "work_mov"} {
				run(t, p, calls, f, threads)
			}
			for _, m := range on {
				want[m] += calls * uint64(threads)
			}
			for _, p := range s.Probes() {
				if p.ID <= 3 && p.Hits != want[p.ID-1] {
					t.Fatalf("%s: %v, but %d calls", what, &p, want[p.ID-1])
				}
			}
			for m := range 4 {
				if got := counted(s, m); got != want[m] {
					t.Fatalf("%s: map %d counted %d, not %d", what, m, got, want[m])
				}
			}
		}
		check := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		ctx := t.Context()
		const a, b, c, d = 1, 2, 3, 4 // numbers of the script's probes; map m belongs to probe m+1
		step("attached", 0, 1, 2, 3)
		check(s.SetEnabled(false, a))
		step("one of two disabled", 1, 2, 3)
		check(s.SetEnabled(false, b, c))
		step("all of a site disabled", 3)
		check(s.SetEnabled(true, a, b))
		step("enabled again", 0, 1, 3)
		check(s.Arm(ctx, false))
		noChanges(t, p.Pid())
		if st := stateOf(t, s, a); st.State != Disarmed || !st.Enabled {
			t.Errorf("disarmed: %v", st)
		}
		step("disarmed")
		check(s.SetEnabled(true, c))
		check(s.SetEnabled(false, a))
		check(s.Arm(ctx, true))
		step("armed", 1, 2, 3)
		check(s.Unregister(ctx, a))
		step("one of two unregistered", 1, 2, 3)
		check(s.Unregister(ctx, b, d))
		step("all of a site unregistered", 2)
		if n := len(s.target.Detours()); n != 1 {
			t.Errorf("%d patches for one site", n)
		}
		added, err := s.Register(ctx, ProbeSpec{At: exe(t, p.Pid()) + ":work", Program: 3}, ProbeSpec{At: exe(t, p.Pid()) + ":work", Program: 0, Disabled: true})
		check(err)
		want[3] += 20000 * uint64(threads) // the program of work_mov counts work now
		step("registered", 2)
		check(s.SetEnabled(true, added[1].ID))
		want[3] += 20000 * uint64(threads)
		step("registered and enabled", 0, 2)
		check(s.Optimize(ctx, false))
		if st := stateOf(t, s, c); st.State != Boosted || st.Tactic != "trap" {
			t.Errorf("optimization off: %v", &st)
		}
		traps := s.target.Arena().Traps()
		want[3] += 20000 * uint64(threads)
		step("optimization off", 0, 2)
		if n := s.target.Arena().Traps() - traps; n != 40000*uint64(threads) {
			t.Errorf("%d traps for %d hits", n, 40000*threads)
		}
		check(s.Optimize(ctx, true))
		if st := stateOf(t, s, c); st.State != Optimized {
			t.Errorf("optimization on: %v", &st)
		}
		want[3] += 20000 * uint64(threads)
		step("optimization on", 0, 2)
		if err := s.Unregister(ctx, a); !errors.Is(err, ErrNoProbe) {
			t.Errorf("unregistered again: %v", err)
		}
		finish(t, s)
		noChanges(t, p.Pid())
		if err := s.SetEnabled(true, c); !errors.Is(err, ErrEnded) {
			t.Errorf("after the end: %v", err)
		}
		run(t, p, 1000, "work", threads)
	}
}

func noChanges(t *testing.T, pid int) {
	t.Helper()
	if changes := testkit.TextChanges(t, pid); len(changes) != 0 {
		t.Errorf("the text differs: %q", changes)
	}
}

// TestSitesThatShareWindows registers and unregisters the instructions of one
// function in any order: windows grow, shrink and move while threads run in them.
func TestSitesThatShareWindows(t *testing.T) {
	offsets := []int{0, 1, 4, 8, 11, 14, 15} // push, mov, imul, add, add, pop, ret of work_push
	p := testkit.Busy(t, 4)
	path := exe(t, p.Pid())
	var src bytes.Buffer
	for _, off := range offsets {
		fmt.Fprintf(&src, "uprobe:%q:work_push+%d { @at%02d = count(); }\n", path, off, off)
	}
	c, _ := config(t, src.String())
	c.Breakpoints = true
	s := attachWith(t, p.Pid(), c)
	ctx := t.Context()
	r := rand.New(rand.NewPCG(1, 2))
	ids := map[int]int{} // of the offset's number
	for i := range offsets {
		ids[i] = i + 1
	}
	want := make([]uint64, len(offsets))
	for round := range rounds(40) {
		if err := p.Spin("work_push", 4); err != nil {
			t.Fatal(err)
		}
		for range 1 + r.IntN(3) {
			i := r.IntN(len(offsets))
			if id := ids[i]; id != 0 {
				if err := s.Unregister(ctx, id); err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
				ids[i] = 0
				continue
			}
			added, err := s.Register(ctx, ProbeSpec{At: fmt.Sprintf("%q:work_push+%d", path, offsets[i]), Program: i})
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			ids[i] = added[0].ID
		}
		if r.IntN(4) == 0 {
			if err := s.Optimize(ctx, r.IntN(2) == 0); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := p.Stop(); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		for i := range offsets {
			want[i] = counted(s, i)
		}
		run(t, p, 5000, "work_push", 4)
		for i := range offsets {
			if ids[i] != 0 {
				want[i] += 4 * 5000
			}
			if got := counted(s, i); got != want[i] {
				t.Fatalf("round %d: +%d counted %d, not %d; probes %v", round, offsets[i], got, want[i], s.Probes())
			}
		}
	}
	finish(t, s)
	noChanges(t, p.Pid())
}

// TestTogglesWhileThreadsRun enables and disables a probe 100,000 times at 10 kHz, as
// near as the machine comes to that, with 8 threads in its function. The other probe at
// its site counts every call meanwhile, and then each says just what it should.
func TestTogglesWhileThreadsRun(t *testing.T) {
	const threads = 8
	p := testkit.Busy(t, threads)
	s, _ := attach(t, p.Pid(), lifeScript(exe(t, p.Pid())))
	if err := p.Spin("work", threads); err != nil {
		t.Fatal(err)
	}
	before := s.group.Pauses()
	n, began := rounds(100_000), time.Now()
	// A sleeper of ordinary priority is not woken in time while others spin.
	err := s.tracer.Do(func() error {
		for i := range n {
			if left := time.Until(began.Add(time.Duration(i) * togglePace)); left > 0 {
				unix.Nap(left)
			}
			if err := s.SetEnabled(i%2 == 1, 1); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	done, err := p.Stop() // the target checks its own results
	if err != nil {
		t.Fatal(err)
	}
	if len(s.group.Pauses()) != len(before) {
		t.Error("the target was stopped")
	}
	a, b := counted(s, 0), counted(s, 1)
	if a >= b || a == 0 || b != done.Calls {
		t.Errorf("the probe that was toggled %d times counted %d, the other one at its site %d; there were %d calls", n, a, b, done.Calls)
	}
	for _, on := range []bool{false, true, false} {
		if err := s.SetEnabled(on, 1); err != nil {
			t.Fatal(err)
		}
		run(t, p, 1000, "work", threads)
		if on {
			a += 1000 * threads
		}
		if got := counted(s, 0); got != a {
			t.Errorf("enabled %v: it counted %d, not %d", on, got, a)
		}
	}
	t.Logf("%d toggles in %v, %.1f kHz, %d of %d calls counted", n, took, float64(n)/1000/took.Seconds(), a, b)
	finish(t, s)
	noChanges(t, p.Pid())
}

// togglePace is the time from one toggle to the next.
const togglePace = 100 * time.Microsecond

// TestPatchesWhileThreadsRun disarms and arms all probes, and unregisters and registers
// one, over and over, with 8 threads in their functions.
func TestPatchesWhileThreadsRun(t *testing.T) {
	const threads = 8
	p := testkit.Busy(t, threads)
	path := exe(t, p.Pid())
	s, _ := attach(t, p.Pid(), lifeScript(path))
	if err := p.Spin("work", threads); err != nil {
		t.Fatal(err)
	}
	n := rounds(30)
	for range n {
		more, err := s.Register(t.Context(), ProbeSpec{At: fmt.Sprintf("uprobe:%q:work", path), Program: 3})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range []func() error{
			func() error { return s.Arm(t.Context(), false) },
			func() error { return s.Arm(t.Context(), true) },
			func() error { return s.Unregister(t.Context(), more[0].ID) },
		} {
			if err := f(); err != nil {
				t.Fatal(err)
			}
		}
	}
	done, err := p.Stop()
	if err != nil {
		t.Fatal(err)
	}
	a, b := counted(s, 0), counted(s, 1)
	// Gates close and open one after the other, for threads that are between the two.
	between := uint64(threads * 8 * n)
	if max(a, b)-min(a, b) > between || b == 0 || b >= done.Calls {
		t.Errorf("the two probes at a site counted %d and %d of %d calls", a, b, done.Calls)
	}
	run(t, p, 1000, "work", threads)
	if got := counted(s, 0); got != a+1000*threads {
		t.Errorf("armed again it counted %d, not %d", got, a+1000*threads)
	}
	finish(t, s)
	noChanges(t, p.Pid())
}

// TestRegisterRefuses: what cannot be registered leaves everything as it was.
func TestRegisterRefuses(t *testing.T) {
	p := testkit.Busy(t, 1)
	path := exe(t, p.Pid())
	s, _ := attach(t, p.Pid(), lifeScript(path))
	probes := s.Probes()
	for _, c := range []struct {
		spec ProbeSpec
		want error
	}{
		{ProbeSpec{At: path + ":nosuch"}, nil},
		{ProbeSpec{At: path + ":work", Program: 9}, nil},
		{ProbeSpec{At: "libnone:work"}, nil},
		{ProbeSpec{At: "uretprobe:" + path + ":work"}, nil},
		{ProbeSpec{At: "uprobe"}, nil},
		{ProbeSpec{At: path + ":work { exit(); } uprobe:x:y"}, nil},
		{ProbeSpec{At: path + ":work_push+2"}, ErrNothing}, // inside an instruction
	} {
		if _, err := s.Register(t.Context(), c.spec); err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c.spec, err)
		}
		if got := s.Probes(); fmt.Sprint(got) != fmt.Sprint(probes) {
			t.Fatalf("%+v: probes %v", c.spec, got)
		}
	}
	run(t, p, 1000, "work", 1)
	if got := counted(s, 0); got != 1000 {
		t.Errorf("counted %d", got)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Register(ended, ProbeSpec{At: path + ":work_nop5"}); err == nil {
		t.Error("registered although there was no time")
	}
	run(t, p, 1000, "work_nop5", 1)
	run(t, p, 1000, "work", 1)
	if got := counted(s, 0); got != 2000 {
		t.Errorf("counted %d", got)
	}
	finish(t, s)
	noChanges(t, p.Pid())
}
