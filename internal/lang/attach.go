package lang

import (
	"errors"
	"strings"
	"time"

	"trapless/internal/diag"
)

// ProbeKind says what makes a probe's program run.
type ProbeKind uint8

const (
	// Uprobe runs in the target when it reaches an instruction.
	Uprobe ProbeKind = iota + 1
	// Uretprobe runs in the target when it returns from a function.
	Uretprobe
	// Begin runs in the tracer before any other probe is armed.
	Begin
	// End runs in the tracer after all others are disarmed.
	End
	// Interval runs in the tracer every AttachPoint.Every.
	Interval
	// Usdt runs in the target at the places that the program's author has marked.
	Usdt
)

// String is the kind's name in a script.
func (k ProbeKind) String() string {
	return [...]string{"none", "uprobe", "uretprobe", "begin", "end", "interval", "usdt"}[k]
}

// AttachPoint is where a script wants a probe, as the script says it: nothing
// is looked up, but for a line of source (Source). Of Func and Addr exactly one is set
// for a Uprobe and for a Uretprobe. A Usdt has Provider and Func, the probe's name.
type AttachPoint struct {
	Kind   ProbeKind
	Path   string // file, short name of a library, or empty: the target's own executable
	Func   string // symbol; each '*' stands for any characters
	Offset uint64 // bytes after the start of Func
	Addr   uint64 // address as in the file's symbol table, before any relocation
	Every  time.Duration

	Source       string // the file that Line is of, by the end of its path; empty if Func or Addr say it all
	Line, Column int    // Column is 0 for any

	Provider string // of a Usdt; each '*' stands for any characters

	Wildcard     bool // Func has a '*'
	PathWildcard bool // Path has a '*'

	Span diag.Span
	Text string // as written
}

// Match reports whether a symbol is one that Func names.
func (a *AttachPoint) Match(symbol string) bool { return wildcardMatch(a.Func, symbol) }

// MatchPath reports whether a file is one that Path names, where Path has a
// wildcard.
func (a *AttachPoint) MatchPath(path string) bool { return wildcardMatch(a.Path, path) }

// wildcardMatch compares with a pattern whose only special character is '*'.
func wildcardMatch(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == s
	}
	first, last := parts[0], parts[len(parts)-1]
	if len(s) < len(first)+len(last) || !strings.HasPrefix(s, first) || !strings.HasSuffix(s, last) {
		return false
	}
	s = s[len(first) : len(s)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		i := strings.Index(s, part)
		if i < 0 {
			return false
		}
		s = s[i+len(part):]
	}
	return true
}

// attachPoint parses one attach point. Its spelling is not that of tokens, so
// it reads the text from the start of the current token on.
func (p *parser) attachPoint() (AttachPoint, bool) {
	start := p.tok.span.Start
	end := attachEnd(p.src.Text, start)
	if p.tok.kind > 0 && p.tok.kind != '*' {
		end = start
	}
	p.lex.pos = end
	at := diag.Span{Start: start, End: end}
	if start == end {
		p.tok.span.End = start
		p.advance()
		p.fail("expected a probe, as uprobe:PATH:FUNCTION or begin")
		return AttachPoint{}, false
	}
	p.tok.span.End = end
	p.advance()
	r := attachReader{diags: p.diags, params: p.params, ap: AttachPoint{Span: at, Text: p.src.Slice(at)}}
	ok := r.split(start) && r.read()
	return r.ap, ok
}

// attachEnd is where the attach point ends that starts at i: before '{', ','
// or white space outside of quotes, or before a '/' that no ':' precedes.
func attachEnd(text string, i int) int {
	colon, start := false, i
	for ; i < len(text); i++ {
		switch c := text[i]; {
		case c == '{' || c == ',' || isSpace(c):
			return i
		case c == '/' && !colon && i > start:
			return i
		case c == ':':
			colon = true
		case c == '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		}
	}
	return min(i, len(text))
}

// attachPart is what stands between two colons.
type attachPart struct {
	text   string
	quoted []bool // for each byte of text
	span   diag.Span
}

// attachReader makes sense of the text of one attach point.
type attachReader struct {
	diags  *diag.Collector
	params []string
	ap     AttachPoint
	parts  []attachPart
}

func (r *attachReader) errorf(at diag.Span, format string, args ...any) *diag.Diagnostic {
	return r.diags.Errorf(at, format, args...)
}

func (r *attachReader) unsupported(at diag.Span, what string) bool {
	r.diags.Errorf(at, "not supported yet: %s", what)
	return false
}

// split cuts the text at colons, removes quotes and puts in parameters.
func (r *attachReader) split(start int) bool {
	raw, quoted := r.ap.Text, false
	r.parts = []attachPart{{span: diag.Span{Start: start}}}
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		switch {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\' && i+1 < len(raw):
			i++
			r.put(raw[i], true)
		case quoted:
			r.put(c, true)
		case c == ':':
			r.cut(start + i)
		case c == '$' && i+1 < len(raw) && isDigit(raw[i+1]):
			end := i + 1
			for end < len(raw) && isDigit(raw[end]) {
				end++
			}
			if !r.param(raw[i+1:end], diag.Span{Start: start + i, End: start + end}) {
				return false
			}
			i = end - 1
		default:
			r.put(c, false)
		}
	}
	if quoted {
		r.errorf(r.ap.Span, "quoted part without an end").Hint(`close it with "`)
		return false
	}
	r.parts[len(r.parts)-1].span.End = start + len(raw)
	return true
}

// put adds a byte to the last part.
func (r *attachReader) put(c byte, quoted bool) {
	part := &r.parts[len(r.parts)-1]
	part.text += string([]byte{c})
	part.quoted = append(part.quoted, quoted)
}

// cut ends the last part at a colon and begins another.
func (r *attachReader) cut(at int) {
	r.parts[len(r.parts)-1].span.End = at
	r.parts = append(r.parts, attachPart{span: diag.Span{Start: at + 1}})
}

// param adds a parameter of the script, which may have colons.
func (r *attachReader) param(number string, at diag.Span) bool {
	n, _, err := digits(number, 10)
	if err != nil || n == 0 {
		r.errorf(at, "parameters are numbered from $1")
		return false
	}
	if n > uint64(len(r.params)) {
		r.errorf(at, "parameter $%d was not given", n).Hint("parameters follow the script on the command line")
		return false
	}
	for _, c := range []byte(r.params[n-1]) {
		if c == ':' {
			r.cut(at.End - 1)
			continue
		}
		r.put(c, false)
	}
	return true
}

// read finds the provider and hands over to its own reader.
func (r *attachReader) read() bool {
	name := r.parts[0]
	if i := strings.IndexByte(name.text, '='); i > 0 {
		return r.unsupported(name.span, "names of probes")
	}
	if strings.Contains(name.text, "*") {
		return r.unsupported(name.span, "wildcards in the type of a probe")
	}
	prov, ok := findProvider(name.text)
	if !ok {
		d := r.errorf(name.span, "unknown probe type '%s'", name.text)
		if near := nearest(strings.ToLower(name.text), usable); near != "" {
			d.Hint("did you mean %s?", near)
		} else {
			d.Hint("probe types are uprobe:PATH:FUNCTION, usdt:PATH:NAME, interval:UNIT:COUNT, begin and end")
		}
		return false
	}
	switch {
	case prov.kernel:
		r.errorf(name.span, "%s probes are in the kernel, trapless probes user space only", prov.name).
			Hint("use uprobe:PATH:FUNCTION for a function of the target")
		return false
	case prov.kind == 0:
		return r.unsupported(name.span, prov.name+" probes")
	}
	r.ap.Kind = prov.kind
	switch prov.kind {
	case Uprobe, Uretprobe:
		return r.uprobe()
	case Interval:
		return r.interval()
	case Usdt:
		return r.usdt()
	}
	if rest := r.parts[1:]; len(rest) > 1 || len(rest) == 1 && rest[0].text != "*" {
		r.errorf(r.ap.Span, "%s takes no arguments", prov.name)
		return false
	}
	return true
}

// uprobe reads PATH:FUNCTION[+OFFSET], PATH:ADDRESS, or either without PATH.
func (r *attachReader) uprobe() bool {
	args := r.parts[1:]
	if found, ok := r.line(args); found {
		return ok
	}
	switch len(args) {
	case 1: // the function alone
	case 2:
		r.ap.Path = args[0].text
		r.ap.PathWildcard = strings.Contains(r.ap.Path, "*")
		if r.ap.Path == "" {
			r.errorf(args[0].span, "expected a path or the name of a library").
				Hint("uprobe:FUNCTION is a function of the target's executable")
			return false
		}
	case 3: // the language says how the name is to be read; names of all languages are compared anyway
		if args[1].text != "cpp" && args[1].text != "rust" && args[1].text != "c" {
			r.errorf(args[1].span, "unknown language '%s'", args[1].text).Hint("as uprobe:PATH:cpp:NAME")
			return false
		}
		r.ap.Path = args[0].text
		r.ap.PathWildcard = strings.Contains(r.ap.Path, "*")
	default:
		r.errorf(r.ap.Span, "a %s is %[1]s:PATH:FUNCTION, with %d parts this one is none", r.ap.Kind, len(args)).
			Hint("put quotes around a function whose name has a ':'")
		return false
	}
	return r.function(args[len(args)-1])
}

// line reads PATH@FILE:LINE or PATH@FILE:LINE:COLUMN, and says whether it is one of them.
func (r *attachReader) line(args []attachPart) (found, ok bool) {
	if len(args) < 2 || len(args) > 3 || len(args) == 3 && !isNumber(args[2].text) || !isNumber(args[1].text) {
		return false, false
	}
	at := -1
	for i, c := range []byte(args[0].text) {
		if c == '@' && !args[0].quoted[i] {
			at = i
		}
	}
	if at < 0 {
		return false, false
	}
	numbers := []int{0, 0}
	for i, a := range args[1:] {
		n, err := parseInt(a.text)
		if err != nil || n == 0 || n > 1<<30 {
			r.errorf(a.span, "lines and columns are numbered from 1")
			return true, false
		}
		numbers[i] = int(n)
	}
	r.ap.Path, r.ap.Source, r.ap.Line, r.ap.Column = args[0].text[:at], args[0].text[at+1:], numbers[0], numbers[1]
	r.ap.PathWildcard = strings.Contains(r.ap.Path, "*")
	switch {
	case r.ap.Source == "":
		r.errorf(args[0].span, "expected a file of source behind '@'").Hint("as uprobe:/bin/bash@readline.c:362")
	case r.ap.PathWildcard:
		r.errorf(args[0].span, "a line of source needs one file, not a wildcard")
	case r.ap.Kind != Uprobe:
		r.errorf(r.ap.Span, "a %s is at the returns of a function, not at a line", r.ap.Kind).Hint("use a uprobe")
	default:
		return true, true
	}
	return true, false
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

func (r *attachReader) function(f attachPart) bool {
	if f.text == "" {
		r.errorf(f.span, "expected a function or an address")
		return false
	}
	name, plus := f.text, -1
	for i := range f.text {
		if f.text[i] == '+' && !f.quoted[i] {
			plus = i
		}
	}
	if plus >= 0 {
		off, err := parseInt(f.text[plus+1:])
		if err != nil {
			r.errorf(f.span, "invalid offset '%s' after the function", f.text[plus+1:]).
				Hint("put quotes around a function whose name has a '+'")
			return false
		}
		name, r.ap.Offset = f.text[:plus], off
		if name == "" || strings.ContainsAny(name, "+") && !f.quoted[strings.IndexByte(name, '+')] {
			r.errorf(f.span, "expected one function and one offset")
			return false
		}
		if off != 0 && r.ap.Kind == Uretprobe {
			r.errorf(f.span, "a uretprobe is at the returns of a whole function, not at an offset").Hint("use uretprobe:PATH:FUNCTION")
			return false
		}
	} else if isDigit(f.text[0]) && !f.quoted[0] {
		return r.address(f)
	}
	r.ap.Func, r.ap.Wildcard = name, strings.Contains(name, "*")
	switch {
	case r.ap.Wildcard && plus >= 0:
		r.errorf(f.span, "an offset needs one function, not a wildcard")
	case strings.HasSuffix(name, "/") && !f.quoted[len(name)-1]:
		r.errorf(f.span, "'%s' is no function", name).Hint("put a space before the predicate")
	default:
		return true
	}
	return false
}

func (r *attachReader) address(f attachPart) bool {
	addr, err := parseInt(f.text)
	switch {
	case err != nil:
		r.errorf(f.span, "invalid address: %v", err)
	case addr == 0:
		r.errorf(f.span, "there is no function at address 0")
	case r.ap.PathWildcard:
		r.errorf(f.span, "an address needs one file, not a wildcard")
	default:
		r.ap.Addr = addr
		return true
	}
	return false
}

// units of interval probes; hz is a rate.
var units = map[string]time.Duration{"s": time.Second, "ms": time.Millisecond, "us": time.Microsecond, "hz": 0}

var errInterval = errors.New("an interval is a whole number of at least 1")

// interval reads UNIT:COUNT, or a time such as 10ms.
func (r *attachReader) interval() bool {
	args := r.parts[1:]
	switch len(args) {
	case 1:
		ns, err := parseInt(args[0].text)
		switch {
		case err != nil:
			r.errorf(args[0].span, "invalid interval: %v", err).Hint("as interval:s:1 or interval:1s")
		case ns < uint64(time.Microsecond):
			r.errorf(args[0].span, "interval of %d ns, the shortest is 1us", ns).
				Hint("a number without a unit counts nanoseconds")
		case ns > maxInterval:
			r.errorf(args[0].span, "interval is too long")
		default:
			r.ap.Every = time.Duration(ns)
			return true
		}
		return false
	case 2:
		return r.unitInterval(args[0], args[1])
	}
	r.errorf(r.ap.Span, "an interval is interval:UNIT:COUNT").Hint("as interval:s:1")
	return false
}

const maxInterval = uint64(366 * 24 * time.Hour)

func (r *attachReader) unitInterval(unit, count attachPart) bool {
	each, ok := units[unit.text]
	if !ok {
		r.errorf(unit.span, "unknown unit '%s'", unit.text).Hint("units are s, ms, us and hz")
		return false
	}
	n, err := parseInt(count.text)
	if err == nil && n == 0 {
		err = errInterval
	}
	if err != nil {
		r.errorf(count.span, "invalid interval: %v", err)
		return false
	}
	if unit.text == "hz" {
		r.ap.Every = time.Second / time.Duration(min(n, uint64(time.Second)))
	} else if n > maxInterval/uint64(each) {
		r.errorf(count.span, "interval is too long")
		return false
	} else {
		r.ap.Every = each * time.Duration(n)
	}
	if r.ap.Every < time.Microsecond {
		r.errorf(count.span, "interval is too short, the shortest is 1us")
		return false
	}
	return true
}
