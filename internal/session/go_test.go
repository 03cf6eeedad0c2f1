package session

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"trapless/internal/image"
	insn "trapless/internal/insn/x86"
	jit "trapless/internal/jit/x86"
	"trapless/internal/plan"
	"trapless/internal/testkit"
)

// probedGo are the probed functions of goload.go, by what a burst calls them.
var probedGo = map[string]string{
	"leaf": "main.probedLeaf", "deref": "main.probedDeref", "field": "main.probedField", "divide": "main.probedDivide",
	"deep": "main.probedDeep", "huge": "main.probedHuge", "panic": "main.probedPanic", "throw": "main.probedThrow",
	"area": "main.square.probedArea", "box": "main.(*box).probedArea", "spin": "main.probedSpin", "float": "main.probedFloat",
}

// goScript counts calls of these functions, and of others that it does not have to know exactly.
func goScript(path string, others ...string) string {
	var b strings.Builder
	for name, function := range probedGo {
		fmt.Fprintf(&b, "uprobe:%s:%s { @%s = count(); }\n", path, function, name)
	}
	for i, function := range others {
		fmt.Fprintf(&b, "uprobe:%s:%s { @other%d[arg0 & 15] = count(); }\n", path, function, i)
	}
	return b.String()
}

// bursts has the target call its probed functions, and adds up how often.
func bursts(t *testing.T, p *testkit.Target, n int, calls map[string]uint64) {
	t.Helper()
	fields := strings.Fields(p.Ask("burst " + strconv.Itoa(n)))
	if len(fields) < 3 || fields[0] != "burst" {
		t.Fatalf("%q\n%s", fields, p.Output())
	}
	times, err := strconv.ParseUint(fields[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fields[2:] {
		name, count, _ := strings.Cut(f, "=")
		each, err := strconv.ParseUint(count, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		calls[name] += each * times
	}
}

// checkGo compares counts. A function for whose jump there is no address where the
// target's memory lies this time has none.
func checkGo(t *testing.T, s *Session, r *recorder, calls map[string]uint64) {
	t.Helper()
	for name, want := range calls {
		got := uint64(0)
		if slices.ContainsFunc(s.refused, func(f Refused) bool { return f.Name == probedGo[name] && f.Reason == plan.NoSpringboard }) {
			want = 0
		}
		if e := r.maps["@"+name]; len(e) == 1 {
			got = e[0].Value[0]
		}
		if got != want {
			t.Errorf("%s: counted %d, the program %d", name, got, want)
		}
	}
}

// stopGo requires that a target has nothing to complain about.
func stopGo(t *testing.T, p *testkit.Target) {
	t.Helper()
	last := p.Stop()
	if len(last) == 0 || last[len(last)-1] != "ok" {
		t.Errorf("last lines %q\n%s", last, p.Output())
	}
}

// goBuilds are the ways in which Go programs are built.
func goBuilds() map[string]testkit.GoBuild {
	return map[string]testkit.GoBuild{"pure": testkit.PureGo, "PIE": testkit.GoPIE, "stripped": testkit.GoStripped, "Go 1.19": testkit.OldGo}
}

func TestGoCountsAreExact(t *testing.T) {
	for name, build := range goBuilds() {
		t.Run(name, func(t *testing.T) {
			p := testkit.Start(t, testkit.CompileGo(t, "goload.go", build), "quiet")
			for range 3 {
				calls := map[string]uint64{}
				s, r := attach(t, p.Pid, goScript(exe(t, p.Pid)))
				if len(s.refused) != 0 {
					t.Errorf("refused: %v", s.refused)
				}
				bursts(t, p, 20, calls)
				finish(t, s)
				checkGo(t, s, r, calls)
				bursts(t, p, 1, calls) // unprobed again
			}
			if changes := testkit.TextChanges(t, p.Pid); len(changes) != 0 {
				t.Errorf("the text differs: %q", changes)
			}
			stopGo(t, p)
		})
	}
}

// Go calls C and is called by C, on threads of both: all of it is counted.
func TestCGOCountsAreExact(t *testing.T) {
	all := map[string]string{"call": "main.probedCall", "back": "main.probedBack", "thread": "main.probedThread",
		"square": "main.probedSquare", "deref": "main.probedDeref", "c_add": "c_add", "c_call_back": "c_call_back"}
	for name, build := range map[string]testkit.GoBuild{"cgo": testkit.CGO, "PIE": testkit.CGOPIE, "static": testkit.CGOStatic} {
		functions := maps.Clone(all)
		if name == "static" { // C's functions have lost their names
			delete(functions, "c_add")
			delete(functions, "c_call_back")
		}
		t.Run(name, func(t *testing.T) {
			p := testkit.Start(t, testkit.CompileGo(t, "gocgo.go", build), "quiet")
			for range 5 {
				var src strings.Builder
				for key, function := range functions {
					fmt.Fprintf(&src, "uprobe:%s:%s { @%s = count(); }\n", exe(t, p.Pid), function, key)
				}
				calls := map[string]uint64{}
				s, r := attach(t, p.Pid, src.String())
				if len(s.refused) != 0 {
					t.Errorf("refused: %v", s.refused)
				}
				bursts(t, p, 20, calls)
				finish(t, s)
				for key := range calls {
					if functions[key] == "" {
						delete(calls, key)
					}
				}
				checkGo(t, s, r, calls)
			}
			stopGo(t, p)
		})
	}
}

// Only Go programs without the C library never ask for memory by brk(2).
func TestGoTraits(t *testing.T) {
	for _, row := range []struct {
		source string
		build  testkit.GoBuild
		noBrk  bool
	}{
		{"goload.go", testkit.PureGo, true}, {"goload.go", testkit.GoPIE, true}, {"goload.go", testkit.GoStripped, true},
		{"goload.go", testkit.OldGo, true}, {"gocgo.go", testkit.CGO, false}, {"gocgo.go", testkit.CGOStatic, false},
	} {
		p := testkit.Start(t, testkit.CompileGo(t, row.source, row.build), "quiet")
		ms, err := readModules(p.Pid, nil)
		if err != nil {
			t.Fatal(err)
		}
		traits, err := ms.traits()
		if err != nil || traits.NoBrk != row.noBrk || traits.Thread != jit.FSBase {
			t.Errorf("%s %+v: %+v, %v", row.source, row.build, traits, err)
		}
		ms.Close()
		stopGo(t, p)
	}
}

// Probes come and go while C's threads enter Go and leave it.
func TestCGORounds(t *testing.T) {
	p := testkit.Start(t, testkit.CompileGo(t, "gocgo.go", testkit.CGO))
	path := exe(t, p.Pid)
	r := rand.New(rand.NewPCG(3, 4))
	n := rounds(12)
	for i := range n {
		src := fmt.Sprintf("uprobe:%s:main.probed* { @p = count(); } uprobe:%s:c_* { @c = count(); }", path, path)
		for k, f := range []string{"runtime.c*", "runtime.m*", "runtime.e*", "runtime.n*", "runtime.s*", "_cgo*", "x_cgo*", "runtime.*"} {
			if r.IntN(3) == 0 {
				src += fmt.Sprintf(" uprobe:%s:%s { @other%d = count(); }", path, f, k)
			}
		}
		s, _, err := tryAttach(t, p.Pid, src)
		if err != nil {
			t.Fatalf("round %d, %s: %v\n%s", i, src, err, p.Output())
		}
		bursts(t, p, 1+r.IntN(3), map[string]uint64{})
		finish(t, s)
		if p.Ended() {
			t.Fatalf("round %d: the target ended: %s", i, p.Output())
		}
	}
	if changes := testkit.TextChanges(t, p.Pid); len(changes) != 0 {
		t.Errorf("the text differs: %q", changes)
	}
	stopGo(t, p)
}

// Integer arguments are those of Go's calling convention: a string counts twice.
func TestGoArguments(t *testing.T) {
	p := testkit.Start(t, testkit.CompileGo(t, "goload.go", testkit.PureGo), "quiet")
	path := exe(t, p.Pid)
	s, r := attach(t, p.Pid, fmt.Sprintf(`
uprobe:%s:main.probedLeaf { @a[arg0] = count(); @b[arg1] = count(); @length[arg3] = count(); }
uprobe:%s:main.probedDeep { @depth[arg0] = count(); }
uprobe:"%s":"main.(*box).probedArea" { @factor[arg1] = count(); }`, path, path, path))
	bursts(t, p, 3, map[string]uint64{})
	finish(t, s)
	for name, want := range map[string]map[uint64]uint64{
		"@a": {0: 16, 1: 16, 2: 16, 7: 24}, "@b": {0: 8, 1: 8, 2: 8, 5: 24, 7: 24},
		"@length": {0: 48, 3: 24}, "@factor": {0: 8, 1: 8, 2: 8},
	} {
		got := map[uint64]uint64{}
		for _, e := range r.maps[name] {
			got[e.Key[0]] = e.Value[0]
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	if n := len(r.maps["@depth"]); n != 301 {
		t.Errorf("%d depths, want 301", n)
	}
	stopGo(t, p)
}

// busyGo are functions that a Go program calls all the time, on goroutine stacks and on the threads' own.
var busyGo = []string{
	"runtime.malloc*", "runtime.new*", "runtime.g*", "runtime.m*", "runtime.c*", "runtime.s*", "runtime.p*", "runtime.t*", "runtime.e*",
	"runtime.r*", "runtime.l*", "runtime.u*", "runtime.f*", "runtime.d*", "runtime.a*", "runtime.w*", "runtime.(**", "runtime.*",
	"internal/bytealg.*", "internal/*", "strconv.*", "strings.*", "sort.*", "fmt.*", "encoding/json.*", "compress/flate.*",
	"hash/crc32.*", "bytes.*", "reflect.*", "sync.*", "sync/atomic.*", "syscall.*", "os.*", "os/exec.*", "time.*",
	"unicode/utf8.*", "bufio.*", "main.*", "errors.*", "io.*", "type*",
}

// All that Go's runtime system does goes on while probes come and go on what it does it with.
func TestGoRounds(t *testing.T) {
	for name, build := range goBuilds() {
		t.Run(name, func(t *testing.T) {
			p := testkit.Start(t, testkit.CompileGo(t, "goload.go", build), "profile")
			path := exe(t, p.Pid)
			r := rand.New(rand.NewPCG(1, 2))
			n := rounds(12)
			sites, others := 0, uint64(0)
			for i := range n {
				var some []string
				for _, f := range busyGo {
					if r.IntN(5) == 0 && (f != "runtime.*" || i%8 == 5) {
						some = append(some, f)
					}
				}
				calls := map[string]uint64{}
				s, rec, err := tryAttach(t, p.Pid, goScript(path, some...))
				if err != nil {
					t.Fatalf("round %d, %q: %v\n%s", i, some, err, p.Output())
				}
				sites += s.sites
				if i%3 == 0 {
					bursts(t, p, 1+r.IntN(3), calls)
				} else {
					time.Sleep(time.Duration(r.IntN(5)) * time.Millisecond)
				}
				finish(t, s)
				if p.Ended() {
					t.Fatalf("round %d: the target ended: %s", i, p.Output())
				}
				checkGo(t, s, rec, calls)
				for name, entries := range rec.maps {
					for _, e := range entries {
						if strings.HasPrefix(name, "@other") {
							others += e.Value[0]
						}
					}
				}
			}
			if changes := testkit.TextChanges(t, p.Pid); len(changes) != 0 {
				t.Errorf("the text differs: %q", changes)
			}
			stopGo(t, p)
			t.Logf("%d rounds with %d sites in all, %d hits counted besides the exact ones", n, sites, others)
			if others == 0 {
				t.Error("not one of the other functions was hit")
			}
		})
	}
}

// Tracers are killed at random moments while a busy Go program has hundreds of
// probes. The next one has to find the journal and take over, and counts exactly.
func TestGoSurvivesKilledTracers(t *testing.T) {
	p := testkit.Start(t, testkit.CompileGo(t, "goload.go", testkit.PureGo), "profile")
	path := exe(t, p.Pid)
	script := goScript(path, "strconv.*", "encoding/json.*", "runtime.m*", "runtime.s*", "main.*")
	n := rounds(40)
	for i := range n {
		killTracer(t, i, p.Pid, script)
		if i%4 == 0 {
			calls := map[string]uint64{}
			s, r, err := tryAttach(t, p.Pid, goScript(path))
			if err != nil {
				t.Fatalf("round %d: %v\n%s", i, err, p.Output())
			}
			bursts(t, p, 1, calls)
			finish(t, s)
			checkGo(t, s, r, calls)
		}
		if p.Ended() {
			t.Fatalf("round %d: the target ended: %s", i, p.Output())
		}
	}
	clean(t, p.Pid)
	if changes := testkit.TextChanges(t, p.Pid); len(changes) != 0 {
		t.Errorf("the text differs after clean: %q", changes)
	}
	stopGo(t, p)
}

// Every instruction of the probed functions is probed: goroutines are preempted,
// parked, and fault in the middle of windows.
func TestGoEveryInstruction(t *testing.T) {
	for name, build := range map[string]testkit.GoBuild{"pure": testkit.PureGo, "PIE": testkit.GoPIE, "Go 1.19": testkit.OldGo} {
		t.Run(name, func(t *testing.T) {
			p := testkit.Start(t, testkit.CompileGo(t, "goload.go", build), "profile")
			src := everyInstruction(t, p.Pid, "main.*probed*", "main.bg*", "main.grow", "main.once", "main.faults*", "main.load*", "strconv.*")
			for range rounds(3) {
				calls := map[string]uint64{}
				s, r, err := tryAttach(t, p.Pid, goScript(exe(t, p.Pid))+src)
				if err != nil {
					t.Fatalf("%v\n%s\n%v", err, p.Output(), p.Ended())
				}
				bursts(t, p, 3, calls)
				time.Sleep(20 * time.Millisecond)
				sites, refused := s.sites, len(s.refused)
				finish(t, s)
				if p.Ended() {
					t.Fatalf("the target ended: %s", p.Output())
				}
				checkGo(t, s, r, calls)
				t.Logf("%d sites, %d refused, %v hits", sites, refused, r.maps["@every"])
			}
			if changes := testkit.TextChanges(t, p.Pid); len(changes) != 0 {
				t.Errorf("the text differs: %q", changes)
			}
			stopGo(t, p)
		})
	}
}

// everyInstruction is a probe at each instruction of the functions that patterns name.
func everyInstruction(t *testing.T, pid int, patterns ...string) string {
	t.Helper()
	ms, err := readModules(pid, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ms.Close()
	mod, err := ms.executable()
	if err != nil || mod == nil {
		t.Fatal(mod, err)
	}
	var points []string
	for _, pattern := range patterns {
		for _, m := range mod.funcs.Match(pattern) {
			code, err := mod.funcs.Code(m.Func)
			if err != nil {
				t.Fatal(err)
			}
			for off := 0; off < len(code); {
				in, err := insn.Decode(code[off:], insn.Mode64)
				if err != nil {
					break
				}
				points = append(points, fmt.Sprintf("uprobe:%s:%v", mod.path, m.Start+image.VAddr(off)))
				off += int(in.Len)
			}
		}
	}
	return strings.Join(points, ",") + " { @every = count(); }"
}

// What cannot be probed for certain is refused by name, and only that.
func TestGoRefusals(t *testing.T) {
	p := testkit.Start(t, testkit.CompileGo(t, "goload.go", testkit.PureGo), "quiet")
	path := exe(t, p.Pid)
	for _, row := range []struct{ function, program, reason string }{
		{"runtime.clone", "@ = count()", "blocked-signals"},
		{"runtime.asyncPreempt", "@ = count()", "blacklisted"},
		{"runtime.goexit", "@ = count()", "call-in-window"},
		{"runtime.throw", "@[arg0] = count()", "stack-room"},
		{"runtime.memmove", "@[arg0] = count()", "arguments"},
		{"runtime.memmove", "@ = count()", ""},
		{"main.probedLeaf", "@[arg0] = count()", ""},
	} {
		s, _, err := tryAttach(t, p.Pid, fmt.Sprintf("uprobe:%s:%s { %s; } uprobe:%s:main.once { @once = count(); }", path, row.function, row.program, path))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, r := range s.refused {
			got += string(r.Reason)
		}
		if got != row.reason {
			t.Errorf("%s { %s }: refused by %q, want %q: %v", row.function, row.program, got, row.reason, s.refused)
		}
		finish(t, s)
	}
	stopGo(t, p)
}
