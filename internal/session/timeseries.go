package session

import (
	"encoding/binary"
	"maps"
	"slices"
	"time"

	"trapless/internal/arena"
	"trapless/internal/lang"
	"trapless/internal/unix"
)

// timeSeries is a map of tseries(). Programs write an event for each value, so values of all threads
// and processes come together here in their order, and what is cleared is gone.
type timeSeries struct {
	keys map[string]*keySeries // by keyOf
}

// keySeries are the intervals of one key.
type keySeries struct {
	key       []uint64
	intervals map[uint64]interval // by Start / Interval
	last      uint64              // the latest interval
}

// interval is what n values were folded into.
type interval struct{ value, n uint64 }

func newTimeSeries(script *lang.Script) []*timeSeries {
	all := make([]*timeSeries, len(script.Maps))
	for i := range script.Maps {
		if script.Maps[i].Agg == lang.TSeries {
			all[i] = &timeSeries{keys: map[string]*keySeries{}}
		}
	}
	return all
}

// addPoint takes the event of a value.
func (s *Session) addPoint(a *lang.Action, values []lang.Value, payload []byte) {
	const header = 24 // the action, the value and the time
	var key []uint64
	for b := payload[header:]; len(b) >= 8; b = b[8:] {
		key = append(key, binary.LittleEndian.Uint64(b))
	}
	m, to := &s.config.Script.Maps[a.Map], s
	if s.parent != nil {
		to = s.parent
		if namesIn(m) {
			key = to.book.key(s, m, key)
		}
	}
	at := values[1].Int
	if values[1].Type.Kind == lang.Time {
		at += clockOffset
	}
	to.series[a.Map].add(m, key, at, values[0].Int)
}

// clockOffset is what is added to CLOCK_MONOTONIC to get nanoseconds since 1970. It stays the same while this
// process runs, so that intervals keep their places when somebody sets the clock.
var clockOffset = uint64(time.Now().UnixNano()) - unix.Monotonic()

// add adds a value. One of an interval that is not kept any more is left out.
func (t *timeSeries) add(m *lang.Map, key []uint64, at, value uint64) {
	name := keyOf(&arena.Entry{Key: key})
	k := t.keys[name]
	if k == nil {
		k = &keySeries{key: key, intervals: map[uint64]interval{}}
		t.keys[name] = k
	}
	n := at / m.Series.Interval
	if n+m.Series.Count <= k.last {
		return
	}
	if n > k.last {
		k.last = n
		if uint64(len(k.intervals)) >= m.Series.Count {
			maps.DeleteFunc(k.intervals, func(i uint64, _ interval) bool { return i+m.Series.Count <= n })
		}
	}
	now := k.intervals[n]
	k.intervals[n] = interval{m.Fold(now.value, now.n, value), now.n + 1}
}

// entries are the points of each key in the latest intervals, which are those of all keys.
func (t *timeSeries) entries(m *lang.Map) []arena.Entry {
	last := uint64(0)
	for _, k := range t.keys {
		last = max(last, k.last)
	}
	var out []arena.Entry
	for _, k := range t.keys {
		var points []lang.Point
		for _, n := range slices.Sorted(maps.Keys(k.intervals)) {
			if n+m.Series.Count <= last {
				continue
			}
			points = fill(points, m.Series.Interval, n)
			i := k.intervals[n]
			points = append(points, lang.Point{Start: n * m.Series.Interval, Value: m.Folded(i.value, i.n), Has: true})
		}
		out = append(out, arena.Entry{Key: k.key, Value: lang.PointsCell(fill(points, m.Series.Interval, last+1))})
	}
	return out
}

// fill appends points without a value up to interval n, if there is a point.
func fill(points []lang.Point, interval, n uint64) []lang.Point {
	for len(points) > 0 && points[len(points)-1].Start/interval+1 < n {
		points = append(points, lang.Point{Start: points[len(points)-1].Start + interval})
	}
	return points
}

// reset removes all values, and the keys unless keep is set.
func (t *timeSeries) reset(keep bool) {
	if !keep {
		clear(t.keys)
		return
	}
	for _, k := range t.keys {
		clear(k.intervals)
		k.last = 0
	}
}

// remove removes a key.
func (t *timeSeries) remove(m *lang.Map, key []lang.Value) {
	maps.DeleteFunc(t.keys, func(_ string, k *keySeries) bool { return slices.EqualFunc(m.KeyParts(k.key), key, sameValue) })
}
