package elfplan

import (
	"slices"

	"trapless/internal/abi"
	"trapless/internal/image"
	"trapless/internal/plan"
)

// Exit is an exit of a function, in one of its parts.
type Exit struct {
	Func image.Func // the part
	At   image.VAddr
	Kind plan.ExitKind
}

// Exits finds where control leaves a function for good: in its body, and in
// parts that lie elsewhere (.cold) and belong to it alone.
func (m *Module) Exits(fn image.Func) ([]Exit, error) {
	if m.ways == nil {
		w, err := m.findWays()
		if err != nil {
			return nil, err
		}
		m.ways = w
	}
	parts := m.partsOf(fn)
	within := func(a abi.Addr) bool {
		v := m.Bias.VAddr(a)
		return slices.ContainsFunc(parts, func(p image.Func) bool { return v >= p.Start && v < p.End })
	}
	var all []Exit
	for _, part := range parts {
		f, err := m.Func(part)
		if err != nil {
			return nil, err
		}
		m.enter(f)
		for _, e := range plan.Exits(f, within) {
			all = append(all, Exit{part, m.Bias.VAddr(e.At), e.Kind})
		}
	}
	return all, nil
}

// partsOf are a function and the parts that belong to it alone. What other
// functions jump to as well, or may call by its address, is none of them.
func (m *Module) partsOf(fn image.Func) []image.Func {
	parts := []image.Func{fn}
	has := func(g image.Func) bool {
		return slices.ContainsFunc(parts, func(p image.Func) bool { return p.Start == g.Start })
	}
	for i := 0; i < len(parts) && len(parts) <= mostParts; i++ {
		for _, g := range m.relatives(parts[i].Range).parts {
			if !has(g) && m.belongs(g, has) {
				parts = append(parts, g)
			}
		}
	}
	return parts
}

// belongs reports whether code is part of the function whose parts has tells.
func (m *Module) belongs(g image.Func, has func(image.Func) bool) bool {
	if !m.isPart(g) {
		return false
	}
	if _, pointed := slices.BinarySearch(m.ways.taken, g.Start); pointed {
		return false
	}
	for _, other := range m.relatives(g.Range).parts {
		if !has(other) && !m.isPart(other) {
			return false
		}
	}
	return true
}
