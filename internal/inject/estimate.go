package inject

import (
	"trapless/internal/abi"
	x86 "trapless/internal/asm/x86"
	"trapless/internal/bpf"
	jit "trapless/internal/jit/x86"
	"trapless/internal/plan"
)

// estimates tells how large detours become, before they have a place. The code of
// programs differs between addresses in how it reaches the arena, by a few bytes
// for each access; it is measured once for sites that are alike, with an arena
// that is out of reach, which makes the longest code.
type estimates struct {
	env   jit.Env
	sizes map[siteShape]int
}

// siteShape is what of a site decides about the size of its programs' code.
type siteShape struct {
	program *bpf.Verified // the only one
	live    x86.RegSet
	flags   bool
	redZone bool
	counted bool
	args    jit.Args
	high    abi.Addr // of the site's address, which programs may ask for
}

// Where code is assumed to lie for an estimate, in a space of its own.
const (
	estimateGate = 1 << 40
	estimateAt   = estimateGate + 1<<20
)

func newEstimates(env *jit.Env, contents map[int][]byte) *estimates {
	e := &estimates{env: *env, sizes: map[siteShape]int{}}
	e.env.Gate, e.env.Arena = estimateGate, estimateGate^1<<46
	e.env.Constants = map[int]abi.Addr{}
	for n := range contents {
		e.env.Constants[n] = e.env.Arena
	}
	return e
}

// size is an upper bound of a detour's size in bytes.
func (e *estimates) size(req *Request) (int, error) {
	n := req.Window.RelocatedSize()
	for i := range req.Window.Sites {
		more, err := e.programs(req, i)
		if err != nil {
			return 0, err
		}
		n += more
	}
	_, gates := req.layOutGates(0)
	return max(n, gates*gateShare), nil
}

// programs is an upper bound of what the programs of site number i take.
func (e *estimates) programs(req *Request, i int) (int, error) {
	s, hits := req.Window.Sites[i], req.hits(i)
	key := siteShape{live: s.LiveRegs, flags: s.FlagsLive, redZone: s.RedZoneLive, args: req.Args, high: s.Addr >> 31}
	one := len(req.Programs[i]) == 1
	if one {
		key.program, key.counted = req.Programs[i][0], hits != nil && hits[0] >= 0
		if n, ok := e.sizes[key]; ok {
			return n, nil
		}
	}
	n, err := e.measure(req, i, s, hits)
	if one && err == nil {
		e.sizes[key] = n
	}
	return n, err
}

func (e *estimates) measure(req *Request, i int, s plan.Site, hits []int) (int, error) {
	if e.env.Runtime == nil {
		_, rt, err := jit.NewRuntime(estimateGate+abi.PageSize, &e.env)
		if err != nil {
			return 0, err
		}
		e.env.Runtime = rt
	}
	ofSites, _ := req.layOutGates(estimateGate + firstGate)
	a := x86.New(estimateAt)
	d, err := jit.Emit(a, req.Programs[i], jit.Site{
		Addr: s.Addr, LiveRegs: s.LiveRegs, FlagsLive: s.FlagsLive, RedZoneLive: s.RedZoneLive, Args: req.Args,
		Gate: ofSites[i].any, Gates: ofSites[i].programs, Hits: hits}, &e.env)
	if err != nil {
		return 0, err
	}
	apart := make([]byte, estimateApart)
	a.Raw(apart...)
	d.EmitCold(a)
	code, err := a.Bytes()
	return len(code) - len(apart), err
}

// estimateApart is how many bytes are assumed between programs and their cold
// code: so many that no jump can have its short form.
const estimateApart = 256
