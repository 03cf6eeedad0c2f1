package lang

// blockValue types "{ statements; value }".
func (c *checker) blockValue(x *blockExpr) {
	c.push()
	defer c.pop()
	for _, s := range x.body.stmts {
		c.stmt(s)
	}
	x.typ = noneType
	if x.value == nil {
		return
	}
	x.typ = c.expr(x.value)
	if len(x.body.stmts) == 0 {
		x.con, x.cut = x.value.base().con, x.value.base().cut
	}
}

// callFn types a call of a function of the script's own.
func (c *checker) callFn(x *fnExpr) {
	c.push()
	defer c.pop()
	outer := c.scopes
	defer func() { c.scopes = outer }()
	for _, p := range x.params {
		c.assign(p)
	}
	c.scopes = []map[string]*variable{c.scopes[len(c.scopes)-1]} // it sees nothing else
	if x.sym == nil {
		x.sym = &variable{name: x.name + "()", decl: x.span}
	}
	x.sym.assigned = true
	if x.result != nil {
		x.sym.typ, x.sym.fixed = c.resolve(x.result), true
		if x.sym.typ.Kind == None {
			x.sym.fixed = false
		}
	}
	loops := c.loops
	c.loops = 0
	c.block(x.body)
	c.loops = loops
	x.typ = x.sym.typ
}

// giveBack checks a return statement.
func (c *checker) giveBack(s *returnStmt) {
	if s.fn == nil {
		if s.value != nil {
			if t := c.value(s.value); t.Kind != Int && t.Kind != Bool && t.Kind != bad {
				c.diags.Errorf(s.value.base().span, "Probe return values can only be integers. Found %s", t)
			}
		}
		return
	}
	v := s.fn.sym
	if s.value == nil {
		if v.fixed {
			c.diags.Errorf(s.span, "Function %s is of type %s, cannot return void", s.fn.name, v.typ)
		}
		return
	}
	t := c.value(s.value)
	if s.fn.result != nil && v.typ.Kind == None {
		c.diags.Errorf(s.value.base().span, "Function %s is of type void, cannot return %s", s.fn.name, t)
		return
	}
	c.store(v, s.value.base(), t, true)
}

// while types a loop with a condition.
func (c *checker) while(s *whileStmt) {
	c.condition(s.cond)
	c.loop(s.body)
}

func (c *checker) loop(b *blockStmt) {
	c.loops++
	c.block(b)
	c.loops--
}

// rangeLoop types "for ($v : from..to)".
func (c *checker) rangeLoop(s *rangeStmt) {
	from, to := c.value(s.from), c.value(s.to)
	for i, x := range []expr{s.from, s.to} {
		if t := b2t(x); t.Kind != Int && t.Kind != bad {
			c.diags.Errorf(x.base().span, "Loop range requires an integer for the %s value", [...]string{"start", "end"}[i])
			from = badType
		}
	}
	c.push()
	defer c.pop()
	c.newLoopVariable(s.v)
	if from.Kind != bad && to.Kind != bad {
		t := int64Type
		if f, u := from.adapt(to), to.adapt(from); !f.Signed && !u.Signed {
			t = uint64Type
		}
		c.widen(s.v.sym, t)
	}
	if s.end == nil {
		s.end = &variable{name: "(end)", typ: int64Type, assigned: true}
		s.count = &variable{name: "(count)", typ: int64Type, assigned: true}
	}
	s.end.uses, s.count.uses = 100, 100
	c.loop(s.body)
}

func (c *checker) newLoopVariable(v *varExpr) {
	if old := c.find(v.name); old != nil {
		c.diags.Errorf(v.span, "Loop declaration shadows existing variable: $%s", v.name).Note(old.decl, "declared here")
	}
	c.declare(v)
	v.sym.assigned = true
	v.sym.uses += 100
}

// each types "for ($kv : @m)".
func (c *checker) each(s *eachStmt) {
	c.push()
	defer c.pop()
	if s.m == nil {
		return
	}
	if s.m.indexed {
		c.diags.Errorf(s.m.span, "a loop goes over a whole map").Hint("write @%s", s.m.name)
		return
	}
	info := c.usedMap(s.m)
	c.newLoopVariable(s.v)
	switch {
	case info == nil:
		s.v.sym.typ = badType
	case len(info.keys) == 0:
		c.diags.Errorf(s.m.span, "@%s has no explicit keys (scalar map), and cannot be used for iteration", s.m.name)
	case info.agg == Stats || info.agg == Hist || info.agg == LHist || info.agg == TSeries:
		c.diags.Errorf(s.m.span, "Loop expression does not support type: %s", info.agg.typeName()).Hint("print(@%s) prints it", s.m.name)
	case !c.inTracer(s.span, "a loop over a map"):
	default:
		value := c.readType(info)
		if value.Kind != None {
			s.v.sym.typ = badType
			if value.Kind != bad {
				s.v.sym.typ = tupleOf([]Type{info.keyType(), value}, nil)
			}
		}
	}
	c.loop(s.body)
}

// keyType is the key of a map as one value: a tuple, where it has several parts.
func (m *mapInfo) keyType() Type {
	if len(m.keys) == 1 {
		return m.keys[0]
	}
	return tupleOf(m.keys, nil)
}

// maxUnroll is how often a block may be repeated, as in bpftrace.
const maxUnroll = 100

func (c *checker) unroll(s *unrollStmt) {
	t := c.value(s.count)
	con := s.count.base().con
	switch {
	case t.Kind == bad:
		return
	case t.Kind != Int || !con.known:
		c.diags.Errorf(s.count.base().span, "invalid unroll value")
		return
	case int64(con.u) > maxUnroll:
		c.diags.Errorf(s.count.base().span, "unroll maximum value is %d", maxUnroll)
		return
	case int64(con.u) < 1:
		c.diags.Errorf(s.count.base().span, "unroll minimum value is 1")
		return
	}
	for len(s.copies) < int(con.u) {
		c.unrolled++
		if c.unrolled > maxExpansion/maxUnroll {
			c.diags.Errorf(s.span, "unroll makes the script too long")
			return
		}
		s.copies = append(s.copies, copyBlock(s.body, c.diags))
	}
	c.loops++
	for _, b := range s.copies[:con.u] {
		c.block(b)
	}
	c.loops--
}

// jump checks break and continue.
func (c *checker) jump(s *jumpStmt) {
	if c.loops == 0 {
		what := "break"
		if s.again {
			what = "continue"
		}
		c.diags.Errorf(s.span, "'%s' statement is not allowed outside of a loop", what)
	}
}
