package lang

import (
	"math"
	"slices"

	"trapless/internal/diag"
)

// Series says what a map of tseries() keeps: for each key Count intervals of Interval
// nanoseconds, the latest ones. Fold makes one value of those of an interval: avg, max, min or
// sum; the last one stays if it is empty.
type Series struct {
	Interval, Count uint64
	Fold            string
}

// maxIntervals bounds the intervals of a time series, as in bpftrace.
const maxIntervals = 1000000

// folds are what Series.Fold may be.
var folds = []string{"avg", "max", "min", "sum"}

// Point is the value of a time series in one interval. An interval without a value is
// there, too, if one before it has one.
type Point struct {
	Start uint64 // of the interval, in nanoseconds since 1970
	Value uint64
	Has   bool
}

// pointWords are the words of a point in the cell of an entry.
const pointWords = 3

// Points are those of an entry of a TSeries, in the order of time.
func Points(cell []uint64) []Point {
	var out []Point
	for w := range slices.Chunk(cell, pointWords) {
		if len(w) == pointWords {
			out = append(out, Point{w[0], w[1], w[2] != 0})
		}
	}
	return out
}

// PointsCell is the cell of an entry with points.
func PointsCell(points []Point) []uint64 {
	var cell []uint64
	for _, p := range points {
		cell = append(cell, p.Start, p.Value, b2u(p.Has))
	}
	return cell
}

// lastPoint is the latest value of a time series.
func lastPoint(cell []uint64) uint64 {
	points := Points(cell)
	for i := len(points) - 1; i >= 0; i-- {
		if points[i].Has {
			return points[i].Value
		}
	}
	return 0
}

// seriesArgs checks the arguments of tseries() behind the value.
func (c *checker) seriesArgs(call *callExpr) (Series, bool) {
	interval, ok1 := c.literal(call.args[1], "interval of tseries()")
	count, ok2 := c.literal(call.args[2], "number of intervals of tseries()")
	s := Series{Interval: uint64(interval), Count: uint64(count)}
	ok3 := true
	if len(call.args) == 4 {
		s.Fold, ok3 = c.text(call.args[3], "aggregation of tseries()")
	}
	switch at := call.span; {
	case !ok1 || !ok2 || !ok3:
	case interval < 1:
		c.diags.Errorf(at, "tseries() interval_ns must be >= 1")
	case count < 1 || count > maxIntervals:
		c.diags.Errorf(at, "tseries() keeps 1 to %d intervals, not %d", maxIntervals, count)
	case len(call.args) == 4 && !slices.Contains(folds, s.Fold):
		c.diags.Errorf(call.args[3].base().span, "tseries() cannot aggregate by '%s'", s.Fold).Hint("use avg, max, min or sum")
	default:
		return s, c.clockOK(at)
	}
	return Series{}, false
}

// clockOK checks the map that Options.Clock names.
func (c *checker) clockOK(at diag.Span) bool {
	if c.opts.Clock == "" {
		return true
	}
	info := c.maps[c.opts.Clock]
	if info != nil && info.agg == Plain && len(info.keys) == 0 && info.value.Kind == Int {
		return true
	}
	if c.final {
		c.diags.Errorf(at, "@%s, which is to be the time of tseries(), is no map with one number", c.opts.Clock)
	}
	return false
}

// record makes the event that adds a value to a time series.
func (l *lowerer) record(m *mapExpr, call *callExpr) {
	info := l.maps[m.name]
	value, now := int64Type, Type{Kind: Time, Size: 8}
	if !info.signed {
		value = uint64Type
	}
	var clock expr = &nameExpr{exprBase: exprBase{span: call.span, typ: uint64Type}, name: "nsecs"}
	if name := l.script.clock; name != "" {
		clock, now = &mapExpr{exprBase: exprBase{span: call.span, typ: uint64Type}, name: name}, uint64Type
	}
	a := Action{Kind: AddPoint, Map: info.number, Span: call.span, Args: []Arg{{Value: Value{Type: value}}, {Value: Value{Type: now}}}}
	for _, t := range info.keys {
		a.Args = append(a.Args, Arg{Value: Value{Type: t}})
	}
	keys := m.keys
	types := info.keys
	if len(keys) < len(types) { // a tuple
		types = []Type{tupleOf(types, nil)}
	}
	const header = 3 * 8 // the action, the value, the time
	base := l.newPlace(header + 8*keyWords(types))
	l.into(call.args[0], base.plus(8), value)
	at := base.plus(header)
	for i, t := range types {
		l.into(keys[i], at, t)
		at = at.plus(8 * t.Words())
	}
	l.into(clock, base.plus(16), uint64Type) // a helper: arguments are gone after it
	l.act(a, base, header+8*keyWords(types))
}

// Fold is what becomes of the value of an interval, made of n values, when another comes.
func (m *Map) Fold(old, n, value uint64) uint64 {
	less := old < value
	if m.Signed {
		less = int64(old) < int64(value)
	}
	switch m.Series.Fold {
	case "avg", "sum":
		return old + value
	case "min":
		if n > 0 && less {
			return old
		}
	case "max":
		if n > 0 && !less {
			return old
		}
	}
	return value
}

// Folded is the value of an interval that n values were folded into.
func (m *Map) Folded(value, n uint64) uint64 {
	switch {
	case m.Series.Fold != "avg":
		return value
	case m.Signed && n <= math.MaxInt64:
		return uint64(int64(value) / int64(n))
	}
	return value / n
}
