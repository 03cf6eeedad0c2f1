package kuprobe

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"trapless/internal/image"
	"trapless/internal/testkit"
)

// attach arms a uprobe or skips the test with the kernel's reason.
func attach(t *testing.T, at Place, tids []int) *Probe {
	t.Helper()
	p, err := Attach(at, tids)
	if errors.Is(err, ErrNotPermitted) || errors.Is(err, ErrUnsupported) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func placeOf(t *testing.T, path, function string) Place {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	f, err := image.New(file, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	fs, err := f.Functions()
	if err != nil {
		t.Fatal(err)
	}
	found, err := fs.Lookup(function)
	if err != nil {
		t.Fatal(err)
	}
	off, ok := f.OffsetOf(found[0].Start)
	if !ok {
		t.Fatalf("%s is not in the file", function)
	}
	return Place{Path: path, Offset: uint64(off)}
}

func TestCountsExactly(t *testing.T) {
	path := testkit.Compile(t, "busy.c", testkit.Exported)
	for _, function := range []string{"work", "work_push", "work_nop5", "work_mov"} {
		for _, onReturn := range []bool{false, true} {
			target := testkit.StartBusy(t, path, 2)
			tids, err := Threads(target.Pid())
			if err != nil || len(tids) != 3 {
				t.Fatalf("threads %v, %v; want 3", tids, err)
			}
			at := placeOf(t, path, function)
			at.Return = onReturn
			p := attach(t, at, tids)
			if _, err := target.Run(function, 2, 500); err != nil {
				t.Fatal(err)
			}
			if n, err := p.Count(); err != nil || n != 1000 {
				t.Errorf("%s (return %v): counted %d, %v; want 1000", function, onReturn, n, err)
			}
		}
	}
}

func TestCountsAllThreadsByCPU(t *testing.T) {
	path := testkit.Copy(t, testkit.Compile(t, "busy.c", testkit.Exported))
	at := placeOf(t, path, "work")
	attach(t, at, []int{os.Getpid()}) // skips where nothing is permitted
	target := testkit.StartBusy(t, path, 8)
	p, err := AttachAll(at)
	if err != nil {
		t.Skipf("needs to count whole CPUs: %v", err)
	}
	defer p.Close()
	if _, err := target.Run("work", 8, 100); err != nil {
		t.Fatal(err)
	}
	if n, err := p.Count(); err != nil || n != 800 {
		t.Errorf("counted %d, %v; want 800", n, err)
	}
}

func TestListsOfCPUs(t *testing.T) {
	for list, want := range map[string]string{"0": "[0]", "0-3": "[0 1 2 3]", "0,2-3,8": "[0 2 3 8]"} {
		if got, err := parseCPUs(list); err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s: %v, %v; want %s", list, got, err, want)
		}
	}
	if _, err := parseCPUs("none"); err == nil {
		t.Error("no error")
	}
}

func TestDisarmedCountsNothing(t *testing.T) {
	path := testkit.Compile(t, "busy.c", testkit.Exported)
	target := testkit.StartBusy(t, path, 1)
	tids, err := Threads(target.Pid())
	if err != nil {
		t.Fatal(err)
	}
	p := attach(t, placeOf(t, path, "work"), tids)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if changes := testkit.TextChanges(t, target.Pid()); len(changes) != 0 {
		t.Errorf("the text is not restored: %q", changes)
	}
	if n, err := p.Count(); n != 0 || err != nil {
		t.Errorf("count %d, %v", n, err)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	for _, row := range []struct {
		err  error
		want error
		text string
	}{
		{syscall.EACCES, ErrNotPermitted, "perf_event_paranoid"},
		{syscall.EPERM, ErrNotPermitted, "CAP_PERFMON"},
		{syscall.ENOENT, ErrUnsupported, "CONFIG_UPROBE_EVENTS"},
		{syscall.ESRCH, syscall.ESRCH, "ended"},
		{syscall.EINVAL, syscall.EINVAL, "/bin/x+0x10"},
	} {
		err := explain(Place{Path: "/bin/x", Offset: 16}, row.err)
		if !errors.Is(err, row.want) || !errors.Is(err, row.err) || !strings.Contains(err.Error(), row.text) {
			t.Errorf("%v: %v; want %v and %q", row.err, err, row.want, row.text)
		}
	}
}

// The kernel's own refusals come out as such.
func TestRefusedPlaces(t *testing.T) {
	path := testkit.Compile(t, "busy.c", testkit.Exported)
	attach(t, placeOf(t, path, "work"), []int{os.Getpid()}) // skips where nothing is permitted
	if _, err := Attach(Place{Path: "/nonexistent"}, []int{os.Getpid()}); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("no such file: %v", err)
	}
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	if _, err := Attach(placeOf(t, path, "work"), []int{ended.Process.Pid}); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("ended process: %v", err)
	}
}
