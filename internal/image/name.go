package image

import (
	"slices"
	"strings"

	"github.com/ianlancetaylor/demangle"
)

// Match is a function that was asked for by name.
type Match struct {
	Func
	Symbol string // the name that fitted, as it stands in the file
}

// Pretty is the name that fitted, demangled; equal to Symbol where nothing is mangled.
func (m *Match) Pretty() string { return pretty(m.Symbol) }

const (
	maxMangled = 16 << 10 // a longer name is left as it is
	maxPretty  = 16       // the demangler gives up beyond 2^16 bytes
)

// Wild reports whether a pattern has wildcards: * for any characters, ? for one.
func Wild(pattern string) bool { return strings.ContainsAny(pattern, "*?") }

// Match returns the functions one of whose names fits a pattern, sorted by start, each once. A demangled
// name (C++, Rust) fits with its parameters or without. Functions that only choose another (IFunc) are
// among them, marked. A pattern that begins as mangled names do is compared with those alone: what begins so is
// reserved in C++ (lex.name). Parts of functions (Entry is false) and wrappers are not: a function would be found
// twice.
func (fs *Functions) Match(pattern string) []Match {
	need := words(pattern)
	var found []Match
	for i := range fs.all {
		fn := &fs.all[i]
		if !fn.Entry || fn.Wrapper {
			continue
		}
		n := slices.IndexFunc(fn.Names, func(name string) bool { return glob(pattern, name) })
		if n < 0 && !mangled(pattern) {
			n = slices.IndexFunc(fn.Names, func(name string) bool {
				if !hasWords(name, need) {
					return false
				}
				pretty, ok := fs.full(name)
				return ok && globPretty(pattern, name, pretty)
			})
		}
		if n >= 0 {
			found = append(found, Match{*fn, fn.Names[n]})
		}
	}
	return found
}

// globPretty compares with both demangled forms. The short one, which costs another demangling, is a part
// of the full one.
func globPretty(pattern, name, full string) bool {
	return glob(pattern, full) || glob("*"+pattern+"*", full) && glob(pattern, withoutParameters(name))
}

// Lookup returns the functions with exactly one name: C++ has overloads, and every C file its own static
// functions. A name of the file itself goes before a demangled one, and a symbol's default version before
// old ones, which can be named in full ("memcpy@GLIBC_2.2.5"). The error is a *NotFoundError, or an
// *IFuncError when the name only stands for a choice.
func (fs *Functions) Lookup(name string) ([]Match, error) {
	found := fs.withSymbol(func(s string) bool { return s == name })
	if len(found) == 0 {
		found = fs.withSymbol(func(s string) bool { return strings.HasPrefix(s, name+"@") })
	}
	if len(found) == 0 {
		found = fs.withPretty(name)
	}
	if len(found) == 0 {
		return nil, &NotFoundError{Name: name, Suggestions: fs.suggest(name), NoSymtab: fs.Go == nil && !fs.file.hasSection(".symtab")}
	}
	if slices.ContainsFunc(found, func(m Match) bool { return !m.Wrapper }) {
		found = slices.DeleteFunc(found, func(m Match) bool { return m.Wrapper })
	}
	functions := slices.DeleteFunc(found, func(m Match) bool { return m.IFunc })
	if len(functions) == 0 {
		return nil, &IFuncError{Name: name, Implementations: fs.implementations(name)}
	}
	return functions, nil
}

func (fs *Functions) withSymbol(test func(string) bool) []Match {
	var found []Match
	for i := range fs.all {
		if n := slices.IndexFunc(fs.all[i].Names, test); n >= 0 {
			name := fs.all[i].Names[n]
			found = append(found, Match{fs.all[i], name})
		}
	}
	return found
}

// withPretty compares demangled names. Without parameters the name of a part is that of its function, so a
// part is found by the full form alone.
func (fs *Functions) withPretty(name string) []Match {
	need := words(name)
	var found []Match
	for i := range fs.all {
		fn := &fs.all[i]
		for _, symbol := range fn.Names {
			if !hasWords(symbol, need) {
				continue
			}
			pretty, ok := fs.full(symbol)
			if !ok || !strings.Contains(pretty, name) {
				continue
			}
			if pretty == name || fn.Entry && withoutParameters(symbol) == name {
				found = append(found, Match{*fn, symbol})
				break
			}
		}
	}
	return found
}

// Pretty demangles a name as it is shown to people. Any other name comes back as it is.
func (fs *Functions) Pretty(name string) string { return pretty(name) }

func pretty(name string) string {
	if !mangled(name) {
		return name
	}
	return demangleAs(name)
}

// mangled reports whether a name may be mangled: C++ and older Rust start with _Z, Rust's v0 with _R.
func mangled(name string) bool {
	return len(name) > 3 && len(name) <= maxMangled && name[0] == '_' && (name[1] == 'Z' || name[1] == 'R')
}

// demangleAs returns the name itself if it cannot be demangled.
func demangleAs(name string, options ...demangle.Option) string {
	s, err := demangle.ToString(name, append(options, demangle.MaxLength(maxPretty))...)
	if err != nil {
		return name
	}
	return s
}

func withoutParameters(name string) string { return demangleAs(name, demangle.NoParams) }

// full is the full demangled form of a name: "ns::f(int)". Without one it is the name itself, and false.
func (fs *Functions) full(name string) (string, bool) {
	if !mangled(name) {
		return name, false
	}
	fs.prettyMu.Lock()
	defer fs.prettyMu.Unlock()
	text, ok := fs.pretty[name]
	if !ok {
		if fs.pretty == nil {
			fs.pretty = map[string]string{}
		}
		text = demangleAs(name)
		fs.pretty[name] = text
	}
	return text, true
}

// implementations lists functions whose names hold the name of a choice: memcpy is chosen among
// __memcpy_avx_unaligned_erms and others.
func (fs *Functions) implementations(name string) []string {
	var names []string
	for i := range fs.all {
		fn := &fs.all[i]
		if !fn.IFunc && fn.Entry && strings.HasPrefix(strings.TrimLeft(fn.Name(), "_"), name+"_") {
			if names = append(names, fn.Name()); len(names) == 10 {
				break
			}
		}
	}
	return names
}

// glob matches a whole name: * stands for any characters, ? for one. It takes at most the product of
// the lengths in steps.
func glob(pattern, name string) bool {
	p, n := 0, 0
	star, retry := -1, 0 // after the last *, and where in the name it may still grow
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			p++
			star, retry = p, n
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == name[n]):
			p++
			n++
		case star >= 0:
			retry++
			p, n = star, retry
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}
