package lang

import (
	"fmt"
	"strings"
	"testing"
)

// tokens lists the tokens of a text, each as its kind or spelling.
func tokens(text string) string {
	l := lexer{text: text}
	var out []string
	for {
		t := l.next()
		s := operatorText(t.kind)
		switch t.kind {
		case tokEOF:
			return strings.Join(out, " ")
		case tokIllegal:
			s = "!" + t.err
		case tokInt:
			s = fmt.Sprint(t.value)
		case tokIdent:
			s = "name:" + t.text
		case tokString:
			s = fmt.Sprintf("%q", t.text)
		case tokVar:
			s = "var:" + t.text
		case tokMap:
			s = "map:" + t.text
		case tokParam:
			s = "param:" + t.text
		case tokParamCount:
			s = "params"
		case tokAssignOp:
			s = operatorText(t.op) + "="
		}
		out = append(out, s)
	}
}

func TestTokens(t *testing.T) {
	for _, row := range []struct{ text, want string }{
		{"", ""},
		{" \t\r\n\v\f", ""},
		{"a // b\nc /* d\n */ e", "name:a name:c name:e"},
		{"_x9 $y_ @z @ $1 $#", "name:_x9 var:y_ map:z map: param:1 params"},
		{"@[1]", "map: [ 1 ]"},
		{"<<= >>= << >> <= >= < >", "<<= >>= << >> <= >= < >"},
		{"+= -= *= /= %= &= |= ^=", "+= -= *= /= %= &= |= ^="},
		{"== != && || ++ -- -> ..", "== != && || ++ -- -> .."},
		{"a-->b", "name:a -- > name:b"},
		{"1..5", "1 .. 5"},
		{"!a~b?c:d", "! name:a ~ name:b ? name:c : name:d"},
		{`"a\n\t\r\"\\\101\x41\0"`, `"a\n\t\r\"\\AA\x00"`},
		{`"%d"`, `"%d"`},
		{`"\x4"`, `"\x04"`},
		{`"é"`, `"é"`},
	} {
		if got := tokens(row.text); got != row.want {
			t.Errorf("%q\ngot  %s\nwant %s", row.text, got, row.want)
		}
	}
}

func TestIllegalTokens(t *testing.T) {
	for _, row := range []struct{ text, want string }{
		{"a /* b", "name:a !comment without an end"},
		{`"abc`, "!unterminated string"},
		{"\"a\nb\"", "!unterminated string name:b !unterminated string"},
		{`"a\qb" c`, "!unknown escape sequence name:c"},
		{`"\400"`, `!octal escape sequence is larger than \377`},
		{`"\xg"`, `!expected hexadecimal digits after \x`},
		{"$", "!expected a name or a number after '$'"},
		{"$ x", "!expected a name or a number after '$' name:x"},
		{"'a'", "!the language has no character literals"},
		{"'\\n'", "!the language has no character literals"},
		{"'", "!unexpected character"},
		{"`", "!unexpected character"},
		{"é", "!unexpected character"},
		{"\x00\xff", "!unexpected character !unexpected character"},
		{"5x", "!invalid integer suffix 'x'"},
	} {
		if got := tokens(row.text); got != row.want {
			t.Errorf("%q\ngot  %s\nwant %s", row.text, got, row.want)
		}
	}
}
