package session

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"trapless/internal/abi"
	"trapless/internal/inject"
	"trapless/internal/plan"
	"trapless/internal/proc"
)

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

// unit is a function with sites.
type unit struct {
	fn      *plan.Func
	facts   *plan.Facts
	named   map[abi.Addr]*site
	windows []*plan.Window
	refused []*plan.Refusal
}

// planSites decides how the sites are patched.
func planSites(ms *modules, sites []*site, traits inject.Traits) ([]planned, []Refused, error) {
	units, err := describe(ms, sites, traits)
	if err != nil {
		return nil, nil, err
	}
	for _, u := range units {
		u.plan()
	}
	settle(units)
	var good []planned
	var bad []Refused
	for _, u := range units {
		for _, w := range u.windows {
			pl := planned{window: w}
			for _, s := range w.Sites {
				pl.sites = append(pl.sites, u.named[s.Addr])
			}
			good = append(good, pl)
		}
		for _, r := range u.refused {
			bad = append(bad, Refused{u.named[r.Site].name, r.Reason, r.Detail})
		}
	}
	return good, bad, nil
}

func (u *unit) plan() {
	var addrs []abi.Addr
	for at := range u.named {
		addrs = append(addrs, at)
	}
	u.windows, u.refused = plan.Analyze(u.fn, addrs, u.facts)
}

// settle plans those functions again that made room in the one behind them, where
// something else was planned.
func settle(units []*unit) {
	of := map[*plan.Func]*unit{}
	var all []*plan.Window
	for _, u := range units {
		of[u.fn] = u
		all = append(all, u.windows...)
	}
	slices.SortFunc(all, func(x, y *plan.Window) int { return cmp.Compare(x.Start, y.Start) })
	for _, f := range plan.Conflicts(all) {
		if u := of[f]; u != nil {
			f.Next = nil
			u.plan()
		}
	}
}

// describe describes the functions of sites and what surrounds them.
func describe(ms *modules, sites []*site, traits inject.Traits) ([]*unit, error) {
	blocked, shadow, err := ofThreads(ms.pid)
	if err != nil {
		return nil, err
	}
	if ms.anyGo() {
		blocked = cmp.Or(blocked, "Go's runtime system, when it starts threads and is called by C,")
	}
	space, err := inject.FreeSpace(ms.pid, traits)
	if err != nil {
		return nil, err
	}
	var units []*unit
	ofModule := map[*module][]*unit{}
	for _, group := range byFunction(sites) {
		mod := group[0].module
		u := &unit{named: map[abi.Addr]*site{}}
		if u.fn, err = mod.elf.Func(group[0].fn); err != nil {
			return nil, fmt.Errorf("%s: %w", mod.path, err)
		}
		for _, s := range group {
			u.named[s.addr] = s
			s.stack, _ = mod.elf.Room(mod.bias.VAddr(s.addr))
		}
		units = append(units, u)
		ofModule[mod] = append(ofModule[mod], u)
	}
	for mod, us := range ofModule {
		facts, err := mod.surroundings(us)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", mod.path, err)
		}
		facts.Blocked, facts.ShadowStack, facts.Space = blocked, shadow, space
		for _, u := range us {
			u.facts = facts
		}
	}
	return units, nil
}

// surroundings finds what leads into functions of a module from outside of them,
// and what holds for all of them.
func (mod *module) surroundings(units []*unit) (*plan.Facts, error) {
	var funcs []*plan.Func
	for _, u := range units {
		funcs = append(funcs, u.fn)
	}
	funcs, err := mod.elf.Link(funcs)
	if err != nil {
		return nil, err
	}
	if err := mod.elf.FindEntries(funcs); err != nil {
		return nil, err
	}
	return mod.elf.Facts()
}

// ofThreads names a thread of the target that blocks a signal which windows of
// several instructions need, "" if there is none, and tells whether any has a
// shadow stack.
func ofThreads(pid int) (blocked string, shadow bool, err error) {
	tids, err := proc.Threads(pid)
	if err != nil {
		return "", false, err
	}
	for _, tid := range tids {
		st, err := proc.ReadStatus(pid, tid)
		if err != nil {
			continue // it has ended
		}
		shadow = shadow || st.ShadowStack
		if stat, err := proc.ReadStat(pid, tid); err == nil && stat.Worker() {
			continue // it blocks everything and runs no code of the program
		}
		if blocked == "" && (st.Blocked.Has(sigTRAP) || st.Blocked.Has(sigILL)) {
			blocked = fmt.Sprintf("thread %d (%s)", tid, st.Name)
		}
	}
	return blocked, shadow, nil
}

const (
	sigILL  = 4
	sigTRAP = 5
)
