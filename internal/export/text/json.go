package text

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"trapless/internal/arena"
	"trapless/internal/diag"
	"trapless/internal/lang"
	"trapless/internal/unix"
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
type JSON struct {
	W     io.Writer
	Quiet bool // warnings are not written
}

// PrintEntry writes the value of an entry.
func (j JSON) PrintEntry(m *lang.Map, cell []uint64) error {
	return j.line("value", valueOf(m, &arena.Entry{Value: cell}, 1).json())
}

// Text is what a printf of the values would print.
func (JSON) Text(a *lang.Action, values []lang.Value) string { return Format(a, values) }

// Time formats a time.
func (JSON) Time(format string, t time.Time) string { return Strftime(format, t) }

// Say writes what an action came to.
func (j JSON) Say(a *lang.Action, text string) error {
	kind := a.Kind.String()
	switch a.Kind {
	case lang.System:
		kind = "syscall"
	case lang.Join:
		text = strings.TrimSuffix(text, "\n")
	}
	return j.line(kind, jsonString(text))
}

// Report writes an error or a warning, with its place in the script if it has one.
func (j JSON) Report(r *lang.Report) error {
	if r.Severity == diag.Warning && j.Quiet {
		return nil
	}
	text := `{"type": ` + jsonString(r.Kind) + `, "msg": `
	if r.Helper != "" {
		text += jsonString(unix.Strerror(-r.Retcode)) + `, "helper": ` + jsonString(r.Helper) + `, "retcode": ` + strconv.Itoa(r.Retcode)
	} else {
		text += jsonString(strings.TrimSuffix(r.Text, "\n"))
	}
	if r.Source != nil {
		at := r.Source.Pos(r.Span.Start)
		text += fmt.Sprintf(`, "filename": %s, "line": %d, "col": %d`, jsonString(r.Source.Name), at.Line, at.Col)
	}
	_, err := io.WriteString(j.W, text+"}\n")
	return err
}

// End writes nothing.
func (JSON) End() error { return nil }

// Printf writes the event of a printf, or of a print of a value.
func (j JSON) Printf(a *lang.Action, values []lang.Value) error {
	if a.Kind == lang.PrintValue && len(values) == 1 {
		return j.line("value", jsonValue(values[0]))
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
	case lang.TSeries:
		return "tseries"
	}
	return "map"
}

func (j JSON) line(kind, data string) error {
	_, err := io.WriteString(j.W, `{"type": "`+kind+`", "data": `+data+"}\n")
	return err
}

// jsonValue is a value of the language: numbers for what has one, else what is printed as text.
func jsonValue(v lang.Value) string {
	parts := make([]string, len(v.Elems))
	for i, e := range v.Elems {
		parts[i] = jsonValue(e)
	}
	switch v.Type.Kind {
	case lang.Int, lang.Pointer:
		v.Type.Enum = nil
		return jsonNumber(integer(v))
	case lang.Bool:
		return strconv.FormatBool(v.Int != 0)
	case lang.Float:
		return float(v)
	case lang.None:
		return "null"
	case lang.Buffer:
		for i := range len(v.Str) {
			parts = append(parts, strconv.Itoa(int(int8(v.Str[i]))))
		}
		return "[" + strings.Join(parts, ",") + "]"
	case lang.Array, lang.Tuple:
		return "[" + strings.Join(parts, ",") + "]"
	case lang.Struct, lang.Record:
		for i := range parts {
			parts[i] = jsonString(v.Type.Layout.Fields[i].Name) + ": " + parts[i]
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return jsonString(Value(v))
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
