package x86

import (
	"bytes"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
	"trapless/internal/tsc"
)

// A site where everything is in use, and the entry of a function.
var (
	busySite  = Site{LiveRegs: allRegs, FlagsLive: true, RedZoneLive: true}
	entrySite = Site{LiveRegs: allRegs &^ asm.Regs(asm.RAX, asm.R10, asm.R11)}
)

func TestCountLeavesTheTargetAlone(t *testing.T) {
	for _, at := range []abi.Addr{arenaNear, arenaFar, arenaLow} {
		for _, site := range []Site{
			{LiveRegs: allRegs},
			{LiveRegs: allRegs, FlagsLive: true},
			{LiveRegs: allRegs, RedZoneLive: true},
			busySite,
			{LiveRegs: entrySite.LiveRegs, FlagsLive: true},
			{RedZoneLive: true},
			{},
		} {
			h := newHarness(t, at, testConfig)
			h.install(site, count(t))
			r := rand.New(rand.NewPCG(1, 2))
			run := func() {
				t.Helper()
				rq := randomRun(r)
				rp := h.do(rq)
				if err := rp.check(&rq, site); err != nil {
					t.Fatalf("arena %v, %+v: %v", at, site, err)
				}
			}
			for range 100 {
				run()
			}
			h.openGate(false)
			run()
			if slot := h.slotOf(h.tp); slot < abi.SlotFirst {
				t.Fatalf("the thread has slot %d", slot)
			}
			if n := h.sum(mapCount); n != 100 {
				t.Errorf("counted %d of 100", n)
			}
		}
	}
}

func TestSameInputSameCode(t *testing.T) {
	h := newHarness(t, arenaNear, testConfig)
	for seed := range uint64(20) {
		var code [2][]byte
		for i := range code {
			r := rand.New(rand.NewPCG(seed, 3))
			site := randomSite(r)
			code[i] = h.compile(entryBase, site, randomProgram(r, "random"), keyed(t, mapKeyed))
		}
		if !bytes.Equal(code[0], code[1]) {
			t.Errorf("seed %d: the code differs", seed)
		}
	}
}

// The hot path of a count must not be longer than what was measured.
func TestCountIsShort(t *testing.T) {
	h := newHarness(t, arenaNear, testConfig)
	a := asm.New(entryBase)
	if _, err := Emit(a, []*bpf.Verified{count(t)}, entrySite, h.env); err != nil {
		t.Fatal(err)
	}
	if a.Len() > 90 {
		t.Errorf("the hot path of a count has %d bytes", a.Len())
	}
}

// A program without any effect costs nothing.
func TestNothingIsEmittedForNothing(t *testing.T) {
	h := newHarness(t, arenaNear, testConfig)
	for _, progs := range [][]*bpf.Verified{nil, {verified(t, returnZero)}} {
		a := asm.New(entryBase)
		if _, err := Emit(a, progs, busySite, h.env); err != nil || a.Len() != 0 {
			t.Errorf("%d programs: %d bytes, %v", len(progs), a.Len(), err)
		}
	}
}

func TestThreadsCountExactly(t *testing.T) {
	const threads, each, keys = 8, 100_000, 100
	for _, row := range []struct {
		slots  int
		thread ThreadPointer
	}{{64, SelfPointer}, {3, SelfPointer}, {0, SelfPointer}, {64, FSBase}, {3, FSBase}} {
		slots := row.slots
		t.Run(fmt.Sprintf("slots=%d/%d", slots, row.thread), func(t *testing.T) {
			h := newThreadHarness(t, arenaNear, testConfig, row.thread)
			h.leaveSlots(slots)
			h.install(entrySite, count(t), keyed(t, mapKeyed), paired(t))
			h.do(request{Op: opLoop, Entry: uint64(entryBase), Threads: threads, Iterations: each, Keys: keys})
			for _, m := range []int{mapCount, mapKeyed, mapPairs} {
				if n := h.sum(m); n != threads*each {
					t.Errorf("%s: counted %d of %d", testMaps[m].Name, n, threads*each)
				}
			}
			for _, m := range []int{mapKeyed, mapPairs} {
				h.checkKeys(m, keys, threads*each)
			}
		})
	}
}

// leaveSlots takes all slots but n of the threads'.
func (h *harness) leaveSlots(n int) {
	for i := abi.SlotFirst + n; i < 1<<h.env.Layout.SlotBits; i++ {
		h.putWord(h.env.Layout.TPTable+8*uint64(i), ^uint64(i))
	}
}

// checkKeys requires that the map holds each of the harness's keys once, with
// about its share of the hits.
func (h *harness) checkKeys(m, keys int, hits uint64) {
	h.t.Helper()
	ml := h.mapLayout(m)
	occupied := 0
	for pos := range ml.Positions() {
		if h.word(ml.Dir+8*uint64(pos)) == 0 {
			continue
		}
		occupied++
		var n uint64
		for slot := range 1 << h.env.Layout.SlotBits {
			n += h.word(h.slotBase(slot) + ml.Cells + uint64(pos*ml.ValueSize))
		}
		if share := hits / uint64(keys); n < share/2 || n > 2*share {
			h.t.Errorf("%s: position %d has %d hits, not about %d", ml.Name, pos, n, share)
		}
	}
	if used := h.word(ml.Used); occupied != keys || used != uint64(keys) {
		h.t.Errorf("%s: %d keys, %d counted, not %d", ml.Name, occupied, used, keys)
	}
	if n := h.word(abi.HdrDrops); n != 0 {
		h.t.Errorf("%d updates were dropped", n)
	}
}

func TestSharedThreadPointer(t *testing.T) {
	h := newHarness(t, arenaNear, testConfig)
	h.putWord(abi.HdrSharedTP+8*3, h.tp)
	h.install(busySite, count(t), keyed(t, mapKeyed))
	h.do(request{Op: opRun, Entry: uint64(entryBase)})
	if slot := h.slotOf(h.tp); slot != -1 {
		t.Errorf("a shared thread pointer took slot %d", slot)
	}
	cells := h.slotBase(abi.SlotShared) + h.mapLayout(mapCount).Cells
	if n := h.word(cells); n != 1 {
		t.Errorf("the shared slot counted %d of 1", n)
	}
}

func TestSignalsCountExactly(t *testing.T) {
	const hits = 200_000
	for _, slots := range []int{64, 0} {
		t.Run(fmt.Sprintf("slots=%d", slots), func(t *testing.T) {
			h := newHarness(t, arenaNear, testConfig)
			h.leaveSlots(slots)
			h.install(entrySite, count(t), keyed(t, mapKeyed), paired(t), event(t))
			rp := h.do(request{Op: opStorm, Entry: uint64(entryBase), Iterations: hits, Keys: 50})
			if rp.Result == 0 {
				t.Skip("no signal came in between")
			}
			all := hits + rp.Result
			for _, m := range []int{mapCount, mapKeyed, mapPairs} {
				if n := h.sum(m); n != all {
					t.Errorf("%s: counted %d of %d", testMaps[m].Name, n, all)
				}
			}
			if n := h.recorded(); n != all {
				t.Errorf("%d of %d events were recorded or counted as lost", n, all)
			}
		})
	}
}

// recorded is the number of events of a program that writes 16 bytes, with
// those that were counted as lost.
func (h *harness) recorded() uint64 {
	n := h.word(abi.HdrMisses)
	for slot := range 1 << h.env.Layout.SlotBits {
		base := h.slotBase(slot)
		n += h.word(base+abi.SlotDrops) + h.word(base+abi.SlotMisses)
		n += h.word(base+abi.SlotRingHead) / (abi.RecPayload + 16)
	}
	return n
}

func TestFullMap(t *testing.T) {
	h := newHarness(t, arenaNear, testConfig)
	h.install(busySite, keyed(t, mapTiny))
	ml := h.mapLayout(mapTiny)
	mask := uint64(int64(ml.KeyMask))
	for range 2 {
		for _, key := range []uint64{mask, 0, 7, 8, mask + 1, 9} {
			h.do(request{Op: opRun, Entry: uint64(entryBase), Regs: [16]uint64{asm.RDI: key}})
		}
	}
	if used, sum, drops := h.word(ml.Used), h.sum(mapTiny), h.word(abi.HdrDrops); used != 3 || sum != 6 || drops != 6 {
		t.Errorf("%d keys, %d hits, %d drops, not 3, 6, 6", used, sum, drops)
	}
	special := ml.Cells + uint64(ml.ValueSize)<<ml.DirBits
	if n := h.word(h.slotBase(h.slotOf(h.tp)) + special); n != 2 || h.word(ml.Dir+8<<ml.DirBits) != 1 {
		t.Errorf("the key that equals the mask has %d hits, not 2", n)
	}
}

func TestRingWrapsAndFills(t *testing.T) {
	h := newHarness(t, arenaNear, testConfig)
	h.install(busySite, event(t))
	const size = abi.RecPayload + 16
	room := int(h.env.Layout.RingSize) / size
	for round := range 5 {
		n := room + round
		if round == 2 {
			n = 3 // so that later records begin elsewhere
		}
		for i := range n {
			h.do(request{Op: opRun, Entry: uint64(entryBase), Regs: [16]uint64{asm.RDI: uint64(i)}})
		}
		base := h.slotBase(h.slotOf(h.tp))
		events, err := h.consume(h.slotOf(h.tp))
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range events {
			want := fmt.Sprintf("%x", []byte{1, 0, 0, 0, 0, 0, 0, 0, byte(i), 0, 0, 0, 0, 0, 0, 0})
			if got := fmt.Sprintf("%x", e); got != want {
				t.Fatalf("round %d, event %d: %s, not %s", round, i, got, want)
			}
		}
		drops := h.word(base + abi.SlotDrops)
		h.putWord(base+abi.SlotDrops, 0)
		if len(events) != min(n, room) || int(drops) != max(0, n-room) {
			t.Errorf("round %d: %d events, %d drops of %d", round, len(events), drops, n)
		}
	}
}

// A run that finds the ring claimed was interrupted in the middle of another.
func TestNestedEventIsMissed(t *testing.T) {
	h := newHarness(t, arenaNear, testConfig)
	h.install(busySite, event(t))
	h.do(request{Op: opRun, Entry: uint64(entryBase)})
	base := h.slotBase(h.slotOf(h.tp))
	h.putWord(base+abi.SlotClaim, 1)
	h.do(request{Op: opRun, Entry: uint64(entryBase)})
	if n, misses := h.word(base+abi.SlotRingHead), h.word(base+abi.SlotMisses); n != 32 || misses != 1 {
		t.Errorf("head %d, %d misses, not 32 and 1", n, misses)
	}
}

// Whatever the target writes into the arena, its own registers and memory
// stay what they are: nothing is used as an address unchecked.
func TestHostileArena(t *testing.T) {
	for _, at := range []abi.Addr{arenaNear, arenaFar} {
		h := newHarness(t, at, testConfig)
		l := h.env.Layout
		for seed := range uint64(30) {
			r := rand.New(rand.NewPCG(seed, 4))
			site := randomSite(r)
			h.install(site, randomProgram(r, "random"), paired(t), keyed(t, mapTiny), event(t))
			for range 4 {
				for off := uint64(0); off < l.Slots; off += 8 {
					h.putWord(off, hostileWord(r))
				}
				slot := h.slotBase(r.IntN(1 << l.SlotBits))
				for off := uint64(0); off < abi.SlotCells; off += 8 {
					h.putWord(slot+off, hostileWord(r))
				}
				if r.IntN(2) == 0 {
					h.putWord(l.TPTable+8*(slot-l.Slots)>>l.StrideShift, h.tp)
				}
				rq := randomRun(r)
				rp := h.do(rq)
				if err := rp.check(&rq, site); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
		}
	}
}

func hostileWord(r *rand.Rand) uint64 {
	switch r.IntN(4) {
	case 0:
		return 0
	case 1:
		return r.Uint64N(1 << 12)
	case 2:
		return ^r.Uint64N(1 << 12)
	}
	return r.Uint64()
}

func TestEmitRefuses(t *testing.T) {
	h := newHarness(t, arenaNear, testConfig)
	other := testConfig
	other.Maps = testMaps[1:]
	other.RingSize = 0
	constants, err := bpf.Verify(&bpf.Program{Name: "constants", Insns: returnZero, Maps: testMaps, Constants: map[int][]byte{mapCount: {1, 0, 0, 0}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		config abi.Config
		prog   *bpf.Verified
	}{
		"other maps": {other, count(t)},
		"no ring":    {abi.Config{Threads: 1, Maps: testMaps}, event(t)},
		"constants":  {testConfig, constants}, // memory that others can write to would have to hold them
	} {
		l, err := abi.NewLayout(c.config)
		if err != nil {
			t.Fatal(err)
		}
		env := *h.env
		env.Layout = l
		if _, err := Emit(asm.New(entryBase), []*bpf.Verified{c.prog}, busySite, &env); err == nil {
			t.Errorf("%s: compiled", name)
		}
	}
}

// Goroutine stacks are small: a detour must keep to what it says that it needs.
func TestStackDepth(t *testing.T) {
	deepest := uint64(0)
	for _, site := range []Site{entrySite, busySite, {LiveRegs: allRegs, FlagsLive: true}} {
		for _, c := range []struct {
			name string
			prog *bpf.Verified
			most uint64 // without a red zone
		}{
			{"count", count(t), 128},
			{"keyed", keyed(t, mapKeyed), 192},
			{"paired", paired(t), 256},
			{"event", event(t), 256},
		} {
			h := newHarness(t, arenaNear, testConfig)
			a := asm.New(entryBase)
			d, err := Emit(a, []*bpf.Verified{c.prog}, site, h.env)
			if err != nil {
				t.Fatal(err)
			}
			h.install(site, c.prog)
			stated := uint64(d.FrameSize() + RuntimeStack)
			most := c.most
			if site.RedZoneLive {
				most += redZone
			}
			for hit := range uint64(2) { // the first one takes the cold paths
				rp := h.do(request{Op: opRun, Entry: uint64(entryBase), Regs: [16]uint64{asm.RDI: hit}})
				deepest = max(deepest, rp.Depth)
				if rp.Depth > stated || rp.Depth > most {
					t.Errorf("%s at %+v used %d bytes of the stack, it said %d, at most %d are right", c.name, site, rp.Depth, stated, most)
				}
			}
		}
	}
	t.Logf("at most %d bytes were used", deepest)
}

// The clock shows what was published last, moved on by the counter.
func TestClock(t *testing.T) {
	v, err := bpf.Trust(&bpf.Program{Name: "clock", Input: bpf.Input{Memory: true},
		Insns: bpfasm.Instructions{bpfasm.FnKtimeGetNs.Call(), bpfasm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []abi.Addr{arenaNear, arenaFar} {
		h := newHarness(t, at, testConfig)
		now := func() uint64 {
			t.Helper()
			n, err := h.callFunction(v, nil)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		put := func(copy int, tsc, ns, mult uint64) {
			for i, w := range []uint64{tsc, ns, mult} {
				h.putWord(abi.HdrClock+8+uint64(copy)*abi.ClockSize+8*uint64(i), w)
			}
		}
		if n := now(); n != 0 {
			t.Errorf("without a clock it is %d", n)
		}
		put(1, ^uint64(0)>>1, 42, 1<<32) // the counter is behind
		h.putWord(abi.HdrClock, 1)
		if n := now(); n != 42 {
			t.Errorf("at the time that was published it is %d, not 42", n)
		}
		put(0, 0, 1000, 1<<32)
		h.putWord(abi.HdrClock, 2)
		ticks := now() - 1000
		if later := now() - 1000; later <= ticks {
			t.Errorf("the counter goes from %d to %d", ticks, later)
		}
		now32 := func(mult uint64) { // the counter is less than 2^32 ticks ahead, and is scaled without a call
			t.Helper()
			before := tsc.Counter()
			put(1, before, 1<<60, mult)
			h.putWord(abi.HdrClock, 5)
			n := now() - 1<<60
			hi, lo := bits.Mul64(tsc.Counter()-before, mult)
			if most := hi<<32 | lo>>32; n == 0 || n > most {
				t.Errorf("at %#x for a tick it is %d, which is not between 0 and %d", mult, n, most)
			}
		}
		now32(abi.MaxClockMult)
		now32(1 << 30)
		put(1, 0, 0, 1<<31)
		h.putWord(abi.HdrClock, 3)
		if half := now(); half < ticks/2 || half > ticks {
			t.Errorf("half a nanosecond a tick makes %d of %d", half, ticks)
		}
	}
}

// A function that never returns runs out of fuel; what comes after the call is
// proven by nobody, and not compiled.
func TestFunctionThatNeverReturns(t *testing.T) {
	endless := bpfasm.Instructions{
		bpfasm.Call.Label("f"),
		bpfasm.StoreMem(bpfasm.R10, 800, bpfasm.R9, bpfasm.DWord), // not valid, but never reached
		bpfasm.Return(),
		bpfasm.Mov.Imm(bpfasm.R0, 1).WithSymbol("f"),
		bpfasm.Ja.Label("l").WithSymbol("l"),
	}
	for _, insns := range []bpfasm.Instructions{endless, append(bpfasm.Instructions{bpfasm.Call.Label("g"), bpfasm.Return(), bpfasm.Mov.Imm(bpfasm.R3, 1).WithSymbol("g")}, endless...)} {
		v, err := bpf.Verify(&bpf.Program{Name: "endless", Insns: insns, Maps: testMaps})
		if err != nil {
			t.Fatal(err)
		}
		h := newHarness(t, arenaNear, testConfig)
		h.install(busySite, v, count(t))
		rq := randomRun(rand.New(rand.NewPCG(1, 1)))
		rp := h.do(rq)
		if err := rp.check(&rq, busySite); err != nil {
			t.Error(err)
		}
		if n := h.word(abi.HdrMisses); n != 1 || h.sum(mapCount) != 1 {
			t.Errorf("%d runs were missed, the other program counted %d", n, h.sum(mapCount))
		}
	}
}

func TestEmitRefusesLargeFrames(t *testing.T) {
	h := newHarness(t, arenaNear, testConfig)
	var insns bpfasm.Instructions
	for f := range 3 { // each passes a part of its stack on
		insns = append(insns, bpfasm.FnKtimeGetNs.Call().WithSymbol(fmt.Sprint("f", f)))
		for off := int16(-480); off < 0; off += 8 {
			insns = append(insns, bpfasm.StoreMem(bpfasm.R10, off, bpfasm.R0, bpfasm.DWord))
		}
		insns = append(insns, bpfasm.Mov.Reg(bpfasm.R1, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R1, -480))
		if f < 2 {
			insns = append(insns, bpfasm.Call.Label(fmt.Sprint("f", f+1)))
		}
		for off := int16(-480); off < 0; off += 8 {
			insns = append(insns, bpfasm.LoadMem(bpfasm.R2, bpfasm.R10, off, bpfasm.DWord), bpfasm.Add.Reg(bpfasm.R0, bpfasm.R2))
		}
		insns = append(insns, bpfasm.Return())
	}
	v, err := bpf.Trust(&bpf.Program{Name: "deep", Insns: insns, Maps: testMaps})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Emit(asm.New(entryBase), []*bpf.Verified{v}, busySite, h.env); err == nil || !strings.Contains(err.Error(), "bytes of the stack") {
		t.Errorf("compiled: %v", err)
	}
}
