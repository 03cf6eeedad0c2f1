package lang

// usage is what a probe uses; it decides where values live.
type usage struct {
	args         bool // arguments of the probed function
	argAfterCall bool // an argument after a helper has destroyed r1
	called       bool
	pid, tid     bool
	retval       bool // what the function returned
	vars         []*variable
}

// survey goes over a probe in the order of execution. It takes code of both
// branches of an if as if they came one after the other.
func survey(n *probeNode) *usage {
	u := &usage{}
	u.pid, u.tid = uses(n, builtinPid), uses(n, builtinTid)
	u.called = u.pid || u.tid // the prologue asks for them
	u.expr(n.predicate)
	u.stmt(n.body)
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

func (u *usage) expr(x expr) {
	if x == nil {
		return
	}
	walk(x, func(x expr) { u.called = u.called || hoisted(x) || readsString(x) })
	walk(x, func(x expr) {
		if n, ok := x.(*nameExpr); ok && (isArgName(n.name) || n.name == builtinRetval) {
			u.retval = u.retval || n.name == builtinRetval
			u.args = true
			u.argAfterCall = u.argAfterCall || u.called
		}
	})
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
	case *declStmt:
		u.variable(s.v.sym)
	case *assignStmt:
		if m, ok := s.target.(*mapExpr); ok {
			for _, k := range m.keys {
				u.expr(k)
			}
		}
		if call, ok := s.value.(*callExpr); ok {
			for _, a := range call.args {
				u.expr(a)
			}
		}
		u.expr(s.value)
		if v, ok := s.target.(*varExpr); ok {
			u.variable(v.sym)
			return
		}
		u.called = true
	case *exprStmt:
		u.expr(s.x)
		if c, ok := s.x.(*callExpr); ok && c.name != builtinPid && c.name != builtinTid {
			u.called = true
		}
	}
}

func (u *usage) variable(v *variable) {
	for _, known := range u.vars {
		if known == v {
			return
		}
	}
	u.vars = append(u.vars, v)
}

// walkStmt visits every expression under a statement.
func walkStmt(s stmt, visit func(expr)) {
	switch s := s.(type) {
	case *blockStmt:
		for _, s := range s.stmts {
			walkStmt(s, visit)
		}
	case *ifStmt:
		walk(s.cond, visit)
		walkStmt(s.then, visit)
		if s.els != nil {
			walkStmt(s.els, visit)
		}
	case *assignStmt:
		walk(s.target, visit)
		walk(s.value, visit)
	case *exprStmt:
		walk(s.x, visit)
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
		visit(x.x)
		visit(x.y)
	case *castExpr:
		visit(x.x)
	case *incExpr:
		visit(x.x)
	}
}

// pure reports whether computing the expression changes nothing.
func pure(x expr) bool {
	p := true
	walk(x, func(x expr) {
		switch x := x.(type) {
		case *incExpr:
			p = false
		case *callExpr:
			p = p && x.name != "delete"
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
