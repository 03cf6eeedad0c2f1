package text

import (
	"strconv"
	"time"

	"trapless/internal/arena"
	"trapless/internal/lang"
)

// value is the value of an entry as it is written.
type value interface {
	text() string
	json() string
}

// number is an integer in decimal.
type number string

func (n number) text() string { return string(n) }
func (n number) json() string { return jsonNumber(string(n)) }

// stats is the value of a map of stats().
type stats struct{ count, average, total number }

func (s stats) text() string {
	return "{ .count = " + s.count.text() + ", .average = " + s.average.text() + ", .total = " + s.total.text() + " }"
}

func (s stats) json() string {
	return `{"count": ` + s.count.json() + `, "average": ` + s.average.json() + `, "total": ` + s.total.json() + "}"
}

// valueOf is the value of an entry, divided by div where that is meant to be:
// not the count and the total of stats(), and no bucket of lhist().
func valueOf(m *lang.Map, e *arena.Entry, div uint32) value {
	div = max(div, 1)
	switch m.Agg {
	case lang.Hist:
		return hist(m.Buckets, e.Value, div)
	case lang.LHist:
		return lhist(m.Buckets, e.Value)
	case lang.TSeries:
		return series{lang.Points(e.Value), time.Duration(m.Series.Interval), m.Signed}
	case lang.Plain:
		return shown{divided(m.ValueOf(e.Value), uint64(div))}
	case lang.Stats:
		return stats{
			count:   format(word(e, lang.CellCount), m.Signed, 1),
			average: format(m.Value(e.Value), m.Signed, div),
			total:   format(word(e, lang.CellTotal), m.Signed, 1),
		}
	}
	return format(m.Value(e.Value), m.Signed, div)
}

// shown is a value of the language.
type shown struct{ lang.Value }

func (s shown) text() string { return Value(s.Value) }
func (s shown) json() string { return jsonValue(s.Value) }

// divided divides the numbers in a value.
func divided(v lang.Value, div uint64) lang.Value {
	switch {
	case div <= 1:
	case v.Type.Kind == lang.Int && v.Type.Signed:
		v.Int = uint64(int64(v.Int) / int64(div))
	case v.Type.Kind == lang.Int:
		v.Int /= div
	case v.Type.Kind != lang.Stack:
		elems := make([]lang.Value, len(v.Elems))
		for i, e := range v.Elems {
			elems[i] = divided(e, div)
		}
		v.Elems = elems
	}
	return v
}

// compareValues compares entries by their values. Signed values of min() and
// max() are compared as unsigned ones, as bpftrace does.
func compareValues(m *lang.Map, a, b *arena.Entry) int {
	signed := m.Signed
	switch m.Agg {
	case lang.TSeries:
		return 0
	case lang.Plain:
		if m.Type.Kind != lang.Int {
			return 0 // they are sorted by their keys
		}
	case lang.Count, lang.Min, lang.Max, lang.Hist, lang.LHist:
		signed = false
	}
	return compareAs(m.Value(a.Value), m.Value(b.Value), signed)
}

// word is the word of an entry's value at an offset in bytes.
func word(e *arena.Entry, off int) uint64 {
	if off/8 >= len(e.Value) {
		return 0
	}
	return e.Value[off/8]
}

func format(v uint64, signed bool, div uint32) number {
	if signed {
		return number(strconv.FormatInt(int64(v)/int64(div), 10))
	}
	return number(strconv.FormatUint(v/uint64(div), 10))
}
