package lang

import (
	"slices"
	"strings"

	"trapless/internal/diag"
)

// Some builtins are written in the language itself, with a map of their own that
// is not printed. Their names are none that a script can write.
const (
	startMap = "(start)" // of elapsed: when the session began
	entryMap = "(entry)" // of dur: when each thread entered the function
)

// builtinOf is what stands for elapsed and dur, nil for other names.
func (e *expander) builtinOf(name string, at diag.Span) expr {
	root := e
	for root.outer != nil {
		root = root.outer
	}
	b := exprBase{span: e.span(at)}
	nsecs := func() expr { return &nameExpr{exprBase: b, name: "nsecs"} }
	unsigned := func(x expr) expr { return &castExpr{exprBase: b, ref: &typeRef{span: b.span, name: "uint64"}, x: x} }
	switch strings.TrimPrefix(name, "__builtin_") {
	case "elapsed":
		root.elapsed = true
		m := &mapExpr{exprBase: b, name: startMap, nameAt: b.span}
		return unsigned(&binaryExpr{exprBase: b, op: '-', opAt: b.span, x: nsecs(), y: m})
	case "dur":
		root.dur = true
		entry := func() expr {
			return &mapExpr{exprBase: b, name: entryMap, nameAt: b.span, indexed: true, keys: []expr{&nameExpr{exprBase: b, name: builtinTid}}}
		}
		spent := &binaryExpr{exprBase: b, op: '-', opAt: b.span, x: nsecs(), y: entry()}
		return &condExpr{exprBase: b, cond: entry(), x: unsigned(spent), y: unsigned(&intExpr{b, 0})}
	}
	return nil
}

// note makes a probe that keeps the time in a map.
func note(attach []AttachPoint, at diag.Span, name string, keys ...expr) *probeNode {
	b := exprBase{span: at}
	m := &mapExpr{exprBase: b, name: name, nameAt: at, indexed: len(keys) > 0, keys: keys}
	s := &assignStmt{span: at, opAt: at, target: m, value: &nameExpr{exprBase: b, name: "nsecs"}}
	return &probeNode{attach: attach, span: at, body: &blockStmt{span: at, stmts: []stmt{s}}}
}

// noteStart makes the probe that elapsed needs.
func (e *expander) noteStart(n *scriptNode) {
	if !e.elapsed || len(n.probes) == 0 {
		return
	}
	at := n.probes[0].span
	n.probes = slices.Insert(n.probes, 0, note([]AttachPoint{{Kind: Begin, Span: at, Text: "begin"}}, at, startMap))
}

// noteEntry makes the probe that dur in the return probe needs.
func (e *expander) noteEntry(p *probeNode) *probeNode {
	var attach []AttachPoint
	for _, a := range p.attach {
		if a.Kind != Uretprobe {
			e.diags.Errorf(a.Span, "dur exists only in uretprobes")
			continue
		}
		a.Kind = Uprobe
		attach = append(attach, a)
	}
	return note(attach, p.span, entryMap, &nameExpr{exprBase: exprBase{span: p.span}, name: builtinTid})
}
