package lang

import (
	"fmt"
	"slices"
	"strings"

	"trapless/internal/diag"
)

// expander copies the tree of a probe and puts in the bodies of macros and of
// functions where they are called. Each use is a copy of its own: the checker
// gives it types of its own.
type expander struct {
	diags  *diag.Collector
	macros map[string][]*macroNode
	fns    map[string]*fnNode
	depth  int
	nodes  int
	full   bool

	// While the body of a macro is copied:
	macro *macroNode
	args  map[string]expr   // what its parameters stand for, by "name", "$name" and "@name"
	names map[string]string // its variables, renamed
	outer *expander         // for the arguments
	at    *diag.Span        // all is said to be here, in a macro of the prelude
	stack []string          // the macros and functions that are being put in
	fn    *fnExpr           // the function that a return leaves
	from  []diag.Span       // see exprBase

	places func(*AttachPoint) []AttachPoint // see Options.Places

	elapsed, dur bool            // they are used
	called       map[string]bool // functions, shared by all
}

const (
	maxExpansion = 1 << 16 // nodes that expansion may make
	maxMacros    = 64      // macros and functions inside one another
)

// expand puts macros and functions in everywhere.
func expand(n *scriptNode, diags *diag.Collector, places func(*AttachPoint) []AttachPoint) {
	e := &expander{places: places, diags: diags, macros: map[string][]*macroNode{}, fns: map[string]*fnNode{}, called: map[string]bool{}}
	for _, m := range n.macros {
		for _, other := range e.macros[m.name] {
			if sameSignature(m, other) {
				diags.Errorf(m.span, "Redefinition of macro: %s", m.name).Note(other.span, "here")
			}
		}
		e.macros[m.name] = append(e.macros[m.name], m)
	}
	for _, m := range prelude() {
		e.macros[m.name] = append(e.macros[m.name], m)
	}
	for _, f := range n.fns {
		if e.fns[f.name] != nil {
			diags.Errorf(f.span, "function %s is defined twice", f.name).Note(e.fns[f.name].span, "here")
		}
		e.fns[f.name] = f
	}
	var probes []*probeNode
	for _, p := range n.probes {
		probes = append(probes, e.probe(p)...)
	}
	n.probes = probes
	e.noteStart(n)
	for _, f := range n.fns {
		if !e.called[f.name] {
			n.unused = append(n.unused, e.alone(f))
		}
	}
}

// probe copies a probe. One that uses its own name becomes one for each of its
// attach points; one that uses dur gets another before it.
func (e *expander) probe(p *probeNode) []*probeNode {
	e.dur = false
	out := &probeNode{attach: p.attach, predicate: e.expr(p.predicate), body: e.block(p.body), span: p.span}
	named := uses(out, "probe") || uses(out, "uaddr")
	if named || uses(out, "probetype") {
		out.attach = e.single(p.attach, named)
	}
	switch {
	case len(out.attach) > 1 && (named || uses(out, "probetype")):
		var each []*probeNode
		for _, a := range out.attach {
			each = append(each, e.probe(&probeNode{attach: []AttachPoint{a}, predicate: p.predicate, body: p.body, span: p.span})...)
		}
		return each
	case e.dur:
		return []*probeNode{e.noteEntry(p), out}
	}
	return []*probeNode{out}
}

// single are the attach points, those with wildcards replaced by the places that they
// stand for if the name of each matters.
func (e *expander) single(attach []AttachPoint, named bool) []AttachPoint {
	var out []AttachPoint
	for i := range attach {
		a := &attach[i]
		var places []AttachPoint
		if wild := a.Wildcard || a.PathWildcard || strings.Contains(a.Provider, "*"); wild && named && e.places != nil {
			places = e.places(a)
		}
		if len(places) == 0 { // that nothing fits is told later
			places = []AttachPoint{*a}
		}
		for _, p := range places {
			p.Span = a.Span
			out = append(out, p)
		}
	}
	return out
}

// alone makes a probe of a function that nothing calls, whose parameters have no
// values.
func (e *expander) alone(f *fnNode) *probeNode {
	call := &fnExpr{exprBase: exprBase{span: f.span}, name: f.name, result: f.result}
	in := *e
	in.fn, in.stack = call, []string{f.name}
	body := &blockStmt{span: f.span}
	for _, p := range f.params {
		body.stmts = append(body.stmts, p)
	}
	body.stmts = append(body.stmts, f.body.stmts...)
	call.body = in.block(body)
	return &probeNode{span: f.span, body: &blockStmt{span: f.span, stmts: []stmt{&exprStmt{x: call, discard: true}}}}
}

func sameSignature(a, b *macroNode) bool {
	if len(a.params) != len(b.params) {
		return false
	}
	for i := range a.params {
		if fmt.Sprintf("%T", a.params[i]) != fmt.Sprintf("%T", b.params[i]) {
			return false
		}
	}
	return true
}

// span is where a copied node is.
func (e *expander) span(s diag.Span) diag.Span {
	if e.at != nil {
		return *e.at
	}
	return s
}

func (e *expander) base(b *exprBase) exprBase {
	out := *b
	out.span = e.span(b.span)
	if len(e.from) > 0 {
		out.from = slices.Concat(b.from, e.from)
	}
	return out
}

// room counts nodes and reports, once, when there are too many.
func (e *expander) room(at diag.Span) bool {
	root := e
	for root.outer != nil {
		root = root.outer
	}
	root.nodes++
	if root.nodes > maxExpansion && !root.full {
		root.full = true
		e.diags.Errorf(e.span(at), "macros and functions make the script too long")
	}
	return !root.full
}

func (e *expander) exprs(xs []expr) []expr {
	if xs == nil {
		return nil
	}
	out := make([]expr, len(xs))
	for i, x := range xs {
		out[i] = e.expr(x)
	}
	return out
}

// expr copies an expression.
func (e *expander) expr(x expr) expr {
	if x == nil {
		return nil
	}
	b := e.base(x.base())
	if !e.room(b.span) {
		return &badExpr{exprBase{span: b.span, typ: badType}}
	}
	switch x := x.(type) {
	case *intExpr:
		return &intExpr{b, x.value}
	case *boolExpr:
		return &boolExpr{b, x.value}
	case *strExpr:
		return &strExpr{b, x.value}
	case *paramExpr:
		return &paramExpr{b, x.number}
	case *paramCountExpr:
		return &paramCountExpr{b}
	case *varExpr, *mapExpr, *nameExpr, *callExpr:
		return e.named(x, b)
	case *unaryExpr:
		return &unaryExpr{b, x.op, e.expr(x.x)}
	case *binaryExpr:
		return &binaryExpr{b, x.op, e.span(x.opAt), e.expr(x.x), e.expr(x.y)}
	case *condExpr:
		c := &condExpr{exprBase: b, cond: e.expr(x.cond)}
		if c.x = c.cond; x.x != x.cond {
			c.x = e.expr(x.x)
		}
		c.y = e.expr(x.y)
		return c
	case *castExpr:
		return &castExpr{b, e.typeRef(x.ref), x.to, e.expr(x.x)}
	case *incExpr:
		return &incExpr{b, x.op, x.post, e.expr(x.x)}
	}
	return e.compound(x, b)
}

// named copies what a macro or its parameters may change.
func (e *expander) named(x expr, b exprBase) expr {
	switch x := x.(type) {
	case *varExpr:
		return e.variable(x, b)
	case *mapExpr:
		return e.mapRef(x, b)
	case *nameExpr:
		return e.name(x, b)
	}
	return e.call(x.(*callExpr), b)
}

// compound copies the expressions that expr leaves.
func (e *expander) compound(x expr, b exprBase) expr {
	switch x := x.(type) {
	case *tupleExpr:
		return &tupleExpr{b, e.exprs(x.elems), x.names, x.nameAt}
	case *fieldExpr:
		return &fieldExpr{exprBase: b, x: e.expr(x.x), name: x.name, nameAt: e.span(x.nameAt)}
	case *indexExpr:
		return &indexExpr{b, e.expr(x.x), e.expr(x.index)}
	case *derefExpr:
		return &derefExpr{b, e.expr(x.x)}
	case *addrExpr:
		return &addrExpr{b, e.expr(x.x)}
	case *blockExpr:
		return &blockExpr{b, e.block(x.body), e.expr(x.value)}
	case *sizeofExpr:
		return &sizeofExpr{b, e.typeRef(x.ref), e.expr(x.x), x.offset, x.fields}
	case *typeofExpr:
		return &typeofExpr{b, e.typeRef(x.ref)}
	case *comptimeExpr:
		return &comptimeExpr{b, e.expr(x.x)}
	case *fnExpr:
		out := &fnExpr{exprBase: b, name: x.name, result: x.result}
		in := *e
		in.fn = out
		for _, p := range x.params {
			out.params = append(out.params, in.stmt(p).(*assignStmt))
		}
		out.body = in.block(x.body)
		return out
	}
	return &badExpr{b}
}

// typeRef copies a type. A name may be a parameter of the macro that stands for
// a type.
func (e *expander) typeRef(t *typeRef) *typeRef {
	if t == nil {
		return nil
	}
	out := *t
	out.span, out.of, out.in = e.span(t.span), e.expr(t.of), e.typeRef(t.in)
	if arg := e.args[t.name]; arg != nil && t.tag == "" && t.of == nil {
		if of, ok := e.outer.expr(arg).(*typeofExpr); ok {
			out.name, out.in = "", of.ref
			return &out
		}
		out.name, out.of = "", e.outer.expr(arg)
	}
	return &out
}

// variable copies a variable. Those of a macro's own are renamed.
func (e *expander) variable(x *varExpr, b exprBase) expr {
	if e.macro == nil {
		return &varExpr{exprBase: b, name: x.name}
	}
	if arg := e.args["$"+x.name]; arg != nil {
		return e.outer.expr(arg)
	}
	name, ok := e.names[x.name]
	if !ok {
		name = fmt.Sprintf("%s (of %s, %d)", x.name, e.macro.name, e.count())
		e.names[x.name] = name
	}
	return &varExpr{exprBase: b, name: name}
}

// count numbers the variables of macros.
func (e *expander) count() int {
	root := e
	for root.outer != nil {
		root = root.outer
	}
	root.depth++
	return root.depth
}

func (e *expander) mapRef(x *mapExpr, b exprBase) expr {
	m := &mapExpr{exprBase: b, name: x.name, keys: e.exprs(x.keys), indexed: x.indexed, nameAt: e.span(x.nameAt)}
	if e.macro == nil {
		return m
	}
	arg, ok := e.args["@"+x.name].(*mapExpr)
	if !ok {
		e.diags.Errorf(b.span, "Unhygienic access to map: @%s. Maps must be passed into the macro as arguments.", x.name)
		return m
	}
	m.name = e.outer.expr(arg).(*mapExpr).name
	return m
}

// name copies a bare name, which may be a parameter of the macro or a macro
// without parameters.
func (e *expander) name(x *nameExpr, b exprBase) expr {
	if arg := e.args[x.name]; arg != nil {
		return e.outer.expr(arg)
	}
	if m := e.find(x.name, nil); m != nil {
		return e.putIn(m, nil, b)
	}
	if x := e.builtinOf(x.name, x.span); x != nil {
		return x
	}
	return &nameExpr{exprBase: b, name: x.name}
}

// call copies a call, or puts in what is called.
func (e *expander) call(x *callExpr, b exprBase) expr {
	if m := e.find(x.name, x.args); m != nil {
		return e.putIn(m, x.args, b)
	}
	if f := e.fns[x.name]; f != nil {
		return e.callFn(f, x, b)
	}
	if y := e.builtinOf(x.name, x.span); y != nil && len(x.args) == 0 {
		return y
	}
	if own := e.macros[x.name]; len(own) > 0 && !own[0].builtin && functions[x.name] == nil && !isValueName(x.name) && !e.inside(x.name) {
		d := e.diags.Errorf(b.span, "Call to %s() has arguments that do not match any definition.", x.name)
		for _, m := range own {
			d.Note(m.span, "it is defined here")
		}
		return &badExpr{exprBase{span: b.span, typ: badType}}
	}
	return &callExpr{exprBase: b, name: x.name, nameAt: e.span(x.nameAt), args: e.exprs(x.args)}
}

func (e *expander) inside(name string) bool {
	for _, s := range e.stack {
		if s == name {
			return true
		}
	}
	return false
}

// find finds the macro that takes the arguments: the one whose parameters say
// most about them.
func (e *expander) find(name string, args []expr) *macroNode {
	var best *macroNode
	most := -1
	for _, m := range e.macros[name] {
		if n := e.suits(m, args); n > most {
			best, most = m, n
		}
	}
	return best
}

// suits counts the parameters that are a variable or map, or is -1 if the macro
// does not take the arguments.
func (e *expander) suits(m *macroNode, args []expr) int {
	if len(args) != len(m.params) {
		return -1
	}
	exact := 0
	for i, p := range m.params {
		arg := args[i]
		switch a := arg.(type) {
		case *varExpr:
			if e.args["$"+a.name] != nil {
				arg = e.args["$"+a.name]
			}
		case *nameExpr:
			if e.args[a.name] != nil {
				arg = e.args[a.name]
			}
		}
		switch p.(type) {
		case *varExpr:
			if _, ok := arg.(*varExpr); !ok {
				return -1
			}
			exact++
		case *mapExpr:
			if a, ok := arg.(*mapExpr); !ok || a.indexed {
				return -1
			}
			exact++
		}
	}
	return exact
}

// nested is an expander for the body of a macro or function, nil if there are
// too many inside one another.
func (e *expander) nested(name string, b *exprBase) *expander {
	if e.inside(name) || len(e.stack) > maxMacros {
		e.diags.Errorf(b.span, "Recursive macro call detected. Call chain: %s", strings.Join(append(e.stack, name), " > "))
		return nil
	}
	return &expander{
		diags: e.diags, macros: e.macros, fns: e.fns, outer: e, at: e.at, fn: e.fn, called: e.called, from: e.from,
		args: map[string]expr{}, names: map[string]string{}, stack: append(append([]string(nil), e.stack...), name),
	}
}

// putIn is a macro's body with its arguments.
func (e *expander) putIn(m *macroNode, args []expr, b exprBase) expr {
	in := e.nested(m.name, &b)
	if in == nil {
		return &badExpr{exprBase{span: b.span, typ: badType}}
	}
	in.macro = m
	if m.builtin {
		in.at = &b.span
	} else {
		in.from = append([]diag.Span{b.span}, e.from...)
	}
	for i, p := range m.params {
		switch p := p.(type) {
		case *varExpr:
			in.args["$"+p.name] = args[i]
		case *mapExpr:
			in.args["@"+p.name] = args[i]
		case *nameExpr:
			in.args[p.name] = args[i]
		}
	}
	x := valueOfBlock(in.block(m.body), b.span)
	if len(x.body.stmts) == 0 && x.value != nil {
		return x.value
	}
	return x
}

// callFn is a call of a function of the script's own: its parameters are
// variables that are assigned the arguments.
func (e *expander) callFn(f *fnNode, x *callExpr, b exprBase) expr {
	in := e.nested(f.name, &b)
	bad := &badExpr{exprBase{span: b.span, typ: badType}}
	if in == nil {
		return bad
	}
	if len(x.args) != len(f.params) {
		e.diags.Errorf(b.span, "%s() takes %d arguments, not %d", f.name, len(f.params), len(x.args)).Note(f.span, "it is defined here")
		return bad
	}
	e.called[f.name] = true
	in.macro = &macroNode{name: f.name}
	call := &fnExpr{exprBase: b, name: f.name, result: f.result}
	in.fn = call
	for i, p := range f.params {
		d := in.stmt(p).(*declStmt)
		call.params = append(call.params, &assignStmt{span: x.args[i].base().span, opAt: b.span, target: d.v, value: e.expr(x.args[i]), decl: d})
	}
	call.body = in.block(f.body)
	return call
}
