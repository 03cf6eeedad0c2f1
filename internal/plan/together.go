package plan

import (
	"slices"

	"trapless/internal/abi"
	insn "trapless/internal/insn/x86"
	"trapless/internal/reloc"
)

// Alone plans one site as if it were the only one of its function.
func (p *Planner) Alone(site abi.Addr) (*Window, *Refusal) {
	i, r := p.locate(site)
	if r != nil {
		return nil, r
	}
	w, r := p.window(site, i, 0)
	if r != nil {
		if w, r = p.cramped(newClaims(p, nil), site, i, r); r != nil {
			return nil, r
		}
	}
	p.finish(w)
	return w, nil
}

// Together plans several sites, as Analyze describes it.
func (p *Planner) Together(sites []abi.Addr) ([]*Window, []*Refusal) {
	windows, refusals := p.roomy(sites)
	if len(refusals) > 0 {
		windows, refusals = p.crampedSites(windows, refusals)
	}
	for _, w := range windows {
		if w.Func == p.f { // the next function's is finished
			p.finish(w)
		}
	}
	return windows, refusals
}

// roomy plans the sites for which there are windows of five bytes and more.
func (p *Planner) roomy(sites []abi.Addr) ([]*Window, []*Refusal) {
	sites = slices.Clone(sites)
	slices.Sort(sites)
	var windows []*Window
	var refusals []*Refusal
	for _, site := range slices.Compact(sites) {
		var last *Window
		if n := len(windows); n > 0 {
			last = windows[n-1]
		}
		w, r := p.join(last, site)
		switch {
		case r != nil:
			refusals = append(refusals, r)
		case w != last:
			windows = append(windows, w)
		}
	}
	return windows, refusals
}

// join plans a site behind a last window: in it, behind it, or in the longer
// window that last becomes.
func (p *Planner) join(last *Window, site abi.Addr) (*Window, *Refusal) {
	i, r := p.locate(site)
	if r != nil {
		return nil, r
	}
	if last == nil {
		return p.window(site, i, 0)
	}
	if k := last.instAt(site); k >= 0 && !isBreakpointPad(last.Insts[k]) {
		p.addSite(last, site, i, k)
		return last, nil
	}
	if site < last.End() {
		return nil, refuse(site, WindowOverlap, "it lies in the window %v to %v", last.Start, last.End())
	}
	w, r := p.window(site, i, p.behind(last))
	if r == nil {
		return w, nil
	}
	if p.extend(last, site, i) {
		return last, nil
	}
	return nil, r
}

// behind is the index of the first instruction that a next window may take.
func (p *Planner) behind(w *Window) int {
	i, _ := slices.BinarySearch(p.at, int(w.End()-p.f.Start))
	if last := w.Sites[len(w.Sites)-1]; last.Addr == w.End() {
		i++
	}
	return i
}

// window makes a window of instructions not before the one with index floor,
// for the site that is the instruction with index i: one that starts there, or
// one that starts earlier and holds it, or one that ends there.
func (p *Planner) window(site abi.Addr, i, floor int) (*Window, *Refusal) {
	var w *Window
	var r *Refusal
	if reloc.CanRetarget(p.insts[i]) {
		w, r = p.callWindow(site, i)
	} else {
		w, r = p.build(site, i, i, jmpLen)
	}
	if r == nil {
		p.addSite(w, site, i, 0)
		return w, nil
	}
	if w := p.earlier(site, i, floor); w != nil {
		p.addSite(w, site, i, w.instAt(site))
		return w, nil
	}
	if w := p.before(site, i, floor); w != nil {
		p.addSite(w, site, i, len(w.Insts))
		return w, nil
	}
	return nil, r
}

// earlier starts a window at the nearest instruction from which there is one
// that holds the instruction with index i.
func (p *Planner) earlier(site abi.Addr, i, floor int) *Window {
	end := p.at[i] + int(p.insts[i].Len)
	for j := i - 1; j >= floor && p.runsOn(j); j-- {
		w, r := p.build(site, j, i, jmpLen)
		switch {
		case r == nil && w.Len <= MaxLen:
			return w
		case end-p.at[j] >= MaxLen, end-p.at[j] >= jmpLen && (r == nil || r.Reason != NoSpringboard):
			return nil // what is wrong stays wrong
		}
	}
	return nil
}

// before makes a window that ends where the instruction with index i starts.
func (p *Planner) before(site abi.Addr, i, floor int) *Window {
	if !p.oneWayTo(i) {
		return nil
	}
	for j := i - 1; j >= floor && p.runsOn(j); j-- {
		if p.at[i]-p.at[j] >= jmpLen {
			if w, r := p.build(site, j, i-1, jmpLen); r == nil && w.End() == site {
				return w
			}
			return nil
		}
	}
	return nil
}

// runsOn reports whether the instruction with index i passes control to the
// next one and to no place that returns there.
func (p *Planner) runsOn(i int) bool {
	if _, err := reloc.Size(p.insts[i]); err != nil {
		return false
	}
	return p.insts[i].Branch.Falls()
}

// oneWayTo reports whether nothing leads to the instruction with index i but
// the one before it. A jump that is not known would miss what runs at the end
// of a window before it, and no trap would tell.
func (p *Planner) oneWayTo(i int) bool {
	return p.unknown == "" && p.f.InboundKnown && len(p.entriesIn(p.at[i]-1, p.at[i]+1)) == 0
}

// extend makes a window longer so that it holds one more site, or ends there.
func (p *Planner) extend(w *Window, site abi.Addr, i int) bool {
	start, ok := p.find(int(w.Start - p.f.Start))
	if w.Call || !ok || w.Sites[len(w.Sites)-1].Addr == w.End() || int(site-w.Start) > MaxLen {
		return false
	}
	for j := start; j < i; j++ {
		if !p.runsOn(j) {
			return false
		}
	}
	longer, r := p.build(site, start, i, jmpLen)
	k := i - start
	if r != nil && p.oneWayTo(i) {
		longer, r = p.build(site, start, i-1, jmpLen)
	}
	if r != nil || longer.Len > MaxLen {
		return false
	}
	w.Insts, w.Len, w.Slow = longer.Insts, longer.Len, longer.Slow
	p.addSite(w, site, i, k)
	return true
}

// callWindow makes the window of a call that remains one.
func (p *Planner) callWindow(site abi.Addr, i int) (*Window, *Refusal) {
	w := &Window{Func: p.f, Site: site, Start: site, Len: int(p.insts[i].Len), Call: true,
		Insts: []Inst{{Inst: p.insts[i]}}}
	if p.isTwofold(i) {
		return nil, p.refuseTwofold(w, i)
	}
	if r := p.checkFaults(w, i); r != nil {
		return nil, r
	}
	return w, p.checkRange(w)
}

// build makes the window that starts at the instruction with index start, holds
// the one with index last, and has least bytes. Refusals are about the site.
func (p *Planner) build(site abi.Addr, start, last, least int) (*Window, *Refusal) {
	w := &Window{Func: p.f, Site: site, Start: p.addr(p.at[start])}
	r := p.take(w, start, last, least)
	if r == nil {
		r = p.checkEntries(w)
	}
	if r == nil {
		r = p.checkRange(w)
	}
	if r == nil {
		r = p.checkSpace(w)
	}
	return w, r
}

// checkSpace refuses a window to which no free address within reach gives a jump
// whose top byte traps, if one has to.
func (p *Planner) checkSpace(w *Window) *Refusal {
	if p.facts.Space == nil {
		return nil
	}
	w.setNeed(p.text)
	if w.need[3].kind == trapByte && !p.facts.Space.trapsNear(w.jumpBase()) {
		return refuse(w.Site, NoSpringboard, "no free address gives a jump at %v whose last byte traps", w.Start)
	}
	return nil
}

// addSite notes that the programs of a site, the instruction with index i, run
// before the window's instruction number k.
func (p *Planner) addSite(w *Window, site abi.Addr, i, k int) {
	s := Site{Addr: site, Inst: k, AtEntry: p.f.Entry && site == p.entry}
	// Go calls the middle of runtime.duffcopy with a register saved below the stack pointer.
	s.RedZoneLive = (!w.Call || p.f.Go) && (!s.AtEntry || p.loopsToEntry())
	s.LiveRegs, s.LiveFlags = p.liveAt(i)
	s.FlagsLive = s.LiveFlags != 0
	w.Sites = append(w.Sites, s)
}

// instAt is the number of the window's instruction at an address, or -1.
func (w *Window) instAt(a abi.Addr) int {
	return slices.IndexFunc(w.Insts, func(in Inst) bool { return w.Start+abi.Addr(in.Off) == a })
}

// finish derives what depends on the whole window, and on what is behind it.
func (p *Planner) finish(w *Window) {
	off := int(w.Start - p.f.Start)
	w.Old = slices.Clone(p.text[off : off+w.Len])
	w.setNeed(p.text)
	w.setReach()
	w.noTraps = p.noBreakpoints()
	if w.Call && p.facts.ShadowStack {
		w.noTraps = "there is a shadow stack, which the call would not write to"
	}
	for _, other := range append(slices.Clone(w.Behind), w.Host) {
		if other != nil && other.Old == nil {
			p.finish(other)
		}
	}
	if len(w.Sites) == 0 {
		w.Site = w.Start
		return
	}
	first := w.Sites[0]
	switch {
	case w.Tactic != "":
	case first.Addr != w.Start:
		w.Tactic = Earlier
	case len(w.Insts) == 1:
		w.Tactic = Single
	default:
		w.Tactic = Multiple
	}
	w.Site, w.AtEntry, w.RedZoneLive = first.Addr, first.AtEntry, first.RedZoneLive
	w.LiveRegs, w.LiveFlags, w.FlagsLive = first.LiveRegs, first.LiveFlags, first.FlagsLive
}

// Instructions are the addresses of the function's instructions that pass a
// test, ascending. Bytes that cannot be decoded, and what follows them, are not
// among them.
func (p *Planner) Instructions(want func(at abi.Addr, in insn.Inst) bool) []abi.Addr {
	var sites []abi.Addr
	for i, in := range p.insts {
		if at := p.addr(p.at[i]); want(at, in) {
			sites = append(sites, at)
		}
	}
	return sites
}
