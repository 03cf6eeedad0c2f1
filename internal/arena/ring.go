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
	tail    uint64
	pending []byte // taken out of the ring, of which at bytes are done
	at      int

	size int // of the next record; 0: there is none
	tsc  uint64
	slot int
}

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
		until = math.MaxUint64
	}
	var active []*ringState
	for s := uint64(abi.SlotFirst); s < 1<<a.layout.SlotBits; s++ {
		r := &a.rings[s]
		if r.size == 0 && a.Load(a.layout.TPTable+8*s) == 0 {
			continue
		}
		if a.fill(s, r) && r.tsc <= until {
			active = append(active, r)
		}
	}
	var rec Record
	for len(active) > 0 {
		i, limit := oldest(active, until)
		r := active[i]
		for r.size != 0 && r.tsc <= limit {
			a.take(r, &rec)
			f(&rec)
		}
		if r.size == 0 || r.tsc > until {
			active[i] = active[len(active)-1]
			active = active[:len(active)-1]
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

// fill moves what is in a slot's ring to memory of our own, which the target cannot
// change while it is looked at. It reports whether there is a record.
func (a *Arena) fill(s uint64, r *ringState) bool {
	base, size := a.slot(s), a.layout.RingSize
	// Pairs with the producer's last store: all bytes before head are written.
	head := a.Load(base + abi.SlotRingHead)
	n := head - r.tail
	if r.size == 0 {
		r.pending, r.at = r.pending[:0], 0
	}
	if n > size || n%8 != 0 {
		a.bad++
		n = 0
	}
	if n > 0 {
		r.pending = append(r.pending[:copy(r.pending, r.pending[r.at:])], a.piece(base, r.tail, n)...)
		if first := size - r.tail&(size-1); first < n {
			r.pending = append(r.pending, a.piece(base, r.tail+first, n-first)...)
		}
		r.at = 0
	}
	if r.tail != head {
		r.tail = head
		a.Store(base+abi.SlotRingTail, head)
	}
	r.slot = int(s)
	a.parse(r)
	return r.size != 0
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
	header := binary.LittleEndian.Uint64(b)
	rec.TSC, rec.Slot, rec.Map = r.tsc, r.slot, int(uint16(header>>32))-1
	rec.Payload = b[abi.RecPayload : len(b)-int(header>>48)]
	r.at += r.size
	a.parse(r)
}

// parse finds the next record of what was taken out of a ring, and checks it.
func (a *Arena) parse(r *ringState) {
	b := r.pending[r.at:]
	if len(b) < abi.RecPayload {
		if r.size = 0; len(b) > 0 {
			a.bad++
			r.at = len(r.pending)
		}
		return
	}
	header := binary.LittleEndian.Uint64(b)
	size, number, pad := uint64(uint32(header)), int(uint16(header>>32)), header>>48
	if size%8 != 0 || size < abi.RecPayload || size > min(uint64(len(b)), abi.MaxRecord) || pad > min(7, size-abi.RecPayload) ||
		number > len(a.layout.Maps) && number != abi.RecTrace {
		a.bad++
		r.size, r.at = 0, len(r.pending) // nobody knows where another one begins
		return
	}
	r.size, r.tsc = int(size), binary.LittleEndian.Uint64(b[abi.RecTSC:])
	if r.tsc > a.mark && r.tsc-a.mark > mostAhead {
		a.bad++
		r.tsc = 0 // it must not be waited for
	}
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
