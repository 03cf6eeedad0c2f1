package session

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"trapless/internal/bpf"
	"trapless/internal/image"
	"trapless/internal/inject"
	"trapless/internal/lang"
	"trapless/internal/plan"
)

// registry is the probes of a process: which there are, at which sites, and in
// what state each is. Probes at one site share it: the site is patched once, and
// the patch leaves with the last of them.
//
// Changes are made in two steps. add, remove and optimize only note what is
// wanted, and which functions it concerns; apply plans these anew, writes detours
// and has the target's text changed by what is different then. What a probe is
// enabled for does not show in the text: enable takes effect at once.
//
// The registry is not for use by several goroutines at once.
type registry struct {
	ms     *modules
	traits inject.Traits
	target *inject.Target // nil until there is one
	log    func(format string, args ...any)
	warn   func(format string, args ...any)

	missing lang.MissingProbes // what becomes of places that are not there
	told    map[Refused]bool   // what was warned of

	patterns []*pattern
	probes   []*Probe // by their numbers, ascending
	last     int      // the greatest number that was given
	sites    map[siteKey]*site
	units    map[siteKey]*unit // by the function's start
	counters counters
	dirty    map[*unit]bool // what is wanted is not what there is
	planned  []*unit        // that were planned, and not applied yet

	disarmed    bool // no site is patched
	boosted     bool // sites have breakpoints where they may
	breakpoints bool // they may, where no jump is possible or wanted
	partial     bool // a file that is not mapped concerns another process
}

// siteKey is an address in a module.
type siteKey struct {
	mod *module
	at  image.VAddr
}

func (s *site) key() siteKey { return siteKey{s.module, s.at} }

// pattern is what was asked for at once: a program, where an attach point says.
type pattern struct {
	probe    *lang.Probe
	attach   *lang.AttachPoint
	program  *bpf.Verified
	cookie   uint64                   // that the program gets
	index    int                      // of the program in the script
	bound    map[string]*bpf.Verified // what became of it at places of a USDT probe
	disabled bool
	internal bool      // it is trapless's own, and not shown
	unclear  []Refused // what has no site
}

// Probe is a program at a site.
type Probe struct {
	ID int // unique in a session, never used again

	pattern  *pattern
	program  *bpf.Verified // the pattern's, or what became of it at the site
	marker   *image.Marker // of the USDT probe that it is at
	site     *site
	disabled bool
	refusal  *plan.Refusal // why it is at no site

	counter      int    // number of its hit counters, -1 for none
	hits, missed uint64 // what they were when it was registered
}

func newRegistry(ms *modules, traits inject.Traits, log, warn func(string, ...any)) *registry {
	return &registry{ms: ms, traits: traits, log: log, warn: warn,
		told: map[Refused]bool{}, sites: map[siteKey]*site{}, units: map[siteKey]*unit{}, dirty: map[*unit]bool{}}
}

// Close closes the files of modules.
func (r *registry) Close() { r.ms.Close() }

// add registers programs. After an error nothing is registered that was not before.
func (r *registry) add(patterns []*pattern) ([]*Probe, error) {
	var added []*Probe
	var missing []error
	for _, p := range patterns {
		sites, unclear, err := r.ms.ofKind(p.probe, p.attach)
		if errors.Is(err, errNotMapped) && (r.partial || r.ms.mayCome(p.attach)) {
			r.log("%v; it is probed when it is loaded", err)
			err = nil
		}
		if err != nil {
			missing = append(missing, err)
			continue
		}
		p.unclear = unclear
		added = append(added, r.addSites(p, sites)...)
	}
	if len(missing) > 0 && (len(missing) == len(patterns) || r.missing != lang.MissingWarn && r.missing != lang.MissingIgnore) {
		r.remove(added)
		return nil, missing[0]
	}
	for _, err := range missing {
		r.tellMissing(err)
	}
	r.patterns = append(r.patterns, patterns...)
	return added, nil
}

// tellMissing tells of a place that is not there.
func (r *registry) tellMissing(err error) {
	if r.missing == lang.MissingWarn {
		r.warn("%v", err)
		return
	}
	r.log("%v", err)
}

// addSites registers a pattern's program at sites that were found.
func (r *registry) addSites(p *pattern, found []*site) []*Probe {
	var added []*Probe
	for _, s := range found {
		r.last++
		probe := &Probe{ID: r.last, pattern: p, disabled: p.disabled, counter: -1}
		probe.bind(s)
		if probe.refusal != nil {
			probe.site = s
		} else if p.program.UsesArguments() && s.fn.Go && s.fn.Asm {
			probe.site, probe.refusal = s, &plan.Refusal{Site: s.addr, Reason: Arguments,
				Detail: "a Go function written in assembly: where its arguments are is not known; probe it without them"}
		} else {
			r.attach(probe, s)
		}
		r.probes = append(r.probes, probe)
		added = append(added, probe)
	}
	return added
}

// attach adds a probe to its site, which may be there already.
func (r *registry) attach(p *Probe, s *site) {
	key := s.key()
	if have := r.sites[key]; have != nil {
		s = have
	} else {
		s.unit = r.unitOf(s)
		s.unit.named[s.addr] = s
		r.sites[key] = s
	}
	p.site = s
	p.counter = r.counters.take(p)
	if r.target != nil {
		p.hits, p.missed = r.target.Arena().Hits(p.counter)
	}
	s.probes = append(s.probes, p)
	r.dirty[s.unit] = true
}

// drop takes back an add.
func (r *registry) drop(patterns []*pattern, added []*Probe) {
	r.patterns = slices.DeleteFunc(r.patterns, func(p *pattern) bool { return slices.Contains(patterns, p) })
	r.remove(added)
}

// remove unregisters probes.
func (r *registry) remove(probes []*Probe) {
	gone := map[*Probe]bool{}
	for _, p := range probes {
		gone[p] = true
		if p.refusal == nil {
			r.detach(p)
		}
	}
	r.probes = slices.DeleteFunc(r.probes, func(p *Probe) bool { return gone[p] })
}

// detach takes a probe from its site, which goes with the last one.
func (r *registry) detach(p *Probe) {
	s := p.site
	s.probes = slices.DeleteFunc(slices.Clone(s.probes), func(o *Probe) bool { return o == p })
	r.counters.leave(p)
	r.dirty[s.unit] = true
	if len(s.probes) == 0 {
		delete(s.unit.named, s.addr)
		delete(r.sites, s.key())
	}
}

// enable lets probes run, or not. It takes effect at once.
func (r *registry) enable(probes []*Probe, on bool) error {
	var changed []*inject.Detour
	for _, p := range probes {
		p.disabled = !on
		d := p.site.detour
		if d == nil || p.refusal != nil {
			continue
		}
		if k := slices.Index(p.site.inDetour, p); k >= 0 {
			d.Enable(p.site.index, k, on)
			changed = append(changed, d)
		}
	}
	if r.target == nil || changed == nil {
		return nil
	}
	return r.target.UpdateGates(changed...)
}

// optimize lets sites have jumps, or only breakpoints, where they may have those.
func (r *registry) optimize(on bool) {
	if r.boosted == !on {
		return
	}
	r.boosted = !on
	for _, u := range r.units {
		r.dirty[u] = true
	}
}

// find returns the probe with a number.
func (r *registry) find(id int) (*Probe, error) {
	i, ok := slices.BinarySearchFunc(r.probes, id, func(p *Probe, id int) int { return p.ID - id })
	if !ok {
		return nil, fmt.Errorf("probe %d: %w", id, ErrNoProbe)
	}
	return r.probes[i], nil
}

// refused lists the sites that are not probed, and why, once each.
func (r *registry) refused() []Refused {
	planner := map[*site]*plan.Refusal{}
	for _, u := range r.units {
		for _, refusal := range u.refused {
			planner[u.named[refusal.Site]] = refusal
		}
	}
	var out []Refused
	for _, p := range r.patterns {
		out = append(out, p.unclear...)
	}
	seen := map[*site]bool{}
	for _, p := range r.probes {
		if p.pattern.internal {
			continue
		}
		refusal := p.refusal
		if refusal == nil {
			refusal = cmp.Or(p.site.refusal, planner[p.site])
		}
		if refusal != nil && !seen[p.site] {
			seen[p.site] = true
			out = append(out, Refused{p.site.name, refusal.Reason, refusal.Detail})
		}
	}
	return out
}

// windows counts the windows that are planned, but those of trapless's own.
func (r *registry) windows() (n int) {
	for _, u := range r.units {
		for _, w := range u.windows {
			if slices.ContainsFunc(w.Sites, func(s plan.Site) bool { return u.named[s.Addr].shown() }) { // else it makes room for others
				n++
			}
		}
	}
	return n
}

// logDetours logs where detours are.
func (r *registry) logDetours() {
	for _, u := range r.units {
		for _, d := range u.detours {
			if w := d.Window; len(w.Sites) > 0 { // else it makes room for others
				r.log("%s: %s of %d bytes at %s, detour of %d bytes at %s", siteNames(u.sitesOf(w)), w.Tactic, w.Len, w.Start, d.Size, d.At)
			}
		}
	}
}

// shown reports whether a site has probes that are not trapless's own.
func (s *site) shown() bool {
	return slices.ContainsFunc(s.probes, func(p *Probe) bool { return !p.pattern.internal })
}

// inPlace counts the sites that are patched.
func (r *registry) inPlace() (n int) {
	for _, s := range r.sites {
		if s.shown() && s.detour != nil && s.detour.InPlace() {
			n++
		}
	}
	return n
}
