// Package elfplan describes the functions of an ELF file to the planner. It
// takes what image has read of the file, and a bias, and gives plan.Func and
// plan.Facts at the addresses that the file has in a process. It looks at no
// process: with a bias of 0 it describes the file itself.
//
// What leads into a function can be anywhere in its module, so the first
// function for which that is asked makes it read all code once.
package elfplan

import (
	"encoding/binary"
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

	// These are read when first wanted.
	rooms    *rooms
	ways     *ways
	pointers []image.Pointer
	chunk    plan.Data // of the constants, read last
}

// Func describes a function. What leads into it from outside is not known yet
// but for the symbols inside it; see FindEntries.
func (m *Module) Func(fn image.Func) (*plan.Func, error) {
	code, pad, err := m.Funcs.Body(fn)
	if err != nil {
		return nil, err
	}
	f := &plan.Func{Name: fn.Name(), Aliases: fn.Names, Start: m.Bias.Addr(fn.Start), Code: code, Pad: pad, Entry: fn.Entry,
		ReadOnly: m.constant, Fixed: m.Image.Kind == image.Exec, Go: fn.Go, Asm: fn.Asm}
	for _, inner := range m.Funcs.Inner(fn.Range) {
		f.Inbound = append(f.Inbound, m.Bias.Addr(inner.Start))
	}
	return f, nil
}

// chunkSize is how many bytes of constants are read at once: tables of
// neighbouring functions are neighbours.
const chunkSize = 1 << 16

// constant reads bytes that do not change, as they are in the process; nil if
// they are not of that kind.
func (m *Module) constant(at abi.Addr, size int) []byte {
	v := m.Bias.VAddr(at)
	r := m.Image.Constant(v)
	if uint64(r.End-v) < uint64(size) {
		return nil
	}
	if got := (plan.Constants{m.chunk}).Read(at, size); got != nil {
		return got
	}
	r.Start = max(r.Start, v&^(chunkSize-1))
	r.End = min(r.End, v+image.VAddr(max(size, chunkSize)))
	b, err := m.Image.Bytes(r)
	if err != nil || m.relocate(b, r) != nil {
		return nil
	}
	m.chunk = plan.Data{Start: m.Bias.Addr(r.Start), Bytes: b}
	return (plan.Constants{m.chunk}).Read(at, size)
}

// relocate does to the bytes of a range what the loader does.
func (m *Module) relocate(b []byte, r image.Range) error {
	if m.Image.Kind == image.Exec {
		return nil
	}
	if m.pointers == nil {
		all, err := m.Image.Pointers()
		if err != nil {
			return err
		}
		m.pointers = append(all, image.Pointer{}) // not nil
	}
	first, _ := slices.BinarySearchFunc(m.pointers[:len(m.pointers)-1], r.Start, image.Pointer.Compare)
	for _, p := range m.pointers[first : len(m.pointers)-1] {
		if p.At+8 > r.End {
			break
		}
		binary.LittleEndian.PutUint64(b[p.At-r.Start:], uint64(m.Bias.Addr(p.To)))
	}
	return nil
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

// FindEntries finds in the whole module what leads into functions from outside:
// branches, switch tables of other parts of the function, landing pads, pointers
// in data. A function of which all that is known counts as such (InboundKnown).
// One that has no name counts as entered by calls if there is one, or if it can be
// nothing else.
func (m *Module) FindEntries(funcs []*plan.Func) error {
	if m.ways == nil {
		w, err := m.findWays()
		if err != nil {
			return err
		}
		m.ways = w
	}
	for _, f := range funcs {
		m.enter(f)
		m.enterByTables(f)
	}
	return nil
}
