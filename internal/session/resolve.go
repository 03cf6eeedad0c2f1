package session

import (
	"errors"
	"fmt"
	"strings"

	"trapless/internal/abi"
	"trapless/internal/image"
	"trapless/internal/lang"
	"trapless/internal/plan"
	"trapless/internal/proc"
)

// site is a place where programs are to run.
type site struct {
	addr   abi.Addr
	name   string // function and offset, for people
	module *module
	fn     image.Func
	probes []int // indices in Script.Probes
}

// resolve finds the sites of all uprobes of a script. Nothing in the target is
// touched or stopped.
func resolve(ms *modules, s *lang.Script) ([]*site, error) {
	byAddr := map[abi.Addr]*site{}
	var sites []*site
	for i := range s.Probes {
		if s.Probes[i].Kind != lang.Uprobe {
			continue
		}
		for j := range s.Probes[i].Attach {
			found, err := ms.sites(&s.Probes[i].Attach[j])
			if err != nil {
				return nil, err
			}
			for _, f := range found {
				at := byAddr[f.addr]
				if at == nil {
					at = f
					byAddr[f.addr] = f
					sites = append(sites, f)
				}
				at.probes = append(at.probes, i)
			}
		}
	}
	return sites, nil
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
		var none *image.NotFoundError
		if errors.As(err, &none) && a.PathWildcard {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", a.Text, mod.path, err)
		}
		out = append(out, found...)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: no function of that pattern; list names with nm -D or readelf -Ws", a.Text)
	}
	return out, nil
}

func (mod *module) sites(a *lang.AttachPoint) ([]*site, error) {
	switch {
	case a.Func == "":
		v := image.VAddr(a.Addr)
		fn, ok := mod.funcs.At(v)
		if !ok {
			return nil, fmt.Errorf("%v lies in no known function", v)
		}
		return []*site{mod.site(fn, uint64(v-fn.Start))}, nil
	case a.Wildcard:
		var out []*site
		for _, m := range mod.funcs.Match(a.Func) {
			if !m.IFunc {
				out = append(out, mod.site(m.Func, 0))
			}
		}
		return out, nil
	}
	matches, err := mod.funcs.Lookup(a.Func)
	if err != nil {
		return nil, err
	}
	var out []*site
	for _, m := range matches {
		if a.Offset >= max(m.Len(), 1) {
			return nil, fmt.Errorf("%s has %d bytes, so there is no offset %d in it", a.Func, m.Len(), a.Offset)
		}
		out = append(out, mod.site(m.Func, a.Offset))
	}
	return out, nil
}

func (mod *module) site(fn image.Func, off uint64) *site {
	name := fn.Name()
	if name == "" {
		name = fn.Start.String()
	}
	if off != 0 {
		name = fmt.Sprintf("%s+%d", name, off)
	}
	return &site{addr: mod.bias.Addr(fn.Start + image.VAddr(off)), name: name, module: mod, fn: fn}
}

// planned is a window with its sites.
type planned struct {
	sites  []*site // as in the window
	window *plan.Window
}

// name names the sites.
func (p *planned) name() string {
	var names []string
	for _, s := range p.sites {
		names = append(names, s.name)
	}
	return strings.Join(names, ", ")
}

// Refused is a site that is not probed, and why.
type Refused struct {
	Name   string
	Reason plan.Reason
	Detail string
}

// planSites decides how the sites are patched.
func planSites(ms *modules, sites []*site) ([]planned, []Refused, error) {
	blocked, err := trapsBlocked(ms.pid)
	if err != nil {
		return nil, nil, err
	}
	groups := byFunction(sites)
	funcs := make([]*plan.Func, len(groups))
	ofModule := map[*module][]*plan.Func{}
	for i, group := range groups {
		if funcs[i], err = group[0].module.describe(group[0].fn); err != nil {
			return nil, nil, err
		}
		ofModule[group[0].module] = append(ofModule[group[0].module], funcs[i])
	}
	facts := map[*module]*plan.Facts{}
	for mod, fs := range ofModule {
		if err := mod.findEntries(fs); err != nil {
			return nil, nil, err
		}
		if facts[mod], err = mod.elf.Facts(); err != nil {
			return nil, nil, err
		}
	}
	var good []planned
	var bad []Refused
	for i, group := range groups {
		g, b := planFunction(funcs[i], group, facts[group[0].module], blocked)
		good, bad = append(good, g...), append(bad, b...)
	}
	return good, bad, nil
}

// planFunction plans the sites of one function. blocked names a thread that
// blocks the trap signals: it would die of a jump into a window that is not at
// an entry, where jump tables may lead.
func planFunction(f *plan.Func, group []*site, facts *plan.Facts, blocked string) ([]planned, []Refused) {
	named := map[abi.Addr]*site{}
	var addrs []abi.Addr
	for _, s := range group {
		named[s.addr] = s
		addrs = append(addrs, s.addr)
	}
	var good []planned
	var bad []Refused
	windows, refusals := plan.Analyze(f, addrs, facts)
	for _, w := range windows {
		pl := planned{window: w}
		for _, s := range w.Sites {
			pl.sites = append(pl.sites, named[s.Addr])
		}
		if blocked == "" || len(w.Insts) == 1 || w.Start == f.Start && f.Entry && len(w.Slow) == 0 {
			good = append(good, pl)
			continue
		}
		for _, s := range pl.sites {
			bad = append(bad, Refused{s.name, plan.BlockedSignals,
				fmt.Sprintf("%s blocks SIGTRAP or SIGILL, and a jump into the window would kill it", blocked)})
		}
	}
	for _, r := range refusals {
		bad = append(bad, Refused{named[r.Site].name, r.Reason, r.Detail})
	}
	return good, bad
}

// findEntries finds what leads into functions from outside of them.
func (mod *module) findEntries(funcs []*plan.Func) error {
	if err := mod.elf.FindEntries(funcs); err != nil {
		return fmt.Errorf("%s: %w", mod.path, err)
	}
	return nil
}

// describe describes a function to the planner.
func (mod *module) describe(fn image.Func) (*plan.Func, error) {
	f, err := mod.elf.Func(fn)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", mod.path, err)
	}
	return f, nil
}

// trapsBlocked names a thread of the target that blocks a signal which windows
// of several instructions need, "" if there is none.
func trapsBlocked(pid int) (string, error) {
	tids, err := proc.Threads(pid)
	if err != nil {
		return "", err
	}
	for _, tid := range tids {
		st, err := proc.ReadStatus(pid, tid)
		if err != nil {
			continue // it has ended
		}
		if stat, err := proc.ReadStat(pid, tid); err == nil && stat.Worker() {
			continue // it blocks everything and runs no code of the program
		}
		if st.Blocked.Has(sigTRAP) || st.Blocked.Has(sigILL) {
			return fmt.Sprintf("thread %d (%s)", tid, st.Name), nil
		}
	}
	return "", nil
}

const (
	sigILL  = 4
	sigTRAP = 5
)

// byFunction groups sites by the function that they are in.
func byFunction(sites []*site) [][]*site {
	type key struct {
		mod   *module
		start image.VAddr
	}
	index := map[key]int{}
	var groups [][]*site
	for _, s := range sites {
		k := key{s.module, s.fn.Start}
		i, ok := index[k]
		if !ok {
			i = len(groups)
			index[k] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], s)
	}
	return groups
}
