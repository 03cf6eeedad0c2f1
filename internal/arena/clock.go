package arena

import (
	"math/bits"

	"trapless/internal/abi"
	"trapless/internal/tsc"
	"trapless/internal/unix"
)

// Reading is the time stamp counter and CLOCK_MONOTONIC at the same moment.
type Reading struct {
	TSC uint64
	NS  uint64
}

// ReadClock reads both clocks, between two readings of the counter that are as
// near to each other as a few tries make them.
func ReadClock() Reading {
	var best Reading
	for near, try := ^uint64(0), 0; try < 8; try++ {
		before := tsc.Counter()
		ns := unix.Monotonic()
		if d := tsc.Counter() - before; d < near {
			near, best = d, Reading{before + d/2, ns}
		}
	}
	return best
}

// Clock keeps the arena's clock in step with CLOCK_MONOTONIC: it is published
// about once a second, and never jumps back.
type Clock struct {
	last  Reading // when it was published
	shown Reading // what was published then
	mult  uint64
	count uint64
}

// NewClock begins with a first reading. The rate is known at the second one.
func NewClock(first Reading) *Clock { return &Clock{last: first} }

// Limits of a clock that is drawn in step: what differs more, after a
// suspension say, is set right at once.
const (
	slewPeriod = 1e9     // nanoseconds in which a difference disappears
	maxSlew    = 10e6    // nanoseconds of difference
	maxPeriod  = 1 << 34 // ticks between two readings for a rate to be believed
)

// Publish writes the clock into the arena. Call it about once a second.
func (a *Arena) Publish(c *Clock, now Reading) {
	ticks, ns := now.TSC-c.last.TSC, now.NS-c.last.NS
	if ticks == 0 || ticks > maxPeriod || ns == 0 || ns > ticks {
		c.last = now // the counter was set, or time stood still: begin anew
		return
	}
	rate, _ := bits.Div64(ns>>32, ns<<32, ticks)
	shown, mult := now, rate
	if c.mult != 0 {
		shown.NS = c.at(now.TSC)
		if diff := int64(now.NS - shown.NS); -maxSlew < diff && diff < maxSlew {
			mult = uint64(int64(rate) + int64(rate)/slewPeriod*diff + int64(rate)%slewPeriod*diff/slewPeriod)
		} else if diff > 0 {
			shown.NS = now.NS
		}
	}
	mult = min(mult, abi.MaxClockMult)
	c.last, c.shown, c.mult = now, shown, mult
	c.count++
	at := abi.HdrClock + 8 + abi.ClockSize*(c.count%2)
	a.Store(at+abi.ClockTSC, shown.TSC)
	a.Store(at+abi.ClockNS, shown.NS)
	a.Store(at+abi.ClockMult, mult)
	a.Store(abi.HdrClock, c.count)
}

// at is what the clock shows at a counter, as a program computes it.
func (c *Clock) at(counter uint64) uint64 {
	hi, lo := bits.Mul64(counter-c.shown.TSC, c.mult)
	return c.shown.NS + (hi<<32 | lo>>32)
}
