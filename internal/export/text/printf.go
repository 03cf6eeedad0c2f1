// Package text writes what a script prints as bpftrace writes it: events by
// their format, values, and maps, as text or as one JSON object a line.
//
// It gets values as package lang decodes them from events, and entries of maps
// as package arena reads them. It decides how they look and in which order, and
// knows no session, no process and no file but the writer that it is given.
//
// How things look was taken from bpftrace's src/output and src/format_string.cpp
// (0.26). Its formats are carried out by C++ streams, which differ from C's
// printf: zeros are filled in before a sign, a precision is of no effect, and
// without a length a conversion takes 32 bits.
package text

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"trapless/internal/lang"
)

// Printf writes the event of a printf, or of a print of a value.
func Printf(w io.Writer, a *lang.Action, values []lang.Value) error {
	s := Format(a, values)
	if a.Kind == lang.PrintValue {
		s += "\n"
	}
	_, err := io.WriteString(w, s)
	return err
}

// Format is the text of a printf, or of a value that is printed alone.
func Format(a *lang.Action, values []lang.Value) string {
	if a.Format == nil {
		parts := make([]string, len(values))
		for i, v := range values {
			parts[i] = Value(v)
		}
		return strings.Join(parts, ", ")
	}
	var b strings.Builder
	for i, c := range a.Format.Conv {
		b.WriteString(a.Format.Text[i])
		if i < len(values) {
			b.WriteString(convert(c, values[i]))
		}
	}
	b.WriteString(a.Format.Text[len(a.Format.Text)-1])
	return b.String()
}

// convert carries out one conversion.
func convert(c lang.Conversion, v lang.Value) string {
	s := ""
	switch c.Verb {
	case "d", "i":
		s = signed(c, int64(cut(c, v.Int, true)))
	case "u":
		s = strconv.FormatUint(cut(c, v.Int, false), 10)
	case "o":
		s = based(c, cut(c, v.Int, false), 8, "0")
	case "x":
		s = based(c, cut(c, v.Int, false), 16, "0x")
	case "X":
		s = strings.ToUpper(based(c, cut(c, v.Int, false), 16, "0x"))
	case "c":
		s = string([]byte{byte(v.Int)})
	case "p":
		c.Alt = true
		s = based(c, v.Int, 16, "0x")
	case "r":
		s = buffer(v, true, true)
	case "rx":
		s = buffer(v, false, true)
	case "rh":
		s = buffer(v, false, false)
	case "e", "E", "f", "F", "g", "G", "a", "A":
		s = floating(c, v)
	default: // s
		s = Value(v)
		if v.Type.Kind == lang.Int && v.Type.Signed && v.Type.Enum == nil {
			s = signed(c, int64(v.Int))
		}
	}
	return pad(c, s)
}

// buffer is a Buffer in hexadecimal, or any other value as it is printed alone.
func buffer(v lang.Value, ascii, escape bool) string {
	if v.Type.Kind == lang.Buffer {
		return hexBuffer(v.Str, ascii, escape)
	}
	return Value(v)
}

// floating is a number as C's %f, %e, %g and %a have it.
func floating(c lang.Conversion, v lang.Value) string {
	f := 0.0
	switch {
	case v.Type.Kind == lang.Float:
		f = floatOf(v)
	case v.Type.Signed:
		f = float64(int64(v.Int))
	default:
		f = float64(v.Int)
	}
	verb := c.Verb
	if verb == "a" || verb == "A" {
		verb = map[string]string{"a": "x", "A": "X"}[verb]
	}
	s := fmt.Sprintf("%"+verb, f)
	if c.Plus && f >= 0 {
		s = "+" + s
	}
	return s
}

// cut makes a value as wide as the conversion's length says.
func cut(c lang.Conversion, v uint64, signed bool) uint64 {
	width := 32
	switch c.Length {
	case "hh":
		width = 8
	case "h":
		width = 16
	case "l", "ll", "j", "z", "t":
		return v
	}
	if signed {
		return uint64(int64(v<<(64-width)) >> (64 - width))
	}
	return v << (64 - width) >> (64 - width)
}

func signed(c lang.Conversion, v int64) string {
	s := strconv.FormatInt(v, 10)
	if c.Plus && v >= 0 {
		s = "+" + s
	}
	return s
}

// based is a number to a base, with a prefix if that is asked for and it is
// not zero.
func based(c lang.Conversion, v uint64, base int, prefix string) string {
	s := strconv.FormatUint(v, base)
	if c.Alt && v != 0 {
		s = prefix + s
	}
	return s
}

func pad(c lang.Conversion, s string) string {
	fill := " "
	if c.Zero {
		fill = "0"
	}
	n := c.Width - len(s)
	switch {
	case n <= 0:
		return s
	case c.Left:
		return s + strings.Repeat(fill, n)
	}
	return strings.Repeat(fill, n) + s
}
