package inject

import (
	"slices"

	"trapless/internal/abi"
)

// batch is what is done to a target's text in one stop, or a part of it: patches
// that are put in, or patches that are taken out, never both, because the pair
// tables are written once: before the text of the former, behind that of the latter.
type batch struct {
	pages map[abi.Addr][]byte // of text, by their addresses, as they will be
	steps []textStep
}

// textStep is one patch that is written.
type textStep struct {
	d         *Detour
	out       bool
	cur, want []byte // nil if nothing is to be written
}

// mostSteps bounds a batch, which may take all the time it needs.
const mostSteps = 4096

// read is the text that a stopped target will have at an address. It is valid until
// the next change.
func (a *application) read(at abi.Addr, n int) ([]byte, error) {
	first := at.PageDown()
	page, err := a.page(first)
	if err != nil {
		return nil, err
	}
	off := int(at - first)
	if off+n <= len(page) {
		return page[off : off+n], nil
	}
	next, err := a.page(first + abi.PageSize)
	if err != nil {
		return nil, err
	}
	return slices.Concat(page[off:], next[:off+n-len(page)]), nil
}

func (a *application) page(at abi.Addr) ([]byte, error) {
	if page, ok := a.batch.pages[at]; ok {
		return page, nil
	}
	page := make([]byte, abi.PageSize)
	if err := a.mem.ReadAt(page, at); err != nil {
		return nil, err
	}
	a.batch.pages[at] = page
	return page, nil
}

// stage adds a step. It flushes before if the steps so far go the other way.
func (a *application) stage(s textStep) error {
	if n := len(a.batch.steps); n == mostSteps || n > 0 && a.batch.steps[0].out != s.out {
		if err := a.flush(); err != nil {
			return err
		}
	}
	a.batch.steps = append(a.batch.steps, s)
	for i, b := range s.want {
		at := s.d.patch.Addr + abi.Addr(i)
		a.batch.pages[at.PageDown()][at%abi.PageSize] = b
	}
	return nil
}

// flush writes what was staged. After an error some of it is written, and noted as
// such.
func (a *application) flush() error {
	steps := a.batch.steps
	a.batch.steps = nil
	if len(steps) == 0 {
		return nil
	}
	if !steps[0].out {
		var pairs []pair
		for _, s := range steps {
			pairs = append(pairs, s.d.boundaries()...)
		}
		if err := a.setBoundaries(pairs); err != nil {
			return err
		}
	}
	var gone []*Detour
	for _, s := range steps {
		if s.want != nil {
			if err := writeText(a.mem, s.d.patch.Addr, s.cur, s.want); err != nil {
				return err
			}
		}
		if s.out {
			gone = append(gone, s.d)
		} else {
			a.enter(s.d)
		}
	}
	return a.leave(gone...)
}
