package x86

import (
	"encoding/binary"
	"fmt"
	"os"
	"testing"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/bpf"
	"trapless/internal/bpf/routine"
)

// exactMaps are maps of every type that counts by key, and a ring.
var exactMaps = []abi.MapSpec{
	{Name: "array", Kind: abi.Array, KeySize: 4, ValueSize: 8, MaxEntries: exactKeys},
	{Name: "percpu array", Kind: abi.PerSlotArray, KeySize: 4, ValueSize: 8, MaxEntries: exactKeys},
	{Name: "percpu hash", Kind: abi.PerSlotHash, KeySize: 8, ValueSize: 8, MaxEntries: 2048},
	{Name: "percpu hash of strings", Kind: abi.PerSlotHash, KeySize: 24, ValueSize: 8, MaxEntries: 2048},
	{Name: "hash", Kind: abi.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 2048},
	{Name: "hash of strings", Kind: abi.Hash, KeySize: 24, ValueSize: 8, MaxEntries: 2048},
	{Name: "large hash", Kind: abi.Hash, KeySize: 8, ValueSize: 24, MaxEntries: 2048},
	{Name: "lru hash", Kind: abi.LRUHash, KeySize: 8, ValueSize: 8, MaxEntries: 4096},
	{Name: "ring", Kind: abi.RingBuf},
}

const exactKeys = 1000

// countAll counts in each map by the argument: by a helper that enters the key, by
// what compilers make of *value += 1, and by entering a new one and looking again.
func countAll(t testing.TB) *bpf.Verified {
	var insns bpfasm.Instructions
	add := func(in ...bpfasm.Instruction) { insns = append(insns, in...) }
	add(bpf.LoadArg(bpfasm.R6, bpfasm.R1, 0))
	for off := int16(-56); off < 0; off += 8 {
		add(bpfasm.Instruction{OpCode: bpfasm.StoreImmOp(bpfasm.DWord), Dst: bpfasm.R10, Offset: off})
	}
	for off := int16(-32); off < 0; off += 8 {
		add(bpfasm.StoreMem(bpfasm.R10, off, bpfasm.R6, bpfasm.DWord))
	}
	for m, spec := range exactMaps {
		done, found := fmt.Sprint("done", m), fmt.Sprint("found", m)
		key := []bpfasm.Instruction{bpf.LoadMap(bpfasm.R1, m), bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R2, -32)}
		switch {
		case spec.IsRing():
			add(key...)
			add(bpfasm.Mov.Imm(bpfasm.R3, 24), bpfasm.Mov.Imm(bpfasm.R4, 0), bpfasm.FnRingbufOutput.Call())
			continue
		case spec.Kind == abi.PerSlotHash:
			add(key...)
			add(bpf.Call(bpf.HelperMapCell), bpfasm.JEq.Imm(bpfasm.R0, 0, done), bpfasm.Mov.Imm(bpfasm.R1, 1),
				bpfasm.AddAtomic.Mem(bpfasm.R0, bpfasm.R1, bpfasm.DWord, 0))
		case spec.IsTable():
			add(key...)
			add(bpf.Call(bpfasm.FnMapLookupElem), bpfasm.JNE.Imm(bpfasm.R0, 0, found))
			add(key...)
			add(bpfasm.Mov.Reg(bpfasm.R3, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R3, -56), bpfasm.Mov.Imm(bpfasm.R4, 1), bpf.Call(bpfasm.FnMapUpdateElem))
			add(key...)
			add(bpf.Call(bpfasm.FnMapLookupElem), bpfasm.JEq.Imm(bpfasm.R0, 0, done), bpfasm.Mov.Imm(bpfasm.R1, 1).WithSymbol(found),
				bpfasm.AddAtomic.Mem(bpfasm.R0, bpfasm.R1, bpfasm.DWord, 0))
		default:
			add(key...)
			add(bpf.Call(bpfasm.FnMapLookupElem), bpfasm.JEq.Imm(bpfasm.R0, 0, done), bpfasm.LoadMem(bpfasm.R1, bpfasm.R0, 0, bpfasm.DWord),
				bpfasm.Add.Imm(bpfasm.R1, 1), bpfasm.StoreMem(bpfasm.R0, 0, bpfasm.R1, bpfasm.DWord))
		}
		add(bpfasm.Mov.Imm(bpfasm.R0, 0).WithSymbol(done))
	}
	v, err := bpf.Verify(&bpf.Program{Name: "count", Maps: exactMaps, Insns: append(insns, bpfasm.Mov.Imm(bpfasm.R0, 0), bpfasm.Return())})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// Eight threads that are preempted, moved between processors and interrupted by
// handlers which are hits too, some of which jump out of whatever they have
// interrupted, count what the program counts itself. TRAPLESS_LONG makes 10^8
// updates of each map.
func TestEveryMapCountsExactly(t *testing.T) {
	const threads = 8
	each := uint64(200_000)
	switch {
	case os.Getenv("TRAPLESS_LONG") != "":
		each = 100_000_000 / threads
	case testing.Short():
		each = 20_000
	}
	for name, slots := range map[string]int{"own slots": 1, "few slots": 16, "no slots": 1 << 20} {
		if slots != 1 {
			each = min(each, 100_000)
		}
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, arenaFar, abi.Config{Threads: threads, Maps: exactMaps, RingSize: 1 << 16})
			h.env.Memory = routine.Memory{Stack: 0x690} // where glibc has it
			h.useHelpers()
			h.freeEach(slots)
			h.install(entrySite, countAll(t))
			const results = codeBase + 0x80000
			rq := request{Op: opExact, Entry: uint64(entryBase), Threads: threads, Iterations: each}
			rq.Regs[0] = uint64(results)
			signals := h.do(rq).Result
			certain, unsure := h.code[results-codeBase:], h.code[results-codeBase+8*exactKeys:]
			var all, jumps uint64
			for key := range exactKeys {
				least, more := binary.LittleEndian.Uint64(certain[8*key:]), binary.LittleEndian.Uint64(unsure[8*key:])
				all, jumps = all+least, jumps+more
				for m := range exactMaps {
					if exactMaps[m].IsRing() {
						continue
					}
					if n := h.countOf(m, uint64(key)); n < least || n > least+more {
						t.Fatalf("%s: key %d was counted %d times, not %d to %d", exactMaps[m].Name, key, n, least, least+more)
					}
				}
			}
			if all < threads*each*9/10 || jumps == 0 && !testing.Short() { // a short run may see none
				t.Errorf("%d calls returned, and %d were left by a jump", all, jumps)
			}
			written, missed := h.ringTotals()
			if n := written + missed; n < all || n > all+jumps {
				t.Errorf("%d records and %d losses, not %d to %d", written, missed, all, all+jumps)
			}
			h.ringsTakeRecords(t, threads, slots == 1)
			t.Logf("%d updates of each map, %d signals, %d jumps out of calls; ring: %d written, %d lost", all, signals, jumps, written, missed)
		})
	}
}

// ringsTakeRecords requires that no claim is left that keeps a thread from writing.
func (h *harness) ringsTakeRecords(t *testing.T, threads uint64, all bool) {
	t.Helper()
	for slot := range 1 << h.env.Layout.SlotBits {
		base := h.slotBase(slot)
		h.putWord(base+abi.SlotRingTail, h.word(base+abi.SlotRingHead))
	}
	written, lost := h.ringTotals()
	h.do(request{Op: opLoop, Entry: uint64(entryBase), Threads: threads, Iterations: 20, Keys: exactKeys})
	if w, l := h.ringTotals(); all && (w-written != 20*threads || l != lost) {
		t.Errorf("afterwards %d of %d records were written, %d lost", w-written, 20*threads, l-lost)
	}
}

// countOf is what a map of exactMaps has for a key, over all slots.
func (h *harness) countOf(m int, key uint64) (n uint64) {
	ml := h.mapLayout(m)
	for pos := range uint64(ml.Positions()) {
		switch {
		case ml.IsTable():
			k := h.word(ml.Word(pos))
			if ml.KeyWords() > 1 {
				k = h.word(ml.KeyWord(pos, 0))
			}
			if h.word(ml.State(pos))&abi.StatePhase == abi.PhasePresent && k == key {
				n += h.word(ml.Value(pos))
			}
		case ml.Kind == abi.Array && pos == key:
			n += h.word(ml.Value(pos))
		case ml.Kind == abi.PerSlotArray && pos == key, ml.Kind == abi.PerSlotHash && h.holdsKey(&ml, pos, key):
			for slot := range 1 << h.env.Layout.SlotBits {
				n += h.word(h.slotBase(slot) + ml.Cells + pos*uint64(ml.Stride()))
			}
		}
	}
	return n
}

// holdsKey reports whether a position of a directory has the key.
func (h *harness) holdsKey(ml *abi.MapLayout, pos, key uint64) bool {
	word := h.word(ml.Dir + 8*pos)
	switch {
	case word == 0:
		return false
	case ml.KeyWords() == 1:
		return word^uint64(int64(ml.KeyMask)) == key && pos < 1<<ml.DirBits
	}
	return h.word(ml.Nodes+8+uint64(uint32(word)-1)*uint64(8*ml.KeyWords())) == key
}

// ringTotals is how many records of 24 bytes were written, and how many lost.
func (h *harness) ringTotals() (written, lost uint64) {
	for slot := range 1 << h.env.Layout.SlotBits {
		base := h.slotBase(slot)
		written += h.word(base+abi.SlotRingHead) / (24 + abi.RecPayload)
		lost += h.word(base+abi.SlotDrops) + h.word(base+abi.SlotMisses)
	}
	return written, lost + h.word(abi.HdrMisses)
}
