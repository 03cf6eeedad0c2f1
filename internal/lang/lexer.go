package lang

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"trapless/internal/diag"
)

// lexer cuts the text into tokens on demand. It reports nothing: an illegal
// token carries its own error, which the parser reports when it takes the
// token. That way a piece of text may be looked at as tokens first and be read
// as an attach point, whose spelling is another, afterwards.
type lexer struct {
	text string
	pos  int
}

// next returns the token that starts at or after the current position.
func (l *lexer) next() token {
	if bad, ok := l.skipLayout(); !ok {
		return bad
	}
	if l.pos >= len(l.text) {
		return token{kind: tokEOF, span: diag.Span{Start: l.pos, End: l.pos}}
	}
	start, c := l.pos, l.text[l.pos]
	switch {
	case isIdentStart(c):
		return l.name(tokIdent, 0)
	case isDigit(c):
		return l.number()
	case c == '"':
		return l.str()
	case c == '\'':
		return l.char()
	case c == '@':
		return l.name(tokMap, 1)
	case c == '$':
		return l.dollar()
	}
	for _, o := range operators {
		if strings.HasPrefix(l.text[start:], o.text) {
			l.pos += len(o.text)
			return token{kind: o.kind, op: o.op, span: l.since(start)}
		}
	}
	if strings.IndexByte("{}()[],;:?=<>+-*/%&|^~!.", c) >= 0 {
		l.pos++
		return token{kind: tokenKind(c), span: l.since(start)}
	}
	_, width := utf8.DecodeRuneInString(l.text[start:])
	l.pos += width
	return l.illegal(start, "unexpected character")
}

func (l *lexer) since(start int) diag.Span { return diag.Span{Start: start, End: l.pos} }

func (l *lexer) illegal(start int, format string, args ...any) token {
	return token{kind: tokIllegal, span: l.since(start), err: fmt.Sprintf(format, args...)}
}

// byteAt is the byte at an offset, and 0 outside the text.
func (l *lexer) byteAt(i int) byte {
	if i < len(l.text) {
		return l.text[i]
	}
	return 0
}

// skipLayout passes white space and comments. It fails, with the token to
// return, when a comment has no end.
func (l *lexer) skipLayout() (token, bool) {
	for l.pos < len(l.text) {
		switch c := l.text[l.pos]; {
		case isSpace(c):
			l.pos++
		case c == '/' && l.byteAt(l.pos+1) == '/':
			l.pos = lineEnd(l.text, l.pos)
		case c == '/' && l.byteAt(l.pos+1) == '*':
			start := l.pos
			end := strings.Index(l.text[start+2:], "*/")
			if end < 0 {
				l.pos = len(l.text)
				t := l.illegal(start, "comment without an end")
				t.span.End = start + 2
				t.hint, t.open = "close it with */", true
				return t, false
			}
			l.pos = start + 2 + end + 2
		default:
			return token{}, true
		}
	}
	return token{}, true
}

// lineEnd is the offset of the end of the line that i is on.
func lineEnd(text string, i int) int {
	if n := strings.IndexByte(text[i:], '\n'); n >= 0 {
		return i + n
	}
	return len(text)
}

// name reads an identifier after a sigil of the given width.
func (l *lexer) name(kind tokenKind, sigil int) token {
	start := l.pos
	l.pos += sigil
	if isIdentStart(l.byteAt(l.pos)) {
		for isIdent(l.byteAt(l.pos)) {
			l.pos++
		}
	}
	return token{kind: kind, span: l.since(start), text: l.text[start+sigil : l.pos]}
}

// dollar reads a variable, a parameter or the number of parameters.
func (l *lexer) dollar() token {
	start, c := l.pos, l.byteAt(l.pos+1)
	switch {
	case isIdentStart(c):
		return l.name(tokVar, 1)
	case c == '#':
		l.pos += 2
		return token{kind: tokParamCount, span: l.since(start)}
	case isDigit(c):
		l.pos++
		for isDigit(l.byteAt(l.pos)) {
			l.pos++
		}
		return token{kind: tokParam, span: l.since(start), text: l.text[start+1 : l.pos]}
	}
	l.pos++
	return l.illegal(start, "expected a name or a number after '$'")
}

// number reads an integer literal.
func (l *lexer) number() token {
	start := l.pos
	for isIdent(l.byteAt(l.pos)) {
		l.pos++
	}
	text := l.text[start:l.pos]
	v, err := parseInt(text)
	if err != nil {
		return l.illegal(start, "%v", err)
	}
	return token{kind: tokInt, span: l.since(start), text: text, value: v}
}

// char rejects a character literal, which C has and the language has not.
func (l *lexer) char() token {
	start := l.pos
	l.pos++
	if l.byteAt(l.pos) == '\\' {
		l.pos++
	}
	r, width := utf8.DecodeRuneInString(l.text[l.pos:])
	l.pos += width
	if l.byteAt(l.pos) != '\'' {
		return l.illegal(start, "unexpected character")
	}
	l.pos++
	t := l.illegal(start, "the language has no character literals")
	if l.pos-start == 2+width && r < 0x80 {
		t.hint = fmt.Sprintf("write %d for %s", r, l.text[start:l.pos])
	}
	return t
}

// str reads a string with its escape sequences.
func (l *lexer) str() token {
	start := l.pos
	var b strings.Builder
	var bad token
	for l.pos++; ; {
		switch c := l.byteAt(l.pos); {
		case l.pos >= len(l.text) || c == '\n':
			t := l.illegal(start, "unterminated string")
			t.hint, t.open = `close it with "`, true
			return t
		case c == '"':
			l.pos++
			if bad.kind == tokIllegal {
				return bad
			}
			return token{kind: tokString, span: l.since(start), text: b.String()}
		case c == '\\':
			if t := l.escape(&b); t.kind == tokIllegal && bad.kind == 0 {
				bad = t
			}
		default:
			b.WriteByte(c)
			l.pos++
		}
	}
}

// escape reads the escape sequence at the current position.
func (l *lexer) escape(b *strings.Builder) token {
	start, c := l.pos, l.byteAt(l.pos+1)
	l.pos = min(l.pos+2, len(l.text))
	switch c {
	case 'n':
		b.WriteByte('\n')
	case 't':
		b.WriteByte('\t')
	case 'r':
		b.WriteByte('\r')
	case '"', '\\':
		b.WriteByte(c)
	case '0', '1', '2', '3', '4', '5', '6', '7':
		v := int(c - '0')
		for i := 0; i < 2 && l.byteAt(l.pos) >= '0' && l.byteAt(l.pos) <= '7'; i++ {
			v = v*8 + int(l.text[l.pos]-'0')
			l.pos++
		}
		if v > 0xff {
			return l.illegal(start, "octal escape sequence is larger than \\377")
		}
		b.WriteByte(byte(v))
	case 'x', 'X':
		v, n := 0, 0
		for ; n < 2 && hexDigit(l.byteAt(l.pos)) >= 0; n++ {
			v = v*16 + hexDigit(l.text[l.pos])
			l.pos++
		}
		if n == 0 {
			return l.illegal(start, "expected hexadecimal digits after \\x")
		}
		b.WriteByte(byte(v))
	default:
		if c == '\n' {
			l.pos-- // the string ends here
		}
		return l.illegal(start, "unknown escape sequence")
	}
	return token{}
}

func isSpace(c byte) bool      { return c == ' ' || c >= '\t' && c <= '\r' }
func isDigit(c byte) bool      { return '0' <= c && c <= '9' }
func isIdentStart(c byte) bool { return c == '_' || 'a' <= c|0x20 && c|0x20 <= 'z' }
func isIdent(c byte) bool      { return isIdentStart(c) || isDigit(c) }

func hexDigit(c byte) int {
	switch {
	case isDigit(c):
		return int(c - '0')
	case 'a' <= c|0x20 && c|0x20 <= 'f':
		return int(c|0x20-'a') + 10
	}
	return -1
}
