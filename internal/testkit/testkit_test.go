package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"trapless/internal/bench/busy"
)

// Every target must hold its own checks when nobody disturbs it.
func TestTargetsRunUndisturbed(t *testing.T) {
	library := Compile(t, "dl_library.c", Shared)
	for _, row := range []struct {
		source  string
		args    []string
		counted string // a function that must have been called
	}{
		{"blocking.c", nil, "probed"},
		{"coroutines.c", nil, "yielding"},
		{"dl.c", []string{library}, "library_work"},
		{"faults.c", nil, "load"},
		{"forker.c", nil, "probed"},
		{"registers.c", nil, "untouched"},
		{"signals.c", nil, "in_handler"},
		{"threads.c", nil, "probed"},
		{"unwind.cpp", nil, "passer"},
		{"windows.c", nil, "red_zone"},
	} {
		t.Run(row.source, func(t *testing.T) {
			t.Parallel()
			p := StartCommand(t, exec.Command(Compile(t, row.source), row.args...))
			for !strings.HasPrefix(p.Line(), "ready ") {
			}
			time.Sleep(200 * time.Millisecond)
			last := p.Stop()
			if len(last) == 0 || last[len(last)-1] != "ok" {
				t.Errorf("last lines %q, want ok at the end", last)
			}
			if Counts(last)[row.counted] == 0 {
				t.Errorf("no counts of %s in %q", row.counted, last)
			}
		})
	}
}

// The target states must bear each state itself, and be in it.
func TestStates(t *testing.T) {
	path := Compile(t, "states.c")
	for _, row := range []struct {
		state  string
		status string // a line that /proc/PID/status has in this state, as a prefix; "" if it does not tell
	}{
		{"seccomp", "Seccomp:\t2"},
		{"dispatch", ""},
		{"mdwe", ""},
		{"notsc", ""},
		{"undumpable", ""},
		{"locked", ""},
		{"full", ""},
		{"leaderless", "State:\tZ"},
		{"sharing", ""},
		{"sametp", "Threads:\t3"},
		{"traced", "TracerPid:\t"},
	} {
		t.Run(row.state, func(t *testing.T) {
			t.Parallel()
			p := StartCommand(t, exec.Command(path, row.state))
			first := p.Line()
			if why, unavailable := strings.CutPrefix(first, "unavailable "); unavailable {
				t.Skip(why)
			}
			if !strings.HasPrefix(first, "ready ") {
				t.Fatalf("first line %q", first)
			}
			text, err := os.ReadFile(procPath(p.Pid, "status"))
			if err != nil || !strings.Contains(string(text), row.status) || strings.Contains(string(text), "TracerPid:\t0\n") == (row.state == "traced") {
				t.Errorf("status %q, %v; want %q", text, err, row.status)
			}
			last := p.Stop()
			if Counts(last)["probed"] == 0 || last[len(last)-1] != "ok" {
				t.Errorf("last lines %q", last)
			}
		})
	}
}

// Stopping and continuing a process makes some calls fail with EINTR (signal(7)): the target must notice,
// or it could not notice a tracer either.
func TestBlockingNoticesInterruptedCalls(t *testing.T) {
	p := Start(t, Compile(t, "blocking.c"))
	for i := 0; i < 1000 && !p.Ended(); i++ {
		p.cmd.Process.Signal(syscall.SIGSTOP)
		p.cmd.Process.Signal(syscall.SIGCONT)
		time.Sleep(time.Millisecond)
	}
	err := p.Wait()
	if err == nil || !strings.Contains(p.Output(), "Interrupted system call") && !strings.Contains(p.Output(), "EINTR") {
		t.Errorf("ended with %v and %q, want a complaint about EINTR", err, p.Output())
	}
}

func TestBusyCountsExactly(t *testing.T) {
	for _, flags := range []Flags{nil, NoPIE, Stripped, {"-O0"}} {
		t.Run(fmt.Sprint(flags), func(t *testing.T) {
			p := Busy(t, 2, flags)
			for _, f := range []string{"work", "work_push", "work_nop5", "work_mov"} {
				run, err := p.Run(f, 2, 16000)
				if err != nil || run.Calls != 32000 || run.Threads != 2 || run.Function != f {
					t.Errorf("run %s: %+v, %v", f, run, err)
				}
			}
			run, err := p.Run("work", 1, 16)
			if err != nil || run.Calls != 16 {
				t.Errorf("run: %+v, %v", run, err)
			}
			checkCounts(t, p, "work", 32016)
			checkCounts(t, p, "work_mov", 32000)
		})
	}
}

// checkCounts compares with the ruler sequence, where key k follows every 2^(k+1) calls.
func checkCounts(t *testing.T, p *busy.Process, function string, calls uint64) {
	t.Helper()
	c, err := p.Counts(function)
	if err != nil {
		t.Fatal(err)
	}
	want := map[int64]uint64{0: calls / 2, 1: calls / 4, 2: calls / 8, 3: calls / 16, 4: calls / 16}
	if c.Calls != calls || fmt.Sprint(c.Keys) != fmt.Sprint(want) {
		t.Errorf("counts of %s: %+v, want %d calls with keys %v", function, c, calls, want)
	}
}

func TestBusySpinsUntilTold(t *testing.T) {
	p := Busy(t, 2)
	if err := p.Keys(1000); err != nil {
		t.Fatal(err)
	}
	if err := p.Spin("work", 2); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Millisecond)
	run, err := p.Stop()
	if err != nil {
		t.Fatal(err)
	}
	c, err := p.Counts("work")
	if err != nil || run.Calls == 0 || c.Calls != run.Calls {
		t.Errorf("ran %d calls, counted %d, %v", run.Calls, c.Calls, err)
	}
	if n := len(c.Keys); n < 900 || n > 1000 {
		t.Errorf("%d keys, want nearly 1000", n)
	}
}

func TestBusyEndsByItselfAndAtSIGTERM(t *testing.T) {
	path := Compile(t, "busy.c")
	p := StartCommand(t, exec.Command(path, "2", "0.1"))
	if err := p.Wait(); err != nil || !strings.HasSuffix(p.Output(), "ok\n") {
		t.Errorf("after its time: %v, %q", err, p.Output())
	}
	p = StartCommand(t, exec.Command(path, "2"))
	p.Line()
	p.Signal(syscall.SIGTERM)
	if err := p.Wait(); err != nil || !strings.HasSuffix(p.Output(), "ok\n") {
		t.Errorf("after SIGTERM: %v, %q", err, p.Output())
	}
}

func TestCompiledVariantsDiffer(t *testing.T) {
	kinds := map[string]Flags{"PIE": PIE, "EXEC": NoPIE, "stripped": Stripped, "static": Static}
	seen := map[string]string{}
	for kind, flags := range kinds {
		path := Compile(t, "busy.c", flags)
		if other, ok := seen[path]; ok {
			t.Errorf("%s and %s are the same file %s", kind, other, path)
		}
		seen[path] = kind
		if again := Compile(t, "busy.c", flags); again != path {
			t.Errorf("%s compiled twice: %s, %s", kind, path, again)
		}
	}
}

func TestKilledProcessLeavesNobody(t *testing.T) {
	var pid int
	t.Run("inner", func(t *testing.T) {
		// The shell's child outlives the shell unless the group is killed.
		p := StartCommand(t, exec.Command("sh", "-c", "sleep 1000 & echo $!; wait"))
		fmt.Sscan(p.Line(), &pid)
	})
	for deadline := time.Now().Add(Deadline); ; time.Sleep(time.Millisecond) {
		if !running(pid) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d is still there", pid)
		}
	}
}

// running is false for a process that is gone or a zombie that waits for init to reap it.
func running(pid int) bool {
	text, err := os.ReadFile(procPath(pid, "stat"))
	return err == nil && !strings.Contains(string(text), ") Z ")
}

func TestFootprintSeesWhatIsLeftBehind(t *testing.T) {
	p := Start(t, Compile(t, "threads.c"), "1")
	before := TakeFootprint(t, p.Pid)
	if diff := before.Diff(TakeFootprint(t, p.Pid)); len(diff) != 0 {
		t.Errorf("an undisturbed process differs: %q", diff)
	}
	after := before
	after.Mappings = append(append([]Mapping{}, before.Mappings...), Mapping{Start: 4096, End: 8192, Perms: "r-xp"})
	after.FDs = before.FDs[1:]
	after.Threads++
	want := fmt.Sprintf("[+ 1000-2000 r-xp 0 0  - %s - 2 threads + 3 threads]", before.FDs[0])
	if got := fmt.Sprint(before.Diff(after)); got != want {
		t.Errorf("diff %s, want %s", got, want)
	}
}

func TestTextChangesSeesOneByte(t *testing.T) {
	p := Start(t, Compile(t, "threads.c"), "1")
	if changes := TextChanges(t, p.Pid); len(changes) != 0 {
		t.Fatalf("an untouched process has changed text: %q", changes)
	}
	for _, m := range Mappings(t, p.Pid) {
		if strings.Contains(m.Path, "threads-") && m.Perms == "r-xp" {
			poke(t, p.Pid, int64(m.End-1), 0xcc) // padding: never run
			want := fmt.Sprintf("+0x%x: 1 bytes cc, file has 00", m.Offset+m.End-m.Start-1)
			if changes := TextChanges(t, p.Pid); len(changes) != 1 || !strings.HasSuffix(changes[0], want) {
				t.Errorf("changes %q, want one that ends in %q", changes, want)
			}
			return
		}
	}
	t.Fatal("the program's text is not mapped")
}

func poke(t *testing.T, pid int, at int64, b byte) {
	t.Helper()
	mem, err := os.OpenFile(procPath(pid, "mem"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	if _, err := mem.WriteAt([]byte{b}, at); err != nil {
		t.Skipf("needs to write another process's text: %v", err)
	}
}

func TestOrdinaryUser(t *testing.T) {
	if !IsRoot() {
		t.Skip("needs root to become another user")
	}
	out, err := AsOrdinaryUser(t, exec.Command("id", "-u")).Output()
	if err != nil || strings.TrimSpace(string(out)) == "0" {
		t.Errorf("id -u: %q, %v; want another user than root", out, err)
	}
	// A compiled target must be readable for that user.
	p := StartCommand(t, AsOrdinaryUser(t, exec.Command(Compile(t, "threads.c"), "1")))
	p.Line()
	p.Stop()
}
