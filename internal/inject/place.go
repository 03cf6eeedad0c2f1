package inject

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"trapless/internal/abi"
	x86 "trapless/internal/asm/x86"
	"trapless/internal/bpf"
	jit "trapless/internal/jit/x86"
	"trapless/internal/plan"
)

// placement is a piece of code or a table in a region. Its bytes never change.
type placement struct {
	at   abi.Addr
	size int
	key  uint64 // the site, or one of the keys below
}

func (p placement) whole() abi.Range { return abi.Range{Start: p.at, End: p.at + abi.Addr(p.size)} }

// placements are those of a target, which may be some hundred thousands.
type placements struct {
	all   []placement
	byKey map[uint64][]placement
}

func (ps *placements) add(p placement) {
	if ps.byKey == nil {
		ps.byKey = map[uint64][]placement{}
	}
	ps.all = append(ps.all, p)
	ps.byKey[p.key] = append(ps.byKey[p.key], p)
}

// Keys of placements that belong to no site. No site has such an address.
const (
	keyRuntime = iota + 1
	keyHandlers
	keyConstants
)

// isDetour reports whether a placement belongs to a site, and so has gates.
func (p *placement) isDetour() bool { return p.key > keyConstants }

// Detour is a patch that is ready to be applied: its code lies in the target.
type Detour struct {
	Window *plan.Window
	At     abi.Addr
	Size   int  // bytes of code
	Again  bool // it was there already

	enabled [][]bool // by site and program: whether it may run
	pairs   []plan.PCPair
	patch   plan.Patch
	text    Text // that the patch is for
	entry   int  // in the journal, -1 for none
	inPlace bool // then it is number index of Target.detours
	index   int
}

// InPlace reports whether the detour's patch is in the target's text.
func (d *Detour) InPlace() bool { return d.inPlace }

// Same reports whether two detours are the same code with the same patch.
func (d *Detour) Same(o *Detour) bool {
	return d.text == o.text && d.At == o.At && d.Size == o.Size && d.patch.Addr == o.patch.Addr && bytes.Equal(d.patch.New, o.patch.New)
}

// isSite reports whether programs run at an address of the window.
func (d *Detour) isSite(at abi.Addr) bool {
	return slices.ContainsFunc(d.Window.Sites, func(s plan.Site) bool { return s.Addr == at })
}

// builder writes detours into a target.
type builder struct {
	*Target
	space    *plan.Space
	env      jit.Env // Gate, Runtime and Constants are per region
	runtimes map[*Region]*jit.Runtime

	contents  map[int][]byte // of the maps that nothing writes to, by their numbers
	constants map[*Region]map[int]abi.Addr
	estimates *estimates
	pending   []pendingText
}

// generated is code for one address.
type generated struct {
	code  []byte
	pairs []plan.PCPair
}

// Request asks for one detour: programs to be run at each of a window's sites.
type Request struct {
	Window   *plan.Window
	Programs [][]*bpf.Verified // one list for each of Window.Sites
	Args     jit.Args          // where the function has its arguments
	// Stack is how many bytes below its stack pointer the target leaves at each
	// site; nil where stacks are large.
	Stack []int
	// Text is what the window was planned for; if it is zero, what is mapped when the
	// patch is applied.
	Text  Text
	Funcs [][]abi.Addr // for each program what get_func_ip returns, 0 for the site's own address; may be nil
	Hits  [][]int      // for each program the number of its counters in the arena, -1 for none; may be nil
}

// StackRoom is the reason of a refusal where programs need more of a goroutine's
// stack than there certainly is.
const StackRoom plan.Reason = "stack-room"

// hits are the numbers of the counters of a site's programs.
func (req *Request) hits(site int) []int {
	if req.Hits == nil {
		return nil
	}
	return req.Hits[site]
}

// funcs are what get_func_ip returns to a site's programs.
func (req *Request) funcs(site int) []abi.Addr {
	if req.Funcs == nil {
		return nil
	}
	return req.Funcs[site]
}

// Place writes the detours of windows into the target and returns them in the
// order in which they are to be put in place. The target runs on:
// nothing leads to the code yet. Code of an earlier session is used again where
// it is the same to the byte. It fails with EEXIST where the target has mapped memory
// of its own meanwhile: the windows are to be planned anew then.
func (t *Target) Place(ctx context.Context, reqs []Request) (_ []*Detour, _ []*plan.Refusal, err error) {
	defer func() {
		if err != nil {
			t.space = nil // some of what it has handed out was not mapped
		}
	}()
	if err := t.checkSyscalls(ctx, reqs); err != nil {
		return nil, nil, err
	}
	t.noteThreadID(reqs)
	space, err := t.freeSpace()
	if err != nil {
		return nil, nil, err
	}
	b := &builder{Target: t, space: space, runtimes: map[*Region]*jit.Runtime{},
		contents: constantsOf(reqs), constants: map[*Region]map[int]abi.Addr{},
		env: jit.Env{Arena: t.arenaBase, Layout: t.arena.Layout(), TGID: uint32(t.PID), Thread: t.Thread, ThreadID: t.threadID, Memory: t.memory, Helpers: needsHelpers(reqs),
			Analyses: new(jit.Analyses)}}
	b.estimates = newEstimates(&b.env, b.contents)
	detours := make([]*Detour, len(reqs))
	var refusals []*plan.Refusal
	for i, req := range reqs {
		d, refusal, err := b.placeOrBoost(ctx, req)
		if err != nil {
			return nil, nil, err
		}
		if refusal != nil {
			refusals = append(refusals, refusal)
			continue
		}
		detours[i] = d
	}
	if err := b.writePending(); err != nil {
		return nil, nil, err
	}
	linked, more, err := b.link(ctx, detours)
	if err != nil {
		return nil, nil, err
	}
	return linked, append(refusals, more...), nil
}

// placeOrBoost is place, but a window for whose jump there is no address becomes
// breakpoints: their detour may lie anywhere.
func (b *builder) placeOrBoost(ctx context.Context, req Request) (*Detour, *plan.Refusal, error) {
	if req.Window.Bare {
		return &Detour{Window: req.Window, text: req.Text, entry: -1}, nil, nil
	}
	d, refusal, err := b.place(ctx, req)
	if refusal == nil || err != nil || refusal.Reason != plan.NoSpringboard || req.Window.Boost() != nil {
		return d, refusal, err
	}
	return b.place(ctx, req)
}

func needsHelpers(reqs []Request) bool {
	for _, req := range reqs {
		for _, progs := range req.Programs {
			if slices.ContainsFunc(progs, jit.NeedsHelpers) {
				return true
			}
		}
	}
	return false
}

// place finds or makes the detour of one window.
func (b *builder) place(ctx context.Context, req Request) (*Detour, *plan.Refusal, error) {
	d, err := b.again(ctx, req)
	if err != nil || d != nil {
		return d, nil, err
	}
	if reach := req.Window.Reach(); reach.Len() < leastReach {
		return nil, &plan.Refusal{Site: req.Window.Site, Reason: plan.NoSpringboard,
			Detail: fmt.Sprintf("what its instructions refer to is in reach only of %v to %v", reach.Start, reach.End)}, nil
	}
	size, err := b.estimates.size(&req)
	if err != nil {
		return nil, nil, err
	}
	at, refusal := b.space.Pick(req.Window, size)
	if refusal != nil {
		return nil, refusal, nil
	}
	if err := b.mapRegions(ctx, b.space); err != nil {
		return nil, nil, err
	}
	if err := b.placeHandlers(ctx); err != nil {
		return nil, nil, err
	}
	g, err := b.generate(ctx, req, at)
	var refused *plan.Refusal
	if errors.As(err, &refused) {
		b.space.GiveBack(at, size, 0)
		return nil, refused, nil
	}
	if errors.Is(err, ErrNoRoom) {
		return nil, &plan.Refusal{Site: req.Window.Site, Reason: plan.NoSpringboard, Detail: err.Error()}, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if len(g.code) > size {
		panic(fmt.Sprintf("BUG: a detour of %d bytes was estimated to have %d", len(g.code), size))
	}
	_, gates := req.layOutGates(0)
	size = b.space.GiveBack(at, size, max(len(g.code), gates*gateShare))
	if err := b.announcePlacement(placement{at, size, uint64(req.Window.Site)}); err != nil {
		return nil, nil, err
	}
	b.pending = append(b.pending, pendingText{at, g.code})
	return newDetour(req, at, g), nil, nil
}

func newDetour(req Request, at abi.Addr, g generated) *Detour {
	d := &Detour{Window: req.Window, text: req.Text, At: at, Size: len(g.code), pairs: g.pairs, entry: -1}
	for _, programs := range req.Programs {
		d.enabled = append(d.enabled, slices.Repeat([]bool{true}, len(programs)))
	}
	return d
}

// leastReach is more than any detour's size, in bytes.
const leastReach = 1 << 20

// again looks for the detour of the same site and programs in the target.
func (b *builder) again(ctx context.Context, req Request) (*Detour, error) {
	for _, p := range b.placements.byKey[uint64(req.Window.Site)] {
		if !req.Window.NeedsBoard() && !req.Window.Allows(p.at) {
			continue
		}
		if _, n := req.layOutGates(0); p.size < n*gateShare {
			continue
		}
		g, err := b.generate(ctx, req, p.at)
		if err != nil {
			continue // it cannot be this one: something is out of its reach
		}
		if same, err := b.holds(p, g.code); err != nil || !same {
			if err != nil {
				return nil, err
			}
			continue
		}
		d := newDetour(req, p.at, g)
		d.Again = true
		return d, nil
	}
	return nil, nil
}

// holds reports whether the placement holds just these bytes.
func (t *Target) holds(p placement, code []byte) (bool, error) {
	if len(code) > p.size {
		return false, nil
	}
	have := make([]byte, p.size)
	if err := t.mem.ReadAt(have, p.at); err != nil {
		return false, err
	}
	return bytes.Equal(have[:len(code)], code) && len(bytes.Trim(have[len(code):], "\x00")) == 0, nil
}

// generate makes the code of a detour at an address in a mapped region.
func (b *builder) generate(ctx context.Context, req Request, at abi.Addr) (generated, error) {
	r := b.regionOf(at)
	if r == nil {
		return generated{}, fmt.Errorf("%s lies in no code region", at)
	}
	rt, err := b.runtime(r)
	if err != nil {
		return generated{}, err
	}
	constants, err := b.constantsIn(r)
	if err != nil {
		return generated{}, err
	}
	return b.emit(req, place{at, r.Gate(), r.gatesOf(at), rt, constants})
}

// place is where a detour is to lie, and what it refers to there.
type place struct {
	at, gate, gates abi.Addr
	runtime         *jit.Runtime
	constants       map[int]abi.Addr
}

// emit puts programs, relocated instructions and cold code together.
func (b *builder) emit(req Request, to place) (generated, error) {
	env := b.env
	env.Gate, env.Runtime, env.Constants = to.gate, to.runtime, to.constants
	ofSites, _ := req.layOutGates(to.gates)
	a := x86.New(to.at)
	var sites []*jit.Detour
	pairs, err := req.Window.Emit(a, func(i int) error {
		s := req.Window.Sites[i]
		d, err := jit.Emit(a, req.Programs[i], jit.Site{
			Addr: s.Addr, LiveRegs: s.LiveRegs, FlagsLive: s.FlagsLive, RedZoneLive: s.RedZoneLive, Args: req.Args,
			Gate: ofSites[i].any, Gates: ofSites[i].programs, Hits: req.hits(i), Funcs: req.funcs(i)}, &env)
		if err != nil {
			return err
		}
		sites = append(sites, d)
		if need := d.FrameSize() + jit.RuntimeStack; req.Stack != nil && need > req.Stack[i] {
			return &plan.Refusal{Site: s.Addr, Reason: StackRoom, Detail: fmt.Sprintf(
				"the programs need %d bytes of a goroutine's stack, of which %d are free for certain there", need, req.Stack[i])}
		}
		return nil
	})
	if err != nil {
		return generated{}, err
	}
	for _, d := range sites {
		d.EmitCold(a)
	}
	code, err := a.Bytes()
	return generated{code, pairs}, err
}

// runtime finds or writes the runtime of a region.
func (b *builder) runtime(r *Region) (*jit.Runtime, error) {
	if rt := b.runtimes[r]; rt != nil {
		return rt, nil
	}
	env := b.env
	env.Gate = r.Gate()
	var rt *jit.Runtime
	_, ok, err := b.putIn(r, keyRuntime, func(_ *Region, at abi.Addr) (code []byte, err error) {
		code, rt, err = jit.NewRuntime(at, &env)
		return code, err
	})
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fmt.Errorf("process %d: %w: the code region at %s is full", b.PID, ErrNoRoom, r.Start)
	}
	b.runtimes[r] = rt
	return rt, nil
}

// generator makes code or a table for an address in a region.
type generator func(r *Region, at abi.Addr) ([]byte, error)

// put finds what a generator makes in any region, or writes it where there is
// room, in a new region if need be.
func (b *builder) put(ctx context.Context, key uint64, gen generator) (*Region, abi.Addr, error) {
	for _, r := range b.regions {
		if at, ok, err := b.find(r, key, gen); err != nil || ok {
			return r, at, err
		}
	}
	for _, r := range b.regions {
		if at, ok, err := b.putIn(r, key, gen); err != nil || ok {
			return r, at, err
		}
	}
	code, err := gen(b.regions[0], b.regions[0].head().End)
	if err != nil {
		return nil, 0, err
	}
	if !b.space.Reserve(len(code) + putSlack) {
		return nil, 0, fmt.Errorf("process %d: %w: all code regions are full", b.PID, ErrNoRoom)
	}
	if err := b.mapRegions(ctx, b.space); err != nil {
		return nil, 0, err
	}
	r := b.regions[len(b.regions)-1]
	at, ok, err := b.putIn(r, key, gen)
	if err == nil && !ok {
		panic("BUG: no room in a region that was made for it")
	}
	return r, at, err
}

// find looks in a region for what a generator makes.
func (b *builder) find(r *Region, key uint64, gen generator) (abi.Addr, bool, error) {
	for _, p := range b.placements.byKey[key] {
		if !r.Contains(p.at) {
			continue
		}
		code, err := gen(r, p.at)
		if err != nil {
			return 0, false, err
		}
		if same, err := b.holds(p, code); err != nil || same {
			return p.at, same, err
		}
	}
	return 0, false, nil
}

// putIn finds what a generator makes in a region, or writes it there; it reports
// false if there is no room.
func (b *builder) putIn(r *Region, key uint64, gen generator) (abi.Addr, bool, error) {
	if at, ok, err := b.find(r, key, gen); err != nil || ok {
		return at, ok, err
	}
	code, err := gen(r, r.head().End)
	if err != nil {
		return 0, false, err
	}
	size := len(code) + putSlack
	at, ok := b.space.PickIn(b.regionNumber(r), size)
	if !ok {
		return 0, false, nil
	}
	if code, err = gen(r, at); err != nil {
		return 0, false, err
	}
	return at, true, b.write(placement{at, size, key}, code)
}

// putSlack is by how much code may grow with its address, in bytes.
const putSlack = 64

// regionNumber is the region's number in the space.
func (b *builder) regionNumber(r *Region) int {
	for i, whole := range b.space.Regions() {
		if whole.Start == r.Start {
			return i
		}
	}
	panic("BUG: a region that its space does not know")
}

// write journals a placement and writes its bytes.
func (t *Target) write(p placement, code []byte) error {
	if err := t.announcePlacement(p); err != nil {
		return err
	}
	return t.mem.WriteText(code, p.at)
}

// announcePlacement writes a placement into the journal, before its bytes are
// written.
func (t *Target) announcePlacement(p placement) error {
	if _, err := t.record(entry{kind: entryPlacement, a: uint64(p.at), b: uint64(p.size), c: p.key}); err != nil {
		return err
	}
	t.addPlacement(p)
	return nil
}

// pendingText is code that is to be written.
type pendingText struct {
	at   abi.Addr
	code []byte
}

// writePending writes the code of detours that were placed: pieces that follow
// each other at once, by one call.
func (b *builder) writePending() error {
	slices.SortFunc(b.pending, func(x, y pendingText) int { return cmp.Compare(x.at, y.at) })
	var text []byte
	for i, p := range b.pending {
		text = append(text, p.code...)
		end := p.at + abi.Addr(len(p.code))
		if i+1 < len(b.pending) && b.pending[i+1].at == end {
			continue
		}
		if err := b.mem.WriteText(text, end-abi.Addr(len(text))); err != nil {
			return err
		}
		text = text[:0]
	}
	b.pending = nil
	return nil
}
