package lang

import (
	"strconv"
	"strings"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/bpf"
)

// Arguments of USDT probes are in another place at each place of the probe. A program that uses them is a
// template (bpf.MarkerArg).

// markerArg types an argument of a USDT probe.
func (c *checker) markerArg(name string, b *exprBase) Type {
	if t := c.only(Usdt, name, b); t.Kind == bad {
		return t
	}
	if markerNumber(name) < 0 {
		c.diags.Errorf(b.span, "a USDT probe has no %s", name).Hint("its arguments are arg0 to arg%d", bpf.MaxMarkerArgs-1)
		return badType
	}
	return uint64Type
}

// isUsdt reports whether the first attach point is one of a USDT probe.
func (n *probeNode) isUsdt() bool { return len(n.attach) > 0 && n.attach[0].Kind == Usdt }

// markerNumber is the number of an argument of a USDT probe, -1 if it has none of the name.
func markerNumber(name string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(name, "arg"))
	if err != nil || n >= bpf.MaxMarkerArgs {
		return -1
	}
	return n
}

// markerArg puts an argument into a home. The context is kept in a register that lasts (survey).
func (l *lowerer) markerArg(x *nameExpr, h home) {
	slot := l.push(8)
	l.mov(asm.R1, l.ctx)
	l.emit(bpf.MarkerArg(markerNumber(x.name), slot))
	l.called = true
	l.setHome(h, asm.R0)
}
