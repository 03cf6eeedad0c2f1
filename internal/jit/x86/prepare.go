package x86

import (
	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// Analyses are facts about programs, and what was prepared for sites that are
// alike. They are not for use by several goroutines at once.
type Analyses struct {
	known    map[analysis]*bpf.Facts
	prepared map[shape]*preparation
}

// analysis is what bpf.Analyse is asked.
type analysis struct {
	code    *bpf.Code
	layout  *abi.Layout
	escapes bool
}

func (a *Analyses) of(code *bpf.Code, layout *abi.Layout, escapes bool) *bpf.Facts {
	if a == nil {
		return bpf.Analyse(code, layout, escapes)
	}
	key := analysis{code, layout, escapes}
	facts := a.known[key]
	if facts == nil {
		facts = bpf.Analyse(code, layout, escapes)
		if a.known == nil {
			a.known = map[analysis]*bpf.Facts{}
		}
		a.known[key] = facts
	}
	return facts
}

// shape is what of a site decides about its code, but for addresses and numbers
// that the code has in it.
type shape struct {
	progs                         [shapePrograms]*bpf.Verified
	counted                       [shapePrograms]bool
	live                          asm.RegSet
	flags, redZone, result, gates bool
	args                          Args
}

// shapePrograms is how many programs a site may have that is prepared for others,
// too.
const shapePrograms = 4

// shapeOf reports false for a site that nothing is kept of.
func shapeOf(progs []*bpf.Verified, site Site) (shape, bool) {
	s := shape{live: site.LiveRegs, flags: site.FlagsLive, redZone: site.RedZoneLive, result: site.Result,
		gates: site.Gates != nil, args: site.Args}
	if len(progs) > shapePrograms || site.stackArgs > 0 {
		return s, false
	}
	copy(s.progs[:], progs)
	for n := range progs {
		s.counted[n] = site.counts(n)
	}
	return s, true
}

// preparation is what comes before code is generated. It does not change.
type preparation struct {
	unit  *unit
	alloc allocation
	frame frame
}

// prepare analyses programs for a site and gives their values registers and places.
func (a *Analyses) prepare(progs []*bpf.Verified, site Site, env *Env) (*preparation, error) {
	key, keep := shapeOf(progs, site)
	if a == nil || !keep {
		return prepare(progs, site, env)
	}
	p := a.prepared[key]
	if p != nil {
		return p, nil
	}
	p, err := prepare(progs, site, env)
	if err != nil {
		return nil, err
	}
	if a.prepared == nil {
		a.prepared = map[shape]*preparation{}
	}
	a.prepared[key] = p
	return p, nil
}

func prepare(progs []*bpf.Verified, site Site, env *Env) (*preparation, error) {
	u := newUnit(progs, site, env, false)
	if err := u.analyse(); err != nil {
		return nil, err
	}
	if u.letsStackEscape() {
		u = newUnit(progs, site, env, true)
		if err := u.analyse(); err != nil {
			return nil, err
		}
	}
	al, err := allocate(u, site)
	if err != nil {
		return nil, err
	}
	return &preparation{u, al, layoutFrame(u, al, site)}, nil
}
