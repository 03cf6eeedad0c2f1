package text

import (
	"io"
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

// Report writes an error or a warning with its place in the script.
func (p Plain) Report(source *diag.Source, a *lang.Action, values []lang.Value) error {
	kind, text := report(a, values)
	if kind == "WARNING" && p.Quiet {
		return nil
	}
	_, err := io.WriteString(p.Errors, source.Location(a.Span)+": "+kind+": "+text)
	return err
}

// report is the kind and the text of an error or a warning, with a line end.
func report(a *lang.Action, values []lang.Value) (kind, text string) {
	kind, text = "WARNING", a.Text
	if a.Kind != lang.Discarded {
		text = Format(a, values)
	}
	if a.Kind == lang.Errorf {
		kind = "ERROR"
	}
	if n := len(text); n == 0 || text[n-1] != '\n' {
		text += "\n"
	}
	return kind, text
}

// End writes what separates the output of a session from the listing of its maps.
func (p Plain) End() error { return End(p.W) }
