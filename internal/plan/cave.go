package plan

import (
	"math"

	"trapless/internal/abi"
	insn "trapless/internal/insn/x86"
)

// hostLen is the length of a window with room for its own jump and a guest's.
const hostLen = 2 * jmpLen

// hostTries bounds how many instructions are tried as the start of a host.
const hostTries = 48

// shortReach is how far jmp rel8 reaches, from behind it, in bytes.
const (
	shortBelow = -math.MinInt8
	shortAbove = math.MaxInt8
)

// short makes a window with a jump of two bytes to padding near by.
func (p *Planner) short(c *claims, site abi.Addr, i int) *Window {
	w := p.startShort(c, site, i)
	if w == nil {
		return nil
	}
	for _, pad := range p.padding() {
		for off := pad.from; off+jmpLen <= pad.to; off++ {
			cave := abi.Range{Start: p.addr(off), End: p.addr(off + jmpLen)}
			if c.free(off, jmpLen) && !cave.Overlaps(w.Range()) && p.leads(c, w, off) {
				host := p.bareHost(off)
				c.add(host)
				w.moveIn(host, p.addr(off))
				return w
			}
		}
	}
	return nil
}

// evict is short, but the room is made by moving other instructions out, or lies
// in a window behind its jump.
func (p *Planner) evict(c *claims, site abi.Addr, i int) *Window {
	w := p.startShort(c, site, i)
	if w == nil {
		return nil
	}
	for off := p.at[i] - shortBelow; off < p.at[i]+shortAbove; off++ {
		host := c.at(off)
		if host != nil && host.hasRoom() && p.settle(c, w, host) {
			return w
		}
	}
	for _, j := range p.around(i) {
		host, r := p.build(p.addr(p.at[j]), j, j, hostLen)
		if r != nil || host.Len > MaxLen || host.Range().Overlaps(w.Range()) || !c.free(p.at[j], host.Len) {
			continue
		}
		if p.settle(c, w, host) {
			c.add(host)
			return w
		}
	}
	return nil
}

// hasRoom reports whether bytes of the window are dead that a jump fits in.
func (w *Window) hasRoom() bool {
	return w.Len >= hostLen && !w.Call && w.Cave == 0 && !w.Bare && !w.Boosted
}

// startShort makes a window of at least two bytes, or of the one that there is.
func (p *Planner) startShort(c *claims, site abi.Addr, i int) *Window {
	w := p.start(c, site, i, shortLen)
	if w.Len < shortLen && c.first(p.at[i]+1, 1) != nil || p.at[i]+shortLen > len(p.text) {
		return nil
	}
	return w
}

// settle gives a window a cave in a host, if there is a place.
func (p *Planner) settle(c *claims, w, host *Window) bool {
	best, least := -1, math.MaxInt
	from := int(host.Start - p.f.Start)
	for off := jmpLen; off+jmpLen <= host.Len; off++ {
		cost, ok := host.caveCost(off)
		if cost >= topCost && p.facts.Space != nil && !p.facts.Space.trapsNear(host.Start+abi.Addr(off+jmpLen)) {
			continue
		}
		if ok && cost < least && p.leads(c, w, from+off) {
			best, least = off, cost
		}
	}
	if best < 0 {
		return false
	}
	w.moveIn(host, host.Start+abi.Addr(best))
	return true
}

// topCost is what caveCost has of a boundary where the jump's last byte lies, which
// decides where regions must be.
const topCost = 1 << (jmpLen - 1)

// caveCost says how much the host's boundaries constrain a jump at an offset, and
// whether it may lie there: not where an instruction starts, nor where another
// guest has its own.
func (w *Window) caveCost(off int) (cost int, ok bool) {
	for _, g := range w.Guests {
		if d := int(g.Cave-w.Start) - off; d > -jmpLen && d < jmpLen {
			return 0, false
		}
	}
	for _, in := range w.Insts {
		switch d := in.Off - off; {
		case d == 0:
			return 0, false
		case d > 0 && d < jmpLen:
			cost += 1 << d
		}
	}
	return cost, true
}

// leads reports whether the window's first two bytes can lead to an offset of
// the text: a second instruction among them must still trap, and a byte that is
// not the window's stays what it is.
func (p *Planner) leads(c *claims, w *Window, off int) bool {
	start := int(w.Start - p.f.Start)
	rel := off - start - shortLen
	switch {
	case rel < math.MinInt8 || rel > math.MaxInt8:
		return false
	case w.Len < shortLen:
		return byte(rel) == p.text[start+1]
	case w.isBoundary(1):
		return trapping[byte(rel)]
	}
	return true
}

// moveIn makes a window the guest of another one.
func (w *Window) moveIn(host *Window, cave abi.Addr) {
	w.Host, w.Cave = host, cave
	host.Guests = append(host.Guests, w)
}

// bareHost is padding with room for one jump.
func (p *Planner) bareHost(off int) *Window {
	host := &Window{Func: p.f, Start: p.addr(off), Site: p.addr(off), Len: jmpLen, Bare: true}
	return host
}

// around are the indices of instructions within reach of a short jump, near ones
// first.
func (p *Planner) around(i int) (list []int) {
	at := p.at[i]
	for d := 1; len(list) < hostTries; d++ {
		before, after := i-d, i+d
		found := false
		if before >= 0 && at-p.at[before] <= shortBelow+MaxLen {
			list, found = append(list, before), true
		}
		if after < len(p.insts) && p.at[after]-at <= shortAbove {
			list, found = append(list, after), true
		}
		if !found {
			break
		}
	}
	return list
}

// stretch is a part of the text by offsets.
type stretch struct{ from, to int }

// padding are the stretches of at least five bytes of no-ops and breakpoints that
// nothing leads to, behind code that does not run on.
func (p *Planner) padding() []stretch {
	if p.pads != nil {
		return p.pads
	}
	p.pads = []stretch{}
	for i, in := range p.insts {
		next := p.at[i] + int(in.Len)
		if in.Branch.Falls() || p.unknown != "" && next < len(p.f.Code) {
			continue
		}
		if to := p.padEnd(next); to-next >= jmpLen {
			p.pads = append(p.pads, stretch{next, to})
		}
	}
	return p.pads
}

// padEnd is where padding that begins at an offset ends.
func (p *Planner) padEnd(off int) int {
	for off < p.own {
		in, err := insn.Decode(p.text[off:p.own], insn.Mode64)
		if err != nil || !isPadding(in) || p.mayBeEntry(off, in) || len(p.entriesIn(off-1, off+int(in.Len))) > 0 {
			break
		}
		off += int(in.Len)
	}
	return off
}
