package plan

import (
	"trapless/internal/abi"
)

// checkUse applies the rules for windows that have an inside. (A fault, of a
// moved instruction or not, kills where its signal is blocked.)
func (p *Planner) checkUse(w *Window) *Refusal {
	switch {
	case len(w.Insts) == 1:
		return nil
	case p.blocked != "":
		return refuse(w.Site, BlockedSignals, "%s: %s; a window of several instructions needs signals", p.f.Name, p.blocked)
	case p.someBlock() && (w.Start != p.f.Start || !p.f.Entry):
		return refuse(w.Site, BlockedSignals, "%s, and a jump into the window would kill it", p.facts.Blocked)
	}
	return nil
}

// noBreakpoints is why no site may be a breakpoint, "" if one may.
func (p *Planner) noBreakpoints() string {
	if why := p.noTraps(); why != "" || p.facts.Breakpoints {
		return why
	}
	return "breakpoints are not allowed, because one would kill a thread that blocks SIGTRAP (--breakpoints allows them)"
}

// noTraps is why a trap would kill the target, "" if it would not.
func (p *Planner) noTraps() string {
	switch {
	case p.blocked != "":
		return p.blocked
	case p.f.Go && mayHandleSignals(p.f):
		return "Go's runtime system may run it while it handles a signal, with all signals blocked"
	case p.someBlock():
		return p.facts.Blocked
	case !p.facts.TrapsHandled:
		return "there are no handlers for traps"
	}
	return ""
}

// someBlock reports whether a thread that runs this code may block the trap
// signals. Go keeps them unblocked, but for what is known by name, and for
// moments that Facts.Blocked may have caught.
func (p *Planner) someBlock() bool { return p.facts.Blocked != "" && !p.f.Go }

// checkRange refuses what facts forbid.
func (p *Planner) checkRange(w *Window) *Refusal {
	for _, n := range p.facts.NoTouch {
		if n.Range.Overlaps(w.Range()) {
			return refuse(w.Site, n.Reason, "its window %v to %v overlaps %s", w.Start, w.End(), n.Name)
		}
	}
	return nil
}

// checkEntries looks at everything that may enter the window elsewhere than at
// its start.
//
//   - A jump from inside the window is harmless: it is moved too, and its
//     target with it.
//   - A jump into the middle of an instruction is never allowed, because no
//     trapping byte stands there.
//   - A known entry at a boundary works by a trap. It is accepted if the facts
//     allow slow entries, but not if it closes a loop (its source lies behind
//     it), which could trap without end.
//   - Unknown jumps are accepted with trap handlers.
func (p *Planner) checkEntries(w *Window) *Refusal {
	lo := int(w.Start - p.f.Start)
	hi := lo + w.Len
	for _, e := range p.entriesIn(lo, hi) {
		at := p.addr(e.to)
		boundary := w.isBoundary(e.to - lo)
		switch {
		case boundary && e.how == byBranch && e.from >= lo && e.from < hi:
			continue
		case !boundary:
			return refuse(w.Site, JumpInside, "%s leads to %v, into an instruction of the window", e.how, at)
		case (e.how == byBranch || e.how == byTable) && e.from > e.to:
			return refuse(w.Site, JumpInside, "the jump at %v closes a loop at %v, inside the window of %d bytes",
				p.addr(e.from), at, w.Len)
		case !p.facts.TrapsHandled || !p.facts.SlowEntries:
			return refuse(w.Site, JumpInside, "%s leads to %v, inside the window of %d bytes", e.how, at, w.Len)
		}
		w.addSlow(at)
	}
	return p.checkUnknown(w)
}

func (w *Window) isBoundary(off int) bool {
	for _, in := range w.Insts {
		if in.Off == off {
			return true
		}
	}
	return false
}

func (w *Window) addSlow(at abi.Addr) {
	if n := len(w.Slow); n == 0 || w.Slow[n-1] != at {
		w.Slow = append(w.Slow, at)
	}
}

// checkUnknown looks at jumps of which it is not known where they go.
func (p *Planner) checkUnknown(w *Window) *Refusal {
	switch {
	case len(w.Insts) == 1:
		return nil
	case p.f.Go && p.unknown != "" && mayHandleSignals(p.f):
		return refuse(w.Site, IndirectJump, "%s may lead into the window of %d bytes while Go handles a signal, with all signals blocked", p.unknown, w.Len)
	case p.facts.TrapsHandled:
		return nil
	case p.unknown != "":
		return refuse(w.Site, IndirectJump, "%s may lead into the window of %d bytes", p.unknown, w.Len)
	case !p.f.InboundKnown:
		return refuse(w.Site, IndirectJump, "code outside of %s may jump into the window of %d bytes", p.f.Name, w.Len)
	}
	return nil
}
