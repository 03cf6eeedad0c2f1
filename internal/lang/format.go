package lang

import (
	"fmt"
	"strings"
)

// Format is the format of a printf, taken apart: Text[i] comes before Conv[i],
// the last Text after all.
type Format struct {
	Text []string
	Conv []Conversion
}

// Conversion is one conversion of a format, as in C: "%-08llx".
type Conversion struct {
	Left, Plus, Alt, Zero bool
	Width                 int    // 0 when it is not given
	Length                string // hh, h, l, ll, j, z, t, or anything else for the size of an int
	Verb                  string // one letter; bpftrace also has r, rx, rh and gr
	Star                  bool   // the width or the precision is '*'
}

// String is the conversion as it is written, without what has no effect.
func (c Conversion) String() string {
	s := "%"
	for _, f := range []struct {
		on   bool
		flag string
	}{{c.Left, "-"}, {c.Plus, "+"}, {c.Alt, "#"}, {c.Zero, "0"}} {
		if f.on {
			s += f.flag
		}
	}
	if c.Width > 0 {
		s += fmt.Sprint(c.Width)
	}
	return s + c.Length + c.Verb
}

// maxWidth bounds the width of a conversion.
const maxWidth = 1 << 10

// parseFormat takes a format apart. Flags have a fixed order, "-+ #0". A '%'
// that starts no conversion is text; stray tells that there was one.
func parseFormat(s string) (f Format, stray bool) {
	text := ""
	for s != "" {
		i := strings.IndexByte(s, '%')
		if i < 0 {
			break
		}
		text += s[:i]
		c, rest, ok := parseConversion(s[i+1:])
		switch {
		case !ok:
			stray = true
			text += "%"
			s = s[i+1:]
			continue
		case c.Verb == "%":
			text += "%"
		default:
			f.Text = append(f.Text, text)
			f.Conv = append(f.Conv, c)
			text = ""
		}
		s = rest
	}
	f.Text = append(f.Text, text+s)
	return f, stray
}

// parseConversion reads what follows a '%'.
func parseConversion(s string) (c Conversion, rest string, ok bool) {
	flag := func(f string) bool {
		after, found := strings.CutPrefix(s, f)
		s = after
		return found
	}
	c.Left, c.Plus = flag("-"), flag("+")
	flag(" ") // taken, and of no effect
	c.Alt, c.Zero = flag("#"), flag("0")
	c.Width, c.Star, s = parseWidth(s)
	if after, found := strings.CutPrefix(s, "."); found {
		_, star, end := parseWidth(after)
		if end == after {
			return c, s, false
		}
		c.Star, s = c.Star || star, end // a precision concerns no integer and no string
	}
	verb := strings.TrimLeft(s, "hlLjzt")
	c.Length = s[:len(s)-len(verb)]
	for _, v := range []string{"gr", "rh", "rx"} {
		if strings.HasPrefix(verb, v) {
			c.Verb = v
			return c, verb[2:], true
		}
	}
	if verb == "" || strings.IndexByte("diouxXeEfFGaAcspn%gr", verb[0]) < 0 {
		return c, s, false
	}
	c.Verb = verb[:1]
	return c, verb[1:], true
}

// parseWidth reads digits or a '*', or nothing.
func parseWidth(s string) (width int, star bool, rest string) {
	if strings.HasPrefix(s, "*") {
		return 0, true, s[1:]
	}
	for s != "" && isDigit(s[0]) {
		width = min(width*10+int(s[0]-'0'), maxWidth+1)
		s = s[1:]
	}
	return width, false, s
}

// problem is why the conversion cannot convert a value of the type, or "".
func (c Conversion) problem(t Type) string {
	switch c.Verb {
	case "d", "i", "u", "o", "x", "X", "c", "p":
		if !t.isScalar() || t.Kind == Float {
			return fmt.Sprintf("'%s' converts integers, this is %s", c, t.a())
		}
	case "r", "rx", "rh":
		if t.Kind != Buffer && t.Kind != bad {
			return fmt.Sprintf("'%s' converts what buf() returns, this is %s", c, t.a())
		}
	case "e", "E", "f", "F", "g", "G", "a", "A":
		if t.Kind != Float {
			return fmt.Sprintf("'%s' is for floating-point values, this is %s", c, t.a())
		}
	}
	return ""
}

// unusable is why the conversion does not exist here, or "".
func (c Conversion) unusable() string {
	switch {
	case c.Star:
		return "not supported yet: '*' as the width of a conversion"
	case c.Width > maxWidth:
		return fmt.Sprintf("the width of a conversion is at most %d", maxWidth)
	}
	switch c.Verb {
	case "gr":
		return fmt.Sprintf("'%s' is about the kernel, trapless probes user space only", c)
	case "n":
		return "'%n' is not allowed"
	}
	return ""
}
