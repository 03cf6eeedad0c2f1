package session

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"trapless/internal/inject"
	"trapless/internal/lang"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
	"trapless/internal/testkit"
)

// rounds is how often a test repeats what it repeats: TRAPLESS_ROUNDS, or the
// number given.
func rounds(n int) int {
	if v, err := strconv.Atoi(os.Getenv("TRAPLESS_ROUNDS")); err == nil && v > 0 {
		return v
	}
	return n
}

// roundScript probes the function that every thread of blocking.c calls.
func roundScript(t testing.TB, pid int) string {
	path, err := proc.Exe(pid)
	if err != nil {
		t.Fatal(err)
	}
	return "uprobe:" + path + ":probed { @[arg0] = count(); @total = count(); }"
}

// TestRoundsLeaveNothingBehind attaches and detaches over and over to a target
// full of blocking calls, which notices every wrong result and every EINTR.
func TestRoundsLeaveNothingBehind(t *testing.T) {
	p := testkit.Start(t, testkit.Compile(t, "blocking.c"))
	src := roundScript(t, p.Pid)
	n := rounds(1000)
	var after testkit.Footprint
	var hits uint64
	for i := range n {
		s, r, err := tryAttach(t, p.Pid, src)
		if err != nil {
			t.Fatalf("round %d: %v\n%s", i, err, p.Output())
		}
		time.Sleep(time.Duration(rand.IntN(4)) * time.Millisecond)
		finish(t, s)
		if total := r.maps["@total"]; len(total) == 1 {
			hits += total[0].Value[0]
		}
		if p.Ended() {
			t.Fatalf("round %d: the target ended: %s", i, p.Output())
		}
		if i == 0 {
			after = footprint(t, p.Pid)
		}
	}
	if diff := after.Diff(footprint(t, p.Pid)); len(diff) != 0 {
		t.Errorf("left behind by %d rounds beyond the first: %q", n, diff)
	}
	if changes := testkit.TextChanges(t, p.Pid); len(changes) != 0 {
		t.Errorf("the text differs: %q", changes)
	}
	last := p.Stop()
	if len(last) == 0 || last[len(last)-1] != "ok" {
		t.Errorf("last lines %q", last)
	}
	t.Logf("%d rounds, %d hits counted", n, hits)
	if hits == 0 {
		t.Error("not one hit was counted")
	}
}

// footprint leaves out what may change: the sockets that the target accepts and
// closes, and the inode of the arena, of which each session makes a new one.
func footprint(t *testing.T, pid int) testkit.Footprint {
	f := testkit.TakeFootprint(t, pid)
	f.FDs = slices.DeleteFunc(f.FDs, func(fd string) bool { return strings.Contains(fd, "socket:") })
	for i := range f.Mappings {
		if strings.HasPrefix(f.Mappings[i].Path, "/memfd:trapless") {
			f.Mappings[i].Inode = 0
		}
	}
	return f
}

// patched reports whether the target, if it still lives, begins its function
// with a jump.
func patched(pid int) bool {
	ms, err := readModules(pid, nil)
	if err != nil {
		return false
	}
	defer ms.Close()
	path, err := proc.Exe(pid)
	if err != nil {
		return false
	}
	sites, err := ms.sites(&lang.AttachPoint{Path: path, Func: "probed"})
	if err != nil {
		return false
	}
	mem, err := os.Open(proc.Path(pid, "mem"))
	if err != nil {
		return false
	}
	defer mem.Close()
	var b [1]byte
	_, err = mem.ReadAt(b[:], int64(sites[0].addr))
	return err == nil && b[0] == 0xe9
}

func tryAttach(t testing.TB, pid int, src string) (*Session, *recorder, error) {
	t.Helper()
	script, err := lang.Compile(src, t.Name(), lang.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{}
	c := Config{Script: script, Sink: r, Warn: t.Logf}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := Attach(ctx, pid, c)
	return s, r, err
}

// What makes the test binary a tracer: the target, and the script that it runs.
const (
	tracerVar = "TRAPLESS_TEST_TRACER"
	scriptVar = "TRAPLESS_TEST_SCRIPT"
)

func TestMain(m *testing.M) {
	if pid, err := strconv.Atoi(os.Getenv(tracerVar)); err == nil {
		if step, err := strconv.Atoi(os.Getenv(stepVar)); err == nil {
			dieAtStep(pid, step)
		}
		if os.Getenv(holdVar) != "" {
			hold(pid)
		}
		traceForever(pid)
	}
	os.Exit(m.Run())
}

// traceForever is a tracer that attaches and detaches until it is killed.
func traceForever(pid int) {
	fail := func(err error) {
		fmt.Println("failed:", err)
		os.Exit(1)
	}
	script, err := lang.Compile(os.Getenv(scriptVar), "test", lang.Options{})
	if err != nil {
		fail(err)
	}
	fmt.Println("started")
	for {
		c := Config{Script: script, Sink: &recorder{}, Warn: func(string, ...any) {}}
		s, err := Attach(context.Background(), pid, c)
		if err != nil {
			fail(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Millisecond)
		if err := s.Run(ctx); err != nil {
			fail(err)
		}
		cancel()
		if err := s.Close(); err != nil {
			fail(err)
		}
	}
}

// TestTargetSurvivesKilledTracers kills tracers at random moments of their work.
// The next one has to find the journal and take over.
//
// One thing a killed tracer cannot mend: a system call that returns EINTR at any
// stop, if the kill falls into the microseconds between the stop and the repair.
// Such a target is replaced, and counted.
func TestTargetSurvivesKilledTracers(t *testing.T) {
	p := testkit.Start(t, testkit.Compile(t, "blocking.c"))
	n, script := rounds(500), roundScript(t, p.Pid)
	leftPatched, interrupted := 0, 0
	kill := func(i int, settle time.Duration) (alive bool) {
		if endedByEINTR(t, p) { // of the round before, on a busy machine
			interrupted++
			p = testkit.Start(t, testkit.Compile(t, "blocking.c"))
		}
		killTracer(t, i, p.Pid, script)
		if patched(p.Pid) {
			leftPatched++
		}
		time.Sleep(settle)
		if !endedByEINTR(t, p) {
			return true
		}
		interrupted++
		p = testkit.Start(t, testkit.Compile(t, "blocking.c"))
		return false
	}
	for i := range n {
		kill(i, 10*time.Millisecond) // its calls return within 8 ms
	}
	// The last one's target has to be alive for what follows.
	for i := n; !kill(i, 200*time.Millisecond); i++ {
	}
	clean(t, p.Pid)
	if changes := testkit.TextChanges(t, p.Pid); len(changes) != 0 {
		t.Errorf("the text differs after clean: %q", changes)
	}
	last := p.Stop()
	if len(last) == 0 || last[len(last)-1] != "ok" {
		t.Errorf("last lines %q", last)
	}
	t.Logf("%d tracers killed, %d of them with probes in place; %d left an EINTR", n, leftPatched, interrupted)
	if leftPatched == 0 {
		t.Error("no tracer was killed with probes in place: the test tests nothing")
	}
}

// endedByEINTR reports whether the target has ended because of an EINTR; it
// must not have ended for any other reason.
func endedByEINTR(t *testing.T, p *testkit.Target) bool {
	t.Helper()
	if !p.Ended() {
		return false
	}
	out := p.Output()
	if !strings.Contains(out, "Interrupted system call") && !strings.Contains(out, "EINTR") {
		t.Fatalf("the target ended: %s", out)
	}
	return true
}

func killTracer(t *testing.T, i, pid int, script string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), tracerVar+"="+strconv.Itoa(pid), scriptVar+"="+script)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	time.Sleep(time.Duration(rand.IntN(30000)) * time.Microsecond)
	_ = cmd.Process.Signal(syscall.SIGKILL)
	for lines.Scan() {
		if !strings.Contains(lines.Text(), "gone") && !strings.Contains(lines.Text(), "no such process") {
			t.Errorf("tracer %d: %s", i, lines.Text())
		}
	}
	_ = cmd.Wait()
}

func clean(t *testing.T, pid int) {
	t.Helper()
	if err := tryClean(pid); err != nil {
		t.Fatal(err)
	}
}

func tryClean(pid int) error {
	tracer, err := ptrace.Start()
	if err != nil {
		return err
	}
	defer tracer.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g, err := tracer.Seize(ctx, pid)
	if err != nil {
		return err
	}
	_, err = inject.Clean(ctx, g)
	return errors.Join(err, g.Detach(ctx))
}
