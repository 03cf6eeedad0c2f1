package arena

import (
	"testing"

	"trapless/internal/abi"
)

// machine is a computer whose counter runs at a rate that changes a little.
type clockMachine struct {
	ns   uint64
	tick float64 // counter
	rate float64 // ticks a nanosecond
}

func (m *clockMachine) pass(ns uint64) Reading {
	m.ns += ns
	m.tick += float64(ns) * m.rate
	return Reading{uint64(m.tick), m.ns}
}

func TestClockFollowsWithoutJumpingBack(t *testing.T) {
	a := newArena(t, 0)
	m := &clockMachine{ns: 5e15, tick: 9e15, rate: 2.445}
	c := NewClock(m.pass(0))
	a.Publish(c, m.pass(20e6))
	last := uint64(0)
	for second := range 100 {
		m.rate *= 1 + 1e-4*float64(second%3-1) // 100 ppm, much for a counter
		for range 10 {
			now := m.pass(100e6)
			shown := c.at(now.TSC)
			if shown < last {
				t.Fatalf("the clock went back from %d to %d", last, shown)
			}
			if diff := int64(shown - now.NS); diff < -300e3 || diff > 300e3 {
				t.Fatalf("after %d s the clock is wrong by %d ns", second, diff)
			}
			last = shown
		}
		a.Publish(c, m.pass(0))
	}
	n := a.Load(abi.HdrClock)
	at := abi.HdrClock + 8 + abi.ClockSize*(n%2)
	if n != 101 || a.Load(at+abi.ClockTSC) != c.shown.TSC || a.Load(at+abi.ClockMult) != c.mult {
		t.Errorf("%d publications, not 101, or not what the last one was", n)
	}
}

func TestClockOfThisMachine(t *testing.T) {
	first := ReadClock()
	if first.TSC == 0 {
		t.Skip("there is no time stamp counter here")
	}
	a, c := newArena(t, 0), NewClock(first)
	for a.Load(abi.HdrClock) == 0 || c.mult == 0 {
		a.Publish(c, ReadClock())
	}
	now := ReadClock()
	if diff := int64(c.at(now.TSC) - now.NS); diff < -1e9 || diff > 1e9 {
		t.Errorf("the clock is wrong by %d ns", diff)
	}
}

// A counter that was set, as after a suspension, is no rate.
func TestClockBeginsAnew(t *testing.T) {
	a, c := newArena(t, 0), NewClock(Reading{1000, 1000})
	a.Publish(c, Reading{10, 2000})
	if a.Load(abi.HdrClock) != 0 {
		t.Error("a counter that went back was published")
	}
	a.Publish(c, Reading{3010, 3000})
	if a.Load(abi.HdrClock) != 1 || c.mult != 1<<32/3 {
		t.Errorf("%d publications, rate %#x", a.Load(abi.HdrClock), c.mult)
	}
}
