package plan

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/testkit"
)

// victim is a running testdata/victim.c.
type victim struct {
	t       *testing.T
	cmd     *exec.Cmd
	in      *bufio.Writer
	out     io.Reader
	maps    []Mapping
	modules []*module
}

// startVictim starts one; its modules are the program, libc and libm.
func startVictim(t *testing.T, flags ...testkit.Flags) *victim {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("this processor cannot run x86-64 code: ", runtime.GOARCH)
	}
	flags = append(flags, testkit.Flags{"-fno-tree-loop-distribute-patterns", "-fno-stack-protector", "-Wl,--no-as-needed", "-lm"})
	v := &victim{t: t, cmd: exec.Command(testkit.CompileFile(t, "testdata/victim.c", flags...))}
	in, err := v.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if v.out, err = v.cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	v.in = bufio.NewWriter(in)
	if err := v.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := v.cmd.Wait(); err != nil && !t.Failed() {
			t.Errorf("the victim ended: %v", err)
		}
	})
	v.count() // it is past its start now
	v.readMaps()
	return v
}

// readMaps finds the victim's mappings and modules.
func (v *victim) readMaps() {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", v.cmd.Process.Pid))
	if err != nil {
		v.t.Fatal(err)
	}
	for row := range strings.Lines(string(text)) {
		var from, to, off uint64
		var perm, dev, inode, path string
		fmt.Sscanf(row, "%x-%x %s %x %s %s %s", &from, &to, &perm, &off, &dev, &inode, &path)
		v.maps = append(v.maps, Mapping{abi.Range{Start: abi.Addr(from), End: abi.Addr(to)}, path})
		name := filepath.Base(path)
		if off == 0 && (strings.HasPrefix(name, "victim") || strings.HasPrefix(name, "libc.so") || strings.HasPrefix(name, "libm.so")) {
			base := abi.Addr(from)
			if base < 1<<32 {
				base = 0 // not position independent
			}
			m := openModule(v.t, path, base)
			m.readOnly(v.t)
			for _, fn := range m.funcs {
				fn.InboundKnown = true // no exception passes through them
			}
			v.modules = append(v.modules, m)
		}
	}
	if len(v.modules) != 3 {
		v.t.Fatalf("%d modules in\n%s", len(v.modules), text)
	}
}

func (v *victim) send(what byte, at abi.Addr, n int, data []byte) {
	v.t.Helper()
	err := binary.Write(v.in, binary.LittleEndian, [3]uint64{uint64(what), uint64(at), uint64(n)})
	if err == nil {
		_, err = v.in.Write(data)
	}
	if err != nil {
		v.t.Fatalf("%c: %v", what, err)
	}
}

func (v *victim) answer(n int) []byte {
	v.t.Helper()
	b := make([]byte, n)
	err := v.in.Flush()
	if err == nil {
		_, err = io.ReadFull(v.out, b)
	}
	if err != nil {
		v.t.Fatalf("no answer: %v", err)
	}
	return b
}

func (v *victim) count() uint64 {
	v.send('C', 0, 0, nil)
	return binary.LittleEndian.Uint64(v.answer(16))
}

// How much the victim works.
const (
	all   abi.Addr = iota
	alone          // without other processes
)

// work lets the victim work and returns its text.
func (v *victim) work(how abi.Addr) string {
	v.t.Helper()
	v.send('R', how, 0, nil)
	return string(v.answer(int(binary.LittleEndian.Uint64(v.answer(8)))))
}

// jump lets the victim jump, and returns the signal and the program counter.
func (v *victim) jump(at abi.Addr) (sig uint64, pc abi.Addr) {
	v.t.Helper()
	v.send('J', at, 0, nil)
	b := v.answer(16)
	return binary.LittleEndian.Uint64(b), abi.Addr(binary.LittleEndian.Uint64(b[8:]))
}

// hostile emits the worst detour that a window's promises allow: at each site it
// ruins every register and flag that is said to be dead, and the red zone.
func hostile(w *Window, at abi.Addr, seed uint32) ([]byte, []PCPair, error) {
	a := asm.New(at)
	pairs, err := w.Emit(a, func(i int) error {
		ruin(a, &w.Sites[i], seed)
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	code, err := a.Bytes()
	return code, pairs, err
}

func ruin(a *asm.Asm, s *Site, seed uint32) {
	if !s.RedZoneLive {
		for _, off := range []int32{-8, -16, -64, -128} {
			a.StoreI(8, asm.At(asm.RSP, off), int32(seed))
		}
	}
	for r := asm.RAX; r <= asm.R15; r++ {
		if !s.LiveRegs.Has(r) {
			a.MovRI(r, uint64(0x7bad0000)+uint64(seed&0xffff))
		}
	}
	if !s.FlagsLive {
		a.OpRI(asm.Cmp, 8, asm.RSP, int32(seed%3)-1)
	}
}

// patched is what was done to a victim.
type patched struct {
	patches []Patch
	windows []*Window
	pairs   []PCPair
	sites   int
	earlier int // windows that start before their first site
	ends    int // sites at the end of a window
	dead    int // registers ruined
	noFlags int // sites with dead flags
}

// patch plans the sites that choose takes of each function, and patches them.
func (v *victim) patch(facts Facts, choose func(f *Func) []abi.Addr) *patched {
	v.t.Helper()
	p, r := &patched{}, rand.New(rand.NewPCG(11, 12))
	space := NewSpace(SpaceConfig{Maps: v.maps})
	code := map[abi.Addr][]byte{}
	for _, m := range v.modules {
		for _, f := range m.funcs {
			windows, _ := Analyze(f, choose(f), &facts)
			for _, w := range windows {
				p.add(v.t, w, space, code, r.Uint32())
			}
		}
	}
	for _, region := range space.Regions() {
		v.mapRegion(region, code)
	}
	for _, patch := range p.patches {
		v.send('W', patch.Addr, len(patch.New), patch.New)
	}
	v.sendPairs(p.pairs)
	return p
}

func (p *patched) add(t *testing.T, w *Window, space *Space, code map[abi.Addr][]byte, seed uint32) {
	t.Helper()
	draft, _, err := hostile(w, w.Start, seed)
	if err != nil {
		t.Fatal(err)
	}
	at, refusal := space.Pick(w, len(draft))
	if refusal != nil {
		return
	}
	detour, pairs, err := hostile(w, at, seed)
	if err != nil || len(detour) != len(draft) {
		t.Fatalf("detour of %d bytes, then %d: %v", len(draft), len(detour), err)
	}
	patch, err := w.Patch(at)
	if err != nil {
		t.Fatal(err)
	}
	code[at] = detour
	p.pairs = append(p.pairs, pairs...)
	p.patches = append(p.patches, patch)
	p.windows = append(p.windows, w)
	if w.Tactic == Earlier {
		p.earlier++
	}
	for _, s := range w.Sites {
		if s.Addr == w.End() {
			p.ends++
		}
		p.sites++
		p.dead += 16 - s.LiveRegs.Len()
		if !s.FlagsLive {
			p.noFlags++
		}
	}
}

// mapRegion fills a region with its detours, and the rest with breakpoints.
func (v *victim) mapRegion(region abi.Range, code map[abi.Addr][]byte) {
	image := bytes.Repeat([]byte{breakpoint}, int(region.Len()))
	last := 0
	for at, detour := range code {
		if region.Contains(at) {
			n := copy(image[at-region.Start:], detour)
			last = max(last, int(at-region.Start)+n)
		}
	}
	v.send('M', region.Start, last, image[:last])
}

func (v *victim) sendPairs(pairs []PCPair) {
	const table abi.Addr = 0x100000000000
	var sorted [][2]abi.Addr
	for _, p := range pairs {
		sorted = append(sorted, [2]abi.Addr{p.Orig, p.Entry})
	}
	slices.SortFunc(sorted, func(x, y [2]abi.Addr) int { return int(int64(x[0] - y[0])) })
	var b bytes.Buffer
	binary.Write(&b, binary.LittleEndian, sorted)
	v.send('M', table, b.Len(), b.Bytes())
	v.send('T', table, len(sorted), nil)
}

func entries(f *Func) []abi.Addr { return []abi.Addr{f.Start} }

// everywhere asks for each instruction of a function; windows then lie as
// densely as they can.
func everywhere(f *Func) []abi.Addr {
	var sites []abi.Addr
	b := read(f)
	for _, off := range b.at {
		sites = append(sites, b.addr(off))
	}
	return sites
}

// scattered asks for some of the instructions, so that windows begin and end
// in all ways.
func scattered(seed uint64) func(f *Func) []abi.Addr {
	r := rand.New(rand.NewPCG(seed, 13))
	return func(f *Func) []abi.Addr {
		sites := everywhere(f)
		return slices.DeleteFunc(sites, func(abi.Addr) bool { return r.IntN(5) != 0 })
	}
}

// TestPatchedProgramWorks runs a program whose functions, and those of libc
// and libm, go through detours that ruin all that is said to be dead.
func TestPatchedProgramWorks(t *testing.T) {
	for _, row := range []struct {
		name   string
		flags  testkit.Flags
		choose func(f *Func) []abi.Addr
	}{
		{"entries", testkit.PIE, entries},
		{"entries of a fixed image", testkit.NoPIE, entries},
		{"everywhere", testkit.PIE, everywhere},
		{"scattered", testkit.PIE, scattered(1)},
		{"scattered otherwise, -O0", append(testkit.Flags{"-O0"}, testkit.PIE...), scattered(2)},
	} {
		t.Run(row.name, func(t *testing.T) {
			if testing.Short() && row.name == "everywhere" {
				t.Skip("100,000 windows take some seconds")
			}
			v := startVictim(t, row.flags)
			want := v.work(all)
			p := v.patch(easy, row.choose)
			if got := v.work(all); got != want {
				t.Errorf("patched:\n%s\nnot patched:\n%s", got, want)
			}
			n := p.sites
			t.Logf("%d windows for %d sites, %d start earlier, %d sites at an end; %.1f dead registers each, %d%% with dead flags; %d traps",
				len(p.windows), n, p.earlier, p.ends, float64(p.dead)/float64(n), 100*p.noFlags/n, v.count())
		})
	}
}

// TestSlowEntriesWork: known jumps into windows trap, and go on at the moved
// instruction. Other processes are left out, because signals are blocked in
// the child of posix_spawn.
func TestSlowEntriesWork(t *testing.T) {
	slow := easy
	slow.SlowEntries = true
	v := startVictim(t, testkit.PIE)
	want := v.work(alone)
	p := v.patch(slow, scattered(4))
	if got := v.work(alone); got != want {
		t.Errorf("patched:\n%s\nnot patched:\n%s", got, want)
	}
	if v.count() == 0 {
		t.Error("nothing trapped")
	}
	t.Logf("%d windows; %d traps", len(p.windows), v.count())
}

// TestEveryInsideTraps jumps to every boundary inside the windows.
func TestEveryInsideTraps(t *testing.T) {
	v := startVictim(t, testkit.PIE)
	p := v.patch(easy, scattered(3))
	jumps := 0
	for i, w := range p.windows {
		for _, off := range w.Boundaries() {
			at := w.Start + abi.Addr(off)
			wantSig, wantPC := uint64(4), at // SIGILL at it
			if p.patches[i].New[off] == breakpoint {
				wantSig, wantPC = 5, at+1 // SIGTRAP behind it
			}
			if sig, pc := v.jump(at); sig != wantSig || pc != wantPC {
				t.Fatalf("a jump to %v, inside %x, ends by signal %d at %v", at, p.patches[i].New, sig, pc)
			}
			jumps++
		}
	}
	t.Logf("%d boundaries of %d windows trap", jumps, len(p.windows))
}
