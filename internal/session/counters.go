package session

import "trapless/internal/bpf"

// counters gives probes the hit counters of the arena, of which there is a number
// that was laid out. A program that comes back to a site gets the counters that it
// had: so its detour is found again, whose code names them.
type counters struct {
	limit int // 0 before the arena is laid out
	given int
	of    map[counterKey]int
	taken map[int]bool
}

// counterKey is the nth registration of a program at a site.
type counterKey struct {
	at      siteKey
	program *bpf.Verified
	nth     int
}

// spareProbes is how many more probes than there are at the start can have counters.
const spareProbes = 256

// take gives a probe its counters, or -1.
func (c *counters) take(p *Probe) int {
	if c.of == nil {
		c.of, c.taken = map[counterKey]int{}, map[int]bool{}
	}
	key := counterKey{at: p.site.key(), program: p.program}
	for ; ; key.nth++ {
		n, ok := c.of[key]
		switch {
		case ok && c.taken[n]:
			continue
		case !ok && c.limit > 0 && c.given == c.limit:
			return -1
		case !ok:
			n = c.given
			c.given++
			c.of[key] = n
		}
		c.taken[n] = true
		return n
	}
}

// leave takes a probe's counters back.
func (c *counters) leave(p *Probe) { delete(c.taken, p.counter) }

// layOut decides how many there are.
func (c *counters) layOut() int {
	c.limit = 2*c.given + spareProbes
	return c.limit
}
