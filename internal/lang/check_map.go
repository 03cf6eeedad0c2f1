package lang

import "trapless/internal/diag"

// Plain maps hold values that are assigned, not aggregated.

// storeMap checks "@m[keys] = value" and the same with an operator.
func (c *checker) storeMap(s *assignStmt, m *mapExpr) {
	keys := c.mapKeys(m)
	t := c.value(s.value)
	x := s.value.base()
	c.suspect[m.name] = c.suspect[m.name] || t.Kind == bad
	if t.Kind == bad {
		return
	}
	t = c.stored(x, t)
	info := c.plainMap(m, keys)
	if info == nil {
		return
	}
	if s.op != 0 && info.value.Kind != None {
		operand := resultType(s.op, info.value, t)
		if operand.Kind == bad {
			c.badOperands(s.opAt, s.op, info.value, t)
			return
		}
		t = operand
	}
	if s.op != 0 && !pureKeys(m) {
		c.diags.Errorf(m.span, "not supported yet: '++' and '--' in a key that is read and assigned")
	}
	c.widenMap(info, t, x.span)
	m.typ = info.value
}

func pureKeys(m *mapExpr) bool {
	for _, k := range m.keys {
		if !pure(k) {
			return false
		}
	}
	return true
}

// plainMap finds a map that is assigned a value, or makes it.
func (c *checker) plainMap(m *mapExpr, keys []Type) *mapInfo {
	info := c.maps[m.name]
	if info == nil || info.agg == 0 {
		c.newMap(m, Plain, keys)
		info = c.maps[m.name]
	}
	if info.agg != Plain {
		c.mapMismatch(m.span, m.name, "", info.agg.typeName()).Note(info.first, "assigned here")
		return nil
	}
	c.sameKeys(m, info, keys)
	return info
}

// mapMismatch reports a value of another type than the map's, whose own may not be known.
func (c *checker) mapMismatch(at diag.Span, name, value, has string) *diag.Diagnostic {
	if value == "" {
		return c.diags.Errorf(at, "Type mismatch for @%s: trying to assign a value when map already has a type '%s'", name, has)
	}
	return c.diags.Errorf(at, "Type mismatch for @%s: trying to assign value of type '%s' when map already has a type '%s'", name, value, has)
}

// typeName is the type that bpftrace gives the values of a map.
func (a Agg) typeName() string { return a.String() + "_t" }

// widenMap makes a map hold values of the type too. Integers have 64 bits there.
func (c *checker) widenMap(info *mapInfo, t Type, at diag.Span) {
	if t.Kind == Int {
		t.Size = 8
	}
	now := t
	if info.value.Kind != None {
		var ok bool
		if now, ok = promote(info.value, t); !ok {
			c.mapMismatch(at, info.name, t.String(), info.value.String()).Note(info.first, "assigned here")
			return
		}
	}
	if !now.Equal(info.value) {
		info.value, c.changed = now, true
	}
}

// readMap types a map that stands for its value.
func (c *checker) readMap(m *mapExpr) Type {
	keys := c.mapKeys(m)
	info := c.usedMap(m)
	switch {
	case info == nil:
		return badType
	case info.agg == Stats || info.agg == Hist || info.agg == LHist || info.agg == TSeries:
		c.diags.Errorf(m.span, "a map that holds %s() has no value to compute with", info.agg).Hint("print(@%s) prints it", m.name)
		return badType
	case info.agg != Plain && !c.inTracer(m.span, "reading a map that holds "+info.agg.String()+"()"):
		return badType
	}
	c.sameKeys(m, info, keys)
	return c.readType(info)
}

// inTracer reports whether the probe runs in the tracer, or that what does not exist
// elsewhere.
func (c *checker) inTracer(at diag.Span, what string) bool {
	for _, a := range c.probe.attach {
		if a.Kind == Uprobe || a.Kind == Uretprobe || a.Kind == Usdt {
			c.diags.Errorf(at, "not supported yet: %s in a probe of the target", what).Note(a.Span, "this is one").
				Hint("begin, end and interval probes can")
			return false
		}
	}
	return true
}

// readType is the type of a map's value in an expression.
func (c *checker) readType(info *mapInfo) Type {
	switch {
	case info.agg == Count:
		return uint64Type
	case info.agg != Plain && info.signed:
		return int64Type
	case info.agg != Plain:
		return uint64Type
	case info.value.Kind == None:
		return badType
	}
	return info.value
}

// incrementMap types ++ and -- on a map.
func (c *checker) incrementMap(x *incExpr, m *mapExpr) {
	keys := c.mapKeys(m)
	x.typ = badType
	info := c.plainMap(m, keys)
	if info == nil {
		return
	}
	if info.value.Kind == Pointer {
		x.typ, m.typ = info.value, info.value
		return
	}
	if info.value.Kind != Int && info.value.Kind != None {
		c.diags.Errorf(x.span, "The %s operator can not be used on expressions of type '%s'", operatorText(x.op), info.value)
		return
	}
	t := int64Type
	t.flexible = x.op == tokInc
	c.widenMap(info, t, x.span)
	x.typ, m.typ = info.value, info.value
}

// entryCall checks delete() and has_key(), which name an entry as @m[key] or as
// @m, key. The call's first argument becomes the entry.
func (c *checker) entryCall(x *callExpr) Type {
	m, ok := x.args[0].(*mapExpr)
	if !ok {
		c.values(x.args)
		if b2t(x.args[0]).Kind != bad {
			c.diags.Errorf(x.args[0].base().span, "%s() expects a map argument", x.name)
		}
		return badType
	}
	if len(x.args) == 2 {
		if m.indexed {
			c.diags.Errorf(x.args[1].base().span, "%s() takes one key, and @%s has one already", x.name, m.name)
			return badType
		}
		entry := *m
		entry.keys, entry.indexed = []expr{x.args[1]}, true
		if t, ok := x.args[1].(*tupleExpr); ok && t.names == nil && len(t.elems) > 1 {
			entry.keys = t.elems
		}
		m = &entry
		x.args = []expr{m}
	}
	if info := c.maps[m.name]; x.name == "has_key" && m.indexed && info != nil && info.agg != 0 && len(info.keys) == 0 {
		c.explicitKeys(x)
		return badType
	}
	c.deletes[m.name] = c.deletes[m.name] || x.name == "delete"
	keys := c.mapKeys(m)
	info := c.usedMap(m)
	switch {
	case info == nil:
		return badType
	case info.agg != Plain && x.name == "has_key" && c.inTracer(x.span, "has_key() of a map that holds "+info.agg.String()+"()"):
	case info.agg != Plain && x.name == "has_key":
		return badType
	case info.agg == TSeries && x.name == "has_key":
		c.diags.Errorf(x.span, "not supported yet: has_key() of a map that holds tseries()")
		return badType
	case info.agg == Min || info.agg == Max:
		c.diags.Errorf(x.span, "not supported yet: %s() on a map that holds %s()", x.name, info.agg).Hint("clear(@%s) removes all entries", m.name)
		return badType
	case info.agg != Plain: // the tracer does it, so there is no result
		c.sameKeys(m, info, keys)
		return noneType
	}
	c.sameKeys(m, info, keys)
	return boolType
}
