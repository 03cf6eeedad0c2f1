package plan

import (
	"bufio"
	"bytes"
	"debug/elf"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"trapless/internal/abi"
	"trapless/internal/testkit"
)

// module is an ELF file, loaded at a base address, with its functions.
type module struct {
	path  string
	base  abi.Addr
	text  text
	funcs []*Func
}

// text is a module's code, with the starts of its functions.
type text struct {
	Start  abi.Addr
	Code   []byte
	Starts []abi.Addr
}

// openModule reads the functions of a file's .text.
func openModule(t *testing.T, path string, base abi.Addr) *module {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	section := f.Section(".text")
	code, err := section.Data()
	if err != nil {
		t.Fatal(err)
	}
	m := &module{path: path, base: base, text: text{Start: base + abi.Addr(section.Addr), Code: code}}
	symbols, _ := f.Symbols()
	dynamic, _ := f.DynamicSymbols()
	m.addFuncs(append(symbols, dynamic...))
	for i, fn := range m.funcs {
		next := m.text.Start + abi.Addr(len(code))
		if i+1 < len(m.funcs) {
			next = m.funcs[i+1].Start
		}
		end := min(fn.End(), next)
		fn.Code = m.bytes(fn.Start, end)
		fn.Pad = m.bytes(end, next)
		m.text.Starts = append(m.text.Starts, fn.Start)
	}
	sweep := NewSweep(m.text.Starts, abi.Range{Start: m.text.Start, End: m.text.Start + abi.Addr(len(code))}, base == 0, nil)
	sweep.Read(m.text.Start, m.text.Code)
	sweep.Finish()
	sweep.Settle(sweep.NoReturn, func(abi.Addr) bool { return true })
	for _, fn := range m.funcs {
		sweep.Enter(fn)
		fn.Sweep, fn.NoReturn = sweep, sweep.NoReturn
	}
	return m
}

// bytes are a copy, so that nothing reads behind them unseen.
func (m *module) bytes(from, to abi.Addr) []byte {
	return slices.Clone(m.text.Code[from-m.text.Start : to-m.text.Start])
}

// addFuncs makes one function for each address, with its size as its code's
// length.
func (m *module) addFuncs(symbols []elf.Symbol) {
	byStart := map[abi.Addr]*Func{}
	for _, s := range symbols {
		kind := elf.ST_TYPE(s.Info)
		at := m.base + abi.Addr(s.Value)
		end := at + abi.Addr(s.Size)
		if kind != elf.STT_FUNC && kind != elf.STT_GNU_IFUNC || s.Size == 0 ||
			at < m.text.Start || end > m.text.Start+abi.Addr(len(m.text.Code)) {
			continue
		}
		f := byStart[at]
		if f == nil {
			f = &Func{Name: s.Name, Start: at, Entry: !strings.Contains(s.Name, ".cold")}
			byStart[at] = f
			m.funcs = append(m.funcs, f)
		}
		f.Aliases = append(f.Aliases, s.Name)
		f.Code = make([]byte, max(len(f.Code), int(s.Size)))
	}
	slices.SortFunc(m.funcs, func(x, y *Func) int { return int(int64(x.Start - y.Start)) })
}

// oracle is what objdump says of a stretch of code.
type oracle struct {
	text  map[abi.Addr]string // of each instruction
	order []abi.Addr
}

func disassemble(t *testing.T, m *module, from, to abi.Addr) *oracle {
	t.Helper()
	cmd := exec.Command(testkit.Command(t, "objdump", "binutils"), "-d", "-w", "--no-show-raw-insn", "-M", "intel", "-j", ".text",
		fmt.Sprintf("--adjust-vma=%#x", uint64(m.base)),
		fmt.Sprintf("--start-address=%#x", uint64(from)), fmt.Sprintf("--stop-address=%#x", uint64(to)), m.path)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	o := &oracle{text: map[abi.Addr]string{}}
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		addr, text, ok := strings.Cut(lines.Text(), ":\t")
		at, err := strconv.ParseUint(strings.TrimSpace(addr), 16, 64)
		if !ok || err != nil {
			continue
		}
		o.add(abi.Addr(at), text)
		if m.text.Code[abi.Addr(at)-m.text.Start] == 0x9b && text != "fwait" {
			o.add(abi.Addr(at)+1, text) // objdump joins fwait with what follows
		}
	}
	return o
}

func (o *oracle) add(at abi.Addr, text string) {
	o.text[at] = text
	o.order = append(o.order, at)
}

// target is where a direct branch goes, by objdump's text.
func (o *oracle) target(at abi.Addr) (abi.Addr, bool) {
	f := strings.Fields(o.text[at])
	for len(f) > 0 && (f[0] == "bnd" || f[0] == "notrack" || strings.HasPrefix(f[0], "addr32") || strings.HasPrefix(f[0], "data16")) {
		f = f[1:]
	}
	if len(f) < 2 || f[0][0] != 'j' && !strings.HasPrefix(f[0], "loop") && f[0] != "call" {
		return 0, false
	}
	to, err := strconv.ParseUint(strings.TrimPrefix(f[len(f)-1-strings.Count(o.text[at], "<")], "0x"), 16, 64)
	return abi.Addr(to), err == nil
}

// real binaries, and how many bytes of each are read.
var realBinaries = []struct {
	path string
	most abi.Addr
}{
	{"/lib/x86_64-linux-gnu/libc.so.6", 1 << 30},
	{"/lib/x86_64-linux-gnu/libm.so.6", 1 << 18},
	{"/usr/bin/python3", 1 << 20},
	{"/usr/bin/bash", 1 << 19},
	{"/usr/local/go/bin/gofmt", 1 << 19},
}

// TestRealBinaries plans sites of real functions and lets objdump judge the
// windows: what they displace, and what stands at each boundary afterwards.
func TestRealBinaries(t *testing.T) {
	tried := 0
	for _, b := range realBinaries {
		if _, err := os.Stat(b.path); err != nil {
			t.Logf("not read: %v", err)
			continue
		}
		tried++
		t.Run(b.path, func(t *testing.T) {
			if testing.Short() {
				b.most = min(b.most, 1<<18)
			}
			m := openModule(t, b.path, 0x555555554000)
			if len(m.funcs) == 0 {
				t.Skip("it has no symbols")
			}
			end := min(m.text.Start+abi.Addr(len(m.text.Code)), m.funcs[0].Start+b.most)
			j := &judge{T: t, m: m, o: disassemble(t, m, m.text.Start, end), space: NewSpace(SpaceConfig{Maps: []Mapping{
				{abi.Range{Start: m.base, End: (m.text.Start + abi.Addr(len(m.text.Code))).PageUp()}, b.path}}})}
			j.all(end)
		})
	}
	if tried == 0 {
		t.Skip("none of the binaries is here")
	}
}

// judge checks windows of one module.
type judge struct {
	*testing.T
	m     *module
	o     *oracle
	space *Space

	entries, entriesPlanned, sites, planned int
	reasons, entryReasons                   map[Reason]int
}

func (j *judge) all(end abi.Addr) {
	r := rand.New(rand.NewPCG(9, 10))
	j.reasons, j.entryReasons = map[Reason]int{}, map[Reason]int{}
	for _, f := range j.m.funcs {
		if f.End() > end {
			break
		}
		entry, refused := Analyze(f, []abi.Addr{f.Start}, &easy)
		j.entries++
		j.entriesPlanned += len(entry)
		for _, refusal := range refused {
			j.entryReasons[refusal.Reason]++
		}
		j.check(f, []abi.Addr{f.Start}, entry, refused)
		var sites []abi.Addr
		first, _ := slices.BinarySearch(j.o.order, f.Start)
		for _, at := range j.o.order[first:] {
			if at >= f.End() {
				break
			}
			if r.IntN(12) == 0 {
				sites = append(sites, at)
			}
		}
		windows, refusals := Analyze(f, sites, &easy)
		j.sites += len(sites)
		j.planned += siteCount(windows)
		for _, refusal := range refusals {
			j.reasons[refusal.Reason]++
		}
		j.check(f, sites, windows, refusals)
	}
	j.Logf("%d of %d entries are planned (%v), %d of %d other sites (%v); regions: %d",
		j.entriesPlanned, j.entries, j.entryReasons, j.planned, j.sites, j.reasons, len(j.space.Regions()))
}

func (j *judge) check(f *Func, sites []abi.Addr, windows []*Window, refusals []*Refusal) {
	if n := siteCount(windows); n+len(refusals) != len(sites) {
		j.Errorf("%s: %d sites, %d of them in %d windows, %d refusals", f.Name, len(sites), n, len(windows), len(refusals))
	}
	var last abi.Addr
	for _, w := range windows {
		if w.Start < last || w.Start < f.Start || w.End() > f.End()+abi.Addr(len(f.Pad)) {
			j.Errorf("%s: window %v to %v is out of place", f.Name, w.Start, w.End())
		}
		last = w.End()
		for _, s := range w.Sites {
			if !slices.Contains(sites, s.Addr) {
				j.Errorf("%s: nobody asked for the site %v", f.Name, s.Addr)
			}
			if s.Addr == w.End() {
				last++
			}
		}
		j.window(w)
	}
	for _, r := range refusals {
		if r.Reason == NotABoundary {
			j.Errorf("%s: %v; objdump sees %q there", f.Name, r, j.o.text[r.Site])
		}
	}
}

func (j *judge) window(w *Window) {
	at, refusal := j.space.Pick(w, w.RelocatedSize()+60)
	if refusal != nil {
		j.reasons[refusal.Reason]++
		return
	}
	p, err := w.Patch(at)
	if err != nil || !bytes.Equal(p.Old, j.m.bytes(w.Start, w.End())) || len(p.New) != w.Len || w.Len < 5 {
		j.Errorf("%v: patch %x for %x, %v", w.Start, p.New, p.Old, err)
		return
	}
	if _, ok := j.o.text[w.End()]; !ok && len(w.Func.Pad) > 0 && w.End() < w.Func.End() {
		j.Errorf("%v: ends inside an instruction", w.Start)
	}
	for a := w.Start; a < w.End(); a++ {
		text, boundary := j.o.text[a]
		if boundary && a > w.Start && !slices.Contains(Traps[:], p.New[a-w.Start]) {
			j.Errorf("%v: the boundary at %v holds %x", w.Start, a, p.New[a-w.Start])
		}
		if boundary && !w.Call && (strings.HasPrefix(text, "call") || strings.HasPrefix(text, "syscall")) {
			j.Errorf("%v: %q in the window", w.Start, text)
		}
	}
	if !boundariesAgree(w, j.o) {
		j.Errorf("%v: boundaries %v", w.Start, w.Boundaries())
	}
}

func boundariesAgree(w *Window, o *oracle) bool {
	var offs []int
	for a := w.Start + 1; a < w.End(); a++ {
		if _, ok := o.text[a]; ok {
			offs = append(offs, int(a-w.Start))
		}
	}
	return slices.Equal(offs, w.Boundaries())
}

// TestNoKnownJumpIsMissed: of all direct branches that objdump sees in libc,
// none leads into a window that claims not to need trap handlers.
func TestNoKnownJumpIsMissed(t *testing.T) {
	path := realBinaries[0].path
	if _, err := os.Stat(path); err != nil {
		t.Skip(err)
	}
	m := openModule(t, path, 0x555555554000)
	o := disassemble(t, m, m.text.Start, m.text.Start+abi.Addr(len(m.text.Code)))
	inside := map[abi.Addr]*Window{}
	windows := 0
	for _, f := range m.funcs {
		f.InboundKnown = true
		got, _ := Analyze(f, []abi.Addr{f.Start}, &Facts{FaultsDefault: true, Costliest: Earlier})
		for _, w := range got {
			windows++
			for a := w.Start + 1; a < w.End(); a++ {
				inside[a] = w
			}
		}
	}
	jumps := 0
	for _, at := range o.order {
		to, ok := o.target(at)
		if !ok {
			continue
		}
		jumps++
		if w := inside[to]; w != nil && (at < w.Start || at >= w.End()) {
			t.Errorf("%v: %q leads into the window %v to %v", at, o.text[at], w.Start, w.End())
		}
	}
	t.Logf("%d jumps, %d windows", jumps, windows)
}

// TestNothingJumpsToTheEndOfAWindow: of all direct branches that objdump sees in
// libc, none leads to a site whose programs run at the end of a window before
// it.
func TestNothingJumpsToTheEndOfAWindow(t *testing.T) {
	path := realBinaries[0].path
	if _, err := os.Stat(path); err != nil {
		t.Skip(err)
	}
	m := openModule(t, path, 0x555555554000)
	m.readOnly(t)
	o := disassemble(t, m, m.text.Start, m.text.Start+abi.Addr(len(m.text.Code)))
	ends := map[abi.Addr]*Window{}
	for _, f := range m.funcs {
		f.InboundKnown = true
		p := Prepare(f, &easy)
		for _, site := range everywhere(f) {
			if w, _ := p.Alone(site); w != nil && w.End() == site {
				ends[site] = w
			}
		}
	}
	for _, at := range o.order {
		if to, ok := o.target(at); ok && ends[to] != nil {
			t.Errorf("%v: %q leads to the end of the window at %v", at, o.text[at], ends[to].Start)
		}
	}
	if len(ends) == 0 {
		t.Error("no window ends at its site")
	}
	t.Logf("%d windows end at their site", len(ends))
}
