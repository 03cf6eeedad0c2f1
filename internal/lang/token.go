package lang

import "trapless/internal/diag"

// tokenKind says what a token is. Operators of several characters have a kind
// of their own, the others are their character.
type tokenKind int

const (
	tokEOF tokenKind = -(iota + 1)
	tokIllegal
	tokIdent
	tokInt
	tokString
	tokVar        // $name
	tokMap        // @name or @
	tokParam      // $1
	tokParamCount // $#
	tokDotDot     // ..
	tokArrow      // ->
	tokInc        // ++
	tokDec        // --
	tokAndAnd     // &&
	tokOrOr       // ||
	tokEq         // ==
	tokNe         // !=
	tokLe         // <=
	tokGe         // >=
	tokShl        // <<
	tokShr        // >>
	tokAssignOp   // += and its like; the operator is in token.op
)

// token is a piece of the text.
type token struct {
	kind  tokenKind
	span  diag.Span
	text  string    // name without its sigil, string without its quotes, digits of a parameter
	value uint64    // of an integer
	op    tokenKind // of an assignment operator
	err   string    // of an illegal token: what is wrong with it
	hint  string    // of an illegal token, may be empty
	open  bool      // of an illegal token: it has no end, and took what was not meant for it
}

// describe is how an error message calls the token.
func (t token) describe(src *diag.Source) string {
	switch t.kind {
	case tokEOF:
		return "the end of the script"
	case tokString:
		return "a string"
	}
	return "'" + src.Slice(t.span) + "'"
}

// operators of more than one character, the longest first for each beginning.
var operators = []struct {
	text string
	kind tokenKind
	op   tokenKind
}{
	{"<<=", tokAssignOp, tokShl}, {">>=", tokAssignOp, tokShr},
	{"<<", tokShl, 0}, {">>", tokShr, 0},
	{"..", tokDotDot, 0}, {"->", tokArrow, 0}, {"++", tokInc, 0}, {"--", tokDec, 0},
	{"&&", tokAndAnd, 0}, {"||", tokOrOr, 0},
	{"==", tokEq, 0}, {"!=", tokNe, 0}, {"<=", tokLe, 0}, {">=", tokGe, 0},
	{"+=", tokAssignOp, '+'}, {"-=", tokAssignOp, '-'}, {"*=", tokAssignOp, '*'},
	{"/=", tokAssignOp, '/'}, {"%=", tokAssignOp, '%'},
	{"&=", tokAssignOp, '&'}, {"|=", tokAssignOp, '|'}, {"^=", tokAssignOp, '^'},
}

// operatorText is an operator as it is written.
func operatorText(k tokenKind) string {
	if k > 0 {
		return string(rune(k))
	}
	for _, o := range operators {
		if o.kind == k {
			return o.text
		}
	}
	return "?"
}
