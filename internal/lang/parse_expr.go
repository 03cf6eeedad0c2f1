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
		p.unary()
		p.unsupported(p.since(start.Start), "reading memory through a pointer")
		return p.bad(p.since(start.Start))
	case '&':
		p.advance()
		p.unary()
		p.unsupported(p.since(start.Start), "the address of a variable or map")
		return p.bad(p.since(start.Start))
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
		p.diags.Errorf(opAt, "'%s' needs a variable or a map", operatorText(op))
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
			if !p.is(tokIdent) && !p.is(tokInt) {
				p.fail("expected the name of a field")
				return x
			}
			p.advance()
			p.unsupported(p.since(op.span.Start), "fields of structures and tuples")
			x = p.bad(p.since(start))
		case '[':
			p.advance()
			p.expression()
			p.expect(']')
			p.unsupported(p.since(op.span.Start), "elements of arrays")
			x = p.bad(p.since(start))
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
		p.unsupported(t.span, "blocks as expressions")
		p.skipBalanced()
		return p.bad(p.since(t.span.Start))
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
		p.unsupported(t.span, "if as an expression").Hint("use: condition ? value : other")
		p.ifStatement()
		return p.bad(p.since(t.span.Start))
	case "sizeof", "offsetof", "typeof", "typeinfo":
		p.unsupported(t.span, t.text)
		p.advance()
		if p.is('(') {
			p.skipBalanced()
		}
		return p.bad(p.since(t.span.Start))
	case "comptime":
		p.unsupported(t.span, t.text)
		p.advance()
		p.unary()
		return p.bad(p.since(t.span.Start))
	}
	p.advance()
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
			if t, ok := m.keys[0].(*tupleExpr); ok {
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
		p.unsupported(p.tok.span, "records")
		p.failed = true
		return p.bad(p.tok.span)
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

// isCast looks ahead from a '(': a type in parentheses and then the start of
// an operand is a cast. A name that is a value as well as a word for a type is
// a value, as in "(pid) * 2".
func (p *parser) isCast() bool {
	l := p.lex
	t := l.next()
	if t.kind != tokIdent {
		return false
	}
	_, known := typeNames[t.text]
	switch {
	case t.text == "struct" || t.text == "union" || t.text == "enum":
		if t = l.next(); t.kind != tokIdent {
			return false
		}
		known = true
	case otherTypes[t.text]:
		known = true
	case !known && isValueName(t.text):
		return false
	}
	t = l.next()
	for suffixed := false; t.kind == '*' || t.kind == '['; suffixed = true {
		if t.kind == '[' {
			if t = l.next(); t.kind == tokInt {
				t = l.next()
			}
			if t.kind != ']' {
				return known && suffixed
			}
		}
		t = l.next()
	}
	if t.kind != ')' {
		return false
	}
	return known || startsOperand(l.next().kind)
}

func startsOperand(k tokenKind) bool {
	switch k {
	case tokIdent, tokInt, tokString, tokVar, tokMap, tokParam, tokParamCount, '(':
		return true
	case '-', '!', '~', '*', '&': // as bpftrace reads them after "(name)"
		return true
	}
	return false
}

func (p *parser) cast() expr {
	start := p.tok.span.Start
	p.advance()
	c := &castExpr{}
	c.to, c.typeAt = p.typeName()
	p.expect(')')
	c.x = p.unary()
	c.span = p.since(start)
	return c
}

// otherTypes are types of bpftrace that do not exist here.
var otherTypes = map[string]bool{"string": true, "buffer": true, "inet": true, "void": true, "username": true}

// typeName parses a type and its place.
func (p *parser) typeName() (Type, diag.Span) {
	start := p.tok.span.Start
	what := ""
	name := p.tok
	if !p.is(tokIdent) {
		p.fail("expected a type")
		return badType, name.span
	}
	t, ok := typeNames[name.text]
	p.advance()
	switch {
	case (name.text == "typeof" || name.text == "typeinfo") && p.is('('):
		what = name.text
		p.skipBalanced()
	case name.text == "struct" || name.text == "union" || name.text == "enum":
		what = "C types"
		p.expect(tokIdent)
	case otherTypes[name.text]:
		what = "the type " + name.text
	}
	for p.is('*') || p.is('[') {
		if p.accept('*') {
			what = "pointer types"
			continue
		}
		what = "array types"
		p.skipBalanced()
	}
	at := p.since(start)
	switch {
	case what != "":
		p.unsupported(at, what)
		return badType, at
	case !ok && !p.failed:
		d := p.diags.Errorf(at, "unknown type '%s'", name.text)
		if near := nearest(name.text, typeNames); near != "" {
			d.Hint("did you mean %s?", near)
		}
		return badType, at
	}
	return t, at
}
