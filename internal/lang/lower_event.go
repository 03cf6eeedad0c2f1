package lang

import (
	"fmt"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/bpf"
)

// callStmt makes an event. It reports whether the run ends with it.
func (l *lowerer) callStmt(c *callExpr) bool {
	a := Action{Span: c.span, From: c.from}
	var args []expr
	switch c.name {
	case "printf", "errorf", "warnf", "cat", "system":
		f, _ := parseFormat(c.args[0].base().con.s)
		a.Kind = map[string]ActionKind{"printf": Printf, "errorf": Errorf, "warnf": Warnf, "cat": Cat, "system": System}[c.name]
		a.Format, args = &f, c.args[1:]
	case "print":
		args = l.printAction(&a, c)
	case "clear", "zero":
		a.Kind = map[string]ActionKind{"clear": Clear, "zero": Zero}[c.name]
		a.Map = l.maps[c.args[0].(*mapExpr).name].number
	case "delete": // of an aggregation
		m := c.args[0].(*mapExpr)
		a.Kind, a.Map, args = DeleteEntry, l.maps[m.name].number, m.keys
		if len(m.keys) == 0 {
			a.Kind = Clear
		}
	case "time":
		a.Kind, a.Text = PrintTime, "%H:%M:%S\n"
		if len(c.args) == 1 {
			a.Text = c.args[0].base().con.s
		}
	case "join":
		l.join(c)
		return false
	case "exit":
		a.Kind, args = Exit, c.args
		if len(args) == 0 {
			a.Args = []Arg{{Const: true, Value: Value{Type: int64Type}}}
		}
	default: // what is decided at compile time
		return false
	}
	l.event(&a, args)
	if a.Kind == Exit {
		l.helper(bpf.HelperExit)
		return true
	}
	return false
}

// printAction is what print prints; it returns the values that the event has.
func (l *lowerer) printAction(a *Action, c *callExpr) []expr {
	m, ok := c.args[0].(*mapExpr)
	if !ok || m.indexed && l.maps[m.name].agg == Plain {
		a.Kind = PrintValue
		return c.args[:1]
	}
	a.Map, a.Div = l.maps[m.name].number, 1
	if len(c.args) > 1 {
		a.Top = uint32(c.args[1].base().con.u)
	}
	if len(c.args) > 2 {
		a.Div = max(1, uint32(c.args[2].base().con.u))
	}
	a.Kind = PrintMap
	if m.indexed {
		a.Kind = PrintEntry
		return m.keys
	}
	return nil
}

// event writes an action's number and its arguments into the ring.
func (l *lowerer) event(a *Action, args []expr) {
	frame, spare, big := l.frame, l.spare, l.big
	var words []expr
	size := 8
	for i, x := range args {
		arg := l.arg(x)
		if keys := l.keysOf(a); keys != nil && len(args) < len(keys) {
			arg.Value.Type = tupleOf(keys, nil)
		} else if keys != nil {
			arg.Value.Type = keys[i]
		}
		if !arg.Const {
			words = append(words, x)
			size += 8 * arg.Value.Type.Words()
		}
		a.Args = append(a.Args, arg)
	}
	base := l.newPlace(size)
	at := base.plus(8)
	for i, arg := range a.Args {
		if arg.Const {
			continue
		}
		l.into(args[i], at, arg.Value.Type)
		at = at.plus(8 * arg.Value.Type.Words())
	}
	l.act(*a, base, size)
	l.frame, l.spare, l.big = frame, spare, big
}

// act adds an action to the script and writes the event whose arguments lie behind the first word of p.
func (l *lowerer) act(a Action, p place, size int) {
	n := len(l.script.Actions)
	l.putBytes(p, []byte{byte(n), byte(n >> 8), byte(n >> 16)}, 1)
	l.script.Actions = append(l.script.Actions, a)
	l.output(p, size)
	if size > bpf.MaxEvent {
		l.diags.Errorf(a.Span, "the event has %d bytes, the limit is %d", size, bpf.MaxEvent).Hint("str(pointer, length) takes shorter strings")
	}
}

// keysOf are the parts of the key that an action is about, nil for others.
func (l *lowerer) keysOf(a *Action) []Type {
	if !a.Kind.entry() {
		return nil
	}
	return l.scriptMap(a.Map).keys
}

// arg describes an argument of an event.
func (l *lowerer) arg(x expr) Arg {
	b := x.base()
	arg := Arg{Value: Value{Type: b.typ}}
	if b.con.known && pure(x) && (b.typ.isScalar() || b.typ.Kind == String) {
		arg.Const, arg.Value.Int, arg.Value.Str = true, b.con.u, b.con.s
		return arg
	}
	arg.Trailer = b.typ.Kind == String && b.typ.Len > commSize && !b.cut && readsString(x)
	return arg
}

func (l *lowerer) output(p place, size int) {
	l.emit(bpf.LoadRing(asm.R1))
	l.point(asm.R2, p)
	l.movImm(asm.R3, uint64(size))
	l.movImm(asm.R4, 0)
	l.helper(bpf.HelperRingbufOutput)
}

// scriptMap finds a map by its number.
func (l *lowerer) scriptMap(n int) *mapInfo {
	for _, m := range l.maps {
		if m.number == n {
			return m
		}
	}
	return nil
}

// join reads the strings of an array of pointers that 0 ends, as many as an event
// has room for.
func (l *lowerer) join(c *callExpr) {
	const strings, room = 16, 24 // as many and as long as fit an event; bpftrace has 16
	t := Type{Kind: String, Len: room}
	a := Action{Kind: Join, Text: " ", Span: c.span}
	if len(c.args) == 2 {
		a.Text = c.args[1].base().con.s
	}
	l.hoist(c.args[0])
	array := place{kind: inTarget, addr: l.lasting(c.args[0])}
	size := 8 + strings*room
	base := l.newPlace(size)
	l.clearAt(base.plus(8), strings*room/8)
	done := l.newLabel()
	pointer := l.newPlace(8)
	for i := range strings {
		a.Args = append(a.Args, Arg{Value: Value{Type: t}})
		l.readTarget(pointer, 8, array.plus(8*i))
		from, off := l.access(pointer, asm.R5)
		l.emit(asm.LoadMem(asm.R3, from, off, asm.DWord))
		l.jumpImm(asm.JEq, asm.R3, 0, done)
		l.point(asm.R1, base.plus(8+room*i))
		l.movImm(asm.R2, room)
		l.helper(asm.FnProbeReadUserStr)
	}
	l.bind(done)
	l.act(a, base, size)
}

// bug reports a tree that the checker should have refused.
func bug(x any) { panic(fmt.Sprintf("BUG: lang: cannot lower %T", x)) }
