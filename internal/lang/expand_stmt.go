package lang

import (
	"fmt"

	"trapless/internal/diag"
)

func (e *expander) block(b *blockStmt) *blockStmt {
	if b == nil {
		return nil
	}
	out := &blockStmt{span: e.span(b.span)}
	for _, s := range b.stmts {
		out.stmts = append(out.stmts, e.stmt(s))
	}
	return out
}

// stmt copies a statement.
func (e *expander) stmt(s stmt) stmt {
	switch s := s.(type) {
	case *blockStmt:
		return e.block(s)
	case *exprStmt:
		return e.exprStmt(s)
	case *assignStmt:
		out := &assignStmt{span: e.span(s.span), op: s.op, opAt: e.span(s.opAt)}
		if s.decl != nil {
			out.decl = e.stmt(s.decl).(*declStmt)
			out.target, out.value = out.decl.v, e.expr(s.value)
			return out
		}
		out.target, out.value = e.expr(s.target), e.expr(s.value)
		return lastAggregated(out)
	case *declStmt:
		v, ok := e.expr(s.v).(*varExpr)
		if !ok { // it cannot be made by its name
			v = &varExpr{exprBase: e.base(&s.v.exprBase), name: s.v.name}
		}
		return &declStmt{span: e.span(s.span), v: v, ref: e.typeRef(s.ref)}
	case *ifStmt:
		out := &ifStmt{span: e.span(s.span), cond: e.expr(s.cond), then: e.stmt(s.then)}
		if s.els != nil {
			out.els = e.stmt(s.els)
		}
		return out
	case *returnStmt:
		out := &returnStmt{span: e.span(s.span), value: e.expr(s.value), fn: e.fn}
		if out.fn == nil {
			out.fn = s.fn
		}
		return out
	}
	return e.loop(s)
}

// lastAggregated takes an assignment to a map out of the block whose value it is: a block may
// end with an aggregation.
func lastAggregated(s *assignStmt) stmt {
	b, ok := s.value.(*blockExpr)
	if !ok {
		return s
	}
	if call, ok := b.value.(*callExpr); !ok || aggregations[call.name] == 0 {
		return s
	}
	s.value = b.value
	return &blockStmt{span: s.span, stmts: append(b.body.stmts, s)}
}

// exprStmt copies an expression that stands as a statement. A macro that gives
// no value becomes its statements.
func (e *expander) exprStmt(s *exprStmt) stmt {
	x := e.expr(s.x)
	if b, ok := x.(*blockExpr); ok && b.value == nil && !s.discard {
		return b.body
	}
	return &exprStmt{x: x, discard: s.discard, open: s.open}
}

func (e *expander) loop(s stmt) stmt {
	switch s := s.(type) {
	case *whileStmt:
		return &whileStmt{span: e.span(s.span), cond: e.expr(s.cond), body: e.block(s.body)}
	case *rangeStmt:
		return &rangeStmt{span: e.span(s.span), v: e.loopVariable(s.v), from: e.expr(s.from), to: e.expr(s.to), body: e.block(s.body)}
	case *eachStmt:
		out := &eachStmt{span: e.span(s.span), v: e.loopVariable(s.v), body: e.block(s.body)}
		if m, ok := e.expr(s.m).(*mapExpr); ok {
			out.m = m
		}
		return out
	case *unrollStmt:
		return &unrollStmt{span: e.span(s.span), count: e.expr(s.count), body: e.block(s.body)}
	case *jumpStmt:
		return &jumpStmt{span: e.span(s.span), again: s.again}
	}
	panic(fmt.Sprintf("BUG: lang: cannot copy %T", s))
}

func (e *expander) loopVariable(v *varExpr) *varExpr {
	if out, ok := e.expr(v).(*varExpr); ok {
		return out
	}
	return &varExpr{exprBase: e.base(&v.exprBase), name: v.name}
}

// copyBlock is a copy of a block that holds no macros any more.
func copyBlock(b *blockStmt, diags *diag.Collector) *blockStmt {
	return (&expander{diags: diags}).block(b)
}

// valueOfBlock makes an expression of a block, whose last statement is its value
// if no ';' follows it.
func valueOfBlock(b *blockStmt, at diag.Span) *blockExpr {
	x := &blockExpr{exprBase: exprBase{span: at}, body: b}
	n := len(b.stmts)
	if n == 0 {
		return x
	}
	if v := valueOfStmt(b.stmts[n-1]); v != nil {
		x.value = v
		x.body = &blockStmt{span: b.span, stmts: b.stmts[:n-1]}
	}
	return x
}

// valueOfStmt is the value of a statement at the end of a block, nil if it has
// none.
func valueOfStmt(s stmt) expr {
	switch s := s.(type) {
	case *exprStmt:
		if s.open && !s.discard {
			return s.x
		}
	case *blockStmt:
		if b := valueOfBlock(s, s.span); b.value != nil {
			return b
		}
	case *ifStmt:
		if s.els == nil {
			return nil
		}
		x, y := valueOfStmt(s.then), valueOfStmt(s.els)
		if x != nil && y != nil {
			return &condExpr{exprBase: exprBase{span: s.span}, cond: s.cond, x: x, y: y}
		}
	}
	return nil
}
