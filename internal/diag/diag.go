package diag

import (
	"fmt"
	"slices"
	"strings"
)

// Severity ranks a diagnostic.
type Severity uint8

const (
	// Error stops the work that the text was read for.
	Error Severity = iota
	// Warning is for what works, but probably not as meant.
	Warning
)

// String is the word that renderings use, as bpftrace does.
func (s Severity) String() string {
	if s == Warning {
		return "WARNING"
	}
	return "ERROR"
}

// Diagnostic is one remark about one place, or about none if it has no Source.
type Diagnostic struct {
	Severity Severity
	Source   *Source
	Span     Span
	Message  string   // one line, without a full stop
	Details  []string // further lines
	Hints    []string
	Notes    []Note
}

// Note is a second place that explains a diagnostic, as an earlier declaration.
type Note struct {
	Span    Span
	Message string
}

// Hint adds advice and returns d, so that it can follow the report of it.
func (d *Diagnostic) Hint(format string, args ...any) *Diagnostic {
	d.Hints = append(d.Hints, fmt.Sprintf(format, args...))
	return d
}

// Note adds a second place and returns d.
func (d *Diagnostic) Note(at Span, format string, args ...any) *Diagnostic {
	d.Notes = append(d.Notes, Note{at, fmt.Sprintf(format, args...)})
	return d
}

// String is the one-line form, "name:line:col-col: ERROR: message".
func (d *Diagnostic) String() string { return d.at(d.Span, d.Message) }

// at is a line about a place.
func (d *Diagnostic) at(place Span, message string) string {
	if d.Source == nil {
		return fmt.Sprintf("%s: %s", d.Severity, message)
	}
	return fmt.Sprintf("%s: %s: %s", d.Source.Location(place), d.Severity, message)
}

// List is several diagnostics; as an error it is never empty.
type List []*Diagnostic

// Error is the one-line form of each diagnostic, joined by line ends.
func (l List) Error() string {
	lines := make([]string, len(l))
	for i, d := range l {
		lines[i] = d.String()
	}
	return strings.Join(lines, "\n")
}

// Collector gathers the diagnostics of one source.
//
// A remark that repeats an earlier one, same place and same words, is dropped,
// and so is everything after Limit errors: what follows would be noise.
type Collector struct {
	Source *Source
	Limit  int // 0 means no limit
	list   List
	errors int
	seen   map[seenKey]bool
}

type seenKey struct {
	at      Span
	message string
}

// Errorf reports an error. The returned diagnostic may be added to.
func (c *Collector) Errorf(at Span, format string, args ...any) *Diagnostic {
	return c.add(Error, at, fmt.Sprintf(format, args...))
}

// Warnf reports a warning. The returned diagnostic may be added to.
func (c *Collector) Warnf(at Span, format string, args ...any) *Diagnostic {
	return c.add(Warning, at, fmt.Sprintf(format, args...))
}

func (c *Collector) add(sev Severity, at Span, message string) *Diagnostic {
	message = printable(message) // it may quote the text
	d := &Diagnostic{Severity: sev, Source: c.Source, Span: at, Message: message}
	key := seenKey{at, message}
	if c.seen[key] || c.Full() {
		return d
	}
	if c.seen == nil {
		c.seen = make(map[seenKey]bool)
	}
	c.seen[key] = true
	if sev == Error {
		c.errors++
	}
	c.list = append(c.list, d)
	return d
}

// Plainf reports an error that no place of the text is to blame for.
func (c *Collector) Plainf(format string, args ...any) *Diagnostic {
	d := c.add(Error, Span{}, fmt.Sprintf(format, args...))
	d.Source = nil
	return d
}

// Full reports whether the limit of errors is reached.
func (c *Collector) Full() bool { return c.Limit > 0 && c.errors >= c.Limit }

// ErrorCount is the number of errors so far.
func (c *Collector) ErrorCount() int { return c.errors }

// Sorted returns the diagnostics of one severity in the order of the text.
func (c *Collector) Sorted(sev Severity) List {
	var l List
	for _, d := range c.list {
		if d.Severity == sev {
			l = append(l, d)
		}
	}
	slices.SortStableFunc(l, func(a, b *Diagnostic) int { return a.Span.Start - b.Span.Start })
	return l
}

// Err returns the errors, or nil when there are none.
func (c *Collector) Err() error {
	if c.errors == 0 {
		return nil
	}
	return c.Sorted(Error)
}
