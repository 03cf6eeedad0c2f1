package lang

import "trapless/internal/diag"

// block parses "{ statements }". It returns nil when there is no block.
func (p *parser) block() *blockStmt {
	b := &blockStmt{span: p.tok.span}
	if !p.expect('{') {
		return nil
	}
	p.enter()
	defer p.leave()
	for !p.is('}') && !p.is(tokEOF) && !p.diags.Full() {
		start := p.tok.span.Start
		if s := p.statement(); s != nil {
			b.stmts = append(b.stmts, s)
		}
		if p.failed {
			p.sync()
			if p.tok.span.Start == start && !p.is('}') && !p.is(tokEOF) {
				p.advance()
			}
		}
	}
	if !p.is('}') {
		if !p.diags.Full() && !p.lost {
			p.fail("expected '}'").Note(b.span, "to close this block")
		}
		return b
	}
	p.advance()
	b.span = p.since(b.span.Start)
	return b
}

// statement parses one statement with its end. It returns nil for an empty
// one, and for one that was only reported.
func (p *parser) statement() stmt {
	start := p.tok.span
	switch {
	case p.accept(';'):
		return nil
	case p.is('{'):
		if b := p.block(); b != nil {
			return b
		}
		return nil
	case p.is(tokIdent):
		if s, ok := p.keywordStatement(start); ok {
			return s
		}
	}
	return p.simpleStatement()
}

// keywordStatement parses a statement that starts with a keyword. It reports
// false when the current word is none.
func (p *parser) keywordStatement(start diag.Span) (stmt, bool) {
	switch p.tok.text {
	case "if":
		return p.ifStatement(), true
	case "let":
		return p.let(), true
	case "return":
		p.advance()
		r := &returnStmt{}
		if !p.is(';') && !p.is('}') {
			r.value = p.expression()
		}
		r.span = p.since(start.Start)
		p.endStatement()
		return r, true
	case "while":
		return p.while(), true
	case "for":
		return p.forLoop(), true
	case "unroll":
		return p.unroll(), true
	case "break", "continue":
		s := &jumpStmt{span: start, again: p.tok.text == "continue"}
		p.advance()
		p.endStatement()
		return s, true
	case "import":
		p.unsupported(start, p.tok.text)
		p.sync()
		return nil, true
	case "_":
		if p.peek().kind != '=' {
			return nil, false
		}
		p.advance()
		p.advance()
		s := &exprStmt{x: p.expression(), discard: true}
		p.endStatement()
		return s, true
	}
	return nil, false
}

// endStatement takes the ';' after a statement; before '}' it may be missing.
// Where it is forgotten and another statement seems to follow, that is the
// whole error.
func (p *parser) endStatement() {
	if p.failed || p.accept(';') || p.is('}') || p.is(tokEOF) {
		return
	}
	if p.tok.kind == tokIllegal {
		p.fail("expected ';'")
		return
	}
	at := diag.Span{Start: p.last, End: p.last}
	newLine := p.src.Pos(p.last).Line != p.src.Pos(p.tok.span.Start).Line
	if p.is(tokVar) || p.is(tokMap) || newLine && p.is(tokIdent) {
		p.diags.Errorf(at, "expected ';' after the statement")
		return
	}
	p.failAt(at, "expected ';' after the statement, found %s", p.tok.describe(p.src))
}

// simpleStatement parses an assignment or an expression.
func (p *parser) simpleStatement() stmt {
	start := p.tok.span.Start
	x := p.expression()
	if p.failed {
		return nil
	}
	if p.is('=') || p.is(tokAssignOp) {
		s := &assignStmt{opAt: p.tok.span, target: x}
		if p.is(tokAssignOp) {
			s.op = p.tok.op
		}
		p.advance()
		s.value = p.expression()
		s.span = p.since(start)
		p.endStatement()
		switch x.(type) {
		case *varExpr, *mapExpr, *badExpr:
			return s
		}
		p.diags.Errorf(x.base().span, "invalid assignment target: only a variable or a map can be assigned to")
		return nil
	}
	open := !p.is(';')
	p.endStatement()
	return branches(x, open)
}

// branches turns "cond ? x : y" that stands as a statement into an if, where
// x and y may be calls without a value. What may be the value of a block stays.
func branches(x expr, open bool) stmt {
	c, ok := x.(*condExpr)
	if !ok || c.x == c.cond {
		return &exprStmt{x: x, open: open}
	}
	return &ifStmt{span: c.span, cond: c.cond, then: branches(c.x, open), els: branches(c.y, open)}
}

// let parses "let $name", "let $name: type" and both with "= value".
func (p *parser) let() stmt {
	start := p.tok.span.Start
	p.advance()
	if !p.is(tokVar) {
		d := p.fail("expected a variable after let")
		if p.is(tokMap) {
			d.Hint("maps are declared outside of probes")
		}
		return nil
	}
	v := &varExpr{exprBase: exprBase{span: p.tok.span}, name: p.tok.text}
	d := &declStmt{v: v}
	p.advance()
	if p.accept(':') {
		d.ref = p.typeName()
	}
	d.span = p.since(start)
	if !p.is('=') {
		p.endStatement()
		return d
	}
	s := &assignStmt{opAt: p.tok.span, target: v, decl: d}
	p.advance()
	s.value = p.expression()
	s.span = p.since(start)
	p.endStatement()
	return s
}

// while parses "while (condition) { statements }".
func (p *parser) while() stmt {
	s := &whileStmt{span: p.tok.span}
	p.advance()
	s.cond = p.condition()
	if s.body = p.block(); s.body == nil {
		return nil
	}
	return s
}

// forLoop parses "for ($v : @map) { }" and "for ($v : from..to) { }". The
// parentheses may be missing.
func (p *parser) forLoop() stmt {
	at := p.tok.span
	p.advance()
	open := p.accept('(')
	v := &varExpr{exprBase: exprBase{span: p.tok.span}, name: p.tok.text}
	if !p.is(tokVar) {
		p.fail("expected a variable").Hint("a loop is: for ($kv : @map) { } or for ($i : 0..10) { }")
		return nil
	}
	p.advance()
	p.expect(':')
	from := p.unary()
	m, isMap := from.(*mapExpr)
	var to expr
	if !isMap || p.is(tokDotDot) {
		isMap = false
		if p.expect(tokDotDot) {
			to = p.unary()
		}
	}
	if open {
		p.expect(')')
	}
	body := p.block()
	switch {
	case body == nil:
		return nil
	case isMap:
		return &eachStmt{span: at, v: v, m: m, body: body}
	}
	return &rangeStmt{span: at, v: v, from: from, to: to, body: body}
}

// unroll parses "unroll (count) { statements }".
func (p *parser) unroll() stmt {
	s := &unrollStmt{span: p.tok.span}
	p.advance()
	s.count = p.condition()
	if s.body = p.block(); s.body == nil {
		return nil
	}
	return s
}

// ifStatement parses if, else if and else.
func (p *parser) ifStatement() stmt {
	var first, last *ifStmt
	for n := 0; ; n++ {
		s := &ifStmt{span: p.tok.span}
		if n == maxChain {
			p.failAt(p.tok.span, "too many branches, the limit is %d", maxChain)
			return nil
		}
		p.advance()
		s.cond = p.condition()
		b := p.block()
		if b == nil {
			return nil
		}
		s.then = b
		if first == nil {
			first = s
		} else {
			last.els = s
		}
		last = s
		if !p.isWord("else") {
			return first
		}
		p.advance()
		if !p.isWord("if") {
			break
		}
	}
	if !p.is('{') {
		p.fail("expected '{' or if after else")
		return nil
	}
	if b := p.block(); b != nil {
		last.els = b
	}
	return first
}

// condition parses the condition of an if: an expression in parentheses, or
// one without operators.
func (p *parser) condition() expr {
	if p.accept('(') {
		x := p.expression()
		p.expect(')')
		if !p.failed && !p.is('{') {
			p.fail("expected '{' after the condition").Hint("put parentheses around the whole condition")
		}
		return x
	}
	x := p.unary()
	if !p.failed && !p.is('{') {
		p.fail("expected '{' after the condition").Hint("put parentheses around the condition")
	}
	return x
}
