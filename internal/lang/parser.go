package lang

import (
	"strings"

	"trapless/internal/diag"
)

// Bounds on what the parser takes, so that no text makes a later pass recurse
// without end.
const (
	maxNesting = 200  // of parentheses, prefix operators and blocks
	maxChain   = 2000 // operators of one precedence level, or branches of one if
	maxErrors  = 50
)

// parser is a recursive-descent parser. After a syntax error it is in a failed
// state, in which it reports nothing and takes nothing, until the statement or
// probe is left and sync has found the next one.
type parser struct {
	src    *diag.Source
	diags  *diag.Collector
	params []string
	lex    lexer
	tok    token
	last   int // end of the token before tok
	depth  int
	types  *cTypes
	failed bool

	inMacro   bool
	defines   map[string]diag.Span // the text of #define
	expanding map[string]bool
	skipping  []bool // for each #if: its lines do not count
	lost      bool   // a token without an end was seen; brackets may have gone with it
}

func parse(src *diag.Source, diags *diag.Collector, params []string) *scriptNode {
	p := &parser{src: src, diags: diags, params: params, lex: lexer{text: src.Text}, types: newCTypes(), defines: map[string]diag.Span{}}
	p.skipInterpreterLine()
	p.advance()
	return p.script()
}

// skipInterpreterLine passes "#!..." at the start of the script.
func (p *parser) skipInterpreterLine() {
	if _, ok := p.lex.skipLayout(); ok && strings.HasPrefix(p.src.Text[p.lex.pos:], "#!") {
		p.lex.pos = lineEnd(p.src.Text, p.lex.pos)
		return
	}
	p.lex.pos = 0
}

// advance takes the current token.
func (p *parser) advance() {
	p.last = p.tok.span.End
	p.tok = p.lex.next()
}

// peek returns the token after the current one.
func (p *parser) peek() token {
	l := p.lex
	return l.next()
}

func (p *parser) is(k tokenKind) bool { return p.tok.kind == k }

func (p *parser) isWord(w string) bool { return p.tok.kind == tokIdent && p.tok.text == w }

// accept takes the token if it is of the kind.
func (p *parser) accept(k tokenKind) bool {
	if p.failed || p.tok.kind != k {
		return false
	}
	p.advance()
	return true
}

// expect takes a token of the kind, or fails.
func (p *parser) expect(k tokenKind) bool {
	if !p.failed && p.tok.kind != k {
		p.fail("expected '%s'", operatorText(k))
	}
	return p.accept(k)
}

// fail reports a syntax error at the current token and enters the failed
// state. What it expected is lost when the token is illegal by itself.
func (p *parser) fail(format string, args ...any) *diag.Diagnostic {
	d := &diag.Diagnostic{}
	switch {
	case p.failed:
	case p.tok.kind == tokIllegal:
		d = p.diags.Errorf(p.tok.span, "%s", p.tok.err)
		if p.tok.hint != "" {
			d.Hint("%s", p.tok.hint)
		}
		p.lost = p.lost || p.tok.open
	default:
		d = p.diags.Errorf(p.tok.span, format+", found "+escapeFormat(p.tok.describe(p.src)), args...)
	}
	p.failed = true
	return d
}

func escapeFormat(s string) string { return strings.ReplaceAll(s, "%", "%%") }

// failAt reports a syntax error at a place and enters the failed state.
func (p *parser) failAt(at diag.Span, format string, args ...any) *diag.Diagnostic {
	d := &diag.Diagnostic{}
	if !p.failed {
		d = p.diags.Errorf(at, format, args...)
	}
	p.failed = true
	return d
}

// unsupported reports a construct of bpftrace that does not exist here yet.
func (p *parser) unsupported(at diag.Span, what string) *diag.Diagnostic {
	if p.failed {
		return &diag.Diagnostic{}
	}
	return p.diags.Errorf(at, "not supported yet: %s", what)
}

// since is the span from an offset to the end of the last token taken.
func (p *parser) since(start int) diag.Span {
	return diag.Span{Start: start, End: max(start, p.last)}
}

// enter counts a level of nesting and reports whether it is allowed. Each call
// needs a leave.
func (p *parser) enter() bool {
	p.depth++
	if p.depth > maxNesting {
		p.failAt(p.tok.span, "nested too deeply, the limit is %d levels", maxNesting)
	}
	return !p.failed
}

func (p *parser) leave() { p.depth-- }

// skipBalanced takes tokens up to the one that closes the bracket that is the
// current token, inclusive.
func (p *parser) skipBalanced() {
	depth := 0
	for !p.is(tokEOF) {
		switch p.tok.kind {
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			depth--
		}
		p.advance()
		if depth <= 0 {
			return
		}
	}
}

// sync leaves the failed state: it takes tokens to the end of the statement,
// but not a '}' that closes the block around it.
func (p *parser) sync() {
	p.failed = false
	for !p.is(tokEOF) && !p.is('}') {
		if p.is(';') {
			p.advance()
			return
		}
		switch p.tok.kind {
		case '(', '[':
			p.skipInside()
		case '{':
			p.skipBalanced()
			return
		default:
			p.advance()
		}
	}
}

// skipInside takes a bracketed group, but stops at what cannot be inside one:
// the bracket has probably lost its partner.
func (p *parser) skipInside() {
	depth := 0
	for !p.is(tokEOF) && !p.is(';') && !p.is('{') && !p.is('}') {
		switch p.tok.kind {
		case '(', '[':
			depth++
		case ')', ']':
			depth--
		}
		p.advance()
		if depth <= 0 {
			return
		}
	}
}

// script parses the whole text.
func (p *parser) script() *scriptNode {
	s := &scriptNode{types: p.types}
	for !p.is(tokEOF) && !p.diags.Full() {
		start := p.tok.span.Start
		p.item(s)
		if p.failed {
			p.failed = false
			p.skipItem()
		}
		if p.tok.span.Start == start && !p.is(tokEOF) {
			p.advance() // always move on
		}
	}
	return s
}

// skipItem takes tokens until a block ends.
func (p *parser) skipItem() {
	for !p.is(tokEOF) {
		if p.is('{') {
			p.skipBalanced()
			return
		}
		if p.is('}') {
			p.advance()
			return
		}
		p.advance()
	}
}

// item parses one thing at the top level.
func (p *parser) item(s *scriptNode) {
	start := p.tok.span.Start
	switch {
	case p.is(tokIllegal) && p.tok.open:
		p.fail("expected a probe")
	case start < len(p.src.Text) && p.src.Text[start] == '#':
		p.preprocessor(s)
	case p.is(';'): // behind a definition
		p.advance()
	case p.tok.kind != tokIdent || p.peek().kind == ':':
		p.probe(s)
	case p.isWord("config") && p.peek().kind == '=':
		p.configBlock(s)
	case p.isWord("let"):
		p.mapDeclaration(s)
	case p.isWord("import"):
		s.foreign = true
		p.unsupported(p.tok.span, "import")
		for !p.is(';') && !p.is(tokEOF) && !p.is('{') {
			p.advance()
		}
		p.accept(';')
	case p.isWord("macro"):
		p.macroDef(s)
	case p.isWord("fn"):
		p.function(s)
	case p.isWord("struct"), p.isWord("union"), p.isWord("enum"), p.isWord("typedef"):
		if len(s.probes) > 0 {
			p.diags.Errorf(p.tok.span, "definitions of C must come before probes")
		}
		p.cDefinition()
	default:
		p.probe(s)
	}
}

// configBlock parses "config = { name=value; ... }".
func (p *parser) configBlock(s *scriptNode) {
	at := p.tok.span
	if len(s.probes) > 0 || len(s.decls) > 0 {
		p.diags.Errorf(at, "the config block must come before probes and map declarations")
	}
	p.advance()
	p.expect('=')
	p.expect('{')
	for !p.failed && !p.is('}') {
		c := &configNode{name: p.tok.text, span: p.tok.span}
		if !p.is(tokIdent) {
			p.fail("expected the name of a setting")
			return
		}
		p.advance()
		p.expect('=')
		switch p.tok.kind {
		case tokInt, tokString, tokIdent:
			c.value = p.tok
			c.span = c.span.To(p.tok.span)
			p.advance()
		default:
			p.fail("expected a value")
		}
		if !p.failed {
			s.config = append(s.config, c)
		}
		if !p.is('}') {
			p.expect(';')
		}
	}
	p.expect('}')
}

// mapDeclaration parses "let @name = kind(entries);".
func (p *parser) mapDeclaration(s *scriptNode) {
	start := p.tok.span.Start
	p.advance()
	if !p.is(tokMap) {
		p.fail("expected a map").Hint("outside of a probe, let declares a map: let @name = percpuhash(1000);")
		return
	}
	d := &mapDecl{name: p.tok.text, nameSpan: p.tok.span}
	p.advance()
	p.expect('=')
	d.kind, d.kindSpan = p.tok.text, p.tok.span
	if !p.is(tokIdent) {
		p.fail("expected a kind of map")
	}
	p.accept(tokIdent)
	p.expect('(')
	if !p.is(tokInt) {
		p.fail("expected the largest number of entries")
	}
	d.entries = p.tok.value
	p.accept(tokInt)
	p.expect(')')
	d.span = p.since(start)
	p.accept(';')
	if !p.failed {
		s.decls = append(s.decls, d)
	}
}

// probe parses attach points, a predicate and a block.
func (p *parser) probe(s *scriptNode) {
	n := &probeNode{span: p.tok.span}
	errors := p.diags.ErrorCount()
	for {
		ap, ok := p.attachPoint()
		if ok {
			n.attach = append(n.attach, ap)
		}
		if !p.accept(',') || p.is('{') || p.is('/') {
			break
		}
	}
	n.span.End = p.last
	if p.failed {
		return
	}
	if p.is('/') {
		p.advance()
		n.predicate = p.expression()
		if !p.failed && !p.is('/') {
			p.fail("expected '/' to close the predicate")
		}
		p.accept('/')
	}
	if !p.failed && !p.is('{') {
		if p.diags.ErrorCount() > errors {
			p.failed = true // what is wrong was said
			return
		}
		p.fail("expected '{'").Hint("a probe is: uprobe:PATH:FUNCTION /predicate/ { statements }")
		return
	}
	n.body = p.block()
	if n.body != nil {
		s.probes = append(s.probes, n)
	}
}
