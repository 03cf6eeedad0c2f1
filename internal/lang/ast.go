package lang

import "trapless/internal/diag"

// The tree. The parser makes it, the checker fills in types, constants and
// what names refer to, and lowering reads it.

type scriptNode struct {
	config []*configNode
	decls  []*mapDecl
	probes []*probeNode
	macros []*macroNode
	fns    []*fnNode
	unused []*probeNode // functions that nothing calls, to be checked alone
	types  *cTypes

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

// macroNode is a macro, or a function of the script's own language that is put
// in where it is called.
type macroNode struct {
	name    string
	params  []expr // varExpr, mapExpr or nameExpr
	body    *blockStmt
	span    diag.Span
	builtin bool // it comes from the prelude
}

// fnNode is a function of the script's own.
type fnNode struct {
	name   string
	params []*declStmt
	result *typeRef // nil if it was not given
	body   *blockStmt
	span   diag.Span
}

// typeRef is a type as it is written.
type typeRef struct {
	span diag.Span
	tag  string // struct, union or enum
	name string
	of   expr     // of typeof(expression)
	in   *typeRef // of typeof(type)
	mods []typeMod
}

// typeMod is what follows the name of a type.
type typeMod struct {
	pointer bool
	open    bool // an array whose size is not said
	count   uint64
}

// expr is an expression.
type expr interface{ base() *exprBase }

type exprBase struct {
	span diag.Span
	from []diag.Span // where the macros stand that it came from, the innermost first
	cut  bool        // a string whose length the script says
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
		offset int // of container_of
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
		ref *typeRef
		to  Type
		x   expr
	}
	// incExpr is ++ or -- on a variable or map.
	incExpr struct {
		exprBase
		op   tokenKind
		post bool
		x    expr
	}
	// tupleExpr is "(a, b)", with names the record "(n=a, m=b)".
	tupleExpr struct {
		exprBase
		elems  []expr
		names  []string // nil for a tuple
		nameAt []diag.Span
	}
	// fieldExpr is x.name, also x.0 of a tuple.
	fieldExpr struct {
		exprBase
		x      expr
		name   string
		nameAt diag.Span
		field  Field // as the checker found it
	}
	indexExpr struct {
		exprBase
		x, index expr
	}
	// derefExpr is *x, addrExpr is &x.
	derefExpr struct {
		exprBase
		x expr
	}
	addrExpr struct {
		exprBase
		x expr
	}
	// blockExpr is "{ statements; value }". Without a value it has the type None.
	blockExpr struct {
		exprBase
		body  *blockStmt
		value expr
	}
	// fnExpr is a call of a function of the script, whose body is its own copy.
	fnExpr struct {
		exprBase
		name   string
		params []*assignStmt
		result *typeRef
		body   *blockStmt
		sym    *variable // what it returns
	}
	// sizeofExpr is sizeof and offsetof, of a type or of an expression.
	sizeofExpr struct {
		exprBase
		ref    *typeRef
		x      expr
		offset bool
		fields []string
	}
	// typeofExpr is a type that is passed to a macro.
	typeofExpr struct {
		exprBase
		ref *typeRef
	}
	// comptimeExpr is "comptime x": x must be known at compile time.
	comptimeExpr struct {
		exprBase
		x expr
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
		open    bool // no ';' follows: it may be the value of its block
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
		span diag.Span
		v    *varExpr
		ref  *typeRef // nil when it is not given
	}
	ifStmt struct {
		span      diag.Span
		cond      expr
		then, els stmt // els may be nil
	}
	returnStmt struct {
		span  diag.Span
		value expr // may be nil
		fn    *fnExpr
	}
	whileStmt struct {
		span diag.Span
		cond expr
		body *blockStmt
	}
	// rangeStmt is "for ($v : from..to)".
	rangeStmt struct {
		span     diag.Span
		v        *varExpr
		from, to expr
		body     *blockStmt
		end      *variable // what to was when the loop began
		count    *variable // where the loop is, whatever is assigned to v
	}
	// eachStmt is "for ($v : @m)".
	eachStmt struct {
		span diag.Span
		v    *varExpr
		m    *mapExpr
		body *blockStmt
	}
	unrollStmt struct {
		span   diag.Span
		count  expr
		body   *blockStmt
		copies []*blockStmt // made by the checker
	}
	// jumpStmt is break or continue.
	jumpStmt struct {
		span  diag.Span
		again bool
	}
)

func (*blockStmt) stmt()  {}
func (*exprStmt) stmt()   {}
func (*assignStmt) stmt() {}
func (*declStmt) stmt()   {}
func (*ifStmt) stmt()     {}
func (*returnStmt) stmt() {}
func (*whileStmt) stmt()  {}
func (*rangeStmt) stmt()  {}
func (*eachStmt) stmt()   {}
func (*unrollStmt) stmt() {}
func (*jumpStmt) stmt()   {}
