package arena

import (
	"trapless/internal/abi"
)

// UnwindRow is a row of the table of unwind rules.
type UnwindRow struct {
	Start abi.Addr
	Rule  abi.UnwindRule
}

// PublishUnwind gives programs a table of unwind rules, sorted by address, beside the one that they have, or
// over one before that. It reports whether there was room.
func (a *Arena) PublishUnwind(rows []UnwindRow) bool {
	l := a.layout
	half := l.UnwindRows / 2
	if l.Unwind == 0 || len(rows) > half {
		return false
	}
	a.unwind = 1 - a.unwind
	first := uint64(a.unwind * half)
	at := l.Unwind + abi.UnwindHead + first*abi.UnwindRowSize
	for _, r := range rows {
		a.Store(at, uint64(r.Start))
		a.Store(at+8, uint64(r.Rule))
		at += abi.UnwindRowSize
	}
	a.Store(l.Unwind, first<<32|uint64(len(rows)))
	return true
}

// Stack is the stack with a number in map i: addresses, the innermost first. It is nil if there is none.
func (a *Arena) Stack(i int, id uint64) []abi.Addr {
	ml := &a.layout.Maps[i]
	if ml.Kind != abi.StackTrace || id >= uint64(ml.Positions()) {
		return nil
	}
	at := ml.Value(id)
	n := min(a.Load(at-8), uint64(ml.ValueSize/8))
	out := make([]abi.Addr, n)
	for k := range out {
		out[k] = abi.Addr(a.Load(at + 8*uint64(k)))
	}
	return out
}
