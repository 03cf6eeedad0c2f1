package plan

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"trapless/internal/abi"
	insn "trapless/internal/insn/x86"
)

// patchedText is a module's text with patches applied, and the springboards.
type patchedText struct {
	m      *module
	code   []byte
	boards map[abi.Addr]abi.Addr // springboards, and where they lead
}

func (p *patchedText) at(a abi.Addr) []byte { return p.code[a-p.m.text.Start:] }

// follow goes where a thread gets that arrives at an address of the patched text:
// along jumps and springboards, until something else comes.
func (p *patchedText) follow(a abi.Addr) (to abi.Addr, trap bool) {
	for range 4 {
		if d, ok := p.boards[a]; ok {
			a = d
			continue
		}
		if a < p.m.text.Start || a >= p.m.text.Start+abi.Addr(len(p.code)) {
			return a, false
		}
		switch b := p.at(a); b[0] {
		case 0xe9:
			a += 5 + abi.Addr(int64(int32(binary.LittleEndian.Uint32(b[1:]))))
		case 0xeb:
			a += 2 + abi.Addr(int64(int8(b[1])))
		case 0xcc:
			return a, true
		case 0xe8, 0x2e:
			in, err := insn.Decode(b, insn.Mode64)
			if err != nil || in.Branch != insn.BranchCall {
				return a, false
			}
			a, _ = in.Target(a)
		default:
			return a, false
		}
	}
	return a, false
}

// TestLinked plans random sites of real functions with all tactics, picks
// addresses for everything, applies the patches to a copy of the text, and follows
// the patched bytes: from each site's window to its detour, past every boundary
// inside to a trap, and from every known jump target to what it was.
func TestLinked(t *testing.T) {
	tactics := map[Tactic]int{}
	// As a library, and as programs at a fixed address with a heap far away and near.
	for _, where := range []struct{ base, gap abi.Addr }{{base: 0x7f0000000000}, {0x400000, 512 << 20}, {0x400000, 48 << 20}} {
		path := realBinaries[0].path
		if _, err := os.Stat(path); err != nil {
			t.Skip(err)
		}
		m := openModule(t, path, where.base)
		for i, f := range m.funcs[:len(m.funcs)-1] {
			f.InboundKnown = true
			if n := m.funcs[i+1]; n.Start == f.End()+abi.Addr(len(f.Pad)) {
				f.Next = n
			}
		}
		r := rand.New(rand.NewPCG(1, uint64(len(m.funcs))))
		for _, share := range []int{1, 8} {
			linkAll(t, m, r, share, where.gap, tactics)
		}
	}
	t.Log(tactics)
	for _, tactic := range Tactics {
		if tactics[tactic] == 0 {
			t.Errorf("no site came to the tactic %s", tactic)
		}
	}
}

// linkAll plans one site of share in each function, and checks what comes out.
func linkAll(t *testing.T, m *module, r *rand.Rand, share int, gap abi.Addr, tactics map[Tactic]int) {
	t.Helper()
	whole := abi.Range{Start: m.text.Start.PageDown(), End: (m.text.Start + abi.Addr(len(m.text.Code))).PageUp()}
	config := SpaceConfig{Maps: []Mapping{{Range: whole}}}
	if gap != 0 {
		config.Brk = whole.End + gap
	}
	space := NewSpace(config)
	facts := &Facts{TrapsHandled: true, FaultsMapped: true, Breakpoints: true, Space: space}
	var windows []*Window
	planOne := func(f *Func) []*Window {
		p := Prepare(f, facts)
		list, _ := p.Together(p.Instructions(func(abi.Addr, insn.Inst) bool { return r.IntN(share) == 0 }))
		return list
	}
	for _, f := range m.funcs {
		windows = append(windows, planOne(f)...)
	}
	slices.SortFunc(windows, func(x, y *Window) int { return int(int64(x.Start - y.Start)) })
	for _, f := range Conflicts(windows) {
		f.Next = nil
		windows = slices.DeleteFunc(windows, func(w *Window) bool { return w.Func == f || ownedBy(w, f) })
		windows = append(windows, planOne(f)...)
	}
	slices.SortFunc(windows, func(x, y *Window) int { return int(int64(x.Start - y.Start)) })
	if again := Conflicts(windows); len(again) != 0 {
		t.Fatalf("%d functions still disturb others: %s", len(again), again[0].Name)
	}
	detours := map[*Window]abi.Addr{}
	for _, w := range windows {
		if w.Bare {
			continue
		}
		at, refusal := space.Pick(w, w.RelocatedSize())
		if refusal != nil {
			t.Fatal(refusal)
		}
		detours[w] = at
	}
	links, refusals := space.Link(windows, func(w *Window) abi.Addr { return detours[w] }, nil)
	p := &patchedText{m: m, code: bytes.Clone(m.text.Code), boards: map[abi.Addr]abi.Addr{}}
	done := map[*Window]bool{}
	for _, k := range links {
		p.apply(t, k, done)
	}
	for _, k := range links {
		p.check(t, k)
		for range k.Window.Sites {
			tactics[k.Window.Tactic]++
		}
	}
	p.checkTargets(t, links)
	t.Logf("every %d., heap %d MB away: %d windows, %d springboards on %d pages, %d refusals",
		share, gap>>20, len(links), len(p.boards), len(space.Boards()), len(refusals))
}

// TestConflictsNameWhoMadeRoom: a window that moved out for the end of the
// function before it is in the way of a site of its own function. The function
// before has to be planned anew, for planning its own again would change nothing.
func TestConflictsNameWhoMadeRoom(t *testing.T) {
	before, own := &Func{Name: "before", Start: 0x1000}, &Func{Name: "own", Start: 0x1010}
	site := []Site{{}}
	pun := &Window{Func: before, Start: 0x100f, Len: 1, Sites: site, Tactic: Evict}
	room := &Window{Func: own, Start: 0x1010, Len: 5, Before: pun}
	pun.Behind = []*Window{room}
	if got := Conflicts([]*Window{pun, room}); len(got) != 0 {
		t.Errorf("%s disturbs nobody", got[0].Name)
	}
	for _, start := range []abi.Addr{0x1010, 0x1011, 0x1014} {
		other := &Window{Func: own, Start: start, Len: 5, Sites: site}
		windows := []*Window{pun, room, other}
		if got := Conflicts(windows); !slices.Equal(got, []*Func{before}) {
			t.Errorf("a window at %v: %v", start, got)
		}
		if start == room.Start {
			if got := Conflicts([]*Window{pun, other, room}); !slices.Equal(got, []*Func{before}) {
				t.Errorf("a window at %v, in the other order: %v", start, got)
			}
		}
	}
}

// ownedBy reports a window that only makes room for one of a function.
func ownedBy(w *Window, f *Func) bool {
	return len(w.Sites) == 0 && w.Before != nil && w.Before.Func == f
}

func (p *patchedText) apply(t *testing.T, k *Link, done map[*Window]bool) {
	t.Helper()
	w := k.Window
	if w.Host != nil && !done[w.Host] || done[w] {
		t.Fatalf("%v is applied before its host", w.Start)
	}
	done[w] = true
	for _, need := range w.Behind {
		done[need] = true // if it comes later, that is an error
	}
	if k.Patch.Addr != w.Start || !bytes.Equal(k.Patch.Old, p.at(w.Start)[:w.Len]) || len(k.Patch.New) != w.Len {
		t.Fatalf("%s window at %v: patch %x over %x, the text is %x", w.Tactic, w.Start, k.Patch.New, k.Patch.Old, p.at(w.Start)[:w.Len])
	}
	copy(p.at(w.Start), k.Patch.New)
	if k.Board != 0 {
		p.boards[k.Board] = k.Detour
		if !bytes.HasPrefix(BoardCode(k.Board, k.Detour), []byte{0xe9}) && !bytes.HasPrefix(BoardCode(k.Board, k.Detour), []byte{0xff, 0x25}) {
			t.Fatalf("springboard %x", BoardCode(k.Board, k.Detour))
		}
	}
}

// check follows the patched text from a window's start and from its boundaries.
func (p *patchedText) check(t *testing.T, k *Link) {
	t.Helper()
	w := k.Window
	if w.Bare {
		return
	}
	if !w.Boosted {
		if to, trap := p.follow(w.Start); trap || to != k.Detour {
			t.Fatalf("%s window of %d bytes at %v leads to %v (trap: %v), not to %v: % x", w.Tactic, w.Len, w.Start, to, trap, k.Detour, p.at(w.Start)[:8])
		}
		for _, off := range w.Boundaries() {
			if b := p.at(w.Start)[off]; !slices.Contains(Traps[:], b) && !isBreakpointPad(w.Insts[w.instAt(w.Start+abi.Addr(off))]) {
				t.Fatalf("%s window at %v: the boundary at %d holds %x", w.Tactic, w.Start, off, b)
			}
		}
		return
	}
	for _, s := range w.Sites {
		if to, trap := p.follow(s.Addr); !trap || to != s.Addr {
			t.Fatalf("boosted site %v leads to %v", s.Addr, to)
		}
	}
}

// checkTargets: what direct branches lead to is what it was, or a window's start,
// or traps because a branch of the same window leads there.
func (p *patchedText) checkTargets(t *testing.T, links []*Link) {
	t.Helper()
	in := map[abi.Addr]*Window{} // bytes of windows
	for _, k := range links {
		for a := k.Window.Start; !k.Window.Boosted && a < k.Window.End(); a++ {
			in[a] = k.Window
		}
	}
	for _, f := range p.m.funcs {
		for off := 0; off < len(f.Code); {
			i, err := insn.Decode(f.Code[off:], insn.Mode64)
			if err != nil {
				break
			}
			from := f.Start + abi.Addr(off)
			off += int(i.Len)
			to, ok := i.Target(from)
			w := in[to]
			if !ok || w == nil || to == w.Start || in[from] == w {
				continue
			}
			t.Fatalf("%s: the branch at %v leads to %v, inside the %s window of %d bytes at %v", f.Name, from, to, w.Tactic, w.Len, w.Start)
		}
	}
}
