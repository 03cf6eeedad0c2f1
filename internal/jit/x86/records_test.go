package x86

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
)

var recordMaps = []abi.MapSpec{
	{Name: "a", Kind: abi.RingBuf},
	{Name: "perf", Kind: abi.PerfEventArray, KeySize: 4, ValueSize: 4},
	{Name: "values", Kind: abi.Array, KeySize: 4, ValueSize: 29, MaxEntries: 2},
	{Name: "b", Kind: abi.RingBuf},
}

// records makes a program of a few records: reserved and filled, or written
// from the stack or a value, of sizes known and not.
func records(r *rand.Rand) *bpf.Program {
	var insns bpfasm.Instructions
	add := func(in ...bpfasm.Instruction) { insns = append(insns, in...) }
	add(bpfasm.Mov.Reg(bpfasm.R6, bpfasm.R1), bpfasm.Mov.Imm(bpfasm.R9, 0))
	for off := int16(-64); off < 0; off += 8 {
		add(bpfasm.Instruction{OpCode: bpfasm.StoreImmOp(bpfasm.DWord), Dst: bpfasm.R10, Offset: off, Constant: int64(r.Uint32() >> 1)})
	}
	ring := func() int { return 3 * r.IntN(2) }
	for i := range 1 + r.IntN(5) {
		switch r.IntN(6) {
		case 4: // a format of any size, on the stack or in a value
			at, off := bpfasm.R10, int32(-64)
			if r.IntN(2) == 0 {
				add(bpfasm.StoreImm(bpfasm.R10, -68, 1, bpfasm.Word), bpf.LoadMap(bpfasm.R1, 2), bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R2, -68),
					bpfasm.FnMapLookupElem.Call(), bpfasm.JEq.Imm(bpfasm.R0, 0, fmt.Sprint("text", i)))
				at, off = bpfasm.R0, 0
			}
			add(bpfasm.Mov.Reg(bpfasm.R1, at), bpfasm.Add.Imm(bpfasm.R1, off), bpfasm.Mov.Imm(bpfasm.R2, int32(1+r.IntN(29))))
			add([]bpfasm.Instruction{bpfasm.Mov.Imm(bpfasm.R3, -7), bpfasm.LoadMem(bpfasm.R3, bpfasm.R6, bpf.PtRegsDI, bpfasm.DWord)}[r.IntN(2)])
			if r.IntN(2) == 0 {
				add(bpfasm.Mov.Reg(bpfasm.R4, bpfasm.R9))
			}
			add(bpfasm.FnTracePrintk.Call(), bpfasm.Add.Reg(bpfasm.R9, bpfasm.R0), bpfasm.Mov.Imm(bpfasm.R1, 0).WithSymbol(fmt.Sprint("text", i)))
		case 5:
			add(bpfasm.Mov.Reg(bpfasm.R1, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R1, -64), bpfasm.Mov.Imm(bpfasm.R2, int32(1+r.IntN(20))),
				bpfasm.Mov.Reg(bpfasm.R3, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R3, -48), bpfasm.Mov.Imm(bpfasm.R4, 8*int32(r.IntN(5))),
				bpfasm.FnTraceVprintk.Call(), bpfasm.Add.Reg(bpfasm.R9, bpfasm.R0))
		case 0:
			size := 1 + r.IntN(40)
			add(bpf.LoadMap(bpfasm.R1, ring()), bpfasm.Mov.Imm(bpfasm.R2, int32(size)), bpfasm.Mov.Imm(bpfasm.R3, 0),
				bpfasm.FnRingbufReserve.Call(), bpfasm.JEq.Imm(bpfasm.R0, 0, fmt.Sprint("no", i)), bpfasm.Mov.Reg(bpfasm.R7, bpfasm.R0))
			for b := range size {
				add(bpfasm.StoreImm(bpfasm.R7, int16(b), int64(r.IntN(256)), bpfasm.Byte))
			}
			if r.IntN(2) == 0 {
				add(bpfasm.LoadMem(bpfasm.R8, bpfasm.R6, bpf.PtRegsDI, bpfasm.DWord), bpfasm.StoreMem(bpfasm.R7, 0, bpfasm.R8, bpfasm.Byte))
			}
			add(bpfasm.Mov.Reg(bpfasm.R1, bpfasm.R7), bpfasm.Mov.Imm(bpfasm.R2, 0),
				[]bpfasm.BuiltinFunc{bpfasm.FnRingbufSubmit, bpfasm.FnRingbufSubmit, bpfasm.FnRingbufDiscard}[r.IntN(3)].Call())
			add(bpfasm.Mov.Imm(bpfasm.R7, 1).WithSymbol(fmt.Sprint("no", i)))
		case 1:
			add(bpf.LoadMap(bpfasm.R1, ring()), bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R2, -64),
				bpfasm.Mov.Imm(bpfasm.R3, int32(1+r.IntN(64))), bpfasm.Mov.Imm(bpfasm.R4, 0), bpfasm.FnRingbufOutput.Call(), bpfasm.Add.Reg(bpfasm.R9, bpfasm.R0))
		case 2: // a size that only the run knows
			add(bpfasm.LoadMem(bpfasm.R5, bpfasm.R6, bpf.PtRegsSI, bpfasm.DWord), bpfasm.And.Imm(bpfasm.R5, 31), bpfasm.Add.Imm(bpfasm.R5, 1), bpfasm.Mov.Reg(bpfasm.R1, bpfasm.R6),
				bpf.LoadMap(bpfasm.R2, 1), bpfasm.LoadImm(bpfasm.R3, 0xffffffff, bpfasm.DWord), bpfasm.Mov.Reg(bpfasm.R4, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R4, -64),
				bpfasm.FnPerfEventOutput.Call(), bpfasm.Add.Reg(bpfasm.R9, bpfasm.R0))
		case 3:
			add(bpfasm.StoreImm(bpfasm.R10, -68, 1, bpfasm.Word), bpf.LoadMap(bpfasm.R1, 2), bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R2, -68),
				bpfasm.FnMapLookupElem.Call(), bpfasm.JEq.Imm(bpfasm.R0, 0, fmt.Sprint("none", i)), bpfasm.StoreImm(bpfasm.R0, 3, int64(i), bpfasm.Byte),
				bpf.LoadMap(bpfasm.R1, ring()), bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R0), bpfasm.Mov.Imm(bpfasm.R3, 29), bpfasm.Mov.Imm(bpfasm.R4, 0),
				bpfasm.FnRingbufOutput.Call(), bpfasm.Mov.Imm(bpfasm.R1, 0).WithSymbol(fmt.Sprint("none", i)))
		}
	}
	// What the helpers returned is a record too.
	add(bpfasm.StoreMem(bpfasm.R10, -8, bpfasm.R9, bpfasm.DWord), bpf.LoadMap(bpfasm.R1, 0), bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R2, -8),
		bpfasm.Mov.Imm(bpfasm.R3, 8), bpfasm.Mov.Imm(bpfasm.R4, 0), bpfasm.FnRingbufOutput.Call(), bpfasm.Mov.Imm(bpfasm.R0, 0), bpfasm.Return())
	return &bpf.Program{Name: "records", Insns: insns, Maps: recordMaps}
}

func TestRecordsCompiledAsInterpreted(t *testing.T) {
	for _, at := range []abi.Addr{arenaNear, arenaFar} {
		for _, free := range []int{1, 1 << 20} {
			h := newHelperHarness(t, at, recordMaps)
			h.freeEach(free)
			m := newModel(h)
			for seed := range uint64(100) {
				r := rand.New(rand.NewPCG(seed, 10))
				site := randomSite(r)
				p := records(r)
				v := trusted(t, p)
				h.install(site, v)
				if err := h.same(m, randomRun(r), site, []*bpf.Verified{v}); err != nil {
					t.Fatalf("seed %d: %v\n%v", seed, err, p)
				}
			}
		}
	}
}

// What is no record is an error, and the ring stays as it was.
func TestRecordsOfOtherSizes(t *testing.T) {
	h := newHelperHarness(t, arenaNear, recordMaps)
	for _, size := range []int32{0, abi.MaxRecord - abi.RecPayload + 1, 1 << 30, -1} {
		v := trusted(t, &bpf.Program{Name: "size", Input: bpf.Input{Memory: true}, Maps: recordMaps, Insns: bpfasm.Instructions{
			bpf.LoadMap(bpfasm.R1, 0), bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10), bpfasm.Mov.Imm(bpfasm.R3, size), bpfasm.Mov.Imm(bpfasm.R4, 0),
			bpfasm.FnRingbufOutput.Call(), bpfasm.Return()}})
		if n, err := h.callFunction(v, nil); err != nil || int64(n) != errTooBig {
			t.Errorf("a record of %d bytes: %d, %v", size, int64(n), err)
		}
		if slot := h.slotOf(h.tp); h.word(h.slotBase(slot)+abi.SlotRingHead) != 0 {
			t.Errorf("a record of %d bytes was written", size)
		}
	}
}

// A record is cleared where it lies, also when it is not submitted: the target's
// stack beside it stays as it was.
func TestDiscardedRecordsStayInTheFrame(t *testing.T) {
	h := newHelperHarness(t, arenaNear, recordMaps)
	for _, size := range []int32{8, 120, 400} {
		v := trusted(t, &bpf.Program{Name: "discard", Maps: recordMaps, Insns: bpfasm.Instructions{
			bpf.LoadMap(bpfasm.R1, 0), bpfasm.Mov.Imm(bpfasm.R2, size), bpfasm.Mov.Imm(bpfasm.R3, 0), bpfasm.FnRingbufReserve.Call(),
			bpfasm.Mov.Reg(bpfasm.R1, bpfasm.R0), bpfasm.Mov.Imm(bpfasm.R2, 0), bpfasm.FnRingbufDiscard.Call(), bpfasm.Mov.Imm(bpfasm.R0, 0), bpfasm.Return()}})
		d, err := Emit(asm.New(entryBase), []*bpf.Verified{v}, busySite, h.env)
		if err != nil {
			t.Fatal(err)
		}
		if d.FrameSize() < int(size)+redZone {
			t.Errorf("a record of %d bytes in a frame of %d", size, d.FrameSize())
		}
		h.install(busySite, v)
		rq := randomRun(rand.New(rand.NewPCG(1, 1)))
		rp := h.do(rq)
		if err := rp.check(&rq, busySite); err != nil {
			t.Error(err)
		}
	}
}

// ringbuf_query tells of the thread's ring, whether its flags are known or not.
func TestRingQuery(t *testing.T) {
	maps := []abi.MapSpec{{Name: "ring", Kind: abi.RingBuf}}
	h := newHelperHarness(t, arenaNear, maps)
	m := newModel(h)
	write := trusted(t, &bpf.Program{Name: "write", Maps: maps, Input: bpf.Input{Memory: true, Size: 16}, Insns: bpfasm.Instructions{
		bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R1), bpf.LoadMap(bpfasm.R1, 0), bpfasm.Mov.Imm(bpfasm.R3, 16), bpfasm.Mov.Imm(bpfasm.R4, 0),
		bpf.Call(bpf.HelperRingbufOutput), bpfasm.Return()}})
	for range 3 {
		if n, err := h.callFunction(write, make([]byte, 16)); n != 0 || err != nil {
			t.Fatal(int64(n), err)
		}
	}
	base := h.slotBase(h.slotOf(h.tp))
	h.putWord(base+abi.SlotRingTail, 32)
	copy(m.Arena, h.arena)
	m.reset(h.slotOf(h.tp))
	for _, flags := range []int64{0, 1, 2, 3, 4, -1, 1 << 32} {
		want := map[int64]uint64{bpf.RingAvailable: 64, bpf.RingSize: h.env.Layout.RingSize, bpf.RingConsumed: 32, bpf.RingProduced: 96}[flags]
		for name, load := range map[string]bpfasm.Instruction{
			"known": bpfasm.LoadImm(bpfasm.R2, flags, bpfasm.DWord), "loaded": bpfasm.LoadMem(bpfasm.R2, bpfasm.R1, 0, bpfasm.DWord)} {
			v, err := bpf.Verify(&bpf.Program{Name: "query", Maps: maps, Input: bpf.Input{Memory: true, Size: 16}, Insns: bpfasm.Instructions{
				load, bpf.LoadMap(bpfasm.R1, 0), bpf.Call(bpfasm.FnRingbufQuery), bpfasm.Return()}})
			if err != nil {
				t.Fatal(err)
			}
			memory := binary.LittleEndian.AppendUint64(nil, uint64(flags))
			memory = append(memory, make([]byte, 8)...)
			got, err := h.callFunction(v, memory)
			interpreted, modelErr := m.RunMemory(v, memory)
			if err != nil || modelErr != nil || got != want || interpreted != want {
				t.Errorf("ringbuf_query(%d), %s, is %d and interpreted %d, not %d: %v %v", flags, name, got, interpreted, want, err, modelErr)
			}
		}
	}
}
