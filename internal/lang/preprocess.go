package lang

import (
	"strings"

	"trapless/internal/diag"
)

// The C preprocessor, as far as scripts use it: constants and expressions by
// #define, and conditions on what is defined. Headers are not read.

// preprocessor takes a line that starts with '#'.
func (p *parser) preprocessor(s *scriptNode) {
	start := p.tok.span.Start
	end := directiveEnd(p.src.Text, start)
	line := strings.TrimSpace(p.src.Text[start:end])
	at := diag.Span{Start: start, End: start + len(line)}
	word, rest, _ := strings.Cut(strings.TrimSpace(line[1:]), " ")
	p.lex.pos = end
	switch rest = strings.TrimSpace(rest); word {
	case "define":
		p.define(s, at)
	case "undef":
		delete(p.defines, rest)
	case "include":
		s.foreign = true
		p.diags.Warnf(at, "headers are not read").Hint("types come from debug information, or from definitions in the script")
	case "ifdef", "ifndef":
		_, known := p.defines[rest]
		known = known || rest == "BPFTRACE_HAVE_BTF"
		if known != (word == "ifdef") {
			p.skipCondition()
		}
	case "else":
		p.skipCondition()
	case "endif", "pragma", "":
	case "error":
		p.diags.Errorf(at, "%s", rest)
	case "warning":
		p.diags.Warnf(at, "%s", rest)
	default:
		p.unsupported(at, "#"+word)
	}
	p.advance()
}

// directiveEnd is the end of a line that '\' may continue.
func directiveEnd(text string, i int) int {
	for {
		end := lineEnd(text, i)
		if end == len(text) || !strings.HasSuffix(strings.TrimRight(text[i:end], "\r"), "\\") {
			return end
		}
		i = end + 1
	}
}

// skipCondition passes lines up to the #else or #endif of a condition that does
// not hold.
func (p *parser) skipCondition() {
	depth := 0
	for p.lex.pos < len(p.src.Text) {
		end := lineEnd(p.src.Text, p.lex.pos)
		line := strings.TrimSpace(p.src.Text[p.lex.pos:end])
		p.lex.pos = min(end+1, len(p.src.Text))
		word, isDirective := strings.CutPrefix(line, "#")
		if !isDirective {
			continue
		}
		word = strings.TrimSpace(word)
		switch {
		case strings.HasPrefix(word, "if"):
			depth++
		case strings.HasPrefix(word, "endif") && depth > 0:
			depth--
		case depth == 0 && (strings.HasPrefix(word, "endif") || strings.HasPrefix(word, "else")):
			return
		}
	}
}

// define takes "#define NAME text" and "#define NAME(a, b) text".
func (p *parser) define(s *scriptNode, at diag.Span) {
	l := lexer{text: p.src.Text[:at.End], pos: at.Start + 1}
	l.next()
	name := l.next()
	if name.kind != tokIdent {
		p.diags.Errorf(at, "expected a name after #define")
		return
	}
	if l.byteAt(l.pos) == '(' {
		p.defineCall(s, name, &l, at)
		return
	}
	p.defines[name.text] = diag.Span{Start: l.pos, End: at.End}
}

// defineCall makes a macro of "#define NAME(a, b) text".
func (p *parser) defineCall(s *scriptNode, name token, l *lexer, at diag.Span) {
	m := &macroNode{name: name.text, span: at}
	l.next()
	for t := l.next(); t.kind != ')'; t = l.next() {
		switch t.kind {
		case tokIdent:
			m.params = append(m.params, &nameExpr{exprBase: exprBase{span: t.span}, name: t.text})
		case ',':
		default:
			p.diags.Errorf(at, "expected a parameter")
			return
		}
	}
	outerLex, outerTok, outerLast, outerErrors := p.lex, p.tok, p.last, p.diags
	p.diags = &diag.Collector{Source: p.src, Limit: maxErrors}
	p.lex = lexer{text: p.src.Text[:at.End], pos: l.pos}
	p.advance()
	x := p.expression()
	good := !p.failed && p.is(tokEOF) && p.diags.ErrorCount() == 0
	p.lex, p.tok, p.last, p.diags, p.failed = outerLex, outerTok, outerLast, outerErrors, false
	if good { // another one is of no use to an expression
		m.body = &blockStmt{span: at, stmts: []stmt{&exprStmt{x: x, open: true}}}
		s.macros = append(s.macros, m)
	}
}
