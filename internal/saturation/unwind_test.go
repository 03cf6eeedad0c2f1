package saturation

import (
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"trapless/internal/testkit"
)

// Unwinders find the callers of a probed function as they do without probes:
// return addresses are the real ones. That C++ exceptions and the unwinder of the
// compiler's own library do, the targets throws and unwind check themselves.

// probings are what is probed of the target frames.
func probings() []probing {
	own := []string{"frames*"}
	all := []probing{{own, choice{1, 0, ""}}, {own, choice{3, 1, ""}}, {append(own, "libc.so.6"), choice{50, 2, ""}}}
	if long() {
		all = append(all, probing{append(own, "libc.so.6"), choice{1, 0, ""}})
	}
	return all
}

// probing is a choice of the sites of some modules.
type probing struct {
	modules []string
	choice
}

var address = regexp.MustCompile(`0x[0-9a-f]+`)

// gdbFrames is what gdb says of a process's stack, but for addresses.
func gdbFrames(t *testing.T, pid int) []string {
	t.Helper()
	out, err := exec.Command(testkit.Command(t, "gdb", "gdb"), "-nx", "-batch", "-p", fmt.Sprint(pid), "-ex", "backtrace").CombinedOutput()
	if err != nil {
		t.Skipf("gdb cannot attach: %v\n%s", err, out)
	}
	var frames []string
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "#") {
			frames = append(frames, address.ReplaceAllString(strings.TrimSpace(line), "0x"))
		}
	}
	return frames
}

func TestGDBUnwindsThroughProbedFrames(t *testing.T) {
	for _, flags := range []testkit.Flags{nil, {"-fno-asynchronous-unwind-tables", "-fno-omit-frame-pointer"}} {
		p := testkit.Start(t, testkit.Compile(t, "frames.c", flags), "wait")
		want := gdbFrames(t, p.Pid)
		text := strings.Join(want, "\n")
		for _, frame := range []string{" deepest (", "<signal handler called>", " by_comparison (", "qsort (", " by_size (", " by_registers (", " main ("} {
			if !strings.Contains(text, frame) && flags == nil {
				t.Fatalf("without probes gdb finds no %q in:\n%s", frame, text)
			}
		}
		for _, c := range probings() {
			var got []string
			r := newRun()
			if err := r.visit(p.Pid, c.modules, c.choice, func() { got = gdbFrames(t, p.Pid) }); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%v, %v:\n%s\nwithout probes:\n%s", flags, c, strings.Join(got, "\n"), text)
			}
			t.Logf("%v, %v: %d frames through %d probed sites", flags, c, len(got), len(r.sites))
		}
		if last := p.Stop(); last[len(last)-1] != "ok" {
			t.Errorf("last lines %q", last)
		}
	}
}

// stacks are the call stacks that perf finds below a function that nobody
// probes, and how often.
func stacks(t *testing.T, pid int, mode string) map[string]int {
	t.Helper()
	perf := testkit.Command(t, "perf", "linux-perf")
	data := filepath.Join(t.TempDir(), "perf.data")
	if out, err := exec.Command(perf, "record", "-e", "cpu-clock:u", "-F", "499", "--call-graph", mode, "-o", data, "-p", fmt.Sprint(pid),
		"--", "sleep", "0.5").CombinedOutput(); err != nil {
		t.Skipf("perf cannot record: %v\n%s", err, out)
	}
	out, err := exec.Command(perf, "script", "-F", "ip,sym", "-i", data).Output()
	if err != nil {
		t.Skipf("perf cannot read what it recorded: %v", err)
	}
	all := map[string]int{}
	for sample := range strings.SplitSeq(string(out), "\n\n") {
		var frames []string
		for line := range strings.Lines(strings.TrimSpace(sample)) {
			if fields := strings.Fields(line); len(fields) > 1 {
				frames = append(frames, fields[1])
			}
		}
		if len(frames) > 0 && frames[0] == "unprobed_spin" {
			all[strings.Join(frames, " < ")]++
		}
	}
	return all
}

// most is the most frequent stack.
func most(all map[string]int) string {
	best := ""
	for _, s := range slices.Sorted(maps.Keys(all)) {
		if all[s] > all[best] {
			best = s
		}
	}
	return best
}

func TestPerfUnwindsThroughProbedFrames(t *testing.T) {
	for _, mode := range []struct {
		name  string
		flags testkit.Flags
	}{{"fp", testkit.Flags{"-fno-omit-frame-pointer"}}, {"dwarf", nil}} {
		t.Run(mode.name, func(t *testing.T) {
			p := testkit.Start(t, testkit.Compile(t, "frames.c", mode.flags), "spin")
			want := most(stacks(t, p.Pid, mode.name))
			if !strings.Contains(want, "by_library < by_size < by_frame_pointer < by_registers < main") {
				t.Skipf("without probes perf finds %q", want)
			}
			for _, c := range probings() {
				var got map[string]int
				r := newRun()
				if err := r.visit(p.Pid, c.modules, c.choice, func() { got = stacks(t, p.Pid, mode.name) }); err != nil {
					t.Fatal(err)
				}
				if most(got) != want {
					t.Errorf("%v: %v, without probes %q", c, got, want)
				}
				t.Logf("%v: %d samples of %q", c, got[want], want)
			}
			p.Signal(syscall.SIGUSR2)
			if last := p.Stop(); last[len(last)-1] != "ok" {
				t.Errorf("last lines %q", last)
			}
		})
	}
}
