package lang

import "trapless/internal/diag"

// precedence of binary operators; a higher one binds closer. It is C's.
func precedence(k tokenKind) int {
	switch k {
	case tokOrOr:
		return 1
	case tokAndAnd:
		return 2
	case '|':
		return 3
	case '^':
		return 4
	case '&':
		return 5
	case tokEq, tokNe:
		return 6
	case '<', '>', tokLe, tokGe:
		return 7
	case tokShl, tokShr:
		return 8
	case '+', '-':
		return 9
	case '*', '/', '%':
		return 10
	}
	return 0
}

func (p *parser) bad(at diag.Span) expr { return &badExpr{exprBase{span: at, typ: badType}} }

// expression parses an expression, the conditional operator included.
func (p *parser) expression() expr {
	if !p.enter() {
		defer p.leave()
		return p.bad(p.tok.span)
	}
	defer p.leave()
	x := p.binary(1, p.unary())
	if !p.accept('?') {
		return x
	}
	c := &condExpr{cond: x}
	if p.accept(':') {
		c.x = x // x ?: y
	} else {
		c.x = p.expression()
		p.expect(':')
	}
	c.y = p.expression()
	c.span = p.since(x.base().span.Start)
	return c
}

// binary continues an expression whose first operand was parsed, as far as
// operators bind at least as close as min.
func (p *parser) binary(min int, x expr) expr {
	for n := 0; !p.failed; n++ {
		prec := precedence(p.tok.kind)
		if prec < min || prec == 0 || p.closesPredicate() {
			return x
		}
		if n == maxChain {
			p.failAt(p.tok.span, "expression is too long, the limit is %d operators", maxChain)
			return x
		}
		b := &binaryExpr{op: p.tok.kind, opAt: p.tok.span, x: x}
		p.advance()
		b.y = p.binary(prec+1, p.unary())
		b.span = p.since(x.base().span.Start)
		x = b
	}
	return x
}

// closesPredicate reports whether the current token is the '/' before a block,
// which is no division.
func (p *parser) closesPredicate() bool { return p.is('/') && p.peek().kind == '{' }

// unary parses prefix operators.
func (p *parser) unary() expr {
	start := p.tok.span
	if !p.enter() {
		defer p.leave()
		return p.bad(start)
	}
	defer p.leave()
	switch op := p.tok.kind; op {
	case '-', '!', '~':
		p.advance()
		x := p.unary()
		return &unaryExpr{exprBase: exprBase{span: p.since(start.Start)}, op: op, x: x}
	case tokInc, tokDec:
		p.advance()
		x := p.unary()
		return p.increment(op, false, x, p.since(start.Start), start)
	case '*':
		p.advance()
		x := p.unary()
		return &derefExpr{exprBase{span: p.since(start.Start)}, x}
	case '&':
		p.advance()
		x := p.unary()
		return &addrExpr{exprBase{span: p.since(start.Start)}, x}
	}
	return p.postfix(p.primary())
}

func (p *parser) increment(op tokenKind, post bool, x expr, at, opAt diag.Span) expr {
	switch x.(type) {
	case *varExpr, *mapExpr:
		return &incExpr{exprBase: exprBase{span: at}, op: op, post: post, x: x}
	case *badExpr:
		return p.bad(at)
	}
	if !p.failed {
		p.diags.Errorf(opAt, "The %s operator must be applied to a map or variable", operatorText(op))
	}
	return p.bad(at)
}

// postfix parses what may follow an operand.
func (p *parser) postfix(x expr) expr {
	start := x.base().span.Start
	for !p.failed {
		op := p.tok
		switch op.kind {
		case '.', tokArrow:
			p.advance()
			f := &fieldExpr{x: x, name: p.tok.text, nameAt: p.tok.span}
			if !p.is(tokIdent) && !p.is(tokInt) {
				p.fail("expected the name of a field")
				return x
			}
			p.advance()
			f.span = p.since(start)
			x = f
		case '[':
			p.advance()
			i := &indexExpr{x: x, index: p.expression()}
			p.expect(']')
			i.span = p.since(start)
			x = i
		case tokInc, tokDec:
			p.advance()
			x = p.increment(op.kind, true, x, p.since(start), op.span)
		default:
			return x
		}
	}
	return x
}

// primary parses an operand.
func (p *parser) primary() expr {
	t := p.tok
	base := exprBase{span: t.span}
	if p.failed {
		return p.bad(t.span)
	}
	switch t.kind {
	case '(':
		return p.parenthesis()
	case '{':
		b := p.block()
		if b == nil {
			return p.bad(t.span)
		}
		return valueOfBlock(b, b.span)
	case tokIdent:
		return p.word()
	case tokMap:
		return p.mapRef()
	case tokVar:
		p.advance()
		return &varExpr{exprBase: base, name: t.text}
	case tokParam:
		p.advance()
		return &paramExpr{base, t.text}
	case tokParamCount:
		p.advance()
		return &paramCountExpr{base}
	case tokInt:
		p.advance()
		return &intExpr{base, t.value}
	case tokString:
		p.advance()
		return &strExpr{base, t.text}
	}
	d := p.fail("expected an expression")
	if t.kind == '=' {
		d.Hint("'==' compares")
	}
	return p.bad(t.span)
}

// word parses what starts with an identifier: a call, a builtin, or a keyword.
func (p *parser) word() expr {
	t := p.tok
	switch t.text {
	case "true", "false":
		p.advance()
		return &boolExpr{exprBase{span: t.span}, t.text == "true"}
	case "if":
		return p.ifExpression()
	case "sizeof", "offsetof":
		if p.peek().kind == '(' {
			return p.sizeof()
		}
	case "typeof", "typeinfo":
		if p.peek().kind == '(' {
			x := &typeofExpr{ref: p.typeName()}
			x.span = x.ref.span
			return x
		}
	case "comptime":
		p.advance()
		x := p.unary()
		return &comptimeExpr{exprBase{span: p.since(t.span.Start)}, x}
	}
	if x, ok := p.defined(t); ok {
		return x
	}
	p.advance()
	if p.is('!') && p.peek().kind == '(' { // name!() calls a macro
		p.advance()
	}
	if !p.is('(') {
		return &nameExpr{exprBase: exprBase{span: t.span}, name: t.text}
	}
	c := &callExpr{name: t.text, nameAt: t.span}
	p.advance()
	if !p.is(')') {
		c.args = p.list()
	}
	p.expect(')')
	c.span = p.since(t.span.Start)
	return c
}

// ifExpression parses "if condition { value } else { value }".
func (p *parser) ifExpression() expr {
	start := p.tok.span.Start
	s := p.ifStatement()
	if p.failed || s == nil {
		return p.bad(p.since(start))
	}
	if x := valueOfStmt(s); x != nil {
		return x
	}
	return &blockExpr{exprBase: exprBase{span: p.since(start)}, body: &blockStmt{span: p.since(start), stmts: []stmt{s}}}
}

// list parses expressions with commas between them.
func (p *parser) list() []expr {
	l := []expr{p.expression()}
	for p.accept(',') {
		l = append(l, p.expression())
	}
	return l
}

func (p *parser) mapRef() expr {
	m := &mapExpr{name: p.tok.text, nameAt: p.tok.span}
	p.advance()
	if p.accept('[') {
		m.indexed = true
		m.keys = p.list()
		p.expect(']')
		if len(m.keys) == 1 {
			if t, ok := m.keys[0].(*tupleExpr); ok && t.names == nil && len(t.elems) > 1 {
				m.keys = t.elems // @m[(a, b)] is @m[a, b]
			}
		}
	}
	m.span = p.since(m.nameAt.Start)
	return m
}

// parenthesis parses a cast, a tuple, a record, or an expression in
// parentheses.
func (p *parser) parenthesis() expr {
	start := p.tok.span.Start
	if p.isCast() {
		return p.cast()
	}
	p.advance()
	if p.is(tokIdent) && p.peek().kind == '=' {
		return p.record(start)
	}
	if p.accept(')') {
		return &tupleExpr{exprBase: exprBase{span: p.since(start)}}
	}
	x := p.expression()
	if !p.is(',') {
		p.expect(')')
		return x
	}
	t := &tupleExpr{elems: []expr{x}}
	for p.accept(',') && !p.is(')') {
		t.elems = append(t.elems, p.expression())
	}
	p.expect(')')
	t.span = p.since(start)
	return t
}

// record parses "name=value, ...)".
func (p *parser) record(start int) expr {
	t := &tupleExpr{names: []string{}}
	for !p.failed && !p.is(')') {
		name := p.tok
		if !p.expect(tokIdent) || !p.expect('=') {
			break
		}
		for _, other := range t.names {
			if other == name.text {
				p.diags.Errorf(name.span, "the record has two fields '%s'", name.text)
			}
		}
		t.names, t.nameAt = append(t.names, name.text), append(t.nameAt, name.span)
		t.elems = append(t.elems, p.expression())
		if !p.accept(',') {
			break
		}
	}
	p.expect(')')
	t.span = p.since(start)
	return t
}
