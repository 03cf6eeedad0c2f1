package plan

import (
	"errors"
	"slices"

	"trapless/internal/abi"
	insn "trapless/internal/insn/x86"
	"trapless/internal/reloc"
)

// functionAlign is the alignment of functions that compilers use on x86-64.
const functionAlign = 16

// Analyze plans all sites of a function together, in the order of their
// addresses; a site that is given twice is planned once. Windows never
// overlap: sites that are near each other share one. Each site appears either
// in a window or in a refusal.
func Analyze(f *Func, sites []abi.Addr, facts *Facts) ([]*Window, []*Refusal) {
	return Prepare(f, facts).Together(sites)
}

// Planner plans sites of one function, which it has read once.
type Planner struct {
	*body
	facts   *Facts
	text    []byte   // the code, the padding behind it, and the begin of the next function
	own     int      // bytes of text without the next function's
	next    *Planner // of the next function, read when first wanted
	blocked string   // why signals are blocked here, "" if they are not
	entry   abi.Addr // the function's EntrySite
	useless *Refusal // of a function that makes no sense
	pads    []stretch
}

// Prepare reads a function.
func Prepare(f *Func, facts *Facts) *Planner {
	if r := checkFunc(f); r != nil {
		return &Planner{body: &body{f: f}, useless: r}
	}
	text := slices.Concat(f.Code, f.Pad)
	own := len(text)
	if n := f.Next; n != nil && n.Start == f.End()+abi.Addr(len(f.Pad)) {
		text = append(text, n.Code[:min(len(n.Code), MaxLen)]...)
	}
	return &Planner{body: read(f), facts: facts, text: text, own: own, blocked: blockedSignals(f), entry: f.EntrySite()}
}

func checkFunc(f *Func) *Refusal {
	end := f.End() + abi.Addr(len(f.Pad))
	switch {
	case len(f.Code) == 0:
		return refuse(f.Start, NoCode, "%s has no code", f.Name)
	case f.Start == 0 || end < f.Start:
		return refuse(f.Start, NoCode, "%s lies at %v to %v, which is no range of addresses", f.Name, f.Start, end)
	}
	return nil
}

// loopsToEntry reports whether the function may jump to its own entry site,
// where the red zone of the running call may then be in use.
func (p *Planner) loopsToEntry() bool {
	off := int(p.entry - p.f.Start)
	for _, e := range p.entriesIn(off-1, off+1) {
		if e.how == byBranch || e.how == byTable {
			return true
		}
	}
	return p.unknown != ""
}

// locate finds the instruction at the site.
func (p *Planner) locate(site abi.Addr) (int, *Refusal) {
	if p.useless != nil {
		return 0, refuse(site, NoCode, "%s", p.useless.Detail)
	}
	if site < p.f.Start || site >= p.f.End() {
		return 0, refuse(site, OutsideFunction, "%s lies at %v to %v", p.f.Name, p.f.Start, p.f.End())
	}
	off := int(site - p.f.Start)
	if off >= p.stop {
		return 0, refuse(site, Undecodable, "%s cannot be read beyond %v: %v", p.f.Name, p.addr(p.stop), p.err)
	}
	i := p.containing(off)
	if p.at[i] != off {
		next := p.at[i] + int(p.insts[i].Len)
		return 0, refuse(site, NotABoundary, "the instruction there starts at %v; the next one starts at %v",
			p.addr(p.at[i]), p.addr(next))
	}
	return i, nil
}

// take collects whole instructions from the one with index i on: at least up to
// the one with index last, and until there are least bytes.
func (p *Planner) take(w *Window, i, last, least int) *Refusal {
	for ; w.Len < least || i <= last; i++ {
		if w.Len > 0 && !p.insts[i-1].Branch.Falls() {
			return p.takePad(w, least)
		}
		if i == len(p.insts) {
			return p.takeEnd(w, least)
		}
		if r := p.checkInst(w, i); r != nil {
			return r
		}
		w.Insts = append(w.Insts, Inst{Inst: p.insts[i], Off: w.Len})
		w.Len += int(p.insts[i].Len)
	}
	w.layOut()
	return p.checkUse(w)
}

// takePad extends a window behind code that does not fall through, over no-ops
// and breakpoints that nothing is known to reach.
func (p *Planner) takePad(w *Window, least int) *Refusal {
	start := int(w.Start - p.f.Start)
	for w.Len < least {
		off := start + w.Len
		in, err := insn.Decode(p.text[off:p.own], insn.Mode64)
		if err != nil || !isPadding(in) || p.mayBeEntry(off, in) {
			return refuse(w.Site, TooShort, "there are %d bytes up to %v, where the code ends and no padding follows; a jump needs %d",
				w.Len, p.addr(off), jmpLen)
		}
		w.Insts = append(w.Insts, Inst{Inst: in, Off: w.Len, Pad: true})
		w.Len += int(in.Len)
		// The end of the function: what is entered here is not padding.
		if entries := p.entriesIn(off-1, off+1); len(entries) > 0 {
			return refuse(w.Site, TooShort, "there are %d bytes up to %v, which %s leads to; a jump needs %d",
				w.Insts[len(w.Insts)-1].Off, p.addr(off), entries[0].how, jmpLen)
		}
	}
	w.layOut()
	return p.checkUse(w)
}

// takeEnd extends a window behind code that runs on past the function's end, into
// breakpoints: what follows a call that does not return.
func (p *Planner) takeEnd(w *Window, least int) *Refusal {
	end := int(w.Start-p.f.Start) + least
	if p.err != nil || w.Len == 0 || end > p.own || slices.ContainsFunc(p.text[len(p.f.Code):end], func(b byte) bool { return b != breakpoint }) {
		return p.refuseEnd(w)
	}
	return p.takePad(w, least)
}

// mayBeEntry reports a no-op behind the function where one without a symbol
// could begin: functions may begin with no-ops (-fpatchable-function-entry), and
// are aligned.
func (p *Planner) mayBeEntry(off int, in insn.Inst) bool {
	return off >= len(p.f.Code) && p.addr(off)%functionAlign == 0 && in.Opcode != breakpoint
}

// isPadding reports no-ops and breakpoints.
func isPadding(in insn.Inst) bool {
	switch {
	case in.Enc != insn.EncLegacy:
		return false
	case in.Map == 0 && in.Opcode == 0x90:
		return in.Prefixes&(insn.PrefixRep|insn.PrefixRepne|insn.RexB) == 0
	case in.Map == 1 && in.Opcode == 0x1f:
		return true
	}
	return in.Map == 0 && in.Opcode == breakpoint
}

// checkInst refuses an instruction that cannot be part of a window.
func (p *Planner) checkInst(w *Window, i int) *Refusal {
	in := p.insts[i]
	at := p.addr(p.at[i])
	if p.isTwofold(i) {
		return p.refuseTwofold(w, i)
	}
	if _, err := reloc.Size(in); err != nil {
		return refuse(w.Site, reasonOf(err), "at %v, %s", at, detailOf(err))
	}
	return p.checkFaults(w, i)
}

// checkFaults refuses an instruction whose fault would show the target an
// address in the detour.
func (p *Planner) checkFaults(w *Window, i int) *Refusal {
	in, at := p.insts[i], p.addr(p.at[i])
	if in.Effects().CanFault() && !p.facts.FaultsDefault && !p.facts.FaultsMapped {
		return refuse(w.Site, Faults, "%s at %v may fault, and the target handles SIGSEGV, SIGBUS or SIGFPE itself",
			in.Mnemonic(), at)
	}
	return nil
}

// reasonOf turns a reason why an instruction cannot move into one why a window
// cannot be made.
func reasonOf(err error) Reason {
	var r *reloc.Refusal
	if errors.As(err, &r) {
		switch r.Reason {
		case reloc.Call:
			return CallInside
		case reloc.Syscall:
			return SyscallInside
		}
	}
	return Immovable
}

func detailOf(err error) string {
	var r *reloc.Refusal
	if errors.As(err, &r) {
		return r.Detail
	}
	return err.Error()
}

// refuseEnd says that the code ends before a jump fits.
func (p *Planner) refuseEnd(w *Window) *Refusal {
	if p.err != nil {
		return refuse(w.Site, Undecodable, "%s cannot be read beyond %v: %v", p.f.Name, p.addr(p.stop), p.err)
	}
	return refuse(w.Site, TooShort, "there are %d bytes up to the end of %s at %v, which its code may run past; a jump needs %d",
		w.Len, p.f.Name, p.f.End(), jmpLen)
}

func (p *Planner) refuseTwofold(w *Window, i int) *Refusal {
	return refuse(w.Site, AmbiguousCode, "the instruction at %v is also entered in its middle", p.addr(p.at[i]))
}
