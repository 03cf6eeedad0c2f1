package text

import (
	"fmt"
	"math"
	"net/netip"
	"os/user"
	"strconv"
	"strings"

	"trapless/internal/lang"
)

// Value is a value as it is printed alone, or inside another.
func Value(v lang.Value) string {
	switch v.Type.Kind {
	case lang.String:
		return v.Str
	case lang.Buffer:
		return hexBuffer(v.Str, true, true)
	case lang.Bool:
		return strconv.FormatBool(v.Int != 0)
	case lang.Symbol:
		if v.Str != "" {
			return v.Str
		}
		return "0x" + strconv.FormatUint(v.Int, 16)
	case lang.Pointer:
		return "0x" + strconv.FormatUint(v.Int, 16)
	case lang.Float:
		return float(v)
	case lang.Array:
		return "[" + elements(v, ",") + "]"
	case lang.Tuple:
		return "(" + elements(v, ", ") + ")"
	case lang.Record, lang.Struct:
		return fields(v)
	case lang.Stack:
		return stack(v, stackIndent)
	case lang.Time:
		return Strftime(v.Type.Format, wallClock(v.Int))
	case lang.Inet:
		return address(v.Str)
	case lang.MAC:
		return strings.ToUpper(hexBytes(v.Str, ":"))
	case lang.User:
		return userName(v.Int)
	case lang.Name:
		return nameOf(v)
	case lang.None:
		return "null"
	}
	return integer(v)
}

// integer is a number, or the name of an enumeration's constant.
func integer(v lang.Value) string {
	if v.Type.Enum != nil {
		if name, ok := v.Type.Enum.NameOf(v.Int); ok {
			return name
		}
	}
	if v.Type.Signed {
		return strconv.FormatInt(int64(v.Int), 10)
	}
	return strconv.FormatUint(v.Int, 10)
}

// floatOf is the number that a Float's bits stand for.
func floatOf(v lang.Value) float64 {
	if v.Type.Size == 4 {
		return float64(math.Float32frombits(uint32(v.Int)))
	}
	return math.Float64frombits(v.Int)
}

// float is a number with six digits behind the point, as C's %f has it.
func float(v lang.Value) string { return strconv.FormatFloat(floatOf(v), 'f', 6, 64) }

func elements(v lang.Value, between string) string {
	parts := make([]string, len(v.Elems))
	for i, e := range v.Elems {
		parts[i] = Value(e)
	}
	return strings.Join(parts, between)
}

// fields are the fields of a struct: { .a = 1, .b = 2 }.
func fields(v lang.Value) string {
	if len(v.Elems) == 0 {
		return "{}"
	}
	parts := make([]string, len(v.Elems))
	for i, e := range v.Elems {
		parts[i] = "." + v.Type.Layout.Fields[i].Name + " = " + Value(e)
	}
	return "{ " + strings.Join(parts, ", ") + " }"
}

// stack is a line for each frame, between line ends. Lines are indented as in bpftrace: less in a key.
func stack(v lang.Value, indent string) string {
	var b strings.Builder
	b.WriteString("\n")
	for _, e := range v.Elems {
		switch v.Type.Format {
		case "raw":
			fmt.Fprintf(&b, "%x\n", e.Int)
		case "build_id":
			b.WriteString(Value(e) + "\n")
		case "perf":
			fmt.Fprintf(&b, "\t%x %s\n", e.Int, Value(e))
		default:
			b.WriteString(indent + Value(e) + "\n")
		}
	}
	return b.String()
}

const (
	stackIndent    = "        "
	stackKeyIndent = "    "
)

// address is an address of the internet from its bytes.
func address(b string) string {
	a, ok := netip.AddrFromSlice([]byte(b))
	if !ok {
		return ""
	}
	return a.String()
}

func hexBytes(s, between string) string {
	parts := make([]string, len(s))
	for i := range len(s) {
		parts[i] = fmt.Sprintf("%02x", s[i])
	}
	return strings.Join(parts, between)
}

// hexBuffer is bytes in hexadecimal, with "\x" before each or a space between two. Characters that can be
// printed may stay as they are.
func hexBuffer(s string, ascii, escape bool) string {
	if !ascii && !escape {
		return hexBytes(s, " ")
	}
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; ascii && c >= ' ' && c <= '~' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, `\x%02x`, c)
		}
	}
	return b.String()
}

// userName is the name of a user, or the number if there is no such user.
func userName(uid uint64) string {
	number := strconv.FormatUint(uid, 10)
	u, err := user.LookupId(number)
	if err != nil {
		return number
	}
	return u.Username
}
