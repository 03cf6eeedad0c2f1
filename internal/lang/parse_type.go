package lang

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
	case t.text == "typeof" || t.text == "typeinfo":
		if !skipGroup(&l) {
			return false
		}
		known = true
	case t.text == "struct" || t.text == "union" || t.text == "enum":
		if t = l.next(); t.kind != tokIdent {
			return false
		}
		known = true
	case isCWord[t.text]:
		for l2 := l; isCWord[l2.next().text]; l2 = l {
			l.next()
		}
		known = true
	case otherTypes[t.text] || p.types.typedefs[t.text] != nil:
		known = true
	case !known && isValueName(t.text):
		return false
	}
	t, suffixed, ok := skipSuffixes(&l)
	switch next := l; {
	case !ok:
		return known && suffixed
	case t.kind != ')':
		return false
	case known:
		return startsOperand(next.next().kind)
	}
	next := l.next().kind
	return startsOperand(next) && (suffixed || p.inMacro || next != '(' && next != '-' && next != '*' && next != '&')
}

// skipSuffixes passes the '*' and '[n]' behind a type, and returns the token that
// follows. It fails where something else is in brackets.
func skipSuffixes(l *lexer) (t token, any, ok bool) {
	for t = l.next(); t.kind == '*' || t.kind == '['; t = l.next() {
		if t.kind == '[' {
			if t = l.next(); t.kind == tokInt {
				t = l.next()
			}
			if t.kind != ']' {
				return t, any, false
			}
		}
		any = true
	}
	return t, any, true
}

// skipGroup passes "( ... )".
func skipGroup(l *lexer) bool {
	depth := 0
	for {
		switch l.next().kind {
		case '(':
			depth++
		case ')':
			depth--
		case tokEOF:
			return false
		}
		if depth == 0 {
			return true
		}
	}
}

func startsOperand(k tokenKind) bool {
	switch k {
	case tokIdent, tokInt, tokString, tokVar, tokMap, tokParam, tokParamCount, '(', '{':
		return true
	case '-', '!', '~', '*', '&', tokInc, tokDec: // as bpftrace reads them after "(name)"
		return true
	}
	return false
}

func (p *parser) cast() expr {
	start := p.tok.span.Start
	p.advance()
	c := &castExpr{ref: p.typeName()}
	p.expect(')')
	c.x = p.unary()
	c.span = p.since(start)
	return c
}

// otherTypes are types that are no numbers.
var otherTypes = map[string]bool{
	"string": true, "buffer": true, "inet": true, "void": true, "username": true, "timestamp": true, "ustack_t": true,
	"usym_t": true, "mac_address": true, "macaddr_t": true, "float": true, "double": true,
}

// typeName parses a type: a name, or struct NAME, or typeof(...), and what makes
// pointers and arrays of it, in the order in which it is written.
func (p *parser) typeName() *typeRef {
	start := p.tok.span.Start
	r := &typeRef{name: p.tok.text}
	word := p.tok.text
	if !p.expectWord("a type") {
		r.name = ""
		return r
	}
	switch {
	case (word == "typeof" || word == "typeinfo") && p.is('('):
		r.name = ""
		p.advance()
		p.typeOrExpression(r)
		p.expect(')')
	case word == "struct" || word == "union" || word == "enum":
		r.tag, r.name = word, p.tok.text
		p.expectWord("the name of a " + word)
	case isCWord[word]:
		r.name = p.cWords(word)
	}
	p.typeMods(r)
	r.span = p.since(start)
	return r
}

// expectWord takes an identifier.
func (p *parser) expectWord(what string) bool {
	if !p.failed && !p.is(tokIdent) {
		p.fail("expected %s", what)
	}
	return p.accept(tokIdent)
}

// typeMods parses '*' and '[n]' behind a type.
func (p *parser) typeMods(r *typeRef) {
	for !p.failed && len(r.mods) < maxNesting {
		switch {
		case p.accept('*'):
			r.mods = append(r.mods, typeMod{pointer: true})
		case p.is('['):
			p.advance()
			m := typeMod{open: true}
			if p.is(tokInt) {
				m = typeMod{count: p.tok.value}
				p.advance()
			}
			p.expect(']')
			r.mods = append(r.mods, m)
		case p.isWord("const"), p.isWord("volatile"):
			p.advance()
		default:
			return
		}
	}
}

// isType looks whether a type stands up to one of the tokens. A bare name is one,
// unless it is called.
func (p *parser) isType(ends ...tokenKind) bool {
	if !p.is(tokIdent) || p.isWord("if") || p.isWord("sizeof") || p.isWord("offsetof") || p.isWord("comptime") {
		return false
	}
	l := p.lex
	t := p.tok
	switch {
	case t.text == "typeof" || t.text == "typeinfo":
		if !skipGroup(&l) {
			return false
		}
	case t.text == "struct" || t.text == "union" || t.text == "enum":
		l.next()
	case isCWord[t.text]:
		for l2 := l; isCWord[l2.next().text]; l2 = l {
			l.next()
		}
	case isValueName(t.text) && !otherTypes[t.text]:
		if _, known := typeNames[t.text]; !known {
			return false
		}
	}
	t = l.next()
	for t.kind == '*' || t.kind == '[' {
		if t.kind == '[' {
			if t = l.next(); t.kind == tokInt {
				t = l.next()
			}
			if t.kind != ']' {
				return false
			}
		}
		t = l.next()
	}
	for _, k := range ends {
		if t.kind == k {
			return true
		}
	}
	return false
}

// typeOrExpression parses what sizeof and typeof take.
func (p *parser) typeOrExpression(r *typeRef) {
	if p.isType(')', ',') {
		r.in = p.typeName()
		return
	}
	r.of = p.expression()
}

// sizeof parses sizeof(x) and offsetof(x, field.field).
func (p *parser) sizeof() expr {
	start := p.tok.span.Start
	s := &sizeofExpr{offset: p.isWord("offsetof")}
	p.advance()
	p.expect('(')
	r := &typeRef{}
	p.typeOrExpression(r)
	s.ref, s.x = r.in, r.of
	if s.offset {
		p.expect(',')
		for !p.failed {
			s.fields = append(s.fields, p.tok.text)
			p.expectWord("the name of a field")
			if !p.accept('.') {
				break
			}
		}
	}
	p.expect(')')
	s.span = p.since(start)
	return s
}

// macro parses "macro name(a, $b, @c) { ... }".
func (p *parser) macroDef(s *scriptNode) {
	start := p.tok.span.Start
	p.advance()
	m := &macroNode{name: p.tok.text}
	p.inMacro = true
	defer func() { p.inMacro = false }()
	p.expectWord("the name of the macro")
	seen := map[string]bool{}
	if p.accept('(') {
		for !p.failed && !p.is(')') {
			t := p.tok
			base := exprBase{span: t.span}
			switch t.kind {
			case tokIdent:
				m.params = append(m.params, &nameExpr{exprBase: base, name: t.text})
			case tokVar:
				m.params = append(m.params, &varExpr{exprBase: base, name: t.text})
			case tokMap:
				m.params = append(m.params, &mapExpr{exprBase: base, name: t.text, nameAt: t.span})
			default:
				p.fail("expected a parameter: a name, a $variable or a @map")
			}
			if key := p.src.Slice(t.span); seen[key] {
				p.diags.Errorf(t.span, "the macro has two parameters %s", key)
			} else {
				seen[key] = true
			}
			p.advance()
			if !p.accept(',') {
				break
			}
		}
		p.expect(')')
	}
	m.span = p.since(start)
	if m.body = p.block(); m.body != nil && !p.failed {
		s.macros = append(s.macros, m)
	}
}

// function parses "fn name($a : type, ...) : type { ... }".
func (p *parser) function(s *scriptNode) {
	start := p.tok.span.Start
	p.advance()
	f := &fnNode{name: p.tok.text}
	p.expectWord("the name of the function")
	p.expect('(')
	for !p.failed && !p.is(')') {
		f.params = append(f.params, p.fnParam())
		if !p.accept(',') {
			break
		}
	}
	p.expect(')')
	if p.accept(':') {
		f.result = p.typeName()
	}
	f.span = p.since(start)
	if f.body = p.block(); f.body != nil && !p.failed {
		s.fns = append(s.fns, f)
	}
}

func (p *parser) fnParam() *declStmt {
	v := &varExpr{exprBase: exprBase{span: p.tok.span}, name: p.tok.text}
	d := &declStmt{v: v}
	start := p.tok.span.Start
	if !p.is(tokVar) {
		p.fail("expected a parameter, as $name : type")
		return d
	}
	p.advance()
	p.expect(':')
	d.ref = p.typeName()
	d.span = p.since(start)
	return d
}

// defined is what a name stands for that #define has given a meaning.
func (p *parser) defined(t token) (expr, bool) {
	text, ok := p.defines[t.text]
	if !ok || p.expanding[t.text] || p.failed {
		return nil, false
	}
	p.advance()
	outerLex, outerTok, outerLast := p.lex, p.tok, p.last
	if p.expanding == nil {
		p.expanding = map[string]bool{}
	}
	p.expanding[t.text] = true
	p.lex = lexer{text: p.src.Text[:text.End], pos: text.Start}
	p.advance()
	x := p.expression()
	if !p.failed && !p.is(tokEOF) {
		p.fail("expected the end of the definition")
	}
	delete(p.expanding, t.text)
	p.lex, p.tok, p.last = outerLex, outerTok, outerLast
	return x, true
}
