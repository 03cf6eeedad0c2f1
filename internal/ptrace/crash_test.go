package ptrace

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"trapless/internal/abi"
	"trapless/internal/proc"
)

func init() { helpers["crash"] = crash }

// crash is the tracer that dies: arguments are the target, the number of the
// fault point at which it kills itself (0: never), how long injected code
// lingers, and whether to make a fresh foothold. It says "done" when it got
// through its rounds.
func crash(args []string) {
	var n [4]int
	for i := range n {
		n[i], _ = strconv.Atoi(args[i])
	}
	pid, at := n[0], n[1]
	lingers = uint64(n[2])
	if at > 0 {
		fault = func() {
			if at--; at == 0 {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
		}
	}
	t, err := Start()
	if err == nil {
		fmt.Println("go")
		for first := true; err == nil && (at == 0 || first); first = false {
			err = crashRound(t, pid, n[3] != 0)
		}
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
	fmt.Println("done")
}

func crashRound(t *Tracer, pid int, fresh bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	g, err := t.Seize(ctx, pid)
	if err != nil {
		return err
	}
	defer g.Close()
	_, ok, err := g.FindFoothold(ctx)
	if err == nil && (!ok || fresh) {
		_, err = g.Foothold(ctx, 0, abi.PageSize)
	}
	if err != nil {
		return err
	}
	var b Blob
	b.Call(sysGetpid)
	if rand.IntN(2) == 0 {
		g.only = g.Threads()[rand.IntN(16)].TID
	}
	for i := range 4 {
		if i == 2 {
			if err := g.Stop(ctx); err != nil {
				return err
			}
		}
		if _, err := g.Run(ctx, &b); err != nil && !errors.Is(err, ErrNoThread) {
			return err
		}
	}
	if err := g.Resume(); err != nil {
		return err
	}
	return g.Detach(ctx)
}

// crashOnce lets a tracer die and says whether it had got through.
func crashOnce(t *testing.T, tg *target, at, linger int, fresh bool, after time.Duration) (through bool) {
	t.Helper()
	cmd := helper(t, "crash", strconv.Itoa(tg.pid), strconv.Itoa(at), strconv.Itoa(linger), map[bool]string{true: "1", false: "0"}[fresh])
	out, err := cmd.StdoutPipe()
	check(t, err)
	cmd.Stderr = os.Stderr
	check(t, cmd.Start())
	lines := bufio.NewScanner(out)
	lines.Scan()
	if at == 0 {
		time.Sleep(after)
		check(t, cmd.Process.Kill())
	}
	last := lines.Text()
	for lines.Scan() {
		last = lines.Text()
	}
	err = cmd.Wait()
	if last != "go" && last != "done" {
		t.Fatalf("the tracer says %q (%v)", last, err)
	}
	tg.alive()
	tids, err := proc.Threads(tg.pid)
	check(t, err)
	for _, tid := range tids {
		if st, err := proc.ReadStat(tg.pid, tid); err != nil || st.State == proc.Stopped || st.State == proc.Tracing {
			t.Fatalf("after the tracer's death thread %d of the target is %v (%v)", tid, st.State, err)
		}
	}
	return last == "done"
}

func TestTracerDiesAtRandom(t *testing.T) {
	tg := start(t, build(t, "ptrace_calls.c"), "crash")
	for i := range rounds(100) {
		crashOnce(t, tg, 0, []int{0, 500, 4096, 100000}[i%4], false, time.Duration(rand.IntN(6000))*time.Microsecond)
	}
	regions, maps := footholds(t, tg.pid)
	t.Logf("%d footholds, %d mappings", regions, maps)
	t.Log(tg.finish())
}

// footholds counts the regions that tracers left.
func footholds(t *testing.T, pid int) (regions, maps int) {
	ms, err := proc.ReadMaps(pid)
	check(t, err)
	for i := range ms {
		if ms[i].Path == "" && ms[i].Perm == proc.Read|proc.Exec {
			regions++
		}
	}
	return regions, len(ms)
}

// The tracer dies once at each point of a round: the first time that it goes
// through the slack, and when it finds a foothold.
func TestTracerDiesAtEveryPoint(t *testing.T) {
	for _, fresh := range []bool{true, false} {
		t.Run(fmt.Sprintf("fresh=%v", fresh), func(t *testing.T) {
			tg := start(t, build(t, "ptrace_calls.c"), "crash")
			at, step := 1, 1
			if testing.Short() {
				step = 11
			}
			for ; at < 2000; at += step {
				if crashOnce(t, tg, at, []int{0, 20000}[at%2], fresh, 0) {
					break
				}
			}
			regions, maps := footholds(t, tg.pid)
			t.Logf("%d points, %d footholds, %d mappings", at, regions, maps)
			t.Log(tg.finish())
		})
	}
}
