package lang

import "slices"

// usage is what a probe uses; it decides where values live.
type usage struct {
	args         bool // arguments of the probed function
	argAfterCall bool // an argument after a helper has destroyed r1
	called       bool
	pid, tid     bool
	retval       bool // what the function returned
	loops        bool // or blocks inside expressions
	vars         []*variable
	known        map[*variable]bool
}

// survey goes over a probe in the order of execution. It takes code of both
// branches of an if as if they came one after the other. In a loop everything may
// come after everything.
func survey(n *probeNode) *usage {
	u := &usage{}
	u.pid, u.tid = uses(n, builtinPid), uses(n, builtinTid)
	u.called = u.pid || u.tid // the prologue asks for them
	if n.predicate != nil {
		u.expr(n.predicate)
	}
	u.stmt(n.body)
	if u.loops {
		u.argAfterCall = u.args && u.called
	}
	return u
}

// uses reports whether any expression of the probe is a builtin.
func uses(n *probeNode, name string) bool {
	found := false
	visit := func(x expr) {
		switch x := x.(type) {
		case *nameExpr:
			found = found || x.name == name
		case *callExpr:
			found = found || x.name == name
		}
	}
	if n.predicate != nil {
		walk(n.predicate, visit)
	}
	walkStmt(n.body, visit)
	return found
}

// expr notes what an expression uses. Its calls come before its arguments.
func (u *usage) expr(x expr) {
	if x == nil {
		return
	}
	u.calls(x)
	walk(x, u.visit)
}

// calls notes whether an expression makes calls.
func (u *usage) calls(x expr) {
	walk(x, func(x expr) {
		u.called = u.called || needsCalls(x) || readsString(x)
		u.loops = u.loops || hasBody(x)
	})
}

// hasBody reports whether an expression has statements.
func hasBody(x expr) bool {
	switch x.(type) {
	case *blockExpr, *fnExpr:
		return true
	}
	return false
}

// visit notes what one expression uses.
func (u *usage) visit(x expr) {
	switch x := x.(type) {
	case *varExpr:
		u.variable(x.sym)
	case *fnExpr:
		u.variable(x.sym)
	case *callExpr:
		if x.name == builtinRetval {
			u.retval = true
		}
		if x.name == "reg" || x.name == "func" || x.name == "uaddr" || x.name == builtinRetval || isStack(x) {
			u.arg()
		}
		u.called = u.called || b2t(x).Kind == None
	case *nameExpr:
		if isArgName(x.name) || x.name == builtinRetval || x.name == "args" || x.name == "func" || isStack(x) {
			u.retval = u.retval || x.name == builtinRetval
			u.arg()
		}
	}
}

func (u *usage) arg() {
	u.args = true
	u.argAfterCall = u.argAfterCall || u.called
}

func (u *usage) stmt(s stmt) {
	switch s := s.(type) {
	case *blockStmt:
		for _, s := range s.stmts {
			u.stmt(s)
		}
	case *ifStmt:
		u.expr(s.cond)
		u.stmt(s.then)
		if s.els != nil {
			u.stmt(s.els)
		}
	case *assignStmt:
		u.assign(s)
	default:
		u.other(s)
	}
}

func (u *usage) assign(s *assignStmt) {
	m, ok := s.target.(*mapExpr)
	if !ok {
		u.expr(s.value)
		u.expr(s.target)
		return
	}
	parts := slices.Clone(m.keys)
	if call, ok := s.value.(*callExpr); ok && aggregations[call.name] != 0 {
		parts = append(parts, call.args...)
	} else {
		parts = append(parts, s.value)
	}
	for _, x := range parts { // the calls of all of them come first
		u.calls(x)
	}
	for _, x := range parts {
		u.expr(x)
	}
	u.called = true
}

func (u *usage) other(s stmt) {
	switch s := s.(type) {
	case *exprStmt:
		u.expr(s.x)
	case *declStmt:
		u.variable(s.v.sym)
	case *returnStmt:
		u.expr(s.value)
	default:
		u.loops = true
		u.called = true
		if r, ok := s.(*rangeStmt); ok {
			u.variable(r.end)
			u.variable(r.count)
		}
		walkStmt(s, u.visit)
	}
}

func (u *usage) variable(v *variable) {
	if v == nil || u.known[v] {
		return
	}
	if u.known == nil {
		u.known = map[*variable]bool{}
	}
	u.known[v] = true
	u.vars = append(u.vars, v)
}

// walkStmt visits every expression under a statement.
func walkStmt(s stmt, visit func(expr)) {
	exprsOf(s, func(x expr) { walk(x, visit) })
}

// exprsOf calls f for the expressions that a statement, or one inside it, has, but
// not for those that they have.
func exprsOf(s stmt, f func(expr)) {
	one := func(x expr) {
		if x != nil {
			f(x)
		}
	}
	switch s := s.(type) {
	case *blockStmt:
		for _, s := range s.stmts {
			exprsOf(s, f)
		}
	case *ifStmt:
		one(s.cond)
		exprsOf(s.then, f)
		if s.els != nil {
			exprsOf(s.els, f)
		}
	case *assignStmt:
		one(s.target)
		one(s.value)
	case *exprStmt:
		one(s.x)
	case *declStmt:
		one(s.v)
	case *returnStmt:
		one(s.value)
	default:
		loopExprs(s, f)
	}
}

func loopExprs(s stmt, f func(expr)) {
	switch s := s.(type) {
	case *whileStmt:
		f(s.cond)
		exprsOf(s.body, f)
	case *rangeStmt:
		for _, v := range []*variable{s.end, s.count} {
			f(&varExpr{exprBase: exprBase{typ: int64Type}, sym: v})
		}
		f(s.v)
		f(s.from)
		f(s.to)
		exprsOf(s.body, f)
	case *eachStmt:
		f(s.v)
		exprsOf(s.body, f)
	case *unrollStmt:
		f(s.count)
		for _, b := range s.copies {
			exprsOf(b, f)
		}
	}
}

// walk visits an expression and all under it that are computed.
func walk(x expr, visit func(expr)) {
	visit(x)
	children(x, func(y expr) { walk(y, visit) })
}

// children visits the expressions right under an expression.
func children(x expr, visit func(expr)) {
	switch x := x.(type) {
	case *mapExpr:
		for _, k := range x.keys {
			visit(k)
		}
	case *callExpr:
		for _, a := range x.args {
			visit(a)
		}
	case *unaryExpr:
		visit(x.x)
	case *binaryExpr:
		visit(x.x)
		visit(x.y)
	case *condExpr:
		visit(x.cond)
		if x.x != x.cond {
			visit(x.x)
		}
		visit(x.y)
	case *castExpr:
		visit(x.x)
	case *incExpr:
		visit(x.x)
	default:
		childrenOf(x, visit)
	}
}

func childrenOf(x expr, visit func(expr)) {
	switch x := x.(type) {
	case *tupleExpr:
		for _, e := range x.elems {
			visit(e)
		}
	case *fieldExpr:
		visit(x.x)
	case *indexExpr:
		visit(x.x)
		visit(x.index)
	case *derefExpr:
		visit(x.x)
	case *addrExpr:
		visit(x.x)
	case *comptimeExpr:
		visit(x.x)
	case *blockExpr:
		exprsOf(x.body, visit)
		if x.value != nil {
			visit(x.value)
		}
	case *fnExpr:
		for _, p := range x.params {
			visit(p.target)
			visit(p.value)
		}
		exprsOf(x.body, visit)
	}
}

// pure reports whether computing the expression changes nothing.
func pure(x expr) bool {
	p := true
	walk(x, func(x expr) {
		switch x := x.(type) {
		case *incExpr, *blockExpr, *fnExpr:
			p = false
		case *callExpr:
			p = p && x.name != "delete" && b2t(x).Kind != None
		}
	})
	return p
}

// mentionsLate reports whether the expression reads the variable after it may
// have begun to overwrite the register that the variable lives in: anywhere
// but as its first operand.
func mentionsLate(x expr, v *variable) bool {
	mentioned := false
	count := func(x expr) {
		if r, ok := x.(*varExpr); ok && r.sym == v {
			mentioned = true
		}
	}
	for {
		switch y := x.(type) {
		case *varExpr:
			return false
		case *castExpr:
			x = y.x
			continue
		case *fieldExpr:
			return false
		case *binaryExpr:
			if isCondition(y.op) {
				break // the result is written last
			}
			first, second := y.x, y.y
			if first.base().con.known && commutes(y.op) {
				first, second = second, first
			}
			if walk(second, count); mentioned {
				return true
			}
			x = first
			continue
		}
		break
	}
	walk(x, count)
	return mentioned
}
