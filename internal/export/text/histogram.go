package text

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"trapless/internal/lang"
)

// histogram is the value of a map of hist() or lhist(): the buckets from the
// first to the last that counted anything.
type histogram struct {
	lower  *label  // where the first bucket begins; nil if it takes all that is less
	labels []label // where each bucket ends; one less than counts if the last takes all that is more
	counts []uint64
}

// label is a limit of a bucket.
type label struct {
	text  string
	value uint64 // as an int64, but for the largest of hist()
	plain bool   // a number without a suffix: [1] is written for [1, 2)
}

// drawn reports whether a value of a map takes several lines.
func drawn(m *lang.Map) bool {
	return m.Agg == lang.Hist || m.Agg == lang.LHist || m.Agg == lang.TSeries
}

// hist makes a histogram of a cell of hist().
func hist(b lang.Buckets, cell []uint64, div uint32) *histogram {
	n := len(cell) - 1
	cell = append([]uint64{cell[n]}, cell[:n]...) // the values below zero come first
	first, last, ok := extent(cell)
	h := &histogram{}
	if !ok {
		return h
	}
	if first > 0 {
		l := histLabel(first-1, b.Bits)
		h.lower = &l
	}
	for i := first; i <= last; i++ {
		h.labels = append(h.labels, histLabel(i, b.Bits))
		h.counts = append(h.counts, cell[i]/uint64(div))
	}
	return h
}

// histLabel is where bucket i of hist() begins, not counting the one for values
// below zero.
func histLabel(i int, k uint) label {
	if i <= 2<<k {
		return label{strconv.Itoa(i), uint64(i), true}
	}
	power := uint(i>>k) - 1
	mantissa := uint64(1)<<k + uint64(i)&(1<<k-1)
	text := strconv.FormatUint(mantissa<<(power%10), 10)
	if power >= 10 {
		text += "KMGTPE"[power/10-1 : power/10]
	}
	return label{text, mantissa << power, false}
}

// lhist makes a histogram of a cell of lhist().
func lhist(b lang.Buckets, cell []uint64) *histogram {
	first, last, ok := extent(cell)
	h := &histogram{}
	if !ok {
		return h
	}
	if first > 0 {
		l := lhistLabel(b.Min+int64(first-1)*b.Step, b.Step)
		h.lower = &l
	}
	for i := first; i <= last; i++ {
		if end := b.Min + int64(i)*b.Step; end <= b.Max {
			h.labels = append(h.labels, lhistLabel(end, b.Step))
		}
		h.counts = append(h.counts, cell[i])
	}
	return h
}

func lhistLabel(v, step int64) label {
	const kilo, mega = 1 << 10, 1 << 20
	l := label{strconv.FormatInt(v, 10), uint64(v), step%kilo != 0}
	switch {
	case l.plain || v == 0:
	case v%mega == 0:
		l.text = strconv.FormatInt(v/mega, 10) + "M"
	case v%kilo == 0:
		l.text = strconv.FormatInt(v/kilo, 10) + "K"
	}
	return l
}

// extent finds the first and the last bucket that counted.
func extent(cell []uint64) (first, last int, ok bool) {
	counted := func(n uint64) bool { return n != 0 }
	first = slices.IndexFunc(cell, counted)
	for last = len(cell) - 1; last > first && cell[last] == 0; last-- {
	}
	return first, last, first >= 0
}

// barWidth is the width of the longest bar.
const barWidth = 52

// text is a line for each bucket.
func (h *histogram) text() string {
	var b strings.Builder
	most := uint64(0)
	for _, n := range h.counts {
		most = max(most, n)
	}
	for i, n := range h.counts {
		bar := 0
		if most > 0 {
			bar = int(float32(n) / float32(most) * barWidth)
		}
		fmt.Fprintf(&b, "%-16s%8d |%-*s|\n", h.interval(i), n, barWidth, strings.Repeat("@", bar))
	}
	return b.String()
}

// limits are where bucket i begins and ends, each nil if it is open.
func (h *histogram) limits(i int) (from, to *label) {
	from = h.lower
	if i > 0 {
		from = &h.labels[i-1]
	}
	if i < len(h.labels) {
		to = &h.labels[i]
	}
	return from, to
}

func (h *histogram) interval(i int) string {
	switch from, to := h.limits(i); {
	case from == nil && to == nil:
		return "(...)"
	case from == nil:
		return "(..., " + to.text + ")"
	case to == nil:
		return "[" + from.text + ", ...)"
	case from.plain && to.plain && from.value+1 == to.value:
		return "[" + from.text + "]"
	default:
		return "[" + from.text + ", " + to.text + ")"
	}
}

// json is a list of buckets, whose limits are inclusive.
func (h *histogram) json() string {
	var all []string
	for i, n := range h.counts {
		s := ""
		from, to := h.limits(i)
		if from != nil {
			s += `"min": ` + jsonNumber(strconv.FormatUint(from.value, 10)) + ", "
		}
		if to != nil {
			s += `"max": ` + jsonNumber(strconv.FormatInt(int64(to.value-1), 10)) + ", "
		}
		all = append(all, "{"+s+`"count": `+strconv.FormatUint(n, 10)+"}")
	}
	return "[" + strings.Join(all, ",") + "]"
}
