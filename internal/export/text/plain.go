package text

import (
	"io"
	"strings"
	"time"

	"trapless/internal/arena"
	"trapless/internal/diag"
	"trapless/internal/lang"
)

// Plain writes results as text.
type Plain struct {
	W      io.Writer
	Errors io.Writer // for what errorf() and warnf() say
	Quiet  bool      // warnings are not printed
}

// Printf writes the event of a printf, or of a print of a value.
func (p Plain) Printf(a *lang.Action, values []lang.Value) error { return Printf(p.W, a, values) }

// PrintMap writes a map.
func (p Plain) PrintMap(m *lang.Map, entries []arena.Entry, top, div uint32) error {
	return PrintMap(p.W, m, entries, top, div)
}

// PrintEntry writes the value of an entry.
func (p Plain) PrintEntry(m *lang.Map, cell []uint64) error {
	_, err := io.WriteString(p.W, valueOf(m, &arena.Entry{Value: cell}, 1).text()+"\n")
	return err
}

// Text is what a printf of the values would print.
func (Plain) Text(a *lang.Action, values []lang.Value) string { return Format(a, values) }

// Time formats a time.
func (Plain) Time(format string, t time.Time) string { return Strftime(format, t) }

// Say writes what an action came to. What a command printed has a line end of its own behind it, as in
// bpftrace.
func (p Plain) Say(a *lang.Action, text string) error {
	if a.Kind == lang.System {
		text += "\n"
	}
	_, err := io.WriteString(p.W, text)
	return err
}

// Report writes an error or a warning. What errorf() and warnf() say names its place
// alone; else the place is shown.
func (p Plain) Report(r *lang.Report) error {
	if p.hides(r) {
		return nil
	}
	d := *r.Diagnostic()
	if r.Kind != "errorf" && r.Kind != "warnf" {
		return diag.WriteText(p.Errors, diag.List{&d})
	}
	text := strings.TrimSuffix(d.Message, "\n")
	d.Message = ""
	if _, err := io.WriteString(p.Errors, strings.TrimSuffix(d.String(), " ")+" "+text+"\n"); err != nil {
		return err
	}
	for _, n := range d.Notes {
		from := diag.Diagnostic{Severity: d.Severity, Source: d.Source, Span: n.Span, Message: n.Message}
		if err := diag.WriteText(p.Errors, diag.List{&from}); err != nil {
			return err
		}
	}
	return nil
}

// hides reports whether a report is kept quiet.
func (p Plain) hides(r *lang.Report) bool { return r.Severity == diag.Warning && p.Quiet }

// End writes what separates the output of a session from the listing of its maps.
func (p Plain) End() error { return End(p.W) }
