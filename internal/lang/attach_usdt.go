package lang

import "strings"

// MatchMarker reports whether a probe is one that a Usdt names.
func (a *AttachPoint) MatchMarker(provider, name string) bool {
	return wildcardMatch(a.Provider, provider) && wildcardMatch(a.Func, name)
}

// usdt reads PATH:PROVIDER:NAME, PATH:NAME or NAME. Without a path it is any file that the target has
// mapped, without a provider any provider.
func (r *attachReader) usdt() bool {
	args := r.parts[1:]
	name := args
	r.ap.Path, r.ap.Provider = "*", "*"
	switch len(args) {
	case 1:
	case 2, 3:
		if args[0].text != "" {
			r.ap.Path = args[0].text
		}
		name = args[1:]
	default:
		r.errorf(r.ap.Span, "a usdt is usdt:PATH:PROVIDER:NAME, with %d parts this one is none", len(args))
		return false
	}
	r.ap.PathWildcard = strings.Contains(r.ap.Path, "*")
	if len(name) == 2 && name[0].text != "" {
		r.ap.Provider = name[0].text
	}
	last := name[len(name)-1]
	if last.text == "" {
		r.errorf(last.span, "expected the name of a USDT probe").Hint("as usdt:PATH:PROVIDER:NAME, or usdt:PATH:*")
		return false
	}
	r.ap.Func = last.text
	r.ap.Wildcard = strings.Contains(r.ap.Provider+r.ap.Func, "*")
	return true
}
