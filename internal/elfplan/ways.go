package elfplan

import (
	"cmp"
	"slices"

	"trapless/internal/abi"
	"trapless/internal/image"
	"trapless/internal/plan"
)

// ways is what is known of a module as a whole.
type ways struct {
	sweep    *plan.Sweep
	jumps    []plan.Crossing // ascending by From
	pads     []image.VAddr
	taken    []image.VAddr
	complete bool // nothing is missing in pads and taken
	noReturn []abi.Addr
	outward  map[image.VAddr]outward
}

// outward is where the switch tables of a function lead outside of it.
type outward struct {
	to    []abi.Addr
	known bool // all of them
}

func (m *Module) findWays() (*ways, error) {
	w := &ways{outward: map[image.VAddr]outward{}}
	var err error
	if w.sweep, err = m.sweep(); err != nil {
		return nil, err
	}
	for _, c := range w.sweep.Crossings {
		if c.Kind == plan.Jump {
			w.jumps = append(w.jumps, c)
		}
	}
	slices.SortFunc(w.jumps, func(x, y plan.Crossing) int { return cmp.Compare(x.From, y.From) })
	if w.pads, w.complete, err = m.Image.LandingPads(); err != nil {
		return nil, err
	}
	if w.taken, err = m.Image.CodePointers(); err != nil {
		return nil, err
	}
	w.complete = w.complete && m.Image.RelocationsKnown()
	if w.noReturn, err = m.noReturn(w.sweep); err != nil {
		return nil, err
	}
	w.sweep.Settle(w.noReturn, func(a abi.Addr) bool {
		_, ok := m.Funcs.At(m.Bias.VAddr(a))
		return ok
	})
	return w, nil
}

// sweep reads all code.
func (m *Module) sweep() (*plan.Sweep, error) {
	starts := make([]abi.Addr, 0, len(m.Funcs.All()))
	for _, fn := range m.Funcs.All() {
		starts = append(starts, m.Bias.Addr(fn.Start))
	}
	var stubs []abi.Range
	for _, r := range m.Image.Stubs() {
		stubs = append(stubs, m.Bias.Range(r.Range))
	}
	s := plan.NewSweep(starts, m.Image.Kind == image.Exec, stubs)
	for i := range m.Image.Segments {
		g := &m.Image.Segments[i]
		if !g.Exec {
			continue
		}
		code, err := m.Image.Code(image.Range{Start: g.Addr, End: g.Addr + image.VAddr(g.FileSize)})
		if err != nil {
			return nil, err
		}
		s.Read(m.Bias.Addr(g.Addr), code)
	}
	s.Finish()
	return s, nil
}

// enter notes what leads into a function, tables aside.
func (m *Module) enter(f *plan.Func) {
	w := m.ways
	r := image.Range{Start: m.Bias.VAddr(f.Start), End: m.Bias.VAddr(f.End())}
	f.Inbound = append(f.Inbound, m.inside(w.pads, r)...)
	f.Taken = m.inside(w.taken, r)
	w.sweep.Enter(f)
	f.NoReturn, f.Sweep = w.noReturn, w.sweep
	f.Entry = f.Entry || f.Name == "" && w.sweep.Called(f.Start)
	var parts []image.Func
	known := false
	f.Part = func(a abi.Addr) bool {
		if !known {
			parts, known = m.relatives(r), true
		}
		return m.partOf(parts, m.Bias.VAddr(a))
	}
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

// isPart reports whether a function may be a part of another one: nobody calls
// it, as far as is known.
func (m *Module) isPart(fn image.Func) bool {
	return !fn.Entry && !(len(fn.Names) == 0 && m.ways.sweep.Called(m.Bias.Addr(fn.Start)))
}

// relatives are the other parts of the function that has a range as one of its
// parts, as far as jumps tell: at least one of two relatives is no entry, and a
// jump leads from one to the other.
func (m *Module) relatives(r image.Range) []image.Func {
	self, _ := m.Funcs.At(r.Start)
	part := m.isPart(self)
	var found []image.Func
	add := func(a abi.Addr) {
		fn, ok := m.Funcs.At(m.Bias.VAddr(a))
		if ok && fn.Start != r.Start && (part || m.isPart(fn)) &&
			!slices.ContainsFunc(found, func(g image.Func) bool { return g.Start == fn.Start }) {
			found = append(found, fn)
		}
	}
	for _, c := range between(m.ways.jumps, m.Bias.Range(r), func(c plan.Crossing) abi.Addr { return c.From }) {
		add(c.To)
	}
	for _, c := range between(m.ways.sweep.Crossings, m.Bias.Range(r), func(c plan.Crossing) abi.Addr { return c.To }) {
		if c.Kind == plan.Jump {
			add(c.From)
		}
	}
	return found
}

// between are the elements of an ascending list that lie in a range.
func between(list []plan.Crossing, r abi.Range, key func(plan.Crossing) abi.Addr) []plan.Crossing {
	find := func(a abi.Addr) int {
		i, _ := slices.BinarySearchFunc(list, a, func(c plan.Crossing, a abi.Addr) int { return cmp.Compare(key(c), a) })
		return i
	}
	return list[find(r.Start):find(r.End)]
}

// partOf reports whether an address lies in one of a function's parts, or in
// code to which no jump is known to lead: which may be such a part. If data hold
// its address it may be a function as well, so only its start counts.
func (m *Module) partOf(parts []image.Func, v image.VAddr) bool {
	fn, ok := m.Funcs.At(v)
	if !ok || slices.ContainsFunc(parts, func(g image.Func) bool { return g.Start == fn.Start }) {
		return ok
	}
	if !m.isPart(fn) || len(m.relatives(fn.Range)) > 0 {
		return false
	}
	_, pointed := slices.BinarySearch(m.ways.taken, fn.Start)
	return !pointed || v == fn.Start
}

// mostParts is how many parts of one function are looked at.
const mostParts = 16

// enterByTables notes which switch tables of its other parts lead into a
// function, and whether all that leads into it is known.
func (m *Module) enterByTables(f *plan.Func) {
	r := image.Range{Start: m.Bias.VAddr(f.Start), End: m.Bias.VAddr(f.End())}
	parts := m.relatives(r)
	f.InboundKnown = m.ways.complete && (f.Entry || len(parts) > 0)
	for i := 0; i < len(parts); i++ {
		if !f.Entry {
			for _, further := range m.relatives(parts[i].Range) {
				if further.Start != r.Start && !slices.ContainsFunc(parts, func(g image.Func) bool { return g.Start == further.Start }) {
					parts = append(parts, further)
				}
			}
		}
		if len(parts) > mostParts {
			f.InboundKnown = false
			break
		}
		out := m.tablesOf(parts[i])
		f.InboundKnown = f.InboundKnown && out.known
		for _, to := range out.to {
			if to > f.Start && to < f.End() {
				f.Inbound = append(f.Inbound, to)
			}
		}
	}
	slices.Sort(f.Inbound)
	f.Inbound = slices.Compact(f.Inbound)
}

// tablesOf is where the switch tables of a function lead outside of it.
func (m *Module) tablesOf(fn image.Func) outward {
	if o, ok := m.ways.outward[fn.Start]; ok {
		return o
	}
	var o outward
	if f, err := m.Func(fn); err == nil {
		m.enter(f)
		o.to, o.known = plan.Outward(f)
	}
	m.ways.outward[fn.Start] = o
	return o
}
