package ptrace

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"trapless/internal/abi"
	"trapless/internal/proc"
)

func life(t *testing.T, args ...string) *target {
	t.Helper()
	return start(t, build(t, "ptrace_life.c"), args...)
}

func seize(t *testing.T, tg *target) *Group {
	t.Helper()
	g, err := tracer(t).Seize(within(t, 10*time.Second), tg.pid)
	check(t, err)
	return g
}

// wantState wants every thread of a process that lives to be in a state, or to
// get there within a moment.
func wantState(t *testing.T, pid int, want ...proc.State) {
	t.Helper()
	for try := 0; ; try++ {
		tids, err := proc.Threads(pid)
		check(t, err)
		bad := ""
		for _, tid := range tids {
			st, err := proc.ReadStat(pid, tid)
			if err == nil && !st.Dead() && !slices.Contains(want, st.State) {
				bad = fmt.Sprintf("thread %d is %v", tid, st.State)
			}
		}
		switch {
		case bad == "":
			return
		case try == 100:
			t.Error(bad)
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func TestHundredThreads(t *testing.T) {
	tg := life(t, "threads", "100")
	g := seize(t, tg)
	for range rounds(20) {
		check(t, g.Stop(within(t, 20*time.Second)))
		if n := len(g.Threads()); n != 100 {
			t.Fatalf("%d threads", n)
		}
		wantState(t, tg.pid, proc.Tracing)
		check(t, g.Resume())
	}
	if n := len(g.Pauses()); n < rounds(20) {
		t.Errorf("%d pauses are known", n)
	}
	check(t, g.Detach(within(t, 10*time.Second)))
	tg.finish()
}

func TestThreadsAreBornAndDie(t *testing.T) {
	tg := life(t, "churn")
	g := seize(t, tg)
	ctx := within(t, 60*time.Second)
	_, err := g.Foothold(ctx, 0, abi.PageSize)
	check(t, err)
	for i := range rounds(100) {
		check(t, g.Stop(ctx))
		wantState(t, tg.pid, proc.Tracing)
		runPid(t, g, tg.pid)
		check(t, g.Resume())
		if i%3 == 0 {
			runPid(t, g, tg.pid)
			check(t, g.Detach(ctx))
			check(t, g.Seize(ctx))
		}
	}
	check(t, g.Detach(ctx))
	tg.finish()
}

func TestDeadLeader(t *testing.T) {
	tg := life(t, "leader")
	if st, err := proc.ReadStat(tg.pid, tg.pid); err != nil || !st.Dead() {
		t.Fatalf("the leader is %v (%v)", st.State, err)
	}
	g := seize(t, tg)
	ctx := within(t, 30*time.Second)
	_, err := g.Foothold(ctx, 0, abi.PageSize)
	check(t, err)
	for range rounds(20) {
		check(t, g.Stop(ctx))
		runPid(t, g, tg.pid)
		check(t, g.Resume())
		runPid(t, g, tg.pid)
		check(t, g.Detach(ctx))
		check(t, g.Seize(ctx))
	}
	check(t, g.Detach(ctx))
	tg.finish()
}

// The leader ends while we are attached to it.
func TestLeaderDies(t *testing.T) {
	exe := build(t, "ptrace_life.c")
	for range rounds(10) {
		tg := startUntil(t, "", exe, "leader") // before it says that it is ready
		g := seize(t, tg)
		for {
			ctx := within(t, 10*time.Second)
			check(t, g.Stop(ctx))
			check(t, g.Resume())
			if st, err := proc.ReadStat(tg.pid, tg.pid); err == nil && st.Dead() {
				break
			}
		}
		ctx := within(t, 10*time.Second)
		check(t, g.Stop(ctx))
		check(t, g.Resume())
		check(t, g.Detach(ctx))
		check(t, g.Seize(ctx))
		check(t, g.Stop(ctx))
		check(t, g.Detach(ctx))
		if line := tg.line(); line != "ready" {
			t.Fatalf("the target says %q", line)
		}
		tg.finish()
	}
}

func TestVforkParent(t *testing.T) {
	tg := life(t, "vfork", "300")
	g := seize(t, tg)
	time.Sleep(50 * time.Millisecond) // into the vfork
	err := g.Stop(within(t, 100*time.Millisecond))
	if !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), "uninterruptible sleep") {
		t.Errorf("Stop while a thread is in vfork says %v", err)
	}
	wantState(t, tg.pid, proc.Running, proc.Sleeping, proc.Disk)
	for range rounds(5) {
		check(t, g.Stop(within(t, 20*time.Second)))
		wantState(t, tg.pid, proc.Tracing)
		check(t, g.Resume())
		time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
	}
	if p := slices.Max(g.Pauses()); p > 2*defaultMaxPause {
		t.Errorf("the longest pause was %v", p)
	}
	if err := g.Detach(within(t, 5*time.Second)); err != nil {
		t.Error(err)
	}
	tg.finish()
}

func TestProcessThatSharesMemory(t *testing.T) {
	tg := life(t, "sharer")
	g := seize(t, tg)
	for range rounds(20) {
		check(t, g.Stop(within(t, 10*time.Second)))
		pids := map[int]bool{}
		for _, th := range g.Threads() {
			pids[th.PID] = true
		}
		if len(pids) != 2 {
			t.Fatalf("threads of %d processes are stopped", len(pids))
		}
		for pid := range pids {
			wantState(t, pid, proc.Tracing)
		}
		check(t, g.Resume())
	}
	check(t, g.Detach(within(t, 10*time.Second)))
	tg.finish()
}

func TestChildrenAreLeftAlone(t *testing.T) {
	tg := life(t, "fork")
	g := seize(t, tg)
	ctx := within(t, 60*time.Second)
	_, err := g.Foothold(ctx, 0, abi.PageSize)
	check(t, err)
	for i := range rounds(100) {
		check(t, g.Stop(ctx))
		check(t, g.Resume())
		runPid(t, g, tg.pid)
		for _, th := range g.Threads() {
			if th.PID != tg.pid {
				t.Fatalf("%v belongs to process %d", th, th.PID)
			}
		}
		if i%5 == 0 {
			check(t, g.Detach(ctx))
			check(t, g.Seize(ctx))
		}
	}
	check(t, g.Detach(ctx))
	tg.finish()
}

func TestStoppedTargetStaysStopped(t *testing.T) {
	tg := life(t, "threads", "5")
	check(t, syscall.Kill(tg.pid, syscall.SIGSTOP))
	wantState(t, tg.pid, proc.Stopped)
	g := seize(t, tg)
	ctx := within(t, 10*time.Second)
	for range 3 {
		if err := g.Stop(ctx); !errors.Is(err, ErrStopped) || !strings.Contains(err.Error(), "kill -CONT") {
			t.Errorf("Stop of a stopped process says %v", err)
		}
		if _, err := g.Foothold(ctx, 0, abi.PageSize); !errors.Is(err, ErrStopped) {
			t.Errorf("Foothold in a stopped process says %v", err)
		}
		check(t, g.StopEvenStopped(ctx))
		for _, th := range g.Threads() {
			if th.Kind() != GroupStop {
				t.Errorf("%v is %v", th, th.Kind())
			}
			if _, err := th.Regs(); err != nil {
				t.Error(err)
			}
		}
		if _, err := g.Foothold(ctx, 0, abi.PageSize); !errors.Is(err, ErrStopped) {
			t.Errorf("Foothold in a stopped process says %v", err)
		}
		check(t, g.Resume())
		wantState(t, tg.pid, proc.Tracing, proc.Stopped)
		check(t, g.Detach(ctx))
		wantState(t, tg.pid, proc.Stopped)
		check(t, g.Seize(ctx))
	}
	// It is continued while we are attached, and while we are not.
	check(t, syscall.Kill(tg.pid, syscall.SIGCONT))
	wantState(t, tg.pid, proc.Running, proc.Sleeping)
	check(t, g.Stop(ctx))
	check(t, syscall.Kill(tg.pid, syscall.SIGSTOP))
	check(t, g.Detach(ctx))
	wantState(t, tg.pid, proc.Stopped)
	check(t, syscall.Kill(tg.pid, syscall.SIGCONT))
	tg.finish()
}

// Somebody stops and continues the process all the time. What we do may be
// refused; in the end it has to be in the state in which that one left it.
func TestStopsByOthers(t *testing.T) {
	tg := life(t, "threads", "4")
	g := seize(t, tg)
	ctx := within(t, 60*time.Second)
	_, err := g.Foothold(ctx, 0, abi.PageSize)
	check(t, err)
	quit, ended := make(chan bool), make(chan bool)
	go func() {
		defer close(ended)
		for {
			select {
			case <-quit:
				return
			case <-time.After(time.Duration(rand.IntN(3000)) * time.Microsecond):
			}
			_ = syscall.Kill(tg.pid, []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT}[rand.IntN(2)])
		}
	}()
	refused := 0
	note := func(err error) {
		if errors.Is(err, ErrStopped) {
			refused++
		} else if err != nil {
			t.Error(err)
		}
	}
	var b Blob
	b.Call(sysGetpid)
	for i := range rounds(300) {
		switch i % 5 {
		case 0:
			_, err := g.Run(ctx, &b)
			note(err)
		case 1:
			note(g.Stop(ctx))
			check(t, g.Resume())
		case 2:
			check(t, g.StopEvenStopped(ctx))
			check(t, g.Resume())
		case 3:
			check(t, g.Stop2(ctx, note))
		case 4:
			check(t, g.Detach(ctx))
			check(t, g.Seize(ctx))
		}
	}
	close(quit)
	<-ended
	check(t, syscall.Kill(tg.pid, syscall.SIGSTOP))
	check(t, g.Detach(ctx))
	wantState(t, tg.pid, proc.Stopped)
	check(t, syscall.Kill(tg.pid, syscall.SIGCONT))
	t.Logf("%d refusals", refused)
	tg.finish()
}

// Stop2 stops and detaches at once.
func (g *Group) Stop2(ctx context.Context, note func(error)) error {
	note(g.Stop(ctx))
	if err := g.Detach(ctx); err != nil {
		return err
	}
	return g.Seize(ctx)
}

// gone reports whether an error says that the process is not there any more.
func gone(err error) bool {
	for _, want := range []error{ErrGone, ErrExec, proc.ErrNoProcess, proc.ErrZombie} {
		if errors.Is(err, want) {
			return true
		}
	}
	return false
}

// useUntilGone works with a process until it ends, or long enough if it does not:
// one that was to call execve may have done so before we attached.
func useUntilGone(t *testing.T, tg *target) (done int, last error) {
	t.Helper()
	ctx := within(t, time.Minute)
	g, err := tracer(t).Seize(ctx, tg.pid)
	if err != nil {
		return 0, err
	}
	defer g.Close()
	_, err = g.Foothold(ctx, 0, abi.PageSize)
	var b Blob
	b.Call(sysGetpid)
	for until := time.Now().Add(10 * time.Second); err == nil && done < 3000 && time.Now().Before(until); done++ {
		switch done % 3 {
		case 0:
			_, err = g.Run(ctx, &b)
		case 1:
			if err = g.Stop(ctx); err == nil {
				_, err = g.Run(ctx, &b)
				if err == nil {
					err = g.Resume()
				}
			}
		case 2:
			if err = g.Detach(ctx); err == nil {
				err = g.Seize(ctx)
			}
		}
	}
	if derr := g.Detach(ctx); derr != nil {
		t.Errorf("Detach after the end says %v", derr)
	}
	return done, err
}

func TestExitAtAnyTime(t *testing.T) {
	exe := build(t, "ptrace_life.c")
	for i := range rounds(30) {
		tg := start(t, exe, "exit", fmt.Sprint(i%15))
		n, err := useUntilGone(t, tg)
		if !gone(err) {
			t.Fatalf("after %d operations: %v", n, err)
		}
		<-tg.waited
		if code := tg.cmd.ProcessState.ExitCode(); code != 7 {
			t.Fatalf("its parent sees status %d", code)
		}
	}
}

func TestKilledAtAnyTime(t *testing.T) {
	exe := build(t, "ptrace_life.c")
	for range rounds(30) {
		tg := start(t, exe, "threads", "8")
		go func() {
			time.Sleep(time.Duration(rand.IntN(10000)) * time.Microsecond)
			_ = syscall.Kill(tg.pid, syscall.SIGKILL)
		}()
		if n, err := useUntilGone(t, tg); !gone(err) {
			t.Fatalf("after %d operations: %v", n, err)
		}
		<-tg.waited
	}
}

func TestExecAtAnyTime(t *testing.T) {
	exe := build(t, "ptrace_life.c")
	for i := range rounds(30) {
		tg := start(t, exe, "exec", fmt.Sprint(i%15), exe, "threads", "3")
		n, err := useUntilGone(t, tg)
		if err != nil && !gone(err) {
			t.Fatalf("after %d operations: %v", n, err)
		}
		if line := tg.line(); line != "ready" {
			t.Fatalf("after execve the target says %q", line)
		}
		tg.finish()
	}
}

// TestExecWhileAttaching: a thread calls execve when the first one has been attached to,
// and it itself has not. It gets the first one's id, and nothing is reported.
func TestExecWhileAttaching(t *testing.T) {
	exe := build(t, "ptrace_life.c")
	tg := start(t, exe, "exec", "100", exe, "spin")
	ctx := within(t, 20*time.Second)
	g := tracer(t).newGroup(tg.pid)
	check(t, g.t.do(func() error {
		g.mode = modeRun
		_, err := g.seizeThread(tg.pid, tg.pid)
		return err
	}))
	if line := tg.line(); line != "ready" {
		t.Fatalf("after execve the target says %q", line)
	}
	check(t, g.t.do(func() error { return g.seize(ctx) }))
	_, err := g.Foothold(ctx, 0, abi.PageSize)
	check(t, err)
	check(t, g.Detach(ctx))
	tg.alive()
}

func TestMemoryOutlivesNothing(t *testing.T) {
	exe := build(t, "ptrace_life.c")
	tg := start(t, exe, "exec", "100", exe, "threads", "1")
	g := seize(t, tg)
	ctx := within(t, 10*time.Second)
	check(t, g.Detach(ctx))
	if !g.Mem().Alive() {
		t.Error("the memory is dead before execve")
	}
	if line := tg.line(); line != "ready" {
		t.Fatalf("after execve the target says %q", line)
	}
	if g.Mem().Alive() {
		t.Error("the memory is alive after execve")
	}
	var b [1]byte
	if err := g.Mem().ReadAt(b[:], 0x1000); !errors.Is(err, ErrGone) {
		t.Errorf("reading dead memory says %v", err)
	}
	if err := g.Seize(ctx); !errors.Is(err, ErrExec) {
		t.Errorf("attaching again after execve says %v", err)
	}
	wantState(t, tg.pid, proc.Sleeping)
	tg.finish()
}

// TestMemoryThatAnotherProcessKeeps: the memory lives on without the process, which must not be taken for it.
func TestMemoryThatAnotherProcessKeeps(t *testing.T) {
	exe := build(t, "ptrace_life.c")
	tg := start(t, exe, "leave", exe, "threads", "1")
	g := seize(t, tg)
	ctx := within(t, 10*time.Second)
	_, err := g.Foothold(ctx, 0, abi.PageSize)
	check(t, err)
	check(t, g.Detach(ctx))
	check(t, g.Seize(ctx)) // it is still the same
	check(t, g.Detach(ctx))
	if _, err := tg.stdin.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	if line := tg.line(); line != "ready" {
		t.Fatalf("after execve the target says %q", line)
	}
	if !g.Mem().Alive() {
		t.Error("the memory has ended, although a process has it")
	}
	if err := g.Seize(ctx); !errors.Is(err, ErrExec) {
		t.Errorf("attaching again after execve says %v", err)
	}
	wantState(t, tg.pid, proc.Sleeping)
	tg.finish()
}

func TestSingleThread(t *testing.T) {
	for _, what := range []string{"spin", "sleep"} {
		t.Run(what, func(t *testing.T) {
			tg := life(t, what)
			g := seize(t, tg)
			ctx := within(t, 30*time.Second)
			_, err := g.Foothold(ctx, 0, abi.PageSize)
			check(t, err)
			for range rounds(20) {
				runPid(t, g, tg.pid)
				check(t, g.Stop(ctx))
				runPid(t, g, tg.pid)
				check(t, g.Resume())
			}
			check(t, g.Detach(ctx))
			if what == "sleep" {
				tg.finish()
			}
		})
	}
}

func TestSignalStorm(t *testing.T) {
	exe := build(t, "ptrace_signals.c")
	for _, args := range [][]string{{"1000", "1"}, {"1000", "4"}, {"100", "1"}, {"100", "3"}} {
		t.Run(strings.Join(args, "us,threads="), func(t *testing.T) {
			tg := start(t, exe, args...)
			g := seize(t, tg)
			ctx := within(t, 60*time.Second)
			_, err := g.Foothold(ctx, 0, abi.PageSize)
			check(t, err)
			for i := range rounds(100) {
				runPid(t, g, tg.pid)
				check(t, g.Stop(ctx))
				runPid(t, g, tg.pid)
				check(t, g.Resume())
				if i%10 == 0 {
					check(t, g.Detach(ctx))
					check(t, g.Seize(ctx))
				}
			}
			check(t, g.Detach(ctx))
			t.Log(tg.finish())
		})
	}
}

// Workers of the kernel are listed as threads of the process. To stop one makes
// the request that it works on fail.
func TestWorkersOfTheKernel(t *testing.T) {
	exe := build(t, "ptrace_life.c")
	cmd := exec.Command(exe, "uring")
	cmd.Stdin = strings.NewReader("")
	if cmd.Run(); cmd.ProcessState.ExitCode() == 77 {
		t.Skip("this kernel has no io_uring")
	}
	tg := start(t, exe, "uring")
	if tids, err := proc.Threads(tg.pid); err != nil || len(tids) != 3 {
		t.Fatalf("the target has %d threads (%v)", len(tids), err)
	}
	g := seize(t, tg)
	if n := len(g.Threads()); n != 1 {
		t.Errorf("%d threads are attached", n)
	}
	ctx := within(t, 20*time.Second)
	_, err := g.Foothold(ctx, 0, abi.PageSize)
	check(t, err)
	for range rounds(20) {
		check(t, g.Stop(ctx))
		runPid(t, g, tg.pid)
		check(t, g.Resume())
	}
	check(t, g.Detach(ctx))
	tg.finish()
}

func init() { helpers["user"] = func(args []string) { user(args[0]) } }

// user does everything as an ordinary user.
func user(exe string) {
	fail := func(err error) {
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	cmd := exec.Command(exe)
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	fail(cmd.Start())
	var line string
	fmt.Fscan(out, &line)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	tr, err := Start()
	fail(err)
	if ok, why := tr.Realtime(); !ok && !strings.Contains(why, "CAP_SYS_NICE") {
		fail(errors.New(why))
	}
	g, err := tr.Seize(ctx, cmd.Process.Pid)
	fail(err)
	_, err = g.Foothold(ctx, 0, abi.PageSize)
	fail(err)
	var b Blob
	b.Call(sysGetpid)
	for range 20 {
		fail(g.Stop(ctx))
		_, err := g.Run(ctx, &b)
		fail(err)
		fail(g.Resume())
	}
	fail(g.Detach(ctx))
	in.Close()
	fmt.Fscan(out, &line)
	fmt.Println(line)
}

func TestOrdinaryUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("every other test runs as an ordinary user already")
	}
	exe := build(t, "ptrace_calls.c")
	cmd := helper(t, "user", exe)
	self, err := os.ReadFile(cmd.Path)
	check(t, err)
	cmd.Path = buildDir + "/self"
	check(t, os.WriteFile(cmd.Path, self, 0o755))
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "ok\n" {
		t.Errorf("%v: %s", err, out)
	}
}

// TestNewbornsThatNobodyAsksFor: they are not held for ever.
func TestNewbornsThatNobodyAsksFor(t *testing.T) {
	defer func(d time.Duration) { bornTime = d }(bornTime)
	bornTime = time.Millisecond
	tg := life(t, "fork")
	tr := tracer(t)
	defer tr.Close() // before bornTime is set again
	tr.Follow(true)
	ctx := within(t, 30*time.Second)
	g, err := tr.Seize(ctx, tg.pid)
	check(t, err)
	for late := 0; late < 3; time.Sleep(10 * time.Millisecond) {
		check(t, ctx.Err())
		for _, n := range tr.Born() {
			if n.Late {
				late++
				continue
			}
			check(t, n.Detach(ctx))
		}
	}
	tr.Follow(false)
	check(t, g.Detach(ctx))
	tg.finish()
}
