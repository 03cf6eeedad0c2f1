package elfplan

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"trapless/internal/image"
	"trapless/internal/testkit"
)

func module(t *testing.T, path string) *Module {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := image.New(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	fs, err := f.Functions()
	if err != nil {
		t.Fatal(err)
	}
	return &Module{Image: f, Funcs: fs}
}

// Go's linker proves that chains of functions without a stack check fit, and tells how deep each call is: its
// calls are those that are found in the code.
func TestCallsAgreeWithGoLinker(t *testing.T) {
	path := t.TempDir() + "/shapes"
	cmd := exec.Command("go", "build", "-ldflags=-debugnosplit", "-o", path, testkit.TargetSource(t, "goshapes.go"))
	cmd.Env = append(os.Environ(), "GO111MODULE=off", "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	m := module(t, path)
	r := m.findRooms()
	got := map[string]bool{} // "caller callee depth"
	for i := range r.funcs {
		f := &r.funcs[i]
		for _, c := range f.calls {
			if c.callee >= 0 {
				got[fmt.Sprintf("%s %s %d", f.fn.Name(), r.funcs[c.callee].fn.Name(), c.depth+retSize)] = true
			}
		}
	}
	checked := 0
	for line := range strings.Lines(string(out)) {
		var caller, callee string
		var depth int
		line = strings.TrimSpace(strings.TrimPrefix(line, "nosplit: "))
		from, rest, _ := strings.Cut(line, "> +")
		if n, _ := fmt.Sscanf(rest, "%d -> %s", &depth, &callee); n != 2 || callee == "indirect" || strings.HasPrefix(callee, "runtime.morestack") {
			continue
		}
		caller, _, _ = strings.Cut(from, "<")
		if strings.Contains(rest, "<0>") || strings.HasSuffix(from, "<0") || strings.Contains(line, "[") || strings.Contains(line, "gcWriteBarrier<") {
			continue // names that stand for two functions, by the calling convention
		}
		callee, _, _ = strings.Cut(callee, "<")
		checked++
		if key := fmt.Sprintf("%s %s %d", caller, callee, depth); !got[key] {
			t.Errorf("the linker says %q, which was not found", line)
		}
	}
	if checked < 300 {
		t.Errorf("only %d calls compared", checked)
	}
	t.Logf("%d calls compared", checked)
}

// Almost all of a program has room for what programs of probes need, and what is made to be called anywhere
// has none.
func TestRoom(t *testing.T) {
	for name, build := range map[string]testkit.GoBuild{"pure": testkit.PureGo, "stripped": testkit.GoStripped, "Go 1.19": testkit.OldGo} {
		m := module(t, testkit.CompileGo(t, "goshapes.go", build))
		small, all, least := 0, 0, muchRoom
		for _, fn := range m.Funcs.All() {
			room, ok := m.Room(fn.Start)
			if ok != fn.Go {
				t.Fatalf("%s: %s: %v", name, fn.Name(), ok)
			}
			if !ok {
				continue
			}
			all++
			if room < 256 {
				small++
				t.Logf("%s: %s has room for %d bytes alone", name, fn.Name(), room)
			}
			if least > room && room > 0 {
				least = room
			}
		}
		if small > all/50 || least < 48 {
			t.Errorf("%s: %d of %d functions have little room, one %d bytes", name, small, all, least)
		}
		for fn, want := range map[string][2]int{
			"runtime.asyncPreempt": {0, 0},
			"main.leaf":            {500, 1000},
			"main.bigFrame":        {500, 1000},
			"runtime.mallocgc":     {500, 1000},
		} {
			found, err := m.Funcs.Lookup(fn)
			if err != nil {
				t.Fatal(err)
			}
			if room, _ := m.Room(found[0].Start); room < want[0] || room > want[1] {
				t.Errorf("%s: %s has room for %d bytes, want %v", name, fn, room, want)
			}
		}
	}
}

// In the middle of a function that checked there is what the check made sure of, less what the frame took.
func TestRoomBehindACheck(t *testing.T) {
	m := module(t, testkit.CompileGo(t, "goshapes.go", testkit.PureGo))
	for _, name := range []string{"main.(*tree).Sum", "main.bigFrame", "main.hugeFrame"} {
		found, err := m.Funcs.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		fn := found[0].Func
		least := muchRoom
		for v := fn.Start; v < fn.End; v++ {
			room, _ := m.Room(v)
			least = min(least, room)
		}
		if least < 500 || least > stackGuard-128 {
			t.Errorf("%s: as little room as %d bytes", name, least)
		}
	}
}

// What must not be touched is found by its names, also without symbols.
func TestGoBlacklist(t *testing.T) {
	for name, build := range map[string]testkit.GoBuild{"pure": testkit.PureGo, "stripped": testkit.GoStripped, "Go 1.19": testkit.OldGo} {
		m := module(t, testkit.CompileGo(t, "goshapes.go", build))
		got := ""
		for _, n := range m.blacklistGo() {
			got += n.Name + "; "
		}
		for _, want := range []string{"_rt0_amd64_linux,", "runtime.rt0_go,", "runtime.clone,", "runtime.settls,", "runtime.goexit,", "runtime.sigreturn", "runtime.asyncPreempt,"} {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q is not among %s", name, want, got)
			}
		}
	}
}
