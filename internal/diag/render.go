package diag

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// WriteText renders each diagnostic as bpftrace does, with its source line and a
// mark under the place:
//
//	count.bt:1:24-29: ERROR: Unknown function: 'cuont'
//	uprobe:libc:puts { @ = cuont(); }
//	                       ~~~~~
//	HINT: Did you mean count()?
//
// Bytes of the source that a terminal could act on are shown as '?'.
func WriteText(w io.Writer, l List) error {
	b := bufio.NewWriter(w)
	for _, d := range l {
		fmt.Fprintln(b, printable(d.String()))
		for _, line := range d.Details {
			fmt.Fprintln(b, printable(line))
		}
		excerpt(b, d.Source, d.Span)
		for _, n := range d.Notes {
			fmt.Fprintln(b, printable(d.at(n.Span, n.Message)))
			excerpt(b, d.Source, n.Span)
		}
		for _, h := range d.Hints {
			fmt.Fprint(b, "HINT: ")
			for line := range strings.Lines(h + "\n") {
				fmt.Fprintln(b, printable(strings.TrimSuffix(line, "\n")))
			}
		}
	}
	return b.Flush()
}

// maxLines is how much is shown of a span of many lines.
const maxLines = 12

// tab is what a tab is shown as.
const tab = "    "

// Excerpt is the line of a span with the span marked under it, or the lines of a
// span of several, each with a line end.
func (s *Source) Excerpt(at Span) string {
	var b strings.Builder
	excerpt(&b, s, at)
	return b.String()
}

func excerpt(w io.Writer, s *Source, at Span) {
	if s == nil {
		return
	}
	from, to := s.Pos(at.Start), s.Pos(at.End)
	if to.Line > from.Line {
		for n := from.Line; n <= min(to.Line, from.Line+maxLines-1); n++ {
			fmt.Fprintln(w, shown(s.Line(n)))
		}
		return
	}
	line := s.Line(from.Line)
	start := min(from.Col-1, len(line))
	end := min(max(to.Col-1, start), len(line))
	width := max(1, utf8.RuneCountInString(shown(line[start:end])))
	fmt.Fprintln(w, shown(line))
	fmt.Fprintln(w, strings.Repeat(" ", utf8.RuneCountInString(shown(line[:start])))+strings.Repeat("~", width))
}

// shown is a line of the source as it is printed.
func shown(s string) string { return printable(strings.ReplaceAll(s, "\t", tab)) }

// printable replaces control characters, and bytes that are not UTF-8.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if (r < ' ' && r != '\t') || (r >= 0x7f && r < 0xa0) || r == utf8.RuneError {
			return '?'
		}
		return r
	}, s)
}

// jsonDiagnostic fixes the names and the order of the fields of the JSON form.
type jsonDiagnostic struct {
	Severity string     `json:"severity"`
	File     string     `json:"file"`
	Line     int        `json:"line"`
	Col      int        `json:"col"`
	EndLine  int        `json:"end_line"`
	EndCol   int        `json:"end_col"`
	Message  string     `json:"message"`
	Source   string     `json:"source"`
	Hints    []string   `json:"hints,omitempty"`
	Notes    []jsonNote `json:"notes,omitempty"`
}

type jsonNote struct {
	Line    int    `json:"line"`
	Col     int    `json:"col"`
	Message string `json:"message"`
}

// WriteJSON renders each diagnostic as one JSON object on a line of its own.
// Lines and columns start at 1, columns count bytes, the end is exclusive.
func WriteJSON(w io.Writer, l List) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	for _, d := range l {
		source := d.Source
		if source == nil {
			source = NewSource("", "")
		}
		start, end := source.Pos(d.Span.Start), source.Pos(d.Span.End)
		j := jsonDiagnostic{
			Severity: strings.ToLower(d.Severity.String()), File: source.Name,
			Line: start.Line, Col: start.Col, EndLine: end.Line, EndCol: end.Col,
			Message: d.Message, Source: source.Line(start.Line), Hints: d.Hints,
		}
		for _, n := range d.Notes {
			p := source.Pos(n.Span.Start)
			j.Notes = append(j.Notes, jsonNote{p.Line, p.Col, n.Message})
		}
		if err := enc.Encode(j); err != nil {
			return err
		}
	}
	return nil
}
