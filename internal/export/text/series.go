package text

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"trapless/internal/lang"
)

// series is the value of a map of tseries().
type series struct {
	points   []lang.Point
	interval time.Duration
	signed   bool
}

// Sizes of the graph, in characters.
const (
	graphWidth = 53
	leastWidth = 21 // for the smallest value, above and below the graph
)

func (s series) number(v uint64) string { return format(v, s.signed, 1).text() }

// extremes are the smallest and the largest value that the graph shows. If all values are the same, there is room
// on both sides of them.
func (s series) extremes() (least, most uint64) {
	first := true
	for _, p := range s.points {
		switch {
		case !p.Has:
			continue
		case first:
			least, most, first = p.Value, p.Value, false
		}
		if compareAs(p.Value, least, s.signed) < 0 {
			least = p.Value
		}
		if compareAs(p.Value, most, s.signed) > 0 {
			most = p.Value
		}
	}
	if least != most {
		return least, most
	}
	lowest, highest := uint64(0), uint64(math.MaxUint64)
	if s.signed {
		lowest, highest = 1<<63, math.MaxInt64
	}
	if least != lowest {
		least--
	}
	if most != highest {
		most++
	}
	return least, most
}

// clock is the format of times, and how it is called above them: with as many digits behind the second as the
// interval asks for.
func (s series) clock() (layout, head string) {
	const seconds = "15:04:05"
	switch {
	case len(s.points) < 2 || s.interval < time.Microsecond: // of one point the interval cannot be seen
		return seconds + ".000000000", "hh:mm:ss.ns"
	case s.interval < time.Millisecond:
		return seconds + ".000000", "hh:mm:ss.μs"
	case s.interval < time.Second:
		return seconds + ".000", "hh:mm:ss.ms"
	}
	return seconds, "hh:mm:ss"
}

// text is a line for each interval, between two with the extremes.
func (s series) text() string {
	if len(s.points) == 0 {
		return "<no data>"
	}
	least, most := s.extremes()
	layout, head := s.clock()
	width := len(layout)
	var b strings.Builder
	limits := fmt.Sprintf("%*s%-*s%*s\n", width+1, "", leastWidth, s.number(least), graphWidth-leastWidth, s.number(most))
	rule := strings.Repeat("_", graphWidth-2)
	fmt.Fprintf(&b, "%s%-*s|%s|\n", limits, width+1, head, rule)
	for _, p := range s.points {
		value := "-"
		if p.Has {
			value = s.number(p.Value)
		}
		fmt.Fprintf(&b, "%s %s %s\n", time.Unix(0, int64(p.Start)).Format(layout), s.line(p, least, most), value)
	}
	fmt.Fprintf(&b, "%*sv%sv\n%s", width+1, "", rule, limits)
	return b.String()
}

// line is the graph of one interval: a '*' for the value, and a '.' for zero where that lies inside.
func (s series) line(p lang.Point, least, most uint64) string {
	line := []byte("|" + strings.Repeat(" ", graphWidth-2) + "|")
	if s.signed && int64(least) < 0 && int64(most) > 0 {
		if at := column(graphWidth, 0, least, most); at > 0 {
			line[at] = '.'
		}
	}
	if p.Has {
		at := graphWidth / 2
		if least != most {
			at = column(graphWidth-1, p.Value, least, most)
		}
		line[max(0, min(graphWidth-1, at))] = '*'
	}
	return string(line)
}

// column is where a value lies between two others, of so many columns.
func column(columns float32, v, least, most uint64) int {
	return int(columns * float32(v-least) / float32(most-least))
}

// json is a list of the intervals with a value. Times are those of UTC.
func (s series) json() string {
	var all []string
	for _, p := range s.points {
		if !p.Has {
			continue
		}
		at := time.Unix(0, int64(p.Start)).UTC().Format("2006-01-02 15:04:05.000000000")
		all = append(all, `{"interval_start": `+strconv.Quote(at)+`, "value": `+jsonNumber(s.number(p.Value))+"}")
	}
	return "[" + strings.Join(all, ", ") + "]"
}
