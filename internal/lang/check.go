package lang

import (
	"cmp"
	"slices"
	"strings"

	"trapless/internal/abi"
	"trapless/internal/diag"
)

// variable is a scratch variable.
type variable struct {
	name     string
	decl     diag.Span
	typ      Type // None as long as no value is known
	fixed    bool // the type was declared
	assigned bool
	uses     int
}

// mapInfo is what is known about a map.
type mapInfo struct {
	name    string // without the '@'
	number  int
	first   diag.Span // where it was first assigned
	agg     Agg
	signed  bool
	buckets Buckets
	series  Series
	value   Type // of a Plain map
	keys    []Type
	entries int // from a declaration, else 0
	lru     bool
}

// checker gives every expression a type. Types of variables and of keys depend
// on all assignments, so it goes over the script until nothing changes, and
// then once more to report what is wrong.
type checker struct {
	diags    *diag.Collector
	opts     *Options
	maps     map[string]*mapInfo
	order    []*mapInfo
	config   config
	declared []*mapDecl        // maps
	options  map[string]string // the script's own that it reads, with what is said of them
	changed  bool
	final    bool // this pass reports
	foreign  bool // see scriptNode
	// otherKeys are maps with other keys than the thread's own number, and deletes
	// those of which entries are deleted.
	otherKeys, deletes map[string]bool

	suspect map[string]bool // maps whose assignments have errors: that they are not known is no news

	process  bool         // a program asks for a word of processFacts
	stacks   map[int]bool // sizes in bytes of the stacks that are asked for
	types    *cTypes
	probe    *probeNode
	scopes   []map[string]*variable
	loops    int // how many are around
	unrolled int // blocks that unroll has made
}

// maxPasses bounds the passes over a script. Each pass in which something
// changes makes a type larger, so only long chains of variables need many.
const maxPasses = 100

// check types the whole script.
func check(n *scriptNode, diags *diag.Collector, opts *Options) *checker {
	c := &checker{diags: diags, opts: opts, maps: make(map[string]*mapInfo), foreign: n.foreign, suspect: make(map[string]bool), types: n.types,
		otherKeys: make(map[string]bool), deletes: make(map[string]bool), options: make(map[string]string)}
	c.settings(n)
	for range maxPasses {
		c.changed = false
		c.diags = &diag.Collector{Source: diags.Source}
		c.script(n)
		if !c.changed {
			break
		}
	}
	c.diags, c.final = diags, true
	c.script(n)
	c.unexpected()
	for _, d := range c.declared {
		if c.maps[d.name].agg == 0 {
			diags.Warnf(d.nameSpan, "Unused map: @%s", d.name)
		}
	}
	return c
}

func (c *checker) script(n *scriptNode) {
	for _, p := range slices.Concat(n.probes, n.unused) {
		c.probe = p
		c.scopes = []map[string]*variable{{}}
		if p.predicate != nil {
			c.condition(p.predicate)
		}
		c.block(p.body)
	}
}

// settings reads the config block and the map declarations.
func (c *checker) settings(n *scriptNode) {
	c.configure(n.config)
	for _, d := range n.decls {
		switch {
		case !mapKinds[d.kind]:
			c.diags.Errorf(d.kindSpan, "Invalid bpf map type: %s", d.kind).Hint("Valid map types: hash, lruhash, percpuhash, percpulruhash")
		case d.entries == 0 || d.entries > maxEntries:
			c.diags.Errorf(d.span, "a map has between 1 and %d entries", maxEntries)
		case c.maps[d.name] != nil:
			c.diags.Errorf(d.nameSpan, "@%s is declared twice", d.name)
		default:
			c.declared = append(c.declared, d)
			c.maps[d.name] = &mapInfo{name: d.name, number: -1, entries: int(d.entries), lru: strings.Contains(d.kind, "lru")}
		}
	}
}

var mapKinds = set("hash lruhash percpuhash percpulruhash")

// maxEntries is the largest number of entries of a map (see abi.NewLayout).
const maxEntries = 1 << 24

// push and pop a scope.
func (c *checker) push() { c.scopes = append(c.scopes, map[string]*variable{}) }
func (c *checker) pop()  { c.scopes = c.scopes[:len(c.scopes)-1] }

// find looks a variable up.
func (c *checker) find(name string) *variable {
	for i := len(c.scopes) - 1; i >= 0; i-- {
		if v := c.scopes[i][name]; v != nil {
			return v
		}
	}
	return nil
}

// declare makes a variable of the current scope for the name at v, which keeps
// it from pass to pass.
func (c *checker) declare(v *varExpr) *variable {
	if v.sym == nil {
		v.sym = &variable{name: v.name, decl: v.span}
	}
	v.sym.assigned, v.sym.uses = false, 0
	c.scopes[len(c.scopes)-1][v.name] = v.sym
	return v.sym
}

// widen makes a variable hold values of the type too.
func (c *checker) widen(v *variable, t Type) bool {
	if v.fixed || t.Kind == bad {
		_, ok := promote(v.typ, t)
		return ok || t.Kind == bad
	}
	now := t
	if v.typ.Kind != None {
		var ok bool
		if now, ok = promote(v.typ, t); !ok {
			return false
		}
	}
	if !now.Equal(v.typ) {
		v.typ, c.changed = now, true
	}
	return true
}

// buildMaps numbers the maps that are used, in the order of their names, in
// which they are listed at the end, and fixes how they lie in memory.
func (c *checker) buildMaps() []Map {
	slices.SortFunc(c.order, func(a, b *mapInfo) int { return cmp.Compare(a.name, b.name) })
	var out []Map
	for _, m := range c.order {
		m.number = len(out)
		spec := abi.MapSpec{Name: "@" + m.name, Kind: abi.PerSlotArray, KeySize: 4, ValueSize: m.cellSize(), MaxEntries: 1}
		switch m.agg {
		case Min, Max:
			spec.MaxWord = CellExtreme / 8
		case Plain:
			spec.Kind, m.signed = abi.Array, m.value.Signed
		}
		if len(m.keys) > 0 && m.agg != TSeries {
			spec.Kind, spec.KeySize, spec.MaxEntries = abi.PerSlotHash, 8*keyWords(m.keys), int(c.config["max_map_keys"].number)
			if m.agg == Plain {
				spec.Kind = abi.Hash
				if m.lru {
					spec.Kind = abi.LRUHash
				}
			}
			if m.entries != 0 {
				spec.MaxEntries = m.entries
			} else if m.agg == Plain && c.deletes[m.name] && !c.otherKeys[m.name] && spec.KeySize == 8 && spec.ValueSize == 8 {
				spec.Kind, spec.MaxEntries = abi.PerThread, 1
			}
		}
		out = append(out, Map{Name: spec.Name, Spec: spec, Agg: m.agg, Signed: m.signed, Type: m.value, Buckets: m.buckets, Series: m.series, Keys: m.keys, Hidden: m.name != "" && m.name[0] == '('})
	}
	return out
}
