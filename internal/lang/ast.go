package lang

import "trapless/internal/diag"

// The tree. The parser makes it, the checker fills in types, constants and
// what names refer to, and lowering reads it.

type scriptNode struct {
	config []*configNode
	decls  []*mapDecl
	probes []*probeNode

	// foreign: there are definitions that are not read (and were reported), so a
	// name that is not known may be one of theirs.
	foreign bool
}

// configNode is one setting of the config block.
type configNode struct {
	name  string
	value token // integer, string or identifier
	span  diag.Span
}

// mapDecl is "let @name = kind(entries)" outside of probes.
type mapDecl struct {
	name     string
	kind     string
	entries  uint64
	span     diag.Span
	kindSpan diag.Span
	nameSpan diag.Span
}

type probeNode struct {
	attach    []AttachPoint
	predicate expr // nil if there is none
	body      *blockStmt
	span      diag.Span
}

// expr is an expression.
type expr interface{ base() *exprBase }

type exprBase struct {
	span diag.Span
	cut  bool // a string whose length the script says
	typ  Type
	con  constant
}

func (b *exprBase) base() *exprBase { return b }

// constant is the value of an expression that is known at compile time.
type constant struct {
	known   bool
	literal bool   // a literal or computed from literals alone, without a cast
	u       uint64 // of an integer or a truth value
	s       string // of a string
}

// negative reports whether the literal is below zero.
func (b *exprBase) negative() bool {
	return b.typ.Kind == Int && b.typ.Signed && int64(b.con.u) < 0
}

type (
	intExpr struct {
		exprBase
		value uint64
	}
	boolExpr struct {
		exprBase
		value bool
	}
	strExpr struct {
		exprBase
		value string
	}
	// varExpr is $name.
	varExpr struct {
		exprBase
		name string
		sym  *variable
	}
	// mapExpr is @name or @name[keys]; name has no sigil.
	mapExpr struct {
		exprBase
		name    string
		keys    []expr
		indexed bool
		nameAt  diag.Span
	}
	// nameExpr is a bare identifier: a builtin, or an error.
	nameExpr struct {
		exprBase
		name   string
		marker bool // an argument of a USDT probe
	}
	paramExpr struct {
		exprBase
		number string // digits
	}
	paramCountExpr struct{ exprBase }
	callExpr       struct {
		exprBase
		name   string
		nameAt diag.Span
		args   []expr
	}
	unaryExpr struct {
		exprBase
		op tokenKind
		x  expr
	}
	binaryExpr struct {
		exprBase
		op   tokenKind
		opAt diag.Span
		x, y expr
	}
	condExpr struct {
		exprBase
		cond, x, y expr
	}
	castExpr struct {
		exprBase
		to     Type
		typeAt diag.Span
		x      expr
	}
	// incExpr is ++ or -- on a variable or map.
	incExpr struct {
		exprBase
		op   tokenKind
		post bool
		x    expr
	}
	tupleExpr struct {
		exprBase
		elems []expr
	}
	// badExpr stands where a reported error was.
	badExpr struct{ exprBase }
)

// stmt is a statement.
type stmt interface{ stmt() }

type (
	blockStmt struct {
		span  diag.Span
		stmts []stmt
	}
	exprStmt struct {
		x       expr
		discard bool // written as "_ = x"
	}
	// assignStmt is "target = value", also with an operator, also after let.
	assignStmt struct {
		span   diag.Span
		op     tokenKind // 0, or the operator of +=
		opAt   diag.Span
		target expr // varExpr or mapExpr
		value  expr
		decl   *declStmt
	}
	// declStmt is "let $name" or "let $name: type".
	declStmt struct {
		span   diag.Span
		v      *varExpr
		typ    Type // None when it is not given
		typeAt diag.Span
	}
	ifStmt struct {
		span      diag.Span
		cond      expr
		then, els stmt // els may be nil
	}
	returnStmt struct {
		span  diag.Span
		value expr // may be nil
	}
)

func (*blockStmt) stmt()  {}
func (*exprStmt) stmt()   {}
func (*assignStmt) stmt() {}
func (*declStmt) stmt()   {}
func (*ifStmt) stmt()     {}
func (*returnStmt) stmt() {}
