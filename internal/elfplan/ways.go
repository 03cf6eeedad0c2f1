package elfplan

import (
	"cmp"
	"slices"
	"sync"

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
	familyMu sync.Mutex // guards family: functions are planned at the same time
	family   map[image.VAddr]family
}

// family are the relatives of a function.
type family struct {
	parts []image.Func
	all   bool // there are no more
}

// outward is where the switch tables of a function lead outside of it.
type outward struct {
	to    []abi.Addr
	known bool // all of them
}

func (m *Module) findWays() (*ways, error) {
	w := &ways{outward: map[image.VAddr]outward{}, family: map[image.VAddr]family{}}
	err := m.checkOverlap()
	if err != nil {
		return nil, err
	}
	if w.sweep, err = m.sweep(); err != nil {
		return nil, err
	}
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
	for _, c := range w.sweep.Crossings {
		if c.Kind == plan.Jump {
			w.jumps = append(w.jumps, c)
		}
	}
	slices.SortFunc(w.jumps, func(x, y plan.Crossing) int { return cmp.Compare(x.From, y.From) })
	return w, nil
}

// mostOverlap is in how many functions a byte of code may lie on average: symbols
// inside of functions are labels, and few.
const mostOverlap = 16

// checkOverlap refuses a file whose functions overlap so much that to read each
// would take too long.
func (m *Module) checkOverlap() error {
	var sum, code uint64
	for _, fn := range m.Funcs.All() {
		sum += fn.Len()
	}
	for i := range m.Image.Segments {
		if s := &m.Image.Segments[i]; s.Exec {
			code += s.FileSize
		}
	}
	if sum > mostOverlap*code {
		return &image.FormatError{Err: image.ErrMalformed, Detail: "functions that overlap beyond measure"}
	}
	return nil
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
	s := plan.NewSweep(starts, m.Bias.Range(m.Image.CodeRange()), m.Image.Kind == image.Exec, stubs)
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
	if self, ok := m.Funcs.At(r.Start); ok && self.Start == r.Start {
		f.Entry = !m.isPart(self)
	}
	f.Part = func(a abi.Addr) bool { return m.partOf(r, m.Bias.VAddr(a)) }
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

// isPart reports whether a function may be a part of another one, that is jumped
// to. One without a name is none if it is called; or if its address is known,
// it does not begin with a frame, and no jumps lead to it or from it into others.
func (m *Module) isPart(fn image.Func) bool {
	if fn.Entry || len(fn.Names) > 0 {
		return !fn.Entry
	}
	start := m.Bias.Addr(fn.Start)
	if m.ways.sweep.Called(start) {
		return false
	}
	_, pointed := slices.BinarySearch(m.ways.taken, fn.Start)
	if fn.Framed || !pointed && !m.ways.sweep.Taken(start) {
		return true
	}
	for _, c := range m.jumpsFrom(fn.Range) {
		to := m.Bias.VAddr(c.To)
		if other, ok := m.Funcs.At(to); !ok || other.Start != to {
			return true
		}
	}
	return slices.ContainsFunc(m.crossingsInto(fn.Range), func(c plan.Crossing) bool { return c.Kind == plan.Jump })
}

// jumpsFrom are the jumps from a range into other functions, and crossingsInto
// what leads into a range from others.
func (m *Module) jumpsFrom(r image.Range) []plan.Crossing {
	return between(m.ways.jumps, m.Bias.Range(r), func(c plan.Crossing) abi.Addr { return c.From })
}

func (m *Module) crossingsInto(r image.Range) []plan.Crossing {
	return between(m.ways.sweep.Crossings, m.Bias.Range(r), func(c plan.Crossing) abi.Addr { return c.To })
}

// mostParts is how many parts of one function are looked at.
const mostParts = 16

// relatives are the other parts of the function that has a range as one of its
// parts, as far as jumps tell: at least one of two relatives is no entry, and a
// jump leads from one to the other.
func (m *Module) relatives(r image.Range) family {
	m.ways.familyMu.Lock()
	defer m.ways.familyMu.Unlock()
	if found, ok := m.ways.family[r.Start]; ok {
		return found
	}
	self, _ := m.Funcs.At(r.Start)
	part := m.isPart(self)
	found := family{all: true}
	add := func(a abi.Addr) {
		fn, ok := m.Funcs.At(m.Bias.VAddr(a))
		if !ok || fn.Start == r.Start || !part && !m.isPart(fn) || has(found.parts, fn) {
			return
		}
		if found.all = len(found.parts) < mostParts; found.all {
			found.parts = append(found.parts, fn)
		}
	}
	for _, c := range m.jumpsFrom(r) {
		add(c.To)
	}
	for _, c := range m.crossingsInto(r) {
		if c.Kind == plan.Jump {
			add(c.From)
		}
	}
	m.ways.family[r.Start] = found
	return found
}

// has reports whether a function is in a list.
func has(list []image.Func, fn image.Func) bool {
	return slices.ContainsFunc(list, func(g image.Func) bool { return g.Start == fn.Start })
}

// between are the elements of an ascending list that lie in a range.
func between(list []plan.Crossing, r abi.Range, key func(plan.Crossing) abi.Addr) []plan.Crossing {
	find := func(a abi.Addr) int {
		i, _ := slices.BinarySearchFunc(list, a, func(c plan.Crossing, a abi.Addr) int { return cmp.Compare(key(c), a) })
		return i
	}
	return list[find(r.Start):find(r.End)]
}

// partOf reports whether an address lies in one of the parts of the function that
// has a range, or in code to which no jump is known to lead: which may be such a
// part. If data hold its address it may be a function as well, so only its start
// counts.
func (m *Module) partOf(r image.Range, v image.VAddr) bool {
	fn, ok := m.Funcs.At(v)
	if !ok || has(m.relatives(r).parts, fn) {
		return ok
	}
	if !m.isPart(fn) || len(m.relatives(fn.Range).parts) > 0 {
		return false
	}
	_, pointed := slices.BinarySearch(m.ways.taken, fn.Start)
	return !pointed || v == fn.Start
}

// enterByTables notes which switch tables of its other parts lead into a
// function, and whether all that leads into it is known.
func (m *Module) enterByTables(f *plan.Func) {
	self := image.Func{Range: image.Range{Start: m.Bias.VAddr(f.Start), End: m.Bias.VAddr(f.End())}}
	near := m.relatives(self.Range)
	f.InboundKnown = m.ways.complete && near.all && (f.Entry || len(near.parts) > 0)
	parts := slices.Clone(near.parts)
	for i := 0; i < len(parts) && f.InboundKnown; i++ {
		if !f.Entry { // a part of a part's function is a part of the same
			further := m.relatives(parts[i].Range)
			for _, fn := range further.parts {
				if fn.Start != self.Start && !has(parts, fn) {
					parts = append(parts, fn)
				}
			}
			f.InboundKnown = further.all && len(parts) <= mostParts
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
	if m.ways.sweep.Straight(m.Bias.Range(fn.Range)) {
		return outward{known: true}
	}
	var o outward
	if f, err := m.Func(fn); err == nil {
		m.enter(f)
		o.to, o.known = plan.Outward(f)
	}
	m.ways.outward[fn.Start] = o
	return o
}
