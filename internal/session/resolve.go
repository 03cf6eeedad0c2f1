package session

import (
	"errors"
	"fmt"

	"trapless/internal/abi"
	"trapless/internal/image"
	"trapless/internal/inject"
	"trapless/internal/lang"
	"trapless/internal/plan"
)

// site is a place where programs are to run.
type site struct {
	addr   abi.Addr // at, where the module is mapped now
	at     image.VAddr
	name   string // function and offset, for people
	module *module
	fn     image.Func
	probes []*Probe
	stack  int           // room on the goroutine's stack, in Go functions
	marker *image.Marker // of the USDT probe that it was found by

	unit     *unit
	refusal  *plan.Refusal  // why it has no patch
	detour   *inject.Detour // that its patch leads to, or will
	index    int            // its number in the detour's window
	inDetour []*Probe       // whose programs the detour runs, in this order
}

// ofKind finds the sites of one attach point of a probe.
func (ms *modules) ofKind(p *lang.Probe, a *lang.AttachPoint) ([]*site, []Refused, error) {
	entries, err := ms.sites(a)
	if err != nil {
		return nil, nil, err
	}
	return exitsOf(p, a, entries)
}

// ofKind is modules.ofKind for one module.
func (mod *module) ofKind(p *lang.Probe, a *lang.AttachPoint) ([]*site, []Refused, error) {
	entries, err := mod.sites(a)
	if err != nil {
		return nil, nil, err
	}
	return exitsOf(p, a, entries)
}

// exitsOf are the sites of a probe at functions' entries: they themselves, or the
// functions' exits.
func exitsOf(p *lang.Probe, a *lang.AttachPoint, entries []*site) ([]*site, []Refused, error) {
	if p.Kind != lang.Uretprobe {
		return entries, nil, nil
	}
	var good []*site
	var bad []Refused
	for _, e := range entries {
		sites, refused, err := e.exits(p.Retval)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %s: %w", a.Text, e.name, err)
		}
		good, bad = append(good, sites...), append(bad, refused...)
	}
	return good, bad, nil
}

// sites finds the sites of one attach point.
func (ms *modules) sites(a *lang.AttachPoint) ([]*site, error) {
	mods, err := ms.find(a)
	if err != nil {
		return nil, err
	}
	var out []*site
	for _, mod := range mods {
		found, err := mod.sites(a)
		if isNone(err) && a.PathWildcard {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", a.Text, mod.path, err)
		}
		out = append(out, found...)
	}
	if len(out) == 0 && a.Kind == lang.Usdt {
		return nil, fmt.Errorf("%s: no USDT probe of that name in any file that process %d has mapped", a.Text, ms.pid)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: no function of that pattern; list names with nm -D or readelf -Ws", a.Text)
	}
	return out, nil
}

// isNone reports whether an error says that a file has nothing of a name.
func isNone(err error) bool {
	var function *image.NotFoundError
	var marker *image.NoMarkerError
	return errors.As(err, &function) || errors.As(err, &marker)
}

func (mod *module) sites(a *lang.AttachPoint) ([]*site, error) {
	switch {
	case a.Kind == lang.Usdt:
		return mod.markerSites(a)
	case a.Func == "":
		v := image.VAddr(a.Addr)
		fn, ok := mod.funcs.At(v)
		if !ok {
			return nil, fmt.Errorf("%v lies in no known function", v)
		}
		return []*site{mod.site(fn, uint64(v-fn.Start))}, nil
	}
	matches, err := mod.match(a)
	if err != nil {
		return nil, err
	}
	var out []*site
	for _, m := range matches {
		switch {
		case m.IFunc:
			continue
		case a.Offset >= max(m.Len(), 1):
			return nil, fmt.Errorf("%s has %d bytes, so there is no offset %d in it", a.Func, m.Len(), a.Offset)
		case a.Offset != 0:
			out = append(out, mod.site(m.Func, a.Offset))
			continue
		}
		at, err := mod.entry(m.Func)
		if err != nil {
			return nil, err
		}
		s := mod.site(m.Func, at)
		s.name = mod.site(m.Func, 0).name
		out = append(out, s)
	}
	return out, nil
}

// match finds the functions that an attach point names. A pattern may be the name
// of a method of Go as it stands: main.(*T).Method.
func (mod *module) match(a *lang.AttachPoint) ([]image.Match, error) {
	if !a.Wildcard {
		return mod.funcs.Lookup(a.Func)
	}
	if mod.funcs.Go != nil {
		if found, err := mod.funcs.Lookup(a.Func); err == nil {
			return found, nil
		}
	}
	return mod.funcs.Match(a.Func), nil
}

func (mod *module) site(fn image.Func, off uint64) *site {
	name := fn.Name()
	if name == "" {
		name = fn.Start.String()
	}
	if off != 0 {
		name = fmt.Sprintf("%s+%d", name, off)
	}
	at := fn.Start + image.VAddr(off)
	return &site{addr: mod.bias.Addr(at), at: at, name: name, module: mod, fn: fn}
}
