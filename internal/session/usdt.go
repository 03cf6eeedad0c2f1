package session

import (
	"fmt"

	"trapless/internal/abi"
	"trapless/internal/bpf"
	"trapless/internal/image"
	"trapless/internal/lang"
	"trapless/internal/plan"
	"trapless/internal/usdt"
)

// markerSites finds the places of USDT probes.
func (mod *module) markerSites(a *lang.AttachPoint) ([]*site, error) {
	markers, err := mod.markers()
	if err != nil {
		return nil, err
	}
	var out []*site
	for i := range markers {
		m := &markers[i]
		if !a.MatchMarker(m.Provider, m.Name) {
			continue
		}
		fn, ok := mod.funcs.At(m.At)
		if !ok {
			return nil, fmt.Errorf("the USDT probe %s:%s at %v lies in no known function", m.Provider, m.Name, m.At)
		}
		s := mod.site(fn, uint64(m.At-fn.Start))
		s.marker = m
		out = append(out, s)
	}
	if out == nil {
		return nil, noMarker(a, markers)
	}
	return out, nil
}

// markers are the USDT probes of the module's file, read once.
func (mod *module) markers() ([]image.Marker, error) {
	if mod.usdt == nil {
		all, err := mod.image.Markers()
		if err != nil {
			return nil, err
		}
		mod.usdt = &all
	}
	return *mod.usdt, nil
}

// noMarker says what a file has instead of what was asked for.
func noMarker(a *lang.AttachPoint, markers []image.Marker) error {
	name := a.Func
	if a.Provider != "*" {
		name = a.Provider + ":" + name
	}
	const most = 8
	var have []string
	for i := range markers {
		if text := markers[i].Provider + ":" + markers[i].Name; len(have) == 0 || have[len(have)-1] != text {
			if len(have) == most {
				have = append(have, "...")
				break
			}
			have = append(have, text)
		}
	}
	return &image.NoMarkerError{Name: name, Have: have}
}

// bind makes the program of a USDT probe at one of its places. Places that have their arguments at the
// same distances share it.
func (p *pattern) bind(m *image.Marker) (*bpf.Verified, error) {
	if m == nil || !usdt.Uses(p.probe.Prog) {
		return p.program, nil
	}
	prog, err := usdt.Bind(p.probe.Prog, m)
	if err != nil {
		return nil, err
	}
	key := prog.String()
	if v := p.bound[key]; v != nil {
		return v, nil
	}
	v, err := bpf.Verify(prog)
	if err != nil {
		return nil, err
	}
	v = v.WithCookie(p.cookie)
	if p.bound == nil {
		p.bound = map[string]*bpf.Verified{}
	}
	p.bound[key] = v
	return v, nil
}

// bind gives a probe its program, or says why it can have none at its site.
func (p *Probe) bind(s *site) {
	v, err := p.pattern.bind(s.marker)
	if err != nil {
		v = p.pattern.program
		p.refusal = &plan.Refusal{Site: s.addr, Reason: Arguments, Detail: err.Error()}
	}
	p.program, p.marker = v, s.marker
}

// semaphores are those that have to be raised: of the USDT probes that are in place.
func (r *registry) semaphores() []abi.Addr {
	return r.semaphoresIf(func(p *Probe) bool {
		return p.refusal == nil && !p.site.module.gone && !r.disarmed && p.site.detour != nil && p.site.detour.InPlace()
	})
}

// semaphoresOf are those of a module.
func (r *registry) semaphoresOf(mod *module) []abi.Addr {
	return r.semaphoresIf(func(p *Probe) bool { return p.site.module == mod })
}

func (r *registry) semaphoresIf(want func(p *Probe) bool) []abi.Addr {
	seen := map[abi.Addr]bool{}
	var all []abi.Addr
	for _, p := range r.probes {
		if p.marker == nil || p.marker.Semaphore == 0 || !want(p) {
			continue
		}
		if at := p.site.module.bias.Addr(p.marker.Semaphore); !seen[at] {
			seen[at] = true
			all = append(all, at)
		}
	}
	return all
}
