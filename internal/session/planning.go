package session

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"trapless/internal/abi"
	"trapless/internal/image"
	"trapless/internal/inject"
	"trapless/internal/plan"
	"trapless/internal/proc"
)

// Refused is a site that is not probed, and why.
type Refused struct {
	Name   string
	Reason plan.Reason
	Detail string
}

// unit is a function with sites. They are planned together.
type unit struct {
	mod     *module
	fn      image.Func
	desc    *plan.Func // as it was described last
	facts   *plan.Facts
	named   map[abi.Addr]*site
	windows []*plan.Window
	refused []*plan.Refusal
	detours []*inject.Detour // of the windows, in the order in which they are put in place
}

// unitOf is the function of a site.
func (r *registry) unitOf(s *site) *unit {
	key := siteKey{s.module, s.fn.Start}
	u := r.units[key]
	if u == nil {
		u = &unit{mod: s.module, fn: s.fn, named: map[abi.Addr]*site{}}
		r.units[key] = u
	}
	return u
}

// plan decides how the sites of functions are patched in which something has
// changed. The target is not touched.
func (r *registry) plan() error {
	var work []*unit
	for u := range r.dirty {
		switch {
		case !u.mod.gone:
			work = append(work, u)
		case len(u.named) == 0: // it does not matter any more whether it comes back
			delete(r.dirty, u)
			delete(r.units, siteKey{u.mod, u.fn.Start})
		}
	}
	if len(work) == 0 {
		return nil
	}
	slices.SortFunc(work, compareUnits)
	if err := r.describe(work); err != nil {
		return err
	}
	r.planUnits(work)
	for _, u := range work {
		delete(r.dirty, u)
	}
	r.planned = append(r.planned, r.settle(work)...)
	slices.SortFunc(r.planned, compareUnits)
	r.planned = slices.Compact(r.planned)
	return nil
}

func compareUnits(x, y *unit) int {
	return cmp.Or(cmp.Compare(x.mod.start, y.mod.start), cmp.Compare(x.fn.Start, y.fn.Start))
}

// planUnits plans functions on all processors: none depends on another one's plan.
func (r *registry) planUnits(work []*unit) {
	var next atomic.Int64
	var planning sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), 1+len(work)/unitsEach) {
		planning.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(work)); i = next.Add(1) - 1 {
				r.planUnit(work[i])
			}
		})
	}
	planning.Wait()
}

// unitsEach is how many functions are worth a processor.
const unitsEach = 200

func (r *registry) planUnit(u *unit) {
	u.windows, u.refused = nil, nil
	if len(u.named) == 0 {
		return
	}
	var addrs []abi.Addr
	for at := range u.named {
		addrs = append(addrs, at)
	}
	slices.Sort(addrs)
	u.windows, u.refused = plan.Analyze(u.desc, addrs, u.facts)
	for _, refusal := range u.refused {
		u.named[refusal.Site].refusal = refusal
	}
	if r.boosted {
		for _, w := range u.windows {
			_ = w.Boost() // where that is not possible the jump stays
		}
	}
}

// settle plans those functions again that made room in the one behind them, where
// something else is planned, also those before and behind that have not changed.
// It returns all that have been planned.
func (r *registry) settle(work []*unit) []*unit {
	for {
		of := map[*plan.Func]*unit{}
		var all []*plan.Window
		for _, u := range r.withNeighbours(work) {
			of[u.desc] = u
			all = append(all, u.windows...)
		}
		slices.SortFunc(all, func(x, y *plan.Window) int { return cmp.Compare(x.Start, y.Start) })
		again := false
		for _, f := range plan.Conflicts(all) {
			u := of[f]
			if u == nil || f.Next == nil {
				continue
			}
			f.Next, again = nil, true
			r.planUnit(u)
			if !slices.Contains(work, u) {
				work = append(work, u)
			}
		}
		if !again {
			return work
		}
	}
}

// withNeighbours adds the units right before and behind others.
func (r *registry) withNeighbours(work []*unit) []*unit {
	set := map[*unit]bool{}
	for _, u := range work {
		set[u] = true
		for _, n := range []*unit{u.mod.before[u.desc.Start], r.units[siteKey{u.mod, u.mod.bias.VAddr(u.behind())}]} {
			if n != nil && n.desc != nil {
				set[n] = true
			}
		}
	}
	all := make([]*unit, 0, len(set))
	for u := range set {
		all = append(all, u)
	}
	return all
}

// behind is where the next function starts.
func (u *unit) behind() abi.Addr { return u.desc.End() + abi.Addr(len(u.desc.Pad)) }

// describe describes functions and what surrounds them.
func (r *registry) describe(units []*unit) error {
	blocked, shadow, err := ofThreads(r.ms.pid, r.trapping())
	if err != nil {
		return err
	}
	if r.ms.anyGo() {
		blocked = cmp.Or(blocked, "Go's runtime system blocks SIGTRAP and SIGILL when it starts threads and is called by C")
	}
	space, err := inject.FreeSpace(r.ms.pid, r.traits)
	if err != nil {
		return err
	}
	ofModule := map[*module][]*unit{}
	for _, u := range units {
		if u.desc, err = u.mod.elf.Func(u.fn); err != nil {
			return fmt.Errorf("%s: %w", u.mod.path, err)
		}
		for _, s := range u.named {
			s.stack, _ = u.mod.elf.Room(u.mod.bias.VAddr(s.addr))
		}
		u.mod.before[u.behind()] = u
		ofModule[u.mod] = append(ofModule[u.mod], u)
	}
	for mod, us := range ofModule {
		facts, err := mod.surroundings(us)
		if err != nil {
			return fmt.Errorf("%s: %w", mod.path, err)
		}
		facts.Blocked, facts.ShadowStack, facts.Space = blocked, shadow, space
		facts.Breakpoints = r.breakpoints
		for _, u := range us {
			u.facts = facts
		}
	}
	return nil
}

// surroundings finds what leads into functions of a module from outside of them,
// and what holds for all of them.
func (mod *module) surroundings(units []*unit) (*plan.Facts, error) {
	var funcs []*plan.Func
	for _, u := range units {
		funcs = append(funcs, u.desc)
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

// sitesOf are the sites of a window.
func (u *unit) sitesOf(w *plan.Window) []*site {
	var out []*site
	for _, s := range w.Sites {
		out = append(out, u.named[s.Addr])
	}
	return out
}

// siteNames names sites for people.
func siteNames(sites []*site) string {
	var names []string
	for _, s := range sites {
		names = append(names, s.name)
	}
	return strings.Join(names, ", ")
}

// Threads block all signals for a moment when they start, or start others.
const (
	blockedLooks  = 5
	trappingLooks = 200
	blockedPause  = 2 * time.Millisecond
)

// ofThreads says which thread of the target blocks a signal that windows of several
// instructions need, or who else shares its memory and has none of our handlers, "" if
// nobody does, and tells whether any has a shadow stack. Where threads run into our
// breakpoints, they block all signals while our handler is at work: then it must be the
// same one at each of many looks.
func ofThreads(pid int, trapping bool) (blocked string, shadow bool, err error) {
	looks := blockedLooks
	if trapping {
		looks = trappingLooks
	}
	var always []string
	for look := range looks {
		names, withShadow, err := lookAtThreads(pid)
		if err != nil {
			return "", false, err
		}
		shadow = withShadow
		if trapping && look > 0 {
			names = slices.DeleteFunc(names, func(name string) bool { return !slices.Contains(always, name) })
		}
		if always = names; len(always) == 0 {
			return "", shadow, nil
		}
		time.Sleep(blockedPause)
	}
	return always[0], shadow, nil
}

// trapping reports whether a breakpoint of ours is in place.
func (r *registry) trapping() bool {
	return r.breakpoints && r.target != nil &&
		slices.ContainsFunc(r.target.Detours(), func(d *inject.Detour) bool { return d.Window.Boosted })
}

// lookAtThreads names who blocks one of these signals now, or has no handlers of ours.
func lookAtThreads(pid int) (blocked []string, shadow bool, err error) {
	tids, err := proc.Threads(pid)
	if err != nil {
		return nil, false, err
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
		if st.Blocked.Has(sigTRAP) || st.Blocked.Has(sigILL) {
			blocked = append(blocked, fmt.Sprintf("thread %d (%s) blocks SIGTRAP or SIGILL", tid, st.Name))
		}
	}
	other, err := proc.Apart(pid)
	if err == nil && other != 0 {
		blocked = append(blocked, fmt.Sprintf("process %d (%s) shares the memory, but not the signal handlers", other, proc.Comm(other)))
	}
	return blocked, shadow, nil // whoever cannot be compared belongs to somebody else
}

const (
	sigILL  = 4
	sigTRAP = 5
)
