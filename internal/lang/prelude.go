package lang

import (
	"sync"

	"trapless/internal/diag"
)

// preludeText are functions of the language that are written in it.
const preludeText = `
macro assert(condition, message) { if (!(condition)) { errorf("assert failed: %s", message); exit(1); } }
macro find(@map, key, $value) { if (has_key(@map, key)) { $value = @map[key]; true } else { false } }
macro is_err(pointer) { (uint64)(pointer) >= 0xfffffffffffff001 }
`

// prelude are its macros.
var prelude = sync.OnceValue(func() []*macroNode {
	source := diag.NewSource("prelude", preludeText)
	diags := &diag.Collector{Source: source, Limit: maxErrors}
	n := parse(source, diags, nil)
	if err := diags.Err(); err != nil {
		panic("BUG: lang: " + err.Error())
	}
	for _, m := range n.macros {
		m.builtin = true
	}
	return n.macros
})
