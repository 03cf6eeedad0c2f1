package lang

// usage is what a probe uses; it decides where values live.
type usage struct {
	args         bool // arguments of the probed function
	argAfterCall bool // an argument after a helper has destroyed r1
	called       bool
	pid          bool
	retval       bool // what the function returned
	vars         []*variable
}

// survey goes over a probe in the order of execution. It takes code of both
// branches of an if as if they came one after the other.
func survey(n *probeNode) *usage {
	u := &usage{}
	u.pid = usesPid(n)
	u.called = u.pid // the prologue asks for it
	u.expr(n.predicate)
	u.stmt(n.body)
	return u
}

// usesPid reports whether any expression of the probe is pid.
func usesPid(n *probeNode) bool {
	found := false
	visit := func(x expr) {
		switch x := x.(type) {
		case *nameExpr:
			found = found || x.name == builtinPid
		case *callExpr:
			found = found || x.name == builtinPid
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
		u.expr(s.target)
		u.expr(s.value)
		if v, ok := s.target.(*varExpr); ok {
			u.variable(v.sym)
			return
		}
		u.called = true
	case *exprStmt:
		u.expr(s.x)
		if c, ok := s.x.(*callExpr); ok && c.name != builtinPid {
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
	switch x := x.(type) {
	case *mapExpr:
		for _, k := range x.keys {
			walk(k, visit)
		}
	case *callExpr:
		for _, a := range x.args {
			walk(a, visit)
		}
	case *unaryExpr:
		walk(x.x, visit)
	case *binaryExpr:
		walk(x.x, visit)
		walk(x.y, visit)
	case *condExpr:
		walk(x.cond, visit)
		walk(x.x, visit)
		walk(x.y, visit)
	case *castExpr:
		walk(x.x, visit)
	case *incExpr:
		walk(x.x, visit)
	}
}

// pure reports whether computing the expression changes nothing.
func pure(x expr) bool {
	p := true
	walk(x, func(x expr) {
		if _, ok := x.(*incExpr); ok {
			p = false
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
