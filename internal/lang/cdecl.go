package lang

import (
	"strings"

	"trapless/internal/diag"
)

// C's declarations, as a script may have them at its beginning: structs, unions,
// enumerations and typedefs. Layouts are those of the System V ABI for x86-64
// (AMD64 supplement, 3.1.2).

// cTypes are the types that a script declares.
type cTypes struct {
	tags     map[string]*Layout // "struct name", "union name"
	enums    map[string]*Enum   // "enum name"
	typedefs map[string]*Type
	consts   map[string]enumConst
}

// enumConst is a constant of an enumeration.
type enumConst struct {
	value uint64
	enum  *Enum
}

func newCTypes() *cTypes {
	return &cTypes{tags: map[string]*Layout{}, enums: map[string]*Enum{}, typedefs: map[string]*Type{}, consts: map[string]enumConst{}}
}

// isCWord are the words that C makes types of together.
var isCWord = set("unsigned signed long short int char const volatile _Bool struct_ __signed__")

// cWords takes the words behind the first and returns the name that typeNames
// has for all.
func (p *parser) cWords(first string) string {
	words := []string{first}
	for p.is(tokIdent) && isCWord[p.tok.text] {
		words = append(words, p.tok.text)
		p.advance()
	}
	n := map[string]int{}
	for _, w := range words {
		n[w]++
	}
	name := "int"
	switch {
	case n["_Bool"] > 0:
		return "bool"
	case n["char"] > 0:
		name = "char"
	case n["short"] > 0:
		name = "short"
	case n["long"] > 0:
		name = "long"
	case n["int"]+n["signed"]+n["unsigned"]+n["__signed__"] == 0: // const alone
		if p.is(tokIdent) {
			name = p.tok.text
			p.advance()
		}
	}
	if n["unsigned"] > 0 {
		return "unsigned " + name
	}
	return name
}

// cDefinition parses a definition of C at the top level.
func (p *parser) cDefinition() {
	switch p.tok.text {
	case "typedef":
		p.advance()
		base, ok := p.cSpecifier()
		for ok && !p.failed {
			name, t, at := p.cDeclarator(base)
			if name == "" {
				p.failAt(at, "expected the name of the type")
				break
			}
			p.types.typedefs[name] = &t
			if !p.accept(',') {
				break
			}
		}
		p.expect(';')
	default:
		p.cSpecifier()
		p.attributes(nil)
		p.accept(';')
	}
}

// cSpecifier parses what comes before the names: a basic type, a name, or a
// struct, union or enum with or without its definition.
func (p *parser) cSpecifier() (Type, bool) {
	for p.isWord("const") || p.isWord("volatile") || p.isWord("static") || p.isWord("extern") {
		p.advance()
	}
	t := p.tok
	if !p.is(tokIdent) {
		p.fail("expected a type")
		return badType, false
	}
	p.advance()
	switch {
	case t.text == "struct" || t.text == "union":
		return p.cStruct(t)
	case t.text == "enum":
		return p.cEnum(t)
	case isCWord[t.text]:
		name := p.cWords(t.text)
		if typ, ok := p.cType(name); ok {
			return typ, true
		}
		p.failAt(t.span, "Cannot resolve unknown type \"%s\"", name)
		return badType, false
	}
	if typ, ok := p.cType(t.text); ok {
		for p.isWord("const") || p.isWord("volatile") {
			p.advance()
		}
		return typ, true
	}
	p.failAt(t.span, "Cannot resolve unknown type \"%s\"", t.text).Hint("types of headers are not known here; declare what is needed")
	return badType, false
}

// cType finds a type by the name that C or a typedef gives it.
func (p *parser) cType(name string) (Type, bool) {
	if t := p.types.typedefs[name]; t != nil {
		return *t, true
	}
	if t, ok := typeNames[name]; ok {
		return t, true
	}
	if t, ok := typeAliases[name]; ok && t.Kind == Int {
		return t, true
	}
	return cBasic(name)
}

// cBasic are C's types besides those of typeNames.
func cBasic(name string) (Type, bool) {
	switch name {
	case "void":
		return noneType, true
	case "float":
		return Type{Kind: Float, Size: 4}, true
	case "double":
		return Type{Kind: Float, Size: 8}, true
	}
	return Type{}, false
}

// attributes takes "__attribute__((...))", and notes what it says of the layout.
func (p *parser) attributes(l *structLayout) {
	for p.isWord("__attribute__") && !p.failed {
		start := p.tok.span.Start
		p.advance()
		if !p.is('(') {
			p.fail("expected '(('")
			return
		}
		p.skipBalanced()
		if l == nil {
			continue
		}
		text := p.src.Text[start:p.last]
		if strings.Contains(text, "packed") {
			l.packed = true
		}
		if i := strings.Index(text, "aligned"); i >= 0 {
			n, _, err := digits(strings.TrimLeft(text[i+len("aligned"):], "_ (\t\n"), 10)
			if err == nil && n > 0 && n <= 4096 && n&(n-1) == 0 {
				l.least = int(n)
			}
		}
	}
}

// cStruct parses a struct or union behind its keyword.
func (p *parser) cStruct(keyword token) (Type, bool) {
	l := &structLayout{union: keyword.text == "union"}
	p.attributes(l)
	name := ""
	if p.is(tokIdent) {
		name = p.tok.text
		p.advance()
	}
	p.attributes(l)
	layout := p.types.tag(keyword.text, name)
	t := Type{Kind: Struct, Layout: layout}
	if !p.is('{') {
		if name == "" {
			p.fail("expected the name of the %s, or '{'", keyword.text)
		}
		return t, !p.failed
	}
	if layout.defined {
		p.diags.Errorf(keyword.span, "%s is defined twice", layout.Name)
		p.skipBalanced()
		return t, true
	}
	p.advance()
	if !p.enter() {
		p.leave()
		return badType, false
	}
	defer p.leave()
	for !p.failed && !p.is('}') && !p.is(tokEOF) {
		p.cMember(l)
	}
	p.expect('}')
	p.attributes(l)
	if !p.failed {
		l.lay(layout)
	}
	return t, !p.failed
}

// tag finds a struct or union by its name, or makes it.
func (c *cTypes) tag(keyword, name string) *Layout {
	if name == "" {
		return &Layout{Name: keyword + " (anonymous)"}
	}
	l := c.tags[keyword+" "+name]
	if l == nil {
		l = &Layout{Name: keyword + " " + name}
		c.tags[l.Name] = l
	}
	return l
}

// cMember parses one declaration inside a struct.
func (p *parser) cMember(l *structLayout) {
	if p.accept(';') {
		return
	}
	base, ok := p.cSpecifier()
	if !ok {
		return
	}
	if p.is(';') { // a struct without a name
		p.advance()
		if base.Kind == Struct && base.Layout.defined { // else it only says that there is one
			l.fields = append(l.fields, cField{"", base, -1, p.tok.span})
		}
		return
	}
	for !p.failed {
		f := cField{bits: -1, typ: base}
		if !p.is(':') {
			f.name, f.typ, f.at = p.cDeclarator(base)
		}
		if p.accept(':') {
			n, ok := p.cConstant()
			if !ok || f.typ.Kind != Int && f.typ.Kind != Bool || n > 8*uint64(f.typ.memory()) {
				p.failAt(p.since(f.at.Start), "a bit-field has an integer's type and no more bits than that")
				return
			}
			f.bits = int(n)
		}
		p.attributes(nil)
		if f.typ.Kind == Struct && !f.typ.Layout.defined {
			p.failAt(f.at, "%s is not defined", f.typ)
			return
		}
		l.fields = append(l.fields, f)
		if !p.accept(',') {
			break
		}
	}
	if !p.is('}') {
		p.expect(';')
	}
}

// cDeclarator parses pointers, a name and arrays around a type. The type of a
// function is not told from another: what counts is that a pointer points to it.
func (p *parser) cDeclarator(base Type) (string, Type, diag.Span) {
	if !p.enter() {
		p.leave()
		return "", base, p.tok.span
	}
	defer p.leave()
	for !p.failed && (p.is('*') || p.isWord("const") || p.isWord("volatile") || p.isWord("restrict")) {
		if p.is('*') {
			base = pointerTo(base)
		}
		p.advance()
	}
	at := p.tok.span
	if p.is('(') {
		return p.cInner(base)
	}
	name := ""
	if p.is(tokIdent) {
		name = p.tok.text
		p.advance()
	}
	return name, p.cSuffix(base), at
}

// cInner parses "(*name)(...)" and "(*name)[n]".
func (p *parser) cInner(base Type) (string, Type, diag.Span) {
	inside := p.lex
	insideTok := p.tok
	p.skipBalanced()
	outer := p.cSuffix(base)
	afterLex, afterTok, afterLast := p.lex, p.tok, p.last
	p.lex, p.tok = inside, insideTok
	p.advance()
	name, t, at := p.cDeclarator(outer)
	p.lex, p.tok, p.last = afterLex, afterTok, afterLast
	return name, t, at
}

// cSuffix parses the arrays or the parameters behind a name.
func (p *parser) cSuffix(base Type) Type {
	if p.is('(') {
		p.skipBalanced()
		return noneType
	}
	var counts []int
	for !p.failed && p.accept('[') {
		n := uint64(0)
		if !p.is(']') {
			at := p.tok.span
			var ok bool
			if n, ok = p.cConstant(); !ok || n > maxArray {
				p.failAt(at, "an array has a constant number of elements, up to %d", maxArray)
			}
		}
		p.expect(']')
		counts = append(counts, int(n))
	}
	for i := len(counts) - 1; i >= 0; i-- {
		base = arrayOf(base, counts[i])
	}
	if base.memory() > maxArray {
		p.failAt(p.tok.span, "an array has up to %d bytes", maxArray)
		return badType
	}
	return base
}

// maxArray bounds arrays, in elements and in bytes.
const maxArray = 1 << 20

// arrayOf is an array; one of characters is a string.
func arrayOf(t Type, n int) Type {
	if t.Kind == Int && t.Size == 1 && t.Signed && t.Enum == nil {
		return Type{Kind: String, Len: n}
	}
	return Type{Kind: Array, Count: n, Elem: &t}
}

// cConstant parses an expression of C that is constant.
func (p *parser) cConstant() (uint64, bool) {
	x := p.binary(1, p.unary())
	if p.failed {
		return 0, false
	}
	return p.types.constant(x)
}

// constant computes an expression of integers and constants of enumerations.
func (c *cTypes) constant(x expr) (uint64, bool) {
	switch x := x.(type) {
	case *intExpr:
		return x.value, true
	case *nameExpr:
		v, ok := c.consts[x.name]
		return v.value, ok
	case *castExpr:
		return c.constant(x.x)
	case *unaryExpr:
		v, ok := c.constant(x.x)
		switch x.op {
		case '-':
			v = -v
		case '~':
			v = ^v
		default:
			v = b2u(v == 0)
		}
		return v, ok
	case *binaryExpr:
		a, ok1 := c.constant(x.x)
		b, ok2 := c.constant(x.y)
		l, r := exprBase{typ: int64Type}, exprBase{typ: int64Type}
		l.con.u, r.con.u = a, b
		return evalBinary(x.op, int64Type, &l, &r), ok1 && ok2
	}
	return 0, false
}

// cEnum parses an enumeration behind its keyword.
func (p *parser) cEnum(keyword token) (Type, bool) {
	e := &Enum{Name: "enum"}
	if p.is(tokIdent) {
		e.Name = "enum " + p.tok.text
		p.advance()
		if known := p.types.enums[e.Name]; known != nil {
			e = known
		} else {
			p.types.enums[e.Name] = e
		}
	} else if !p.is('{') {
		p.fail("expected the name of the enumeration, or '{'")
		return badType, false
	}
	if p.accept(':') { // the type of the constants, as C23 has it
		p.cSpecifier()
	}
	if p.is('{') {
		p.advance()
		p.cConstants(e)
		p.expect('}')
		p.attributes(nil)
	}
	return enumType(e), !p.failed
}

func (p *parser) cConstants(e *Enum) {
	next := uint64(0)
	for !p.failed && p.is(tokIdent) {
		name := p.tok
		p.advance()
		p.attributes(nil)
		if p.accept('=') {
			v, ok := p.cConstant()
			if !ok {
				p.failAt(p.since(name.span.Start), "the value of '%s' is not constant", name.text)
			}
			next = v
		}
		if _, ok := p.types.consts[name.text]; ok {
			p.diags.Errorf(name.span, "'%s' is defined twice", name.text)
		}
		p.types.consts[name.text] = enumConst{next, e}
		e.Values = append(e.Values, EnumValue{name.text, next})
		next++
		if !p.accept(',') {
			break
		}
	}
}

// enumType is the type of an enumeration: an int of 32 bits, unsigned unless a
// constant is negative, or of 64 where that does not hold them.
func enumType(e *Enum) Type {
	t := Type{Kind: Int, Size: 4, Enum: e}
	for _, v := range e.Values {
		t.Signed = t.Signed || int64(v.Value) < 0 && v.Value > 1<<63
	}
	for _, v := range e.Values {
		if t.truncate(v.Value) != v.Value {
			t.Size = 8
		}
	}
	return t
}
