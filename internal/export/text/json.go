package text

import (
	"io"
	"strconv"
	"strings"

	"trapless/internal/arena"
	"trapless/internal/lang"
)

// JSON writes one object a line, as bpftrace does with -f json:
//
//	{"type": "printf", "data": "text"}
//	{"type": "value", "data": 5}
//	{"type": "map", "data": {"@name": 5}}
//	{"type": "map", "data": {"@name": {"1,2": 5, "3,4": 6}}}
//	{"type": "stats", "data": {"@name": {"count": 2, "average": 3, "total": 6}}}
//	{"type": "hist", "data": {"@name": [{"min": 2, "max": 3, "count": 1},{"min": 4, "count": 2}]}}
//
// A number that a double cannot hold is written as a string.
type JSON struct{ W io.Writer }

// Printf writes the event of a printf, or of a print of a value.
func (j JSON) Printf(a *lang.Action, values []lang.Value) error {
	if a.Kind == lang.PrintValue && len(values) == 1 {
		data := jsonNumber(Value(values[0]))
		if values[0].Type.Kind == lang.String {
			data = jsonString(values[0].Str)
		}
		return j.line("value", data)
	}
	return j.line("printf", jsonString(Format(a, values)))
}

// PrintMap writes a map. Top and div are those of the function PrintMap. A map
// without entries is not written.
func (j JSON) PrintMap(m *lang.Map, entries []arena.Entry, top, div uint32) error {
	all := rows(m, entries, top, div)
	switch {
	case len(all) == 0:
		return nil
	case len(m.Keys) == 0:
		return j.line(mapKind(m), "{"+jsonString(m.Name)+": "+all[0].value.json()+"}")
	}
	fields := make([]string, len(all))
	for i, r := range all {
		fields[i] = jsonString(strings.ReplaceAll(strings.Join(r.key, ","), " ", "")) + ": " + r.value.json()
	}
	return j.line(mapKind(m), "{"+jsonString(m.Name)+": {"+strings.Join(fields, ", ")+"}}")
}

// mapKind is the type of a line with a map.
func mapKind(m *lang.Map) string {
	switch m.Agg {
	case lang.Avg, lang.Stats:
		return "stats"
	case lang.Hist, lang.LHist:
		return "hist"
	}
	return "map"
}

func (j JSON) line(kind, data string) error {
	_, err := io.WriteString(j.W, `{"type": "`+kind+`", "data": `+data+"}\n")
	return err
}

// jsonNumber quotes a number if a double cannot hold it; true and false stay.
func jsonNumber(s string) string {
	if v, err := strconv.ParseInt(s, 10, 64); err == nil {
		if f := float64(v); f >= 1<<63 || int64(f) != v {
			return `"` + s + `"`
		}
	} else if v, err := strconv.ParseUint(s, 10, 64); err == nil {
		if f := float64(v); f >= 1<<64 || uint64(f) != v {
			return `"` + s + `"`
		}
	}
	return s
}

// jsonString quotes a string. Bytes that are not UTF-8 become U+FFFD, since
// JSON has no way to say them (RFC 8259, 8.1).
func jsonString(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < ' ':
			const hex = "0123456789abcdef"
			b.WriteString(`\u00` + string(hex[r>>4]) + string(hex[r&15]))
		default:
			b.WriteRune(r) // utf8.RuneError for a bad byte
		}
	}
	b.WriteByte('"')
	return b.String()
}
