// Package arena is the tracer's side of the memory that it shares with a
// target: it initialises it, sums map cells over the slots and consumes rings.
//
// The other side is hostile by assumption. Layout, offsets and lengths come
// from the tracer's own abi.Layout, never from the arena; a word that is read
// from it is copied once and checked before it is used. The memory is a sealed
// memfd, so that a target cannot make the tracer fault by shrinking it. The
// package knows no process and no instruction.
package arena

import (
	"fmt"

	"trapless/internal/abi"
	"trapless/internal/unix"
)

// Arena is a mapped arena.
type Arena struct {
	mem    []byte
	layout *abi.Layout
	rings  []ringState  // the tracer's own idea of each slot's ring
	open   []*ringState // those that Each looks at
	active []*ringState // of them, those with records that are old enough
	mark   uint64       // time stamp counter when Each was called before
	bad    uint64       // records that did not make sense
	unwind int          // the half of the table of unwind rules that is shown
}

// New wraps memory that holds, or will hold, an arena of the layout.
// Precondition: len(mem) is at least l.Size.
func New(mem []byte, l *abi.Layout) *Arena {
	if uint64(len(mem)) < l.Size {
		panic("BUG: arena memory smaller than its layout")
	}
	return &Arena{mem: mem, layout: l, rings: make([]ringState, 1<<l.SlotBits)}
}

// Map seals the memfd against any change of size and maps it. The caller keeps
// the descriptor; it may be closed at once.
func Map(fd int, l *abi.Layout) (*Arena, error) {
	if err := unix.SealSize(fd); err != nil {
		return nil, fmt.Errorf("seal the arena: %w", err)
	}
	size, err := unix.FileSize(fd)
	if err != nil {
		return nil, fmt.Errorf("arena: %w", err)
	}
	if uint64(size) != l.Size {
		return nil, fmt.Errorf("the arena has %d bytes instead of %d: the target changed it", size, l.Size)
	}
	mem, err := unix.MapShared(fd, int(l.Size))
	if err != nil {
		return nil, fmt.Errorf("map the arena: %w", err)
	}
	return New(mem, l), nil
}

// Close unmaps an arena that Map made.
func (a *Arena) Close() error { return unix.Unmap(a.mem) }

// Layout is the arena's layout.
func (a *Arena) Layout() *abi.Layout { return a.layout }

// Mem is the arena's memory, for the interpreter, which runs programs on it.
func (a *Arena) Mem() []byte { return a.mem }

// Init writes a fresh header. Precondition: the memory is all zero and no
// target code uses it yet.
func (a *Arena) Init(tgid int) {
	l := a.layout
	a.Store(l.TPTable+8*abi.SlotTracer, ^uint64(0))
	a.Store(l.TPTable+8*abi.SlotShared, ^uint64(0))
	a.Store(abi.HdrVersion, uint64(uint32(tgid))<<32|abi.Version)
	a.Store(abi.HdrMagic, abi.Magic)
}

// ShareTP makes all threads with this thread pointer use the shared slot. It
// reports whether there was room to say so.
func (a *Arena) ShareTP(tp uint64) bool {
	for i := uint64(0); i < abi.SharedTPs; i++ {
		off := abi.HdrSharedTP + 8*i
		switch a.Load(off) {
		case tp:
			return true
		case 0:
			a.Store(off, tp)
			return true
		}
	}
	return false
}

// Stopped reports whether a program has called exit().
func (a *Arena) Stopped() bool { return a.Load(abi.HdrStop) != 0 }

// Traps is how often a thread of the target, or of a child that it forked, came
// to an instruction inside a window and was sent on by the signal handlers.
func (a *Arena) Traps() uint64 { return a.Load(abi.HdrTraps) }

// slotsInUse lists the slots whose cells may hold anything.
func (a *Arena) slotsInUse() []uint64 {
	slots := []uint64{abi.SlotTracer, abi.SlotShared}
	for i := uint64(abi.SlotFirst); i < 1<<a.layout.SlotBits; i++ {
		if a.Load(a.layout.TPTable+8*i) != 0 {
			slots = append(slots, i)
		}
	}
	return slots
}

func (a *Arena) slot(i uint64) uint64 { return a.layout.Slots + i<<a.layout.StrideShift }

// Hits is how often the program of a probe ran, and how often it could not do
// something because another run was in its way. Probes that the layout has no
// counters for have none.
func (a *Arena) Hits(probe int) (hits, missed uint64) {
	l, n := a.layout, uint64(probe)
	if probe < 0 || probe >= l.Probes {
		return 0, 0
	}
	const tries = 10 // for a sum to which nothing is added meanwhile
	for range tries {
		sum := a.Load(l.HitSums + 8*n)
		hits = sum
		for _, s := range a.slotsInUse() {
			hits += uint64(a.mem[a.slot(s)+l.Hits+n])
		}
		if a.Load(l.HitSums+8*n) == sum {
			break
		}
	}
	return hits, a.Load(l.Missed + 8*n)
}

// Reads is how many pieces of the target's memory programs have read at once, and
// before how many the kernel was asked whether they are there.
func (a *Arena) Reads() (direct, asked uint64) {
	for _, i := range a.slotsInUse() {
		direct += a.Load(a.slot(i) + abi.SlotReads)
		asked += a.Load(a.slot(i) + abi.SlotAsked)
	}
	return direct, asked
}

// Losses counts what did not make it into maps and rings.
type Losses struct {
	Events  uint64 // records dropped because a ring was full
	Runs    uint64 // runs without the exclusive state that they needed
	Updates uint64 // map updates dropped because the map was full
	Corrupt uint64 // records that did not make sense: the target wrote over them
}

// Any reports whether anything was lost.
func (l Losses) Any() bool { return l != Losses{} }

// Losses sums the loss counters.
func (a *Arena) Losses() Losses {
	l := Losses{Runs: a.Load(abi.HdrMisses), Updates: a.Load(abi.HdrDrops), Corrupt: a.bad}
	for _, i := range a.slotsInUse() {
		l.Events += a.Load(a.slot(i) + abi.SlotDrops)
		l.Runs += a.Load(a.slot(i) + abi.SlotMisses)
	}
	return l
}
