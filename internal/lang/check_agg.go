package lang

import "math"

// aggregations that a map can be assigned.
var aggregations = map[string]Agg{
	"count": Count, "sum": Sum, "avg": Avg, "stats": Stats, "min": Min, "max": Max, "hist": Hist, "lhist": LHist, "tseries": TSeries,
}

// assignMap checks "@m[keys] = count()" and the like.
func (c *checker) assignMap(s *assignStmt, m *mapExpr) {
	call, isCall := s.value.(*callExpr)
	agg, known := Agg(0), false
	if isCall {
		agg, known = aggregations[call.name]
	}
	if s.op != 0 || !known {
		c.storeMap(s, m)
		return
	}
	keys := c.mapKeys(m)
	arg, how := c.aggArgs(call, agg)
	info := c.maps[m.name]
	if info == nil || info.agg == 0 {
		c.newMap(m, agg, keys)
		info = c.maps[m.name]
		info.buckets, info.series = how.buckets, how.series
	}
	switch {
	case info.agg == Plain:
		c.mapMismatch(s.span, m.name, agg.typeName(), info.value.String()).Note(info.first, "assigned here")
		return
	case info.agg != agg:
		c.mapMismatch(s.span, m.name, agg.typeName(), info.agg.typeName()).Note(info.first, "assigned here")
		return
	}
	switch {
	case arg.Kind == bad:
	case info.buckets != how.buckets:
		c.diags.Errorf(call.span, "@%s has other buckets", m.name).Note(info.first, "assigned here")
	case info.series != how.series:
		c.diags.Errorf(call.span, "@%s has other intervals, or another aggregation", m.name).Note(info.first, "assigned here")
	}
	if arg.Kind == Int && arg.Signed && !info.signed {
		info.signed, c.changed = true, true
	}
	c.sameKeys(m, info, keys)
}

// aggregated is what the arguments of an aggregation say of the whole map.
type aggregated struct {
	buckets Buckets
	series  Series
}

// aggArgs checks the arguments of an aggregation and returns the type of the
// value, which is bad if there is an error.
func (c *checker) aggArgs(call *callExpr, agg Agg) (Type, aggregated) {
	if f := functions[call.name]; len(call.args) < f.min || len(call.args) > f.max {
		c.values(call.args)
		c.arity(call, f.min, f.max)
		return badType, aggregated{}
	}
	if agg == Count {
		return noneType, aggregated{}
	}
	arg := c.value(call.args[0])
	if arg.Kind != Int && arg.Kind != bad {
		c.diags.Errorf(call.args[0].base().span, "%s() only supports integer arguments (%s provided)", call.name, arg)
		arg = badType
	}
	var how aggregated
	ok := true
	switch {
	case agg == Hist && len(call.args) == 2:
		how.buckets, ok = c.histArgs(call)
	case agg == LHist:
		how.buckets, ok = c.lhistArgs(call)
	case agg == TSeries:
		how.series, ok = c.seriesArgs(call)
	}
	if !ok {
		arg = badType
	}
	return arg, how
}

// maxHistBits and maxLinear bound the size of a cell, as in bpftrace.
const (
	maxHistBits = 5
	maxLinear   = 1000
)

func (c *checker) histArgs(call *callExpr) (Buckets, bool) {
	bits, ok := c.literal(call.args[1], "number of bits of hist()")
	if ok && (bits < 0 || bits > maxHistBits) {
		c.diags.Errorf(call.args[1].base().span, "hist: bits %d must be 0..%d", bits, maxHistBits)
		ok = false
	}
	return Buckets{Bits: uint(bits)}, ok
}

func (c *checker) lhistArgs(call *callExpr) (Buckets, bool) {
	least, ok1 := c.literal(call.args[1], "smallest value of lhist()")
	most, ok2 := c.literal(call.args[2], "largest value of lhist()")
	step, ok3 := c.literal(call.args[3], "step of lhist()")
	b := Buckets{Min: least, Max: most, Step: step}
	switch at := call.span; {
	case !ok1 || !ok2 || !ok3:
	case least < 0 || most < 0:
		c.diags.Errorf(at, "lhist: invalid min or max value (must be non-negative literal)")
	case step < 1:
		c.diags.Errorf(at, "lhist() step must be >= 1 (%d provided)", step)
	case least > most:
		c.diags.Errorf(at, "lhist() min must be less than max (provided min %d and max %d)", least, most)
	case most-least < step:
		c.diags.Errorf(at, "lhist() step is too large for the given range (provided step %d for range %d)", step, most-least)
	case (most-least)/step > maxLinear:
		c.diags.Errorf(at, "lhist() too many buckets, must be <= %d (would need %d)", maxLinear, (most-least)/step).
			Hint("a larger step makes fewer")
	default:
		return b, true
	}
	return Buckets{Step: 1}, false
}

// literal is the value of an argument that must be an integer literal.
func (c *checker) literal(x expr, what string) (int64, bool) {
	t := c.value(x)
	b := x.base()
	switch {
	case t.Kind == bad:
		return 0, false
	case t.Kind != Int || !b.con.literal || !b.negative() && b.con.u > math.MaxInt64:
		c.diags.Errorf(b.span, "the %s is an integer literal", what)
		return 0, false
	}
	return int64(b.con.u), true
}
