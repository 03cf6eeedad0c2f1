package elfplan

import (
	"cmp"
	"slices"

	"trapless/internal/abi"
	"trapless/internal/plan"
)

// Link tells each function which one lies right behind it. Functions that are not
// in the list are described too; they are added to what it returns, which is in
// the order of addresses.
func (m *Module) Link(funcs []*plan.Func) ([]*plan.Func, error) {
	known := map[abi.Addr]*plan.Func{}
	for _, f := range funcs {
		known[f.Start] = f
	}
	for _, f := range slices.Clone(funcs) {
		at := f.End() + abi.Addr(len(f.Pad))
		next := known[at]
		if next == nil {
			fn, ok := m.Funcs.At(m.Bias.VAddr(at))
			if !ok || m.Bias.Addr(fn.Start) != at || fn.Len() == 0 {
				continue
			}
			var err error
			if next, err = m.Func(fn); err != nil {
				return nil, err
			}
			known[at] = next
			funcs = append(funcs, next)
		}
		f.Next = next
	}
	slices.SortFunc(funcs, func(x, y *plan.Func) int { return cmp.Compare(x.Start, y.Start) })
	return funcs, nil
}
