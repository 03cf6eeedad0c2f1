package arena

import (
	"bytes"
	"encoding/binary"
	"math"

	"trapless/internal/abi"
	"trapless/internal/tsc"
)

// Record is one event of a ring.
type Record struct {
	TSC     uint64 // when it was reserved, in ticks of the time stamp counter
	Slot    int
	Map     int    // the map that it was written to, TraceMap, or -1 for the script's own events
	Payload []byte // the tracer's own copy
}

// TraceMap is the map of what trace_printk writes, in the form of bpf.FormatTrace.
const TraceMap = abi.RecTrace - 1

// ringState is where the tracer is in a ring. The copy of the tail in the arena
// only tells the producer how much room there is.
type ringState struct {
	base    uint64 // the slot's
	tail    uint64 // what lies before was taken out
	head    uint64 // as it was when Each began
	pending []byte // taken out of the ring, of which at bytes are done
	at      int

	size   int // of the next record; 0: there is none
	header uint64
	tsc    uint64
	slot   int
}

// chunk is how much of a ring is taken out at a time, in bytes: so little that it
// is still in the processor's nearest cache when its records are looked at.
const chunk = 16 << 10

// never is the time of a record that there is none of.
const never = math.MaxUint64

// Each takes everything out of the rings and calls f, in the order of their time
// stamps, for the records that are older than the call before: a thread that was
// preempted between its time stamp and the publication has had that long to finish.
// With all set nothing is held back; it is for the end, when no producer runs any
// more. The record and its payload are f's only until it returns.
func (a *Arena) Each(all bool, f func(*Record)) {
	if a.layout.RingSize == 0 {
		return
	}
	until := a.mark
	if a.mark = tsc.Counter(); all {
		until = never - 1
	}
	a.open, a.active = a.open[:0], a.active[:0]
	for s := uint64(abi.SlotFirst); s < 1<<a.layout.SlotBits; s++ {
		if r := &a.rings[s]; r.size != 0 || a.Load(a.layout.TPTable+8*s) != 0 {
			a.look(s, r)
			a.open = append(a.open, r)
		}
	}
	for _, r := range a.open {
		if r.size == 0 {
			a.more(r)
		}
		if r.tsc <= until {
			a.active = append(a.active, r)
		}
	}
	a.inOrder(a.active, until, f)
	for _, r := range a.open {
		// What is held back stays where it is, unless the producer needs the room.
		if n := r.head - r.tail; n > a.layout.RingSize/4 {
			a.fill(r, n)
		}
	}
}

// inOrder calls f for the records of rings in their order, until a time. A ring without
// any has its next one at the end of time.
func (a *Arena) inOrder(active []*ringState, until uint64, f func(*Record)) {
	var rec Record
	for len(active) > 2 {
		i, limit := oldest(active, until)
		r := active[i]
		for r.tsc <= limit {
			a.take(r, &rec)
			f(&rec)
			if !a.next(r) {
				a.more(r)
			}
		}
		if r.tsc > until {
			active[i] = active[len(active)-1]
			active = active[:len(active)-1]
		}
	}
	if len(active) == 0 {
		return
	}
	// Two threads that write at full speed take turns, so that a run of records is short.
	for x, y := active[0], active[len(active)-1]; ; {
		r := x
		if y.tsc < x.tsc {
			r = y
		}
		if r.tsc > until {
			return
		}
		a.take(r, &rec)
		f(&rec)
		if !a.next(r) {
			a.more(r)
		}
	}
}

// oldest finds the ring with the oldest record, and until when all others have none.
func oldest(active []*ringState, until uint64) (i int, limit uint64) {
	limit = until
	best := active[0].tsc
	for k := 1; k < len(active); k++ {
		t := active[k].tsc
		if t < best {
			i, t, best = k, best, t
		}
		limit = min(limit, t)
	}
	return i, limit
}

// look finds how much there is in a slot's ring.
func (a *Arena) look(s uint64, r *ringState) {
	r.slot, r.base = int(s), a.slot(s)
	// Pairs with the producer's last store: all bytes before head are written.
	r.head = a.Load(r.base + abi.SlotRingHead)
	if n := r.head - r.tail; n > a.layout.RingSize || n%8 != 0 {
		a.bad++
		r.tail = r.head
		a.Store(r.base+abi.SlotRingTail, r.tail)
	}
}

// fill moves n bytes of what is in a ring to memory of our own, which the target cannot
// change while it is looked at.
func (a *Arena) fill(r *ringState, n uint64) {
	r.pending = append(r.pending[:copy(r.pending, r.pending[r.at:])], a.piece(r.base, r.tail, n)...)
	if first := a.layout.RingSize - r.tail&(a.layout.RingSize-1); first < n {
		r.pending = append(r.pending, a.piece(r.base, r.tail+first, n-first)...)
	}
	r.at = 0
	r.tail += n
	a.Store(r.base+abi.SlotRingTail, r.tail)
}

// piece is what lies in one piece of n bytes of a ring from a position on.
func (a *Arena) piece(base, pos, n uint64) []byte {
	off := pos & (a.layout.RingSize - 8)
	at := base + a.layout.RingOff + off
	return a.mem[at : at+min(n, a.layout.RingSize-off)]
}

// take takes the next record of a ring.
func (a *Arena) take(r *ringState, rec *Record) {
	b := r.pending[r.at : r.at+r.size]
	rec.TSC, rec.Slot, rec.Map = r.tsc, r.slot, int(uint16(r.header>>32))-1
	rec.Payload = b[abi.RecPayload : len(b)-int(r.header>>48)]
	r.at += r.size
}

// more takes more out of a ring, when what was taken ends before its next record does.
func (a *Arena) more(r *ringState) {
	if n := r.head - r.tail; n > 0 && len(r.pending)-r.at < abi.MaxRecord {
		a.fill(r, min(n, chunk))
		if a.next(r) {
			return
		}
	}
	if r.at < len(r.pending) { // nobody knows where another one begins
		a.bad++
		r.at = len(r.pending)
	}
	r.size, r.tsc = 0, never
}

// next finds the next record of what was taken out of a ring, and checks it. It reports whether
// there is a whole one.
func (a *Arena) next(r *ringState) bool {
	b := r.pending[r.at:]
	if len(b) < abi.RecPayload {
		return false
	}
	header := binary.LittleEndian.Uint64(b)
	size := uint64(uint32(header))
	const plain = abi.MaxRecord - 8 // what headers may have that have a size alone
	if header&^plain != 0 && !a.sound(header) || size-abi.RecPayload > uint64(len(b)-abi.RecPayload) {
		return false
	}
	r.size, r.header, r.tsc = int(size), header, binary.LittleEndian.Uint64(b[abi.RecTSC:])
	if r.tsc > a.mark && r.tsc-a.mark > mostAhead {
		a.bad++
		r.tsc = 0 // it must not be waited for
	}
	return true
}

// sound reports whether a header makes sense: its size, the map's number, and what is no payload.
func (a *Arena) sound(header uint64) bool {
	size, number, pad := uint64(uint32(header)), int(uint16(header>>32)), header>>48
	return size%8 == 0 && size <= abi.MaxRecord && pad <= min(7, size-abi.RecPayload) && (number <= len(a.layout.Maps) || number == abi.RecTrace)
}

// mostAhead is how much newer than the look at its ring a record may be, in ticks of
// the time stamp counter: some tenths of a second.
const mostAhead = 1 << 30

// Drain is Each for who wants to keep the records.
func (a *Arena) Drain(all bool) (out []Record) {
	a.Each(all, func(r *Record) {
		kept := *r
		kept.Payload = bytes.Clone(r.Payload)
		out = append(out, kept)
	})
	return out
}
