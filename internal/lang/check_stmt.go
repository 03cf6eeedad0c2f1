package lang

import "trapless/internal/diag"

func (c *checker) block(b *blockStmt) {
	c.push()
	defer c.pop()
	for i, s := range b.stmts {
		c.stmt(s)
		if i+1 < len(b.stmts) && leaves(s) {
			c.diags.Warnf(spanOf(b.stmts[i+1]), "Unreachable statement.")
		}
	}
}

// ifStmt types an if. Of one whose condition is comptime, only the branch that is taken.
func (c *checker) ifStmt(s *ifStmt) {
	c.condition(s.cond)
	_, chosen := s.cond.(*comptimeExpr)
	con := s.cond.base().con
	chosen = chosen && con.known
	if !chosen || con.u != 0 {
		c.stmt(s.then)
	}
	if s.els != nil && (!chosen || con.u == 0) {
		c.stmt(s.els)
	}
}

// leaves reports whether nothing that follows a statement in its block is run.
func leaves(s stmt) bool {
	switch s := s.(type) {
	case *returnStmt, *jumpStmt:
		return true
	case *exprStmt:
		call, ok := s.x.(*callExpr)
		return ok && call.name == "exit"
	}
	return false
}

// spanOf is where a statement stands.
func spanOf(s stmt) diag.Span {
	switch s := s.(type) {
	case *blockStmt:
		return s.span
	case *exprStmt:
		return s.x.base().span
	case *assignStmt:
		return s.span
	case *declStmt:
		return s.span
	case *ifStmt:
		return s.span
	case *returnStmt:
		return s.span
	case *whileStmt:
		return s.span
	case *rangeStmt:
		return s.span
	case *eachStmt:
		return s.span
	case *unrollStmt:
		return s.span
	}
	return s.(*jumpStmt).span
}

func (c *checker) stmt(s stmt) {
	switch s := s.(type) {
	case *blockStmt:
		c.block(s)
	case *exprStmt:
		c.exprStmt(s)
	case *assignStmt:
		c.assign(s)
	case *declStmt:
		c.decl(s)
	case *ifStmt:
		c.ifStmt(s)
	case *returnStmt:
		c.giveBack(s)
	case *whileStmt:
		c.while(s)
	case *rangeStmt:
		c.rangeLoop(s)
	case *eachStmt:
		c.each(s)
	case *unrollStmt:
		c.unroll(s)
	case *jumpStmt:
		c.jump(s)
	}
}

func (c *checker) exprStmt(s *exprStmt) {
	t := c.expr(s.x)
	if t.Kind == None || t.Kind == bad || s.discard {
		return
	}
	if pure(s.x) {
		c.diags.Warnf(s.x.base().span, "Return value discarded.").Hint("write '_ = ...' if that is meant")
	}
}

// condition checks what decides a branch.
func (c *checker) condition(x expr) {
	if t := c.value(x); !t.isTruth() {
		c.diags.Errorf(x.base().span, "Invalid condition: %s", t)
	}
}

func (c *checker) decl(s *declStmt) *variable {
	if old := c.find(s.v.name); old != nil {
		c.diags.Errorf(s.v.span, "Variable $%s was already declared. Variable shadowing is not allowed.", s.v.name).Note(old.decl, "here")
		s.v.sym = old
		return old
	}
	v := c.declare(s.v)
	if s.ref != nil {
		v.typ, v.fixed = c.resolve(s.ref), true
		if v.typ.Kind == Array && v.typ.Count < 0 || v.typ.Kind == None {
			c.diags.Errorf(s.ref.span, "Invalid variable declaration type: %s", v.typ)
			v.typ = badType
		}
		v.typ.flexible = false
	}
	return v
}

// assign checks an assignment to a variable or a map.
func (c *checker) assign(s *assignStmt) {
	if m, ok := s.target.(*mapExpr); ok {
		c.assignMap(s, m)
		return
	}
	target, ok := s.target.(*varExpr)
	if !ok {
		c.value(s.value)
		return // a badExpr
	}
	t := c.value(s.value)
	switch v := c.find(target.name); {
	case s.decl != nil:
		target.sym = c.decl(s.decl)
	case s.op != 0:
		if c.variable(target); v == nil {
			return
		}
		t = c.binaryType(s.op, s.opAt, target, s.value)
	case v != nil:
		target.sym = v
	default:
		c.declare(target)
	}
	v := target.sym
	v.assigned = true
	v.uses++
	c.store(v, s.value.base(), t, s.op == 0)
	target.typ = v.typ
}

// store checks that a value of type t may be kept in v. Direct tells that the
// value is x itself.
func (c *checker) store(v *variable, x *exprBase, t Type, direct bool) {
	if direct {
		t = c.stored(x, t)
	}
	before := v.typ
	if !c.widen(v, t) {
		c.diags.Errorf(x.span, "Type mismatch for $%s: trying to assign value of type '%s' when variable already has a type '%s'", v.name, t, before).Note(v.decl, "declared here")
		return
	}
	if v.typ.Kind == None {
		v.typ, c.changed = badType, true
	}
	if t.Kind != Int || v.typ.Kind != Int || t.fits(v.typ) {
		return
	}
	if direct && x.con.literal {
		lost := v.typ.truncate(x.con.u) != x.con.u
		if otherSign := v.typ.Signed != x.typ.Signed && x.con.u>>63 != 0; lost || otherSign {
			c.diags.Errorf(x.span, "%s does not fit %s", literalText(x), v.typ.a()).
				Hint("a cast, as in (%s)%s, cuts it", v.typ, literalText(x))
		}
		return
	}
	c.diags.Warnf(x.span, "Expression of type: %s being cast to type: %s. This may cause unexpected results. Use an explicit cast to suppress this warning.", t, v.typ)
}

// undefined reports a variable that is not there.
func (c *checker) undefined(v *varExpr) {
	d := c.diags.Errorf(v.span, "Undefined or undeclared variable: $%s", v.name)
	names := make(map[string]bool)
	for _, scope := range c.scopes {
		for name := range scope {
			names[name] = true
		}
	}
	if near := nearest(v.name, names); near != "" {
		d.Hint("did you mean $%s?", near)
	} else {
		d.Hint("a variable exists from its first assignment to the end of the block around it")
	}
	v.typ = badType
}

// mapKeys checks the parts of a key.
func (c *checker) mapKeys(m *mapExpr) []Type {
	var keys []Type
	if len(m.keys) != 1 || !isTid(m.keys[0]) {
		c.otherKeys[m.name] = true
	}
	for _, k := range m.keys {
		t := c.value(k)
		keys = append(keys, c.keyType(k.base(), t))
	}
	if len(keys) == 1 && keys[0].Kind == Tuple && len(keys[0].Layout.Fields) > 1 { // as if its elements were written
		fields := keys[0].Layout.Fields
		keys = nil
		for _, f := range fields {
			keys = append(keys, f.Type)
		}
		return keys
	}
	if len(keys) > maxKeys {
		at := m.keys[maxKeys].base().span.To(m.keys[len(keys)-1].base().span)
		c.diags.Errorf(at, "a key has at most %d parts", maxKeys)
		keys = keys[:maxKeys]
	}
	if n := keyWords(keys); n > maxKeys && len(keys) <= maxKeys {
		c.diags.Errorf(m.span, "the key has %d bytes, the limit is %d", 8*n, 8*maxKeys).Hint("str(pointer, length) takes shorter strings")
		keys = []Type{badType}
	}
	return keys
}

func isTid(x expr) bool {
	n, ok := x.(*nameExpr)
	return ok && n.name == builtinTid
}

// maxKeys is the largest number of parts of a key (see abi.MapSpec).
const maxKeys = 8

func (c *checker) newMap(m *mapExpr, agg Agg, keys []Type) {
	info := c.maps[m.name]
	if info == nil {
		info = &mapInfo{name: m.name}
		c.maps[m.name] = info
	}
	info.first, info.agg, info.keys = m.span, agg, append([]Type(nil), keys...)
	c.order = append(c.order, info)
	c.changed = true
}

// sameKeys checks keys against those of other uses of the map.
func (c *checker) sameKeys(m *mapExpr, info *mapInfo, keys []Type) {
	switch {
	case len(keys) == len(info.keys):
	case len(info.keys) == 0:
		c.keyError(m.span, info, "@%s used as a map with an explicit key (non-scalar map), previously used without an explicit key (scalar map)", m.name)
		return
	case len(keys) == 0:
		c.keyError(m.span, info, "@%s used as a map without an explicit key (scalar map), previously used with an explicit key (non-scalar map)", m.name)
		return
	default:
		c.otherKey(m, info, keys)
		return
	}
	for i, t := range keys {
		now, ok := promote(info.keys[i], t)
		if !ok {
			c.otherKey(m, info, keys)
			return
		}
		if !now.Equal(info.keys[i]) {
			info.keys[i], c.changed = now, true
		}
	}
}

// otherKey reports a key that is not like those of other uses of the map.
func (c *checker) otherKey(m *mapExpr, info *mapInfo, keys []Type) {
	at := m.keys[0].base().span.To(m.keys[len(m.keys)-1].base().span)
	c.keyError(at, info, "Argument mismatch for @%s: trying to access with arguments: '%s' when map expects arguments: '%s'", m.name, keyText(keys), keyText(info.keys))
}

// keyText is the type of a key.
func keyText(keys []Type) string {
	if len(keys) == 1 {
		return keys[0].String()
	}
	return tupleOf(keys, nil).String()
}

func (c *checker) keyError(at diag.Span, info *mapInfo, format string, args ...any) {
	c.diags.Errorf(at, format, args...).Note(info.first, "as here")
}
