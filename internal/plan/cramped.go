package plan

import (
	"cmp"
	"slices"

	"trapless/internal/abi"
	insn "trapless/internal/insn/x86"
	"trapless/internal/reloc"
)

// Sites that have no five bytes of their own: the block is too short, or what
// follows cannot move. The tactics for them need room elsewhere: at certain
// addresses (pun), in dead bytes near by (short), or in bytes that are made dead
// (evict). What they need of the function is noted as claimed, so that windows
// never overlap.

// claims are the bytes of a function that windows have taken.
type claims struct {
	start   abi.Addr
	owner   owners // by offset in the planner's text: which window has it, counted from 1; or pinned
	windows []*Window
}

func newClaims(p *Planner, windows []*Window) *claims {
	c := &claims{start: p.f.Start, owner: newOwners(len(p.text))}
	for _, w := range windows {
		c.add(w)
	}
	return c
}

// pinned bytes are the end of a pun's jump. A window of a site may lie there,
// which the pun then follows, but nothing that is settled later.
const pinned = -1

// held bytes are the end of a jump of two bytes: they stay what they are.
const held = -2

func (c *claims) add(w *Window) {
	c.windows = append(c.windows, w)
	off := int(w.Start - c.start)
	for i := off; i < min(off+w.Len, c.owner.size); i++ {
		c.owner.set(i, int32(len(c.windows)))
	}
	for i := off + w.Len; w.Tactic == Pun && i < min(off+jmpLen, c.owner.size); i++ {
		if c.owner.at(i) == 0 {
			c.owner.set(i, pinned)
		}
	}
	if w.Cave != 0 && w.Len < shortLen {
		c.owner.set(off+1, held)
	}
}

// free reports whether no window has any of n bytes from an offset on or depends
// on them, and all of them exist.
func (c *claims) free(off, n int) bool { return c.all(off, n, 0) }

// open is free, but a pun may end there.
func (c *claims) open(off, n int) bool { return c.all(off, n, pinned) }

func (c *claims) all(off, n int, also int32) bool {
	if off < 0 || off+n > c.owner.size {
		return false
	}
	for i := off; i < off+n; i++ {
		o := c.owner.at(i)
		if o != 0 && o != also {
			return false
		}
	}
	return true
}

// first is the first window that has one of n bytes from an offset on, nil if
// none has.
func (c *claims) first(off, n int) *Window {
	for i := range n {
		if w := c.at(off + i); w != nil {
			return w
		}
	}
	return nil
}

// bare reports whether one of n bytes from an offset on is a cave in padding,
// whose bytes are settled last.
func (c *claims) bare(off, n int) bool {
	for i := range n {
		if w := c.at(off + i); w != nil && w.Bare {
			return true
		}
	}
	return false
}

// at is the window that has the byte at an offset, nil if none has.
func (c *claims) at(off int) *Window {
	if off < 0 || off >= c.owner.size || c.owner.at(off) <= 0 {
		return nil
	}
	return c.windows[c.owner.at(off)-1]
}

// crampedSites plans the sites that were refused, beside the windows that there
// are. It returns all windows in the order of their addresses.
func (p *Planner) crampedSites(windows []*Window, refused []*Refusal) ([]*Window, []*Refusal) {
	c := newClaims(p, windows)
	var refusals []*Refusal
	for _, old := range refused {
		i, r := p.locate(old.Site)
		if r == nil && !p.joinCramped(c, old.Site, i) {
			_, r = p.cramped(c, old.Site, i, old)
		}
		if r != nil {
			refusals = append(refusals, r)
		}
	}
	slices.SortFunc(c.windows, func(x, y *Window) int { return cmp.Compare(x.Start, y.Start) })
	for i, w := range c.windows {
		w.setBehind(c.windows[i+1:])
	}
	return c.windows, refusals
}

// joinCramped adds a site to the cramped window that holds it, if one does.
func (p *Planner) joinCramped(c *claims, site abi.Addr, i int) bool {
	w := c.at(p.at[i])
	if w == nil || len(w.Sites) == 0 || w.Tactic == "" || w.Boosted || site == w.Start {
		return false
	}
	k := w.instAt(site)
	if k < 0 || isBreakpointPad(w.Insts[k]) {
		return false
	}
	p.addSite(w, site, i, k)
	return true
}

// setBehind notes in which windows the jump of a short one ends. Precondition:
// the windows are those behind it, ascending.
func (w *Window) setBehind(windows []*Window) {
	w.Behind = nil
	if w.Len >= jmpLen || w.Cave != 0 || w.Boosted {
		return
	}
	for _, next := range windows {
		if next.Start >= w.Start+jmpLen {
			break
		}
		w.Behind = append(w.Behind, next)
		if len(w.Behind) == 1 && next.jumps() {
			next.Before = w
		}
	}
}

// jumps reports whether the window begins with the opcode of a jump or call and
// its rel32.
func (w *Window) jumps() bool {
	return !w.Bare && w.Cave == 0 && !w.Boosted && w.Len >= jmpLen && (!w.Call || w.Len == jmpLen)
}

// cramped finds a tactic for the site that is the instruction with index i and
// for which there is no window of five bytes; r says why.
func (p *Planner) cramped(c *claims, site abi.Addr, i int, r *Refusal) (*Window, *Refusal) {
	w := &Window{Func: p.f, Site: site, Start: site}
	if !c.open(p.at[i], int(p.insts[i].Len)) || p.checkAlone(w, i) != nil {
		return nil, r
	}
	for _, try := range []struct {
		tactic Tactic
		rank   Tactic // how costly it is
		make   func(c *claims, site abi.Addr, i int) *Window
	}{
		{Pun, Pun, p.pun}, {Short, Short, p.short}, {Evict, Evict, p.evict}, {Evict, Evict, p.evictNext},
		{Multiple, Evict, p.withCall}, {Trap, Trap, p.trap},
	} {
		if !p.facts.allows(try.rank) {
			break
		}
		if w := try.make(c, site, i); w != nil {
			w.Tactic = try.tactic
			p.addSite(w, site, i, 0)
			c.add(w)
			return w, nil
		}
	}
	if p.noTraps() == "" && p.facts.allows(Trap) {
		r = refuse(site, r.Reason, "%s; nor is there room for a jump in another way, and %s", r.Detail, p.noBreakpoints())
	}
	return nil, r
}

// checkAlone refuses a site whose instruction cannot move at all. A near call
// can, in a window that ends behind it.
func (p *Planner) checkAlone(w *Window, i int) *Refusal {
	if p.isTwofold(i) {
		return p.refuseTwofold(w, i)
	}
	if !p.emulates(i) {
		if r := p.checkInst(w, i); r != nil {
			return r
		}
	}
	w.add(p.insts[i])
	if r := p.checkUse(w); r != nil {
		return r
	}
	if r := p.checkRange(w); r != nil {
		return r
	}
	return p.checkFaults(w, i)
}

// emulates reports whether the instruction with index i is a call that can be
// emulated.
func (p *Planner) emulates(i int) bool { return reloc.CanEmulate(p.insts[i]) && !p.facts.ShadowStack }

// start makes a window of the instruction with index i and, as long as it has
// less than least bytes, of those behind it that may move with it and that
// nothing else leads to.
func (p *Planner) start(c *claims, site abi.Addr, i, least int) *Window {
	w := &Window{Func: p.f, Site: site, Start: site}
	w.add(p.insts[i])
	for j := i + 1; w.Len < least && j < len(p.insts) && p.runsOn(j-1) && p.noTraps() == ""; j++ {
		at := p.at[j]
		one := &Window{Func: p.f, Site: site, Start: p.addr(at), Len: int(p.insts[j].Len)}
		if len(p.entriesIn(at-1, at+one.Len)) > 0 || !c.open(at, one.Len) || p.checkInst(one, j) != nil || p.checkRange(one) != nil {
			break
		}
		w.add(p.insts[j])
	}
	if p.checkUnknown(w) != nil {
		w.Insts, w.Len = w.Insts[:1], int(p.insts[i].Len)
	}
	if !w.Insts[len(w.Insts)-1].Branch.Falls() && p.unknown == "" {
		p.startPad(c, w, least)
	}
	w.layOut()
	return w
}

// startPad adds bytes of padding that nothing runs, so that no boundary is among
// them. What it leaves of a no-op is dead too, and may hold a cave.
func (p *Planner) startPad(c *claims, w *Window, least int) {
	off := int(w.End() - p.f.Start)
	end := p.padEnd(off)
	for ; w.Len < least && off < end && c.open(off, 1); off++ {
		w.Len++
	}
}

func (w *Window) add(in insn.Inst) {
	w.Insts = append(w.Insts, Inst{Inst: in, Off: w.Len})
	w.Len += int(in.Len)
}

// pun makes a window of less than five bytes whose jump ends in what follows.
func (p *Planner) pun(c *claims, site abi.Addr, i int) *Window {
	for _, least := range []int{jmpLen - 1, 1} {
		w := p.start(c, site, i, least)
		off := p.at[i]
		if w.Len >= jmpLen || off+jmpLen > len(p.text) {
			continue
		}
		w.setNeed(p.text)
		if next := c.first(off+w.Len, jmpLen-w.Len); next != nil {
			if !c.bare(off+w.Len, jmpLen-w.Len) && p.fitsBefore(w, next) {
				return w
			}
			continue
		}
		if p.facts.Space == nil || p.facts.Space.fits(w) {
			return w
		}
	}
	return nil
}

// withCall makes a window of five bytes and more that ends with a call, which
// then is emulated.
func (p *Planner) withCall(c *claims, site abi.Addr, i int) *Window {
	w := &Window{Func: p.f, Site: site, Start: site}
	for j := i; j < len(p.insts); j++ {
		in := p.insts[j]
		one := &Window{Func: p.f, Site: site, Start: p.addr(p.at[j]), Len: int(in.Len)}
		if j > i && len(p.entriesIn(p.at[j]-1, p.at[j]+one.Len)) > 0 || !c.open(p.at[j], one.Len) ||
			p.checkRange(one) != nil || p.isTwofold(j) || p.checkFaults(one, j) != nil {
			return nil
		}
		w.add(in)
		switch {
		case p.emulates(j) && w.Len >= jmpLen && w.Len <= MaxLen && p.checkUse(w) == nil && p.checkUnknown(w) == nil &&
			p.checkSpace(w) == nil:
			w.layOut()
			return w
		case !p.runsOn(j):
			return nil
		}
	}
	return nil
}

// fitsBefore reports whether there are addresses for a pun and for the window in
// which its jump ends.
func (p *Planner) fitsBefore(w, next *Window) bool {
	if p.facts.Space == nil || !next.jumps() {
		return true // the addresses will show
	}
	if next.Old == nil {
		next.setNeed(p.text)
	}
	return next.Before == nil && p.facts.Space.fitBoth(next, w)
}

// evictNext makes a pun that ends in the jump of the next instructions, which
// move out for that.
func (p *Planner) evictNext(c *claims, site abi.Addr, i int) *Window {
	w := p.start(c, site, i, 1)
	if w.Len >= jmpLen || p.at[i]+jmpLen > len(p.text) {
		return nil
	}
	owner, first := p, i+1
	if first == len(p.insts) && p.at[i]+w.Len == p.own && p.own < len(p.text) {
		if p.next == nil {
			p.next = Prepare(p.f.Next, p.facts)
		}
		owner, first = p.next, 0
	}
	next := owner.movable(first)
	if next == nil || !c.free(p.at[i]+w.Len, min(next.Len, len(p.text)-p.at[i]-w.Len)) {
		return nil
	}
	w.setNeed(p.text)
	if !p.fitsBefore(w, next) {
		return nil
	}
	c.add(next)
	w.Behind, next.Before = []*Window{next}, w
	return w
}

// movable is a window without sites at the instruction with a number, nil if
// there can be none.
func (p *Planner) movable(i int) *Window {
	if i >= len(p.insts) {
		return nil
	}
	at := p.addr(p.at[i])
	w, r := p.build(at, i, i, jmpLen)
	if reloc.IsPlainCall(p.insts[i]) && p.insts[i].Len == jmpLen {
		w, r = p.callWindow(at, i)
	}
	if r != nil {
		w = p.withCall(newClaims(p, nil), at, i)
	}
	if w == nil || w.Len > MaxLen {
		return nil
	}
	p.finish(w)
	return w
}

// trap makes a breakpoint of the first byte.
func (p *Planner) trap(c *claims, site abi.Addr, i int) *Window {
	if p.noBreakpoints() != "" {
		return nil
	}
	w := &Window{Func: p.f, Site: site, Start: site, Boosted: true}
	w.add(p.insts[i])
	w.layOut()
	return w
}

// Conflicts are the windows that disturb each other though they belong to
// different functions: one that made room at the begin of the function behind it
// (Func.Next), and what was planned there. The functions of the former are to be
// planned again without Next. The windows must be in the order of their addresses.
func Conflicts(windows []*Window) (disturbed []*Func) {
	for i, w := range windows {
		end := w.Extent().End
		for _, next := range windows[i+1:] {
			if next.Start >= end {
				break
			}
			known := slices.Contains(w.Behind, next)
			switch {
			case next.planner() != next.Func && (next.Start < w.End() || !known):
				disturbed = append(disturbed, next.planner())
			case next.planner() != w.planner() && !known, next.Start < w.End():
				disturbed = append(disturbed, w.planner())
			}
		}
	}
	slices.SortFunc(disturbed, func(x, y *Func) int { return cmp.Compare(x.Start, y.Start) })
	return slices.Compact(disturbed)
}

// planner is the function in whose plan the window is: that of the window for
// which it makes room, if it has no sites of its own.
func (w *Window) planner() *Func {
	if len(w.Sites) == 0 && w.Before != nil {
		return w.Before.Func
	}
	return w.Func
}
