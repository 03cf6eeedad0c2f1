package arena

import (
	"cmp"
	"slices"
	"sort"

	"trapless/internal/abi"
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
type ringState struct{ tail uint64 }

// Drain takes everything out of the rings and returns, in the order of their
// time stamps, the records that are older than the newest one of the drain
// before: a thread that was preempted between its time stamp and the
// publication has had that long to finish. With all set nothing is held back;
// it is for the end, when no producer runs any more.
func (a *Arena) Drain(all bool) []Record {
	if a.layout.RingSize == 0 {
		return nil
	}
	for _, s := range a.slotsInUse() {
		if s != abi.SlotTracer && s != abi.SlotShared {
			a.drainSlot(s)
		}
	}
	slices.SortStableFunc(a.queue, func(x, y Record) int { return cmp.Compare(x.TSC, y.TSC) })
	n := len(a.queue)
	if !all {
		n = sort.Search(n, func(i int) bool { return a.queue[i].TSC > a.mark })
	}
	a.mark = a.seen
	out := a.queue[:n:n]
	a.queue = slices.Clone(a.queue[n:])
	return out
}

func (a *Arena) drainSlot(s uint64) {
	base, r := a.slot(s), &a.rings[s]
	// Pairs with the producer's last store: all bytes before head are written.
	head := a.Load(base + abi.SlotRingHead)
	for r.tail != head {
		size, ok := a.record(base, r.tail, head-r.tail, int(s))
		if !ok {
			a.bad++
			r.tail = head
			break
		}
		r.tail += size
	}
	a.Store(base+abi.SlotRingTail, r.tail)
}

// record copies the record at the ring position, of which avail bytes are
// published, and returns its size.
func (a *Arena) record(base, pos, avail uint64, slot int) (uint64, bool) {
	if avail > a.layout.RingSize || avail < abi.RecPayload {
		return 0, false
	}
	header := a.ringWord(base, pos+abi.RecSize)
	size, number, pad := uint64(uint32(header)), int(uint16(header>>32)), header>>48
	if size%8 != 0 || size < abi.RecPayload || size > min(avail, abi.MaxRecord) || pad > min(7, size-abi.RecPayload) || number > len(a.layout.Maps) && number != abi.RecTrace {
		return 0, false
	}
	rec := Record{TSC: a.ringWord(base, pos+abi.RecTSC), Slot: slot, Map: number - 1, Payload: make([]byte, size-abi.RecPayload)}
	for i := uint64(0); i < uint64(len(rec.Payload)); i += 8 {
		putWord(rec.Payload[i:], a.ringWord(base, pos+abi.RecPayload+i))
	}
	rec.Payload = rec.Payload[:len(rec.Payload)-int(pad)]
	a.seen = max(a.seen, rec.TSC)
	a.queue = append(a.queue, rec)
	return size, true
}

func (a *Arena) ringWord(base, pos uint64) uint64 {
	return a.Load(base + a.layout.RingOff + pos&(a.layout.RingSize-1))
}
