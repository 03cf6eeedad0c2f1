package lang

import "trapless/internal/unix"

// What a number names, by the Format of a Name.
const (
	ErrorNames  = "strerror"
	SignalNames = "signal_name"
	CgroupPaths = "cgroup_path"
)

// nameCall types a call that gives a number a name, which is looked up when it is printed.
func (c *checker) nameCall(x *callExpr) Type {
	t := c.value(x.args[0])
	if t.Kind == bad {
		return badType
	}
	if t.Kind != Int {
		c.diags.Errorf(x.span, "%s() only supports integer arguments (%s provided)", x.name, t)
		return badType
	}
	out := Type{Kind: Name, Size: 8, Signed: true, Format: x.name}
	if len(x.args) == 2 {
		filter, ok := c.text(x.args[1], "filter of "+x.name+"()")
		if !ok {
			return badType
		}
		out.Format += ":" + filter
	}
	if con := x.args[0].base().con; con.known && x.name == ErrorNames {
		x.setString(unix.Strerror(int(int32(con.u))))
		return x.typ
	}
	return out
}

// cgroupID types cgroupid(path), which is known when the script is compiled.
func (c *checker) cgroupID(x *callExpr) Type {
	path, ok := c.text(x.args[0], "path of cgroupid()")
	if !ok {
		return badType
	}
	id, ok := uint64(0), false
	if c.opts.Cgroup != nil {
		id, ok = c.opts.Cgroup(path)
	}
	if !ok {
		c.diags.Errorf(x.span, "Failed to get cgroup ID for path: %s", path)
		return badType
	}
	x.setLiteral(uint64Type, id)
	return x.typ
}

// kernelAddress types kaddr(name), a number that is known when the script is compiled.
func (c *checker) kernelAddress(x *callExpr) Type {
	name, ok := c.text(x.args[0], "name of kaddr()")
	if !ok {
		return badType
	}
	address, ok := uint64(0), false
	if c.opts.Kernel != nil {
		address, ok = c.opts.Kernel(name)
	}
	if !ok {
		c.diags.Errorf(x.span, "Failed to resolve kernel symbol: %s", name)
		return badType
	}
	x.setLiteral(uint64Type, address)
	return x.typ
}
