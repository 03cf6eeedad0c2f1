// Package diag reports what is wrong with a text that a user wrote: where it
// is, what it is, and what to do about it.
//
// A front end makes a Source of the text, marks places by Span (byte offsets),
// and collects a List of Diagnostic. The list is an error; WriteText renders
// it with the source line and a mark under the place, WriteJSON as one object a line,
// and its Error method as plain "name:line:col-col: ERROR: message" lines.
//
// The package knows no language. It never reads a file and never prints by
// itself.
package diag

import (
	"fmt"
	"sort"
	"strings"
)

// Span is the half-open range [Start, End) of byte offsets in a source. An
// empty span marks the place before the byte at Start.
type Span struct{ Start, End int }

// To is the smallest span that contains both.
func (s Span) To(o Span) Span { return Span{min(s.Start, o.Start), max(s.End, o.End)} }

// Len is the number of bytes in the span.
func (s Span) Len() int { return s.End - s.Start }

// Pos is a place as people count: both numbers start at 1, Col counts bytes.
type Pos struct{ Line, Col int }

// Source is a text with a name, usually the path of the file it came from.
type Source struct {
	Name, Text string
	lines      []int // offset of each line's first byte
}

// NewSource prepares a text for the lookup of lines.
func NewSource(name, text string) *Source {
	s := &Source{Name: name, Text: text, lines: []int{0}}
	for i := 0; i < len(text); i++ {
		if text[i] == '\n' {
			s.lines = append(s.lines, i+1)
		}
	}
	return s
}

// Pos converts a byte offset. Offsets outside the text are moved to its ends.
func (s *Source) Pos(offset int) Pos {
	offset = min(max(offset, 0), len(s.Text))
	line := sort.Search(len(s.lines), func(i int) bool { return s.lines[i] > offset }) - 1
	return Pos{line + 1, offset - s.lines[line] + 1}
}

// Line is the text of a line, counted from 1, without its end. It is empty
// outside the text.
func (s *Source) Line(n int) string {
	if n < 1 || n > len(s.lines) {
		return ""
	}
	text := s.Text[s.lines[n-1]:]
	if n < len(s.lines) {
		text = text[:s.lines[n]-s.lines[n-1]-1]
	}
	return strings.TrimSuffix(text, "\r")
}

// Slice is the text of a span.
func (s *Source) Slice(at Span) string {
	start := min(max(at.Start, 0), len(s.Text))
	return s.Text[start:max(start, min(at.End, len(s.Text)))]
}

// Location is the place of a span as bpftrace writes it: NAME:LINE:COLUMN-COLUMN, with
// the column behind the last character, or NAME:LINE-LINE.
func (s *Source) Location(at Span) string {
	from, to := s.Pos(at.Start), s.Pos(at.End)
	if from.Line != to.Line {
		return fmt.Sprintf("%s:%d-%d", s.Name, from.Line, to.Line)
	}
	return fmt.Sprintf("%s:%d:%d-%d", s.Name, from.Line, from.Col, to.Col)
}
