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

// cgroupID types cgroupid(path).
func (c *checker) cgroupID(x *callExpr) Type {
	return c.lookedUp(x, "path of cgroupid()", c.opts.Cgroup, "Failed to get cgroup ID for path")
}

// kernelAddress types kaddr(name).
func (c *checker) kernelAddress(x *callExpr) Type {
	return c.lookedUp(x, "name of kaddr()", c.opts.Kernel, "Failed to resolve kernel symbol")
}

// lookedUp types a call with a text that stands for a number, which is known when the script is compiled.
// Without find, and where it knows none, failure is told.
func (c *checker) lookedUp(x *callExpr, what string, find func(string) (uint64, bool), failure string) Type {
	text, ok := c.text(x.args[0], what)
	if !ok {
		return badType
	}
	n, ok := uint64(0), false
	if find != nil {
		n, ok = find(text)
	}
	if !ok {
		c.diags.Errorf(x.span, "%s: %s", failure, text)
		return badType
	}
	x.setLiteral(uint64Type, n)
	return x.typ
}
