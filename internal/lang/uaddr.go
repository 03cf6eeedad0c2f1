package lang

// uaddr types uaddr(name): the address of a symbol of the file that is probed. It is as far from the function as in the
// file.
func (c *checker) uaddr(x *callExpr) Type {
	name, ok := c.text(x.args[0], "symbol of uaddr()")
	if !ok || len(c.probe.attach) == 0 {
		return badType
	}
	a := &c.probe.attach[0]
	switch {
	case a.Kind != Uprobe && a.Kind != Uretprobe:
		c.diags.Errorf(x.span, "uaddr() exists only in uprobes and uretprobes").Note(a.Span, "this is none")
		return badType
	case len(c.probe.attach) > 1 || a.Func == "" || a.Wildcard || a.PathWildcard || a.Offset != 0:
		c.diags.Errorf(x.span, "uaddr() needs a probe at a function").Note(a.Span, "this is at another place, or at several")
		return badType
	case c.opts.Types == nil:
		c.diags.Errorf(x.span, "the symbols of the file are not known")
		return badType
	}
	delta, size, err := c.opts.Types.Address(a, name)
	if err == nil && delta != int64(int32(delta)) {
		delta = 0
		c.diags.Errorf(x.span, "%s is more than 2 GB away from %s", name, a.Func)
	}
	if err != nil {
		c.diags.Errorf(x.args[0].base().span, "Could not resolve symbol: %s:%s", a.Path, name).Hint("%v", err)
		return badType
	}
	x.offset = int(delta)
	elem := uint64Type
	if size == 1 || size == 2 || size == 4 {
		elem = intType(uint8(size), false)
	}
	return pointerTo(elem)
}
