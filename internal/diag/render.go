package diag

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// WriteText renders each diagnostic with its source line and a caret:
//
//	count.bt:1:22: error: unknown function 'cuont'
//	  1 | uprobe:libc:puts { @ = cuont(); }
//	    |                        ^~~~~
//	  hint: did you mean count()?
//
// Bytes of the source that a terminal could act on are shown as '?'.
func WriteText(w io.Writer, l List) error {
	b := bufio.NewWriter(w)
	for _, d := range l {
		fmt.Fprintln(b, printable(d.String()))
		excerpt(b, d.Source, d.Span)
		for _, n := range d.Notes {
			p := d.Source.Pos(n.Span.Start)
			fmt.Fprintf(b, "%s:%d:%d: note: %s\n", printable(d.Source.Name), p.Line, p.Col, printable(n.Message))
			excerpt(b, d.Source, n.Span)
		}
		for _, h := range d.Hints {
			fmt.Fprintf(b, "  hint: %s\n", printable(h))
		}
	}
	return b.Flush()
}

// excerpt writes the line of the span's start and marks the span under it. A
// span of several lines is marked to the end of its first.
func excerpt(w io.Writer, s *Source, at Span) {
	p := s.Pos(at.Start)
	line := s.Line(p.Line)
	start := min(p.Col-1, len(line))
	end := min(max(start+at.Len(), start), len(line))
	width := max(1, utf8.RuneCountInString(line[start:end]))
	number := fmt.Sprint(p.Line)
	fmt.Fprintf(w, "  %s | %s\n", number, printable(line))
	fmt.Fprintf(w, "  %s | %s^%s\n", blank(number), blank(line[:start]), strings.Repeat("~", width-1))
}

// blank is as wide as s: tabs stay, every other character becomes a space.
func blank(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\t' {
			return r
		}
		return ' '
	}, s)
}

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
		start, end := d.Source.Pos(d.Span.Start), d.Source.Pos(d.Span.End)
		j := jsonDiagnostic{
			Severity: d.Severity.String(), File: d.Source.Name,
			Line: start.Line, Col: start.Col, EndLine: end.Line, EndCol: end.Col,
			Message: d.Message, Source: d.Source.Line(start.Line), Hints: d.Hints,
		}
		for _, n := range d.Notes {
			p := d.Source.Pos(n.Span.Start)
			j.Notes = append(j.Notes, jsonNote{p.Line, p.Col, n.Message})
		}
		if err := enc.Encode(j); err != nil {
			return err
		}
	}
	return nil
}
