package inject

import (
	"slices"

	"trapless/internal/abi"
)

// Gates are bytes that generated code tests. Each program at each site has one,
// and a site with several programs has one more, which is open if one of theirs
// is. So a program is enabled and disabled by a byte, while the target runs. They
// lie in private pages at the start of the region, which a forked child finds
// zeroed, and for a detour at the place that follows from its own: code that is
// found again has the same gates. The first byte of a region is a gate for what
// all its detours share.

const (
	firstGate = 64 // offset in the region
	gateShare = 32 // bytes of code at least for each gate
)

// Gate is the region's own gate.
func (r *Region) Gate() abi.Addr { return r.Start }

// gatesOf is where the gates of a detour begin.
func (r *Region) gatesOf(at abi.Addr) abi.Addr {
	return r.Start + firstGate + (at-r.Start)/gateShare
}

// siteGates are the gates of a site.
type siteGates struct {
	any      abi.Addr
	programs []abi.Addr // nil if there is but one, whose gate is any
}

// layOutGates gives each site and program of a request its gate, from an address
// on. It returns the number of gates, too.
func (req *Request) layOutGates(first abi.Addr) ([]siteGates, int) {
	all := make([]siteGates, len(req.Programs))
	next := first
	for i, progs := range req.Programs {
		all[i].any = next
		if len(progs) == 0 {
			continue
		}
		next++
		for range progs[1:] {
			all[i].programs = append(all[i].programs, next)
			next++
		}
		if len(progs) > 1 {
			all[i].programs = append(all[i].programs, next)
			next++
		}
	}
	return all, int(next - first)
}

// Enable says whether a program of the detour may run, by the numbers of its site
// and of the program there. It takes effect when the detour is put in place, or by
// Target.UpdateGates.
func (d *Detour) Enable(site, program int, on bool) { d.enabled[site][program] = on }

// fill writes the detour's gates into g, which begins with the first of them.
func (d *Detour) fill(g []byte, open bool) int {
	n := 0
	for _, programs := range d.enabled {
		if len(programs) == 0 {
			continue
		}
		first := n
		if n++; len(programs) > 1 {
			for _, on := range programs {
				g[n] = gate(open && on)
				n++
			}
		}
		g[first] = gate(open && slices.Contains(programs, true))
	}
	return n
}

func gate(open bool) byte {
	if open {
		return 1
	}
	return 0
}

// setGates writes the gates of detours: as they are enabled, or all closed. Gates
// between them are written again, with what they hold.
func (t *Target) setGates(ds []*Detour, open bool) error {
	if !t.gatesOpen && !open {
		return nil // CloseGates has closed them
	}
	changed := map[*Region]abi.Range{}
	for _, d := range ds {
		if len(d.enabled) == 0 {
			continue
		}
		r := t.regionOf(d.At)
		r.gates[0] = max(r.gates[0], gate(open))
		at := r.gatesOf(d.At)
		part := abi.Range{Start: at, End: at + abi.Addr(d.fill(r.gates[at-r.Start:], open))}
		if c, ok := changed[r]; ok {
			part = abi.Range{Start: min(c.Start, part.Start), End: max(c.End, part.End)}
		}
		changed[r] = part
	}
	for _, r := range t.regions { // in the order in which they were mapped
		part, ok := changed[r]
		if !ok {
			continue
		}
		if err := t.writeGates(r, part); err != nil {
			return err
		}
		if err := t.writeGates(r, abi.Range{Start: r.Gate(), End: r.Gate() + 1}); err != nil {
			return err
		}
	}
	return nil
}

// writeGates writes gates as they are known to have to be.
func (t *Target) writeGates(r *Region, part abi.Range) error {
	return t.mem.WriteAt(r.gates[part.Start-r.Start:part.End-r.Start], part.Start)
}

// UpdateGates enables and disables programs as was said by Detour.Enable. The
// target runs on: a run that has begun ends. Detours that are not in place are left
// out.
func (t *Target) UpdateGates(ds ...*Detour) error {
	if !t.gatesOpen {
		return nil
	}
	return t.setGates(slices.DeleteFunc(slices.Clone(ds), func(d *Detour) bool { return !d.inPlace }), true)
}

// OpenGates lets the programs of all detours in place run, as they are enabled.
func (t *Target) OpenGates() error {
	t.gatesOpen = true
	return t.setGates(t.detours, true)
}

// CloseGates keeps programs from starting. Those that run end by themselves;
// Disarm waits for them.
func (t *Target) CloseGates() error {
	t.gatesOpen = false
	for _, r := range t.regions {
		clear(r.gates)
		end := r.Gate() + 1
		if r.used > 0 {
			end = r.gatesOf(r.used)
		}
		if err := t.writeGates(r, abi.Range{Start: r.Gate(), End: end}); err != nil {
			return err
		}
	}
	return nil
}
