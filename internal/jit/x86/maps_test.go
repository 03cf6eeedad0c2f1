package x86

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/bpf"
)

// kernelMaps are maps as programs of the kernel use them, of all kinds, with
// keys and values of all sorts of sizes.
var kernelMaps = []abi.MapSpec{
	{Name: "array", Kind: abi.Array, KeySize: 4, ValueSize: 8, MaxEntries: 5},
	{Name: "odd array", Kind: abi.Array, KeySize: 4, ValueSize: 13, MaxEntries: 3},
	{Name: "big array", Kind: abi.Array, KeySize: 4, ValueSize: 75, MaxEntries: 2},
	{Name: "percpu array", Kind: abi.PerSlotArray, KeySize: 4, ValueSize: 12, MaxEntries: 4},
	{Name: "hash", Kind: abi.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 6},
	{Name: "pid hash", Kind: abi.Hash, KeySize: 4, ValueSize: 16, MaxEntries: 6},
	{Name: "odd hash", Kind: abi.Hash, KeySize: 3, ValueSize: 4, MaxEntries: 4},
	{Name: "long hash", Kind: abi.Hash, KeySize: 16, ValueSize: 24, MaxEntries: 5},
	{Name: "odd long hash", Kind: abi.Hash, KeySize: 13, ValueSize: 7, MaxEntries: 4},
	{Name: "big hash", Kind: abi.Hash, KeySize: 2, ValueSize: 75, MaxEntries: 3},
	{Name: "lru hash", Kind: abi.LRUHash, KeySize: 8, ValueSize: 8, MaxEntries: 3},
	{Name: "long lru hash", Kind: abi.LRUHash, KeySize: 11, ValueSize: 12, MaxEntries: 3},
	{Name: "percpu hash", Kind: abi.PerSlotHash, KeySize: 8, ValueSize: 16, MaxEntries: 4},
	{Name: "percpu long hash", Kind: abi.PerSlotHash, KeySize: 20, ValueSize: 8, MaxEntries: 4},
	{Name: "thread", Kind: abi.PerThread, KeySize: 8, ValueSize: 8, MaxEntries: 1},
}

// mapOps makes a program of lookups, updates and deletions with few keys. What
// they return is added up in r9, with what is found in the values.
func mapOps(r *rand.Rand, n int) *bpf.Program { return (&mapRandomizer{Rand: r}).program(n) }

func (g *mapRandomizer) program(n int) *bpf.Program {
	g.add(bpfasm.Mov.Reg(bpfasm.R6, bpfasm.R1), bpfasm.Mov.Imm(bpfasm.R9, 0), bpfasm.LoadMem(bpfasm.R8, bpfasm.R1, 0, bpfasm.DWord))
	for off := int16(-128); off < 0; off += 8 {
		g.add(bpfasm.Instruction{OpCode: bpfasm.StoreImmOp(bpfasm.DWord), Dst: bpfasm.R10, Offset: off, Constant: int64(g.Uint32() >> 1)})
	}
	for range n {
		g.op()
	}
	g.add(bpfasm.Mov.Reg(bpfasm.R0, bpfasm.R9), bpfasm.Return())
	g.insns = append(g.insns, g.funcs...)
	return &bpf.Program{Name: "maps", Input: bpf.Input{Memory: true, Size: 96}, Insns: g.insns, Maps: kernelMaps}
}

type mapRandomizer struct {
	*rand.Rand
	insns  bpfasm.Instructions
	funcs  bpfasm.Instructions // that come behind them
	labels int
	strict bool // only what the verifier accepts too
}

func (g *mapRandomizer) add(in ...bpfasm.Instruction) { g.insns = append(g.insns, in...) }

func (g *mapRandomizer) op() {
	m := g.IntN(len(kernelMaps))
	spec := &kernelMaps[m]
	if g.IntN(5) == 0 && spec.Kind != abi.PerThread {
		g.each(m, spec)
		return
	}
	keyAt := g.key(spec)
	g.add(bpf.LoadMap(bpfasm.R1, m))
	if keyAt < 0 {
		g.add(bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R2, keyAt))
	} else { // in the input
		g.add(bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R6), bpfasm.Add.Imm(bpfasm.R2, keyAt))
	}
	switch k := g.IntN(5); {
	case !spec.Shared() && spec.Kind != abi.PerThread && g.IntN(3) == 0:
		g.slotValue(spec)
	case k < 2:
		g.update(spec)
	case k < 3 && (spec.IsTable() || spec.Kind == abi.PerThread):
		g.add(bpf.Call(bpfasm.FnMapDeleteElem), bpfasm.Add.Reg(bpfasm.R9, bpfasm.R0))
	default:
		g.lookup(spec)
	}
	g.add(bpfasm.Mul.Imm(bpfasm.R9, 31))
}

// key puts a key somewhere and returns where: below r10, or in the input.
func (g *mapRandomizer) key(spec *abi.MapSpec) int32 {
	if g.IntN(4) == 0 && spec.IsHash() {
		return 0
	}
	off := int16(-24 - 8*g.IntN(3))
	switch {
	case spec.KeySize == 4 && g.IntN(2) == 0: // known
		g.add(bpfasm.StoreImm(bpfasm.R10, off, int64(g.IntN(7)), bpfasm.Word))
	case spec.KeySize == 4:
		g.add(bpfasm.Mov.Reg(bpfasm.R3, bpfasm.R8), bpfasm.Add.Imm(bpfasm.R3, int32(g.IntN(3))), bpfasm.StoreMem(bpfasm.R10, off, bpfasm.R3, bpfasm.Word))
	case g.IntN(3) == 0:
		key := []int64{0, 1, -1, int64(-0x5a17c3e1 - 0x1003*12), int64(-0x5a17c3e1 - 0x1003*13)}[g.IntN(5)]
		g.add(bpfasm.LoadImm(bpfasm.R3, key, bpfasm.DWord), bpfasm.StoreMem(bpfasm.R10, off, bpfasm.R3, bpfasm.DWord))
	default:
		g.add(bpfasm.Mov.Reg(bpfasm.R3, bpfasm.R8), bpfasm.And.Imm(bpfasm.R3, 3), bpfasm.StoreMem(bpfasm.R10, off, bpfasm.R3, bpfasm.DWord))
	}
	if g.IntN(3) == 0 {
		g.add(bpfasm.Mov.Imm(bpfasm.R3, 0))
	}
	return int32(off)
}

func (g *mapRandomizer) update(spec *abi.MapSpec) {
	if g.IntN(2) == 0 {
		g.add(bpfasm.Mov.Reg(bpfasm.R3, bpfasm.R6), bpfasm.Add.Imm(bpfasm.R3, int32(g.IntN(20))))
	} else {
		g.add(bpfasm.Mov.Reg(bpfasm.R3, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R3, -128), bpfasm.StoreMem(bpfasm.R10, -128, bpfasm.R9, bpfasm.DWord))
	}
	flags := int32(g.IntN(4))
	if flags == 3 && g.IntN(2) == 0 || g.IntN(2) == 0 {
		flags = 0
	}
	g.add(bpfasm.Mov.Imm(bpfasm.R4, flags), bpf.Call(bpfasm.FnMapUpdateElem), bpfasm.Add.Reg(bpfasm.R9, bpfasm.R0))
}

// slotValue looks a value of some slot up.
func (g *mapRandomizer) slotValue(spec *abi.MapSpec) {
	g.labels++
	over := fmt.Sprintf("none%d", g.labels)
	if g.IntN(2) == 0 {
		g.add(bpfasm.Mov.Imm(bpfasm.R3, []int32{0, 1, 2, 63, 64, -1}[g.IntN(6)]))
	} else {
		g.add(bpfasm.Mov.Reg(bpfasm.R3, bpfasm.R8), bpfasm.And.Imm(bpfasm.R3, 0x7f))
	}
	size := bpfasm.DWord
	if spec.ValueSize < 8 {
		size = bpfasm.Byte
	}
	g.add(bpf.Call(bpfasm.FnMapLookupPercpuElem), bpfasm.JEq.Imm(bpfasm.R0, 0, over), bpfasm.LoadMem(bpfasm.R1, bpfasm.R0, 0, size),
		bpfasm.Add.Reg(bpfasm.R9, bpfasm.R1), bpfasm.StoreMem(bpfasm.R0, 0, bpfasm.R9, size), bpfasm.Add.Imm(bpfasm.R9, 1),
		bpfasm.Mov.Imm(bpfasm.R0, 0).WithSymbol(over))
}

func (g *mapRandomizer) lookup(spec *abi.MapSpec) {
	g.labels++
	over := fmt.Sprintf("null%d", g.labels)
	g.add(bpf.Call(bpfasm.FnMapLookupElem))
	if g.strict || g.IntN(2) == 0 {
		g.add(bpfasm.Mov.Reg(bpfasm.R7, bpfasm.R0))
	} else {
		g.add(bpfasm.Mov.Imm(bpfasm.R7, 0), bpfasm.Add.Reg(bpfasm.R7, bpfasm.R0))
	}
	g.add(bpfasm.JEq.Imm(bpfasm.R0, 0, over), bpfasm.Add.Imm(bpfasm.R9, 1))
	size, off := bpfasm.Byte, int16(g.IntN(spec.ValueSize))
	if spec.ValueSize >= 8 {
		size, off = bpfasm.DWord, 0
	}
	switch g.IntN(4) {
	case 0:
		g.add(bpfasm.LoadMem(bpfasm.R1, bpfasm.R0, off, size), bpfasm.Add.Reg(bpfasm.R9, bpfasm.R1))
	case 1:
		g.add(bpfasm.LoadMem(bpfasm.R1, bpfasm.R0, off, size), bpfasm.Add.Imm(bpfasm.R1, 5), bpfasm.StoreMem(bpfasm.R0, off, bpfasm.R1, size))
	case 2:
		g.add(bpfasm.StoreMem(bpfasm.R0, off, bpfasm.R9, size))
	default:
		if size == bpfasm.DWord {
			g.add(bpfasm.Mov.Imm(bpfasm.R1, 3), someAtomics[g.IntN(len(someAtomics))].Mem(bpfasm.R0, bpfasm.R1, size, off))
		}
	}
	g.add(bpfasm.Mov.Imm(bpfasm.R0, 0).WithSymbol(over))
}

// newHelperHarness starts a target whose runtime has all routines.
func newHelperHarness(t testing.TB, at abi.Addr, maps []abi.MapSpec) *harness {
	t.Helper()
	h := newHarness(t, at, abi.Config{Threads: 4, Maps: maps, RingSize: 1 << 12})
	h.useHelpers()
	return h
}

// useHelpers compiles the runtime with all routines.
func (h *harness) useHelpers() {
	h.t.Helper()
	h.env.Helpers = true
	code, rt, err := NewRuntime(runtimeBase, h.env)
	if err != nil {
		h.t.Fatal(err)
	}
	if len(code) > int(entryBase-runtimeBase) {
		h.t.Fatalf("the runtime has %d bytes", len(code))
	}
	h.put(runtimeBase, code)
	h.env.Runtime = rt
}

func TestMapsCompiledAsInterpreted(t *testing.T) {
	programs := uint64(150)
	if testing.Short() {
		programs = 30
	}
	for i, at := range []abi.Addr{arenaNear, arenaFar, arenaLow} {
		for name, free := range map[string]int{"own": 1, "shared": 1 << 20} {
			t.Run(fmt.Sprintf("%v/%s", at, name), func(t *testing.T) {
				h := newHelperHarness(t, at, kernelMaps)
				h.freeEach(free)
				m := newModel(h)
				for seed := range programs {
					h.mapsDiffer(t, m, uint64(i)<<32|seed)
					if seed%4 == 3 {
						h.scramble(m, seed)
					}
				}
			})
		}
	}
}

// scramble leaves tables as threads leave them that die or are late in the middle of
// an update, or as nobody does. Of a key there is one entry at most, be it deleted or
// not yet there, for the interpreter revives what is deleted in more steps.
func (h *harness) scramble(m *model, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 12))
	for i := range h.env.Layout.Maps {
		ml := h.mapLayout(i)
		if !ml.IsTable() {
			continue
		}
		seen := map[uint64]bool{}
		for pos := range uint64(ml.Positions()) {
			state := h.word(ml.State(pos))
			if r.IntN(3) == 0 {
				state = state&^abi.StatePhase | uint64(r.IntN(8))
			}
			switch key := h.word(ml.Word(pos)); state & abi.StatePhase {
			case abi.PhasePresent, abi.PhaseDead, abi.PhaseEntering:
				if seen[key] {
					state = state&^abi.StatePhase | abi.PhaseGone
				}
				seen[key] = true
			}
			for _, mem := range [][]byte{h.arena, m.Arena} {
				binary.LittleEndian.PutUint64(mem[ml.State(pos):], state)
				binary.LittleEndian.PutUint64(mem[ml.Used:], uint64(r.IntN(1+ml.MaxEntries)))
			}
			binary.LittleEndian.PutUint64(m.Arena[ml.Used:], h.word(ml.Used))
		}
	}
}

// mapsDiffer compares what a random program returns and leaves in the arena.
func (h *harness) mapsDiffer(t testing.TB, m *model, seed uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 6))
	p := mapOps(r, 1+r.IntN(12))
	v, err := bpf.Trust(p)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	memory := make([]byte, p.Input.Size)
	for i := range memory {
		memory[i] = byte(r.IntN(4))
	}
	got, err := h.callFunction(v, bytes.Clone(memory))
	if err != nil {
		t.Fatalf("seed %d: %v\n%v", seed, err, p)
	}
	m.reset(max(h.slotOf(h.tp), abi.SlotShared))
	want, err := m.RunMemory(v, memory)
	if err != nil {
		t.Fatalf("seed %d: %v\n%v", seed, err, p)
	}
	if err := h.compare(m); err != nil || got != want {
		t.Fatalf("seed %d: %#x, not %#x, %v\n%v", seed, got, want, err, p)
	}
}

// Threads that enter, update and delete the same keys at once leave what one of
// them wrote, and a hash counts each key once.
func TestHashUnderContention(t *testing.T) {
	const threads, each, keys = 8, 50_000, 16
	maps := []abi.MapSpec{{Name: "h", Kind: abi.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 64}, {Name: "n", Kind: abi.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 64}}
	h := newHelperHarness(t, arenaNear, maps)
	at := func(n int) []bpfasm.Instruction {
		return []bpfasm.Instruction{bpf.LoadMap(bpfasm.R1, n), bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R2, -8)}
	}
	value := []bpfasm.Instruction{bpfasm.Mov.Reg(bpfasm.R3, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R3, -16)}
	var insns bpfasm.Instructions
	add := func(parts ...[]bpfasm.Instruction) {
		for _, p := range parts {
			insns = append(insns, p...)
		}
	}
	add([]bpfasm.Instruction{bpf.LoadArg(bpfasm.R6, bpfasm.R1, 0), bpfasm.StoreMem(bpfasm.R10, -8, bpfasm.R6, bpfasm.DWord),
		bpfasm.Mov.Imm(bpfasm.R7, 0), bpfasm.StoreMem(bpfasm.R10, -16, bpfasm.R7, bpfasm.DWord)})
	// The first to come enters a zero; all count.
	add(at(1), value, []bpfasm.Instruction{bpfasm.Mov.Imm(bpfasm.R4, 1), bpf.Call(bpfasm.FnMapUpdateElem)}, at(1),
		[]bpfasm.Instruction{bpf.Call(bpfasm.FnMapLookupElem), bpfasm.JEq.Imm(bpfasm.R0, 0, "no"), bpfasm.Mov.Imm(bpfasm.R1, 1),
			bpfasm.AddAtomic.Mem(bpfasm.R0, bpfasm.R1, bpfasm.DWord, 0), bpfasm.Mov.Imm(bpfasm.R1, 0).WithSymbol("no")})
	// Every entry of the other map is its key, if it is there.
	add([]bpfasm.Instruction{bpfasm.StoreMem(bpfasm.R10, -16, bpfasm.R6, bpfasm.DWord)}, at(0), value,
		[]bpfasm.Instruction{bpfasm.Mov.Imm(bpfasm.R4, 0), bpf.Call(bpfasm.FnMapUpdateElem)}, at(0),
		[]bpfasm.Instruction{bpf.Call(bpfasm.FnMapDeleteElem), bpfasm.Mov.Imm(bpfasm.R0, 0), bpfasm.Return()})
	v, err := bpf.Trust(&bpf.Program{Name: "contend", Insns: insns, Maps: maps})
	if err != nil {
		t.Fatal(err)
	}
	h.install(entrySite, v)
	h.do(request{Op: opLoop, Entry: uint64(entryBase), Threads: threads, Iterations: each, Keys: keys})
	for m := range maps {
		ml := h.mapLayout(m)
		if n := h.word(ml.Used); n != keys {
			t.Errorf("map %d: %d keys, not %d", m, n, keys)
		}
	}
	var sum uint64
	ml := h.mapLayout(1)
	for pos := range ml.Positions() {
		sum += h.word(ml.Value(uint64(pos)))
	}
	if sum != threads*each {
		t.Errorf("counted %d of %d", sum, threads*each)
	}
	ml = h.mapLayout(0)
	for pos := range ml.Positions() {
		if n := h.word(ml.State(uint64(pos))); n&abi.StatePhase == abi.PhasePresent || n&abi.StatePhase == abi.PhaseEntering {
			t.Errorf("an entry that was deleted last is in state %#x", n)
		}
	}
}

// tableOps updates, looks up and deletes an entry of a map by a key made of the
// argument; each value is its key, repeated.
func tableOps(t testing.TB, maps []abi.MapSpec, m int, what ...bpfasm.BuiltinFunc) *bpf.Verified {
	t.Helper()
	spec := &maps[m]
	insns := bpfasm.Instructions{bpf.LoadArg(bpfasm.R6, bpfasm.R1, 0)}
	const value = -128
	for off := int16(-128); off < 0; off += 8 {
		insns = append(insns, bpfasm.StoreMem(bpfasm.R10, off, bpfasm.R6, bpfasm.DWord))
	}
	for _, f := range what {
		insns = append(insns, bpf.LoadMap(bpfasm.R1, m), bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R2, -64))
		if f == bpfasm.FnMapUpdateElem {
			insns = append(insns, bpfasm.Mov.Reg(bpfasm.R3, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R3, value), bpfasm.Mov.Imm(bpfasm.R4, 0))
		}
		insns = append(insns, f.Call())
	}
	if spec.ValueSize > 64 || spec.KeySize > 64 {
		t.Fatal("BUG: no room")
	}
	return trusted(t, &bpf.Program{Name: "table", Maps: maps, Insns: append(insns, bpfasm.Mov.Imm(bpfasm.R0, 0), bpfasm.Return())})
}

// Many threads enter and delete more keys than a table has room for. At every
// moment a key has one entry at most, and in the end all counters are right.
func TestTablesGiveUpDeletedEntries(t *testing.T) {
	const threads, each, keys = 8, 30_000, 500
	maps := []abi.MapSpec{
		{Name: "short", Kind: abi.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 40},
		{Name: "large", Kind: abi.Hash, KeySize: 8, ValueSize: 24, MaxEntries: 40},
		{Name: "long", Kind: abi.Hash, KeySize: 24, ValueSize: 8, MaxEntries: 40},
		{Name: "lru", Kind: abi.LRUHash, KeySize: 8, ValueSize: 8, MaxEntries: 40},
		{Name: "long lru", Kind: abi.LRUHash, KeySize: 20, ValueSize: 16, MaxEntries: 40},
	}
	h := newHelperHarness(t, arenaNear, maps)
	for m := range maps {
		ops := []bpfasm.BuiltinFunc{bpfasm.FnMapUpdateElem, bpfasm.FnMapLookupElem, bpfasm.FnMapUpdateElem, bpfasm.FnMapDeleteElem}
		if maps[m].Kind == abi.LRUHash {
			ops = ops[:3]
		}
		h.install(entrySite, tableOps(t, maps, m, ops...))
		drops := h.word(abi.HdrDrops)
		h.do(request{Op: opLoop, Entry: uint64(entryBase), Threads: threads, Iterations: each, Keys: keys})
		if n := h.word(abi.HdrDrops) - drops; n > 0 {
			t.Errorf("%s: %d updates were dropped", maps[m].Name, n)
		}
		h.checkTable(t, m)
		h.install(entrySite, tableOps(t, maps, m, bpfasm.FnMapUpdateElem))
		h.do(request{Op: opLoop, Entry: uint64(entryBase), Threads: threads, Iterations: 1000, Keys: 30})
		if n := h.checkTable(t, m); n < 30 {
			t.Errorf("%s: %d entries for 30 keys", maps[m].Name, n)
		}
	}
}

// checkTable requires that a table at rest holds each key once, with its value, and
// returns how many entries there are.
func (h *harness) checkTable(t testing.TB, m int) int {
	t.Helper()
	ml := h.mapLayout(m)
	seen := map[uint64]uint64{}
	used := uint64(0)
	for pos := range uint64(ml.Positions()) {
		state, key := h.word(ml.State(pos)), h.word(ml.Word(pos))
		if ml.KeyWords() > 1 {
			key = h.word(ml.KeyWord(pos, 0))
		}
		switch state & abi.StatePhase {
		case abi.PhasePresent:
			if other, ok := seen[key]; ok {
				t.Errorf("%s: key %d is at %d and %d", ml.Name, key, other, pos)
			}
			seen[key] = pos
			for w := range ml.Stride() / 8 {
				if v := h.word(ml.Value(pos) + uint64(8*w)); v != key {
					t.Errorf("%s: the value of key %d is %d", ml.Name, key, v)
				}
			}
			used++
		case abi.PhaseDead:
			used++
		case abi.PhaseEmpty, abi.PhaseGone:
		default:
			t.Errorf("%s: position %d is in state %#x", ml.Name, pos, state)
		}
	}
	if n := h.word(ml.Used); n != used || n > uint64(ml.MaxEntries) {
		t.Errorf("%s: %d positions are used, %d are counted, of %d", ml.Name, used, n, ml.MaxEntries)
	}
	return len(seen)
}

// An update that is left in the middle, in whatever state, keeps nobody from
// entering the same key, or others.
func TestUnfinishedUpdatesKeepNobody(t *testing.T) {
	maps := []abi.MapSpec{{Name: "h", Kind: abi.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 64}}
	for left := uint64(abi.PhaseBusy); left <= abi.PhaseGone; left++ {
		h := newHelperHarness(t, arenaNear, maps)
		ml := h.mapLayout(0)
		for key := range uint64(20) {
			pos := key * abi.HashMul >> (64 - ml.DirBits)
			for h.word(ml.State(pos)) != 0 {
				pos = (pos + 1) % uint64(ml.Positions())
			}
			h.putWord(ml.State(pos), abi.StateNext|left)
			h.putWord(ml.Word(pos), key)
			h.putWord(ml.Value(pos), key)
		}
		h.install(entrySite, tableOps(t, maps, 0, bpfasm.FnMapUpdateElem))
		h.do(request{Op: opLoop, Entry: uint64(entryBase), Threads: 4, Iterations: 1000, Keys: 30})
		present := map[uint64]int{}
		for pos := range uint64(ml.Positions()) {
			if h.word(ml.State(pos))&abi.StatePhase == abi.PhasePresent {
				present[h.word(ml.Word(pos))]++
			}
		}
		for key := range uint64(30) {
			if present[key] != 1 {
				t.Errorf("in phase %d: key %d has %d entries", left, key, present[key])
			}
		}
	}
}

func TestRoutinesNeedLittleStack(t *testing.T) {
	h := newHelperHarness(t, arenaFar, kernelMaps)
	for i, r := range h.env.Runtime.maps {
		if most := max(r.lookup.stack, r.update.stack, r.remove.stack); most > 256 {
			t.Errorf("%s: the routines need %d bytes of stack", kernelMaps[i].Name, most)
		}
	}
}

// *value += k, as compilers write it, loses no update: it becomes one atomic
// instruction.
func TestPlainUpdatesCountExactly(t *testing.T) {
	const threads, each = 8, 100_000
	maps := []abi.MapSpec{
		{Name: "array", Kind: abi.Array, KeySize: 4, ValueSize: 16, MaxEntries: 4},
		{Name: "percpu", Kind: abi.PerSlotArray, KeySize: 4, ValueSize: 16, MaxEntries: 4},
	}
	for _, slots := range []int{64, 0} {
		h := newHelperHarness(t, arenaNear, maps)
		h.leaveSlots(slots)
		var insns bpfasm.Instructions
		add := func(in ...bpfasm.Instruction) { insns = append(insns, in...) }
		add(bpf.LoadArg(bpfasm.R6, bpfasm.R1, 0))
		for m := range maps {
			over := fmt.Sprint("no", m)
			add(bpfasm.Mov.Reg(bpfasm.R3, bpfasm.R6), bpfasm.And.Imm(bpfasm.R3, 3), bpfasm.StoreMem(bpfasm.R10, -4, bpfasm.R3, bpfasm.Word),
				bpf.LoadMap(bpfasm.R1, m), bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R2, -4), bpf.Call(bpfasm.FnMapLookupElem),
				bpfasm.JEq.Imm(bpfasm.R0, 0, over),
				bpfasm.LoadMem(bpfasm.R1, bpfasm.R0, 0, bpfasm.DWord), bpfasm.Add.Imm(bpfasm.R1, 1), bpfasm.StoreMem(bpfasm.R0, 0, bpfasm.R1, bpfasm.DWord),
				bpfasm.Mov.Imm(bpfasm.R2, 3),
				bpfasm.LoadMem(bpfasm.R1, bpfasm.R0, 8, bpfasm.Word), bpfasm.Add.Reg(bpfasm.R1, bpfasm.R2), bpfasm.StoreMem(bpfasm.R0, 8, bpfasm.R1, bpfasm.Word),
				bpfasm.Mov.Imm(bpfasm.R0, 0).WithSymbol(over))
		}
		v, err := bpf.Verify(&bpf.Program{Name: "plain", Insns: append(insns, bpfasm.Return()), Maps: maps})
		if err != nil {
			t.Fatal(err)
		}
		h.install(entrySite, v)
		h.do(request{Op: opLoop, Entry: uint64(entryBase), Threads: threads, Iterations: each, Keys: 4})
		var sums [2][2]uint64
		for m := range maps {
			ml := h.mapLayout(m)
			for pos := range 4 {
				at := []uint64{ml.Values + uint64(pos*ml.Stride())}
				if !ml.Shared() {
					at = nil
					for slot := range 1 << h.env.Layout.SlotBits {
						at = append(at, h.slotBase(slot)+ml.Cells+uint64(pos*ml.Stride()))
					}
				}
				for _, a := range at {
					sums[m][0] += h.word(a)
					sums[m][1] += h.word(a + 8)
				}
			}
			if sums[m] != [2]uint64{threads * each, 3 * threads * each} {
				t.Errorf("%s, %d slots: %d, not %d and three times as many", maps[m].Name, slots, sums[m], threads*each)
			}
		}
	}
}

// BenchmarkLookup measures calls of a function that counts in a shared hash by
// its argument, among so many keys.
func BenchmarkLookup(b *testing.B) {
	maps := []abi.MapSpec{{Name: "hash", Kind: abi.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 1 << 17}}
	at := []bpfasm.Instruction{bpf.LoadArg(bpfasm.R3, bpfasm.R1, 0), bpfasm.StoreMem(bpfasm.R10, -8, bpfasm.R3, bpfasm.DWord),
		bpf.LoadMap(bpfasm.R1, 0), bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R2, -8)}
	enter := append(append(bpfasm.Instructions{}, at...), bpfasm.StoreMem(bpfasm.R10, -16, bpfasm.R3, bpfasm.DWord), bpfasm.Mov.Reg(bpfasm.R3, bpfasm.R10),
		bpfasm.Add.Imm(bpfasm.R3, -16), bpfasm.Mov.Imm(bpfasm.R4, 0), bpf.Call(bpfasm.FnMapUpdateElem), bpfasm.Mov.Imm(bpfasm.R0, 0), bpfasm.Return())
	find := append(append(bpfasm.Instructions{}, at...), bpf.Call(bpfasm.FnMapLookupElem), bpfasm.JEq.Imm(bpfasm.R0, 0, "out"),
		bpfasm.LoadMem(bpfasm.R1, bpfasm.R0, 0, bpfasm.DWord), bpfasm.Mov.Imm(bpfasm.R0, 0).WithSymbol("out"), bpfasm.Return())
	count := append(append(bpfasm.Instructions{}, at...), bpf.Call(bpfasm.FnMapLookupElem), bpfasm.JEq.Imm(bpfasm.R0, 0, "out"), bpfasm.Mov.Imm(bpfasm.R1, 1),
		bpfasm.AddAtomic.Mem(bpfasm.R0, bpfasm.R1, bpfasm.DWord, 0), bpfasm.Mov.Imm(bpfasm.R0, 0).WithSymbol("out"), bpfasm.Return())
	for _, keys := range []uint64{1, 1000, 100_000} {
		for _, c := range []struct {
			name  string
			insns bpfasm.Instructions
		}{{"find", find}, {"count", count}, {"update", enter}} {
			b.Run(fmt.Sprintf("%s/keys=%d", c.name, keys), func(b *testing.B) {
				h := newHelperHarness(b, arenaNear, maps)
				h.install(entrySite, trusted(b, &bpf.Program{Name: "enter", Insns: enter, Maps: maps}))
				h.do(request{Op: opLoop, Entry: uint64(entryBase), Threads: 1, Iterations: 20 * keys, Keys: keys})
				h.install(entrySite, trusted(b, &bpf.Program{Name: c.name, Insns: c.insns, Maps: maps}))
				b.ResetTimer()
				took := h.do(request{Op: opLoop, Entry: uint64(entryBase), Threads: 1, Iterations: uint64(b.N), Keys: keys}).Result
				b.ReportMetric(float64(took)/float64(b.N), "ns/hit")
			})
		}
	}
}
