// Package elfplan describes the functions of an ELF file to the planner. It
// takes what image has read of the file, and a bias, and gives plan.Func and
// plan.Facts at the addresses that the file has in a process. It looks at no
// process: with a bias of 0 it describes the file itself.
package elfplan

import (
	"slices"

	"trapless/internal/abi"
	"trapless/internal/image"
	"trapless/internal/plan"
)

// Module is an ELF file, loaded. It is not for use by several goroutines at once.
type Module struct {
	Image *image.File
	Funcs *image.Functions
	Bias  image.Bias

	readOnly []plan.Data // read when first wanted
	rooms    *rooms      // likewise
}

// Func describes a function. What leads into it from outside is not known yet
// but for the symbols inside it; see FindEntries.
func (m *Module) Func(fn image.Func) (*plan.Func, error) {
	code, err := m.Funcs.Code(fn)
	if err != nil {
		return nil, err
	}
	padding, err := m.Funcs.Padding(fn)
	if err != nil {
		return nil, err
	}
	var pad []byte
	if padding.Len() > 0 { // an empty one may lie at the segment's end
		if pad, err = m.Image.Code(padding); err != nil {
			return nil, err
		}
	}
	f := &plan.Func{Name: fn.Name(), Aliases: fn.Names, Start: m.Bias.Addr(fn.Start), Code: code, Pad: pad, Entry: fn.Entry, Go: fn.Go}
	for _, inner := range m.Funcs.Inner(fn.Range) {
		f.Inbound = append(f.Inbound, m.Bias.Addr(inner.Start))
	}
	f.ReadOnly, err = m.constants()
	return f, err
}

// constants are the module's bytes that are not writable.
func (m *Module) constants() ([]plan.Data, error) {
	if m.readOnly != nil {
		return m.readOnly, nil
	}
	for i := range m.Image.Segments {
		s := &m.Image.Segments[i]
		if s.Write || s.FileSize == 0 {
			continue
		}
		b, err := m.Image.Bytes(image.Range{Start: s.Addr, End: s.Addr + image.VAddr(s.FileSize)})
		if err != nil {
			return nil, err
		}
		m.readOnly = append(m.readOnly, plan.Data{Start: m.Bias.Addr(s.Addr), Bytes: b})
	}
	return m.readOnly, nil
}

// Facts are those that hold once trapless's signal handlers are in place, and
// the ranges of the file that no patch may touch.
func (m *Module) Facts() (*plan.Facts, error) {
	facts := &plan.Facts{TrapsHandled: true, FaultsMapped: true}
	for _, r := range m.Image.Linkage() {
		facts.NoTouch = append(facts.NoTouch, plan.NoTouch{Range: m.Bias.Range(r.Range), Reason: plan.Blacklisted, Name: r.Name})
	}
	facts.NoTouch = append(facts.NoTouch, m.blacklistGo()...)
	frames, err := m.Image.SignalFrames()
	if err != nil {
		return nil, err
	}
	for _, r := range frames {
		facts.NoTouch = append(facts.NoTouch, plan.NoTouch{Range: m.Bias.Range(r), Reason: plan.Blacklisted, Name: "the return from a signal handler"})
	}
	sequences, err := m.Image.Criticals()
	if err != nil {
		return nil, err
	}
	for _, c := range sequences {
		for _, r := range []image.Range{c.Body, c.Signature()} {
			facts.NoTouch = append(facts.NoTouch, plan.NoTouch{Range: m.Bias.Range(r), Reason: plan.RSeq, Name: "a restartable sequence"})
		}
	}
	return facts, nil
}

// FindEntries reads the whole module for what leads into the functions from
// outside: branches, landing pads, pointers in data. A function that has an
// entry of its own then counts as known; of the part of one that lies elsewhere
// (.cold) it remains open where the switches of the other part lead.
func (m *Module) FindEntries(funcs []*plan.Func) error {
	if err := m.findBranches(funcs); err != nil {
		return err
	}
	pads, complete, err := m.Image.LandingPads()
	if err != nil {
		return err
	}
	taken, err := m.Image.CodePointers()
	if err != nil {
		return err
	}
	for _, f := range funcs {
		r := image.Range{Start: m.Bias.VAddr(f.Start), End: m.Bias.VAddr(f.End())}
		f.Inbound = append(f.Inbound, m.inside(pads, r)...)
		f.Taken = m.inside(taken, r)
		f.InboundKnown = f.Entry && complete
	}
	return nil
}

// inside are those of an ascending list that lie in a range, behind its start.
func (m *Module) inside(list []image.VAddr, r image.Range) []abi.Addr {
	var out []abi.Addr
	i, _ := slices.BinarySearch(list, r.Start+1)
	for ; i < len(list) && list[i] < r.End; i++ {
		out = append(out, m.Bias.Addr(list[i]))
	}
	return out
}

// findBranches reads all code for branches.
func (m *Module) findBranches(funcs []*plan.Func) error {
	var starts []abi.Addr
	for _, fn := range m.Funcs.All() {
		starts = append(starts, m.Bias.Addr(fn.Start))
	}
	for i := range m.Image.Segments {
		s := &m.Image.Segments[i]
		if !s.Exec {
			continue
		}
		r := image.Range{Start: s.Addr, End: s.Addr + image.VAddr(s.FileSize)}
		code, err := m.Image.Code(r)
		if err != nil {
			return err
		}
		lo, _ := slices.BinarySearch(starts, m.Bias.Addr(r.Start))
		plan.FindInbound(plan.Text{Start: m.Bias.Addr(r.Start), Code: code, Starts: starts[lo:]}, funcs)
	}
	return nil
}
