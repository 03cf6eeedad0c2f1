package lang

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"trapless/internal/diag"
)

// config are the settings by their names.
type config map[string]setting

// setting is the value of one: a number or a truth value, or a word.
type setting struct {
	number uint64
	word   string
	valid  valid
}

// valid says which values a setting may have.
type valid struct {
	bool     bool
	words    []string // those that it may be, in bpftrace's writing, in any case
	any      bool     // or any text
	low, top uint64   // of a number
}

// The words that settings may be.
var (
	cacheWords    = []string{"PER_PID", "PER_PROGRAM", "NONE"}
	missingWords  = []string{"ignore", "warn", "error"}
	unstableWords = []string{"enable", "warn", "error"}
	licenses      = []string{"Dual MIT/GPL", "Dual BSD/GPL", "Dual MPL/GPL", "GPL and additional rights", "GPL v2", "GPL"}
)

// defaults are the settings of bpftrace 0.26, of which some concern what is done here
// in another way: they may be set, and have no effect.
func defaults() config {
	truth := func(on bool) setting { return setting{number: b2u(on), valid: valid{bool: true}} }
	number := func(n, low, top uint64) setting { return setting{number: n, valid: valid{low: low, top: top}} }
	word := func(w string, words []string) setting { return setting{word: w, valid: valid{words: words}} }
	return config{
		"cache_user_symbols": word("PER_PID", cacheWords), "cpp_demangle": truth(true), "lazy_symbolication": truth(true), "license": word("GPL", licenses),
		"log_size": number(1000000, 0, math.MaxUint64), "max_bpf_progs": number(1024, 0, math.MaxUint64), "max_cat_bytes": number(10240, 0, 1<<30),
		"max_map_keys": number(DefaultMaxMapKeys, 1, maxEntries), "max_probes": number(1024, 0, math.MaxUint64), "max_strlen": number(defaultStrlen, 1, maxStrlen),
		"on_stack_limit": number(32, 0, math.MaxUint64), "perf_rb_pages": number(0, 0, math.MaxUint64), "stack_mode": word("bpftrace", stackModes),
		"str_trunc_trailer": {word: "..", valid: valid{any: true}}, "missing_probes": word("error", missingWords), "print_maps_on_exit": truth(true),
		"use_blazesym": truth(false), "show_debug_info": truth(true), "unstable_tseries": word("warn", unstableWords),
		"unstable_typeinfo": word("error", unstableWords), "unstable_dw_ustack": word("warn", unstableWords),
	}
}

// renamedSettings are old names of settings, deprecated those that are none any more.
var (
	renamedSettings = map[string]string{"strlen": "max_strlen", "no_cpp_demangle": "cpp_demangle", "cat_bytes_max": "max_cat_bytes", "map_keys_max": "max_map_keys"}
	deprecated      = set("symbol_source max_type_res_iterations unstable_addr unstable_import unstable_macro unstable_map_decl")
)

func (c config) maxStrlen() int    { return int(c["max_strlen"].number) }
func (c config) stackMode() string { return c["stack_mode"].word }

// settings are those that a session obeys.
func (c config) settings() Settings {
	return Settings{
		PrintMapsOnExit: c["print_maps_on_exit"].number != 0, Missing: MissingProbes(c["missing_probes"].word),
		MaxCat: int(c["max_cat_bytes"].number), Trailer: c["str_trunc_trailer"].word, Lines: c["show_debug_info"].number != 0,
	}
}

// configure reads the config block, and what precedes it: the environment's variables.
func (c *checker) configure(block []*configNode) {
	c.config = defaults()
	if n := c.opts.MaxMapKeys; n != 0 {
		c.set("max_map_keys", setting{number: uint64(n)})
	}
	for _, s := range block {
		c.configLine(s)
	}
	for _, name := range slices.Sorted(maps.Keys(c.opts.Config)) {
		if known, ok := c.config[name]; ok {
			value, why := known.valid.parse(c.opts.Config[name])
			if why != "" {
				c.diags.Plainf("BPFTRACE_%s: %s", strings.ToUpper(name), why)
			}
			c.set(name, c.limited(diag.Span{}, name, value))
		}
	}
}

// limited cuts a number to the largest that is possible here.
func (c *checker) limited(at diag.Span, name string, value setting) setting {
	if top := c.config[name].valid.top; top > 0 && value.number > top {
		d := c.diags.Warnf(at, "%s: %d is used, the largest that is possible here, not %d", name, top, value.number)
		if at == (diag.Span{}) {
			d.Source = nil
		}
		value.number = top
	}
	return value
}

func (c *checker) set(name string, value setting) {
	value.valid = c.config[name].valid
	c.config[name] = value
}

// configLine reads a line of the config block. Names may have the prefix and the case of
// variables of the environment.
func (c *checker) configLine(s *configNode) {
	name := strings.TrimPrefix(strings.ToLower(s.name), "bpftrace_")
	if deprecated[name] {
		c.diags.Warnf(s.span, "%s is deprecated and has no effect", s.name)
		return
	}
	if now := renamedSettings[name]; now != "" {
		c.diags.Warnf(s.span, "%s has been renamed, please use %s", s.name, now)
		name = now
	}
	known, ok := c.config[name]
	if !ok {
		d := c.diags.Errorf(s.span, "%s: not a known configuration option", s.name)
		if near := nearest(name, c.config); near != "" {
			d.Hint("did you mean %s?", near)
		}
		return
	}
	text := s.value.text
	if s.value.kind == tokInt {
		text = fmt.Sprint(s.value.value)
	}
	value, why := known.valid.parse(text)
	if why != "" {
		c.invalid(s.span, name, why)
		return
	}
	c.set(name, c.limited(s.span, name, value))
}

func (c *checker) invalid(at diag.Span, name, why string) {
	if name == "license" {
		c.diags.Errorf(at, "%s", why)
		return
	}
	c.diags.Errorf(at, "%s: %s", name, why)
}

// parse reads a value. Why is what is wrong with it, empty if nothing is.
func (v *valid) parse(text string) (s setting, why string) {
	switch {
	case v.any:
		return setting{word: text}, ""
	case v.bool:
		on, ok := truths[strings.ToLower(text)]
		if !ok {
			return s, "Invalid bool value: valid values are true, false, 1 or 0."
		}
		return setting{number: b2u(on)}, ""
	case v.words == nil:
		n, err := parseInt(text)
		switch {
		case err != nil:
			return s, "expecting a number, got " + text
		case n < v.low:
			return s, fmt.Sprintf("expecting a number from %d to %d, got %d", v.low, v.top, n)
		}
		return setting{number: n}, ""
	}
	if i := slices.IndexFunc(v.words, func(w string) bool { return strings.EqualFold(w, text) }); i >= 0 {
		return setting{word: v.words[i]}, ""
	}
	if &v.words[0] == &licenses[0] {
		return s, "Invalid value for license. Found: " + text + ". Valid values: " + strings.Join(licenses, ", ")
	}
	return s, "Invalid value: valid values are " + strings.Join(v.words, ", ")
}

// configField types config().name, which is known when the script is compiled.
func (c *checker) configField(x *fieldExpr) {
	s, ok := c.config[x.name]
	x.x.base().typ = boolType // it has no value of its own, and none is asked for
	switch {
	case !ok:
		c.diags.Errorf(x.nameAt, "%s: not a known configuration option", x.name)
		x.typ = badType
	case s.valid.bool:
		x.setLiteral(boolType, s.number)
	case s.valid.any || s.valid.words != nil:
		x.setString(s.word)
	default:
		x.setLiteral(uint64Type, s.number)
	}
}

// isConfig reports whether an expression is config() or config.
func isConfig(x expr) bool {
	switch x := x.(type) {
	case *nameExpr:
		return strings.TrimPrefix(x.name, "__builtin_") == "config"
	case *callExpr:
		return x.name == "config" && len(x.args) == 0
	}
	return false
}
