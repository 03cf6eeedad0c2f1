package lang

import (
	"maps"
	"slices"
	"strings"
)

// A script has options of its own, which follow it on the command line as --name=value
// and are read by getopt().

// getopt types a call of getopt(name, default, description). The default says what the
// value may be; without it there is a bool.
func (c *checker) getopt(x *callExpr) Type {
	name, ok := c.text(x.args[0], "name of an option")
	def := exprBase{typ: boolType, con: constant{known: true, literal: true}}
	if len(x.args) > 1 {
		c.value(x.args[1])
		def = *x.args[1].base()
	}
	described := ""
	if len(x.args) > 2 {
		described, _ = c.text(x.args[2], "description of an option")
	}
	if !ok || def.typ.Kind == bad {
		return badType
	}
	if !def.con.literal {
		c.diags.Errorf(x.args[1].base().span, "Second argument to 'getopt' must be a string literal, integer literal, or a boolean literal.")
		return badType
	}
	c.options[name] = described
	x.con = def.con
	if value, given := c.opts.Named[name]; given {
		return c.option(x, name, value, def.typ)
	}
	return def.typ
}

// truths are the words for true and false.
var truths = map[string]bool{"1": true, "true": true, "on": true, "yes": true, "0": false, "false": false, "off": false, "no": false}

// option is the value of an option that was given.
func (c *checker) option(x *callExpr, name, value string, t Type) Type {
	wrong := func(format string, args ...any) Type {
		c.diags.Plainf("program command line option --%s "+format+" (value: %s)", append(append([]any{name}, args...), value)...)
		return badType
	}
	switch t.Kind {
	case Bool:
		on, ok := truths[strings.ToLower(value)]
		if !ok {
			return wrong("expects a boolean (e.g. 'true')")
		}
		x.con.u = b2u(on)
	case String:
		x.con.s = value
		return textType(len(value))
	default:
		positive, negative := strings.CutPrefix(value, "-")
		u, err := parseInt(positive)
		if err != nil {
			return wrong("invalid integer")
		}
		if x.setLiteral(literalType(u), u); negative {
			x.setLiteral(negativeType(-int64(u)), -u)
		}
		return x.typ
	}
	return t
}

// unexpected reports options that were given and that the script does not read. --help
// tells of those that it reads.
func (c *checker) unexpected() {
	var names []string
	_, help := c.opts.Named["help"]
	for _, name := range slices.Sorted(maps.Keys(c.opts.Named)) {
		if _, known := c.options[name]; known {
			help = help && name != "help"
		} else if name != "help" {
			names = append(names, "--"+name)
		}
	}
	switch {
	case len(names) > 0:
		c.diags.Plainf("unexpected program command line options: %s", strings.Join(names, ", ")).Hint("%s", c.expected(help))
	case help:
		c.diags.Plainf("the script has not been run").Hint("%s", c.expected(true))
	}
}

// expected lists the options that a script reads, with what is said of each if it is
// asked for.
func (c *checker) expected(help bool) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(c.options)) {
		text := "--" + name
		if described := c.options[name]; help && described != "" {
			text += ": " + described
		}
		list = append(list, text)
	}
	switch {
	case len(list) == 0:
		return "no custom program options defined."
	case help:
		return "expected program options:\n" + strings.Join(list, "\n")
	}
	return "expected program options: " + strings.Join(list, ", ")
}
