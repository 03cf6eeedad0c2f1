package x86

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

// model is the arena as the interpreter leaves it, with the ring as a list.
type model struct {
	bpf.Machine
	events [][]byte
	free   int // bytes left in the ring
}

func newModel(h *harness) *model {
	m := &model{Machine: bpf.Machine{Arena: bytes.Clone(h.arena), Layout: h.env.Layout, TGID: h.env.TGID}}
	m.Event = func(payload []byte) bool {
		if m.Slot == abi.SlotShared || len(payload)+abi.RecPayload > m.free {
			return false
		}
		m.free -= len(payload) + abi.RecPayload
		m.events = append(m.events, bytes.Clone(payload))
		return true
	}
	m.MapEvent = func(n int, payload []byte) bool {
		if size := (len(payload) + 7) &^ 7; m.Slot == abi.SlotShared || size+abi.RecPayload > m.free {
			return false
		} else {
			m.free -= size + abi.RecPayload
		}
		m.events = append(m.events, toMap(n, payload))
		return true
	}
	return m
}

// reset begins another run. The arenas are equal then.
func (m *model) reset(slot int) {
	m.Slot, m.events, m.free = slot, nil, int(m.Layout.RingSize)
}

// compare requires that the target's arena is as the model's after a run, but
// for what the interpreter does not know: thread pointers, rings and counters of reads.
func (h *harness) compare(m *model) error {
	l := h.env.Layout
	base := h.slotBase(m.Slot)
	events, err := h.consume(m.Slot)
	if err != nil {
		return err
	}
	if !slices.EqualFunc(events, m.events, bytes.Equal) {
		return fmt.Errorf("events are %x, not %x", events, m.events)
	}
	for _, off := range []uint64{base + abi.SlotRingHead, base + abi.SlotRingTail, base + abi.SlotReads, base + abi.SlotAsked} {
		binary.LittleEndian.PutUint64(m.Arena[off:], h.word(off))
	}
	copy(m.Arena[l.TPTable:], h.arena[l.TPTable:l.TPTable+8<<l.SlotBits])
	copy(m.Arena[base+l.RingOff:], h.arena[base+l.RingOff:base+l.RingOff+l.RingSize])
	if bytes.Equal(m.Arena, h.arena) {
		return nil
	}
	for off := uint64(0); ; off += 8 {
		if x, y := binary.LittleEndian.Uint64(m.Arena[off:]), h.word(off); x != y {
			return fmt.Errorf("arena at %#x is %#x, not %#x", off, y, x)
		}
	}
}

// toMap marks the payload of a record that goes to a map.
func toMap(m int, payload []byte) []byte { return fmt.Append(bytes.Clone(payload), " to map ", m) }

// consume takes the records out of a slot's ring.
func (h *harness) consume(slot int) ([][]byte, error) {
	l, base := h.env.Layout, h.slotBase(slot)
	tail, head := h.word(base+abi.SlotRingTail), h.word(base+abi.SlotRingHead)
	var out [][]byte
	last := uint64(0)
	for tail != head {
		rec := make([]byte, 8)
		word := func(i uint64) []byte {
			at := base + l.RingOff + (tail+i)&(l.RingSize-1)
			return h.arena[at : at+8]
		}
		copy(rec, word(0))
		header := binary.LittleEndian.Uint64(rec)
		size, number, pad := uint64(uint32(header)), uint16(header>>32), int(header>>48)
		tsc := binary.LittleEndian.Uint64(word(abi.RecTSC))
		if size%8 != 0 || size <= abi.RecPayload || size > head-tail || tsc <= last {
			return nil, fmt.Errorf("record of %d bytes at %d of %d, time %d after %d", size, tail, head, tsc, last)
		}
		last = tsc
		var payload []byte
		for i := uint64(abi.RecPayload); i < size; i += 8 {
			payload = append(payload, word(i)...)
		}
		payload = payload[:len(payload)-pad]
		if number != 0 {
			payload = toMap(int(number)-1, payload)
		}
		out = append(out, payload)
		tail += size
	}
	h.putWord(base+abi.SlotRingTail, tail)
	return out, nil
}

// same runs programs compiled and interpreted, and compares.
func (h *harness) same(m *model, rq request, site Site, progs []*bpf.Verified) error {
	rp := h.do(rq)
	if err := rp.check(&rq, site); err != nil {
		return err
	}
	m.reset(max(h.slotOf(h.tp), abi.SlotShared))
	for _, p := range progs {
		if err := m.Run(p, rq.context(site, &rp)); err != nil {
			return err
		}
	}
	if m.Slot == abi.SlotShared {
		h.moveMisses(m)
	}
	return h.compare(m)
}

// moveMisses lets the model count events of the shared slot as the target does.
func (h *harness) moveMisses(m *model) {
	drops := m.Arena[h.slotBase(abi.SlotShared)+abi.SlotDrops:]
	misses := m.Arena[abi.HdrMisses:]
	binary.LittleEndian.PutUint64(misses, binary.LittleEndian.Uint64(misses)+binary.LittleEndian.Uint64(drops))
	binary.LittleEndian.PutUint64(drops, 0)
}

func randomSite(r *rand.Rand) Site {
	s := Site{
		Addr:        abi.Addr(r.Uint64() >> 17),
		LiveRegs:    asm.RegSet(r.Uint32()) & allRegs,
		FlagsLive:   r.IntN(2) == 0,
		RedZoneLive: r.IntN(2) == 0,
		Args:        Args(r.IntN(2)),
	}
	if r.IntN(2) == 0 {
		s.LiveRegs = allRegs
	}
	return s
}

func TestCompiledAsInterpreted(t *testing.T) {
	programs := 50
	if testing.Short() {
		programs = 10
	}
	for i, at := range []abi.Addr{arenaNear, arenaFar, arenaLow} {
		for name, free := range map[string]int{"own": 1, "crowded": 8, "shared": 1 << 20} {
			for _, tp := range []ThreadPointer{SelfPointer, FSBase} {
				t.Run(fmt.Sprintf("%v/%s/%d", at, name, tp), func(t *testing.T) {
					h := newThreadHarness(t, at, testConfig, tp)
					h.freeEach(free)
					m := newModel(h)
					for seed := range uint64(programs) {
						h.differ(t, m, uint64(i)<<32|uint64(tp)<<31|seed)
					}
				})
			}
		}
	}
}

// freeEach takes all slots but each n-th. Then a thread seldom gets the one
// that its pointer hashes to, or none at all.
func (h *harness) freeEach(n int) {
	for i := abi.SlotFirst; i < 1<<h.env.Layout.SlotBits; i++ {
		if i%n != 0 {
			h.putWord(h.env.Layout.TPTable+8*uint64(i), ^uint64(i))
		}
	}
}

// differ compares one or more random programs at a random site, a few times.
func (h *harness) differ(t testing.TB, m *model, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	site := randomSite(r)
	var progs []*bpf.Verified
	for i := range 1 + r.IntN(2) {
		progs = append(progs, randomProgram(r, fmt.Sprintf("random %d/%d", seed, i)))
	}
	h.install(site, progs...)
	for range 3 {
		rq := randomRun(r)
		if err := h.same(m, rq, site, progs); err != nil {
			for _, p := range progs {
				t.Log(p)
			}
			t.Fatalf("seed %#x, site %+v, registers %x: %v", seed, site, rq.Regs, err)
		}
	}
}

// FuzzCompiledAsInterpreted does the same with as many seeds as one has time for.
func FuzzCompiledAsInterpreted(f *testing.F) {
	f.Fuzz(func(t *testing.T, seed uint64) {
		at := []abi.Addr{arenaNear, arenaFar, arenaLow}[seed%3]
		h := newHarness(t, at, testConfig)
		h.freeEach([]int{1, 8, 1 << 20}[seed/3%3])
		m := newModel(h)
		for i := range uint64(4) {
			h.differ(t, m, seed+i<<32)
		}
	})
}
