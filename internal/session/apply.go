package session

import (
	"context"
	"errors"
	"slices"
	"syscall"

	"trapless/internal/abi"
	"trapless/internal/bpf"
	"trapless/internal/inject"
	jit "trapless/internal/jit/x86"
	"trapless/internal/lang"
	"trapless/internal/plan"
)

// apply makes the target what is wanted. Precondition: the target is attached. In
// the last stop then is called, to let it go.
func (r *registry) apply(ctx context.Context, then func() error) error {
	work, placed, refusals, err := r.place(ctx)
	if err != nil {
		return err
	}
	changes := r.changes(work, placed)
	var concerned []*inject.Detour
	for _, u := range work {
		concerned = append(concerned, u.detours...)
	}
	last := func() error {
		if err := r.target.SetSemaphores(r.semaphores()); err != nil {
			r.log("%v", err) // a probe that does not run is no reason to give up the others
		}
		if err := r.target.UpdateGates(concerned...); err != nil {
			return err
		}
		return then()
	}
	if len(changes) == 0 {
		err = last()
	} else {
		var more []*plan.Refusal
		more, err = r.target.Apply(ctx, changes, last)
		refusals = append(refusals, more...)
	}
	if err != nil {
		r.redo(work)
	}
	why := map[abi.Addr]*plan.Refusal{}
	for _, refusal := range refusals {
		why[refusal.Site] = refusal
	}
	for _, u := range work {
		u.note(why)
		if len(u.named) == 0 && len(u.detours) == 0 {
			delete(r.units, siteKey{u.mod, u.fn.Start})
			delete(u.mod.before, u.behind())
		}
	}
	return err
}

// placeTries bounds how often functions are planned anew because the target has
// mapped memory where a region or a springboard was to lie.
const placeTries = 4

// place plans the functions that are dirty, and writes their detours.
func (r *registry) place(ctx context.Context) (work []*unit, placed []*inject.Detour, refusals []*plan.Refusal, err error) {
	for try := 1; ; try++ {
		if err := r.plan(); err != nil {
			return nil, nil, nil, err
		}
		work, r.planned = r.planned, nil
		placed, refusals, err = r.target.Place(ctx, r.requests(work))
		if err == nil {
			return work, placed, refusals, nil
		}
		r.redo(work)
		if !errors.Is(err, syscall.EEXIST) || try == placeTries {
			return nil, nil, nil, err
		}
		r.log("%v; planning anew", err)
	}
}

// redo lets functions be planned anew the next time.
func (r *registry) redo(work []*unit) {
	for _, u := range work {
		r.dirty[u] = true
	}
}

// requests asks for the detours of all windows.
func (r *registry) requests(work []*unit) []inject.Request {
	var reqs []inject.Request
	for _, u := range work {
		for _, w := range u.windows {
			req := inject.Request{Window: w, Text: u.mod.text}
			for _, s := range u.sitesOf(w) {
				var programs []*bpf.Verified
				var hits []int
				var funcs []abi.Addr
				for _, p := range s.probes {
					programs, hits, funcs = append(programs, p.program), append(hits, p.counter), append(funcs, p.function())
				}
				req.Programs, req.Hits, req.Funcs = append(req.Programs, programs), append(req.Hits, hits), append(req.Funcs, funcs)
				if u.desc.Go {
					req.Args, req.Stack = jit.GoArgs, append(req.Stack, s.stack)
				}
			}
			reqs = append(reqs, req)
		}
	}
	return reqs
}

// function is what get_func_ip returns to a probe's program: the address where the probe
// is, but the function's for a probe of its return, as in the kernel (bpf-helpers(7)).
func (p *Probe) function() abi.Addr {
	if p.pattern.probe.Kind == lang.Uretprobe {
		return p.site.module.bias.Addr(p.site.fn.Start)
	}
	return 0
}

// changes compares the detours that functions are to have with those that they
// have, and gives functions the former. What stays the same stays.
func (r *registry) changes(work []*unit, placed []*inject.Detour) []inject.Change {
	of := map[*plan.Window]*unit{}
	for _, u := range work {
		for _, w := range u.windows {
			of[w] = u
		}
	}
	wanted := map[*unit][]*inject.Detour{}
	for _, d := range placed {
		wanted[of[d.Window]] = append(wanted[of[d.Window]], d)
	}
	var all []unitChange
	for _, u := range work {
		old := u.detours
		u.detours = wanted[u]
		var c unitChange
		for i, d := range u.detours {
			if k := slices.IndexFunc(old, d.Same); k >= 0 {
				d, u.detours[i] = old[k], old[k]
				old = slices.Delete(slices.Clone(old), k, k+1)
			}
			if !d.InPlace() {
				c.In = append(c.In, d)
			}
		}
		old = slices.Clone(old)
		slices.Reverse(old)
		c.Out = slices.DeleteFunc(old, func(d *inject.Detour) bool { return !d.InPlace() })
		u.enable()
		if r.disarmed {
			c.In = nil
		}
		all = append(all, c)
	}
	return split(all)
}

// unitChange is what changes in one function, or in several that overlap.
type unitChange struct{ inject.Change }

// extent is what the change touches.
func (c *unitChange) extent() abi.Range {
	e := abi.Range{Start: ^abi.Addr(0)}
	for _, d := range slices.Concat(c.Out, c.In) {
		w := d.Window.Extent()
		e.Start, e.End = min(e.Start, w.Start), max(e.End, w.End)
	}
	return e
}

// split makes the changes as small as they may be: those of functions that overlap
// must be made at once, and so what is put in where something is taken out.
func split(all []unitChange) []inject.Change {
	var joined []unitChange
	var end abi.Addr
	for _, c := range all {
		if len(c.Out)+len(c.In) == 0 {
			continue
		}
		e := c.extent()
		if last := len(joined) - 1; last >= 0 && e.Start < end && len(c.Out)+len(joined[last].Out) > 0 {
			joined[last].Out = append(joined[last].Out, c.Out...)
			joined[last].In = append(joined[last].In, c.In...)
		} else {
			joined = append(joined, c)
		}
		end = max(end, e.End)
	}
	var out []inject.Change
	for _, c := range joined {
		if len(c.Out) > 0 && len(c.In) > 0 {
			out = append(out, c.Change)
			continue
		}
		for _, d := range c.Out {
			out = append(out, inject.Change{Out: []*inject.Detour{d}})
		}
		for _, d := range c.In {
			out = append(out, inject.Change{In: []*inject.Detour{d}})
		}
	}
	return out
}

// enable tells the detours which of their programs may run, and the sites which
// detours they have.
func (u *unit) enable() {
	for _, s := range u.named {
		s.detour, s.refusal = nil, nil
	}
	for _, d := range u.detours {
		for i, s := range u.sitesOf(d.Window) {
			s.detour, s.index, s.inDetour = d, i, slices.Clone(s.probes)
			for k, p := range s.probes {
				d.Enable(i, k, !p.disabled)
			}
		}
	}
}

// note notes at which sites there is no probe, and why: by the planner's word, or
// by the first site of their window.
func (u *unit) note(why map[abi.Addr]*plan.Refusal) {
	for _, r := range u.refused {
		u.named[r.Site].refusal = r
	}
	for _, w := range u.windows {
		if r := why[w.Site]; r != nil && len(w.Sites) > 0 {
			for _, s := range u.sitesOf(w) {
				s.detour, s.refusal = nil, r
			}
		}
	}
	u.detours = slices.DeleteFunc(u.detours, func(d *inject.Detour) bool {
		r := why[d.Window.Site]
		return r != nil && len(d.Window.Sites) > 0 && !d.InPlace()
	})
}

// arm patches all sites, or none.
func (r *registry) arm(ctx context.Context, on bool, then func() error) error {
	if r.disarmed == !on {
		return then()
	}
	r.disarmed = !on
	if on {
		for _, u := range r.units {
			r.dirty[u] = true // something may have changed, and has to be looked at
		}
		return r.apply(ctx, then)
	}
	var changes []inject.Change
	for _, u := range r.units {
		for _, d := range slices.Backward(u.detours) {
			if d.InPlace() {
				changes = append(changes, inject.Change{Out: []*inject.Detour{d}})
			}
		}
	}
	last := func() error { return errors.Join(r.target.SetSemaphores(nil), then()) }
	if len(changes) == 0 {
		return last()
	}
	_, err := r.target.Apply(ctx, changes, last)
	return err
}
