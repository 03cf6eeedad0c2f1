package torture

import (
	"context"
	"debug/elf"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"trapless/internal/proc"
)

func TestMain(m *testing.M) {
	Worker()
	os.Exit(m.Run())
}

// runTime is TRAPLESS_TORTURE seconds, or a minute.
func runTime(t *testing.T) time.Duration {
	t.Helper()
	if s := os.Getenv("TRAPLESS_TORTURE"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(n) * time.Second
	}
	return time.Minute
}

// TestTorture: nobody notices anything.
func TestTorture(t *testing.T) {
	if _, err := exec.LookPath("c++"); err != nil {
		t.Skip("no C++ compiler: the targets cannot be compiled")
	}
	r, err := Run(t.Context(), Options{Seed: 1, For: runTime(t), Parallel: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + r.String())
	if r.Failures != 0 {
		t.Errorf("%d failures", r.Failures)
	}
	for _, fault := range []string{"attach", "detach", "register", "unregister", "enable", "disable", "kill tracer"} {
		if r.Faults[fault] == 0 {
			t.Errorf("no %s", fault)
		}
	}
}

// TestSequenceIsTheSeeds: the same seed gives the same orders.
func TestSequenceIsTheSeeds(t *testing.T) {
	functions := []elf.Symbol{{Name: "one", Size: 40}, {Name: "two", Size: 1}, {Name: "three_of_them", Size: 7000}}
	for seed := range uint64(20) {
		var scripts [2]string
		for i := range scripts {
			p := newPlaces(seed, "/bin/program", "/lib/library.so", functions, seed%2 == 1)
			scripts[i] = p.script()
			for range 50 {
				scripts[i] += p.any()
			}
		}
		if scripts[0] != scripts[1] {
			t.Errorf("seed %d: %s, then %s", seed, scripts[0], scripts[1])
		}
	}
}

// TestTortureNotices: what is wrong is found: a target that fails, and text that
// differs.
func TestTortureNotices(t *testing.T) {
	k := &kind{name: "sh"}
	tt := &torture{report: Report{Faults: map[string]int{}, Refused: map[string]int{}, Sessions: map[string]int{}}}
	p, err := start([]string{"/bin/sh", "-c", "echo ready x; read line; echo FAILED; exit 3"})
	if err != nil {
		t.Fatal(err)
	}
	v := &victim{torture: tt, kind: k, process: p}
	if err := v.stop(); err == nil {
		t.Error("a target that failed was not noticed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); _ = cmd.Wait() }()
	time.Sleep(100 * time.Millisecond)
	diff, err := textChanges(cmd.Process.Pid)
	if err != nil || diff != "" {
		t.Fatalf("untouched text: %q, %v", diff, err)
	}
	pokeText(t, cmd.Process.Pid)
	if diff, err := textChanges(cmd.Process.Pid); err != nil || diff == "" {
		t.Errorf("changed text: %q, %v", diff, err)
	}
}

// pokeText changes a byte of the first text of a file that a process has mapped.
func pokeText(t *testing.T, pid int) {
	t.Helper()
	maps, err := proc.ReadMaps(pid)
	if err != nil {
		t.Fatal(err)
	}
	for i := range maps {
		if m := &maps[i]; m.File() && m.Perm&proc.Exec != 0 {
			mem, err := os.OpenFile(proc.Path(pid, "mem"), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer mem.Close()
			if _, err := mem.WriteAt([]byte{0xf1}, int64(m.Start)+0x20); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatal("no text")
}
