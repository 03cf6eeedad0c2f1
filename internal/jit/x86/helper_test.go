package x86

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
	"trapless/internal/bpf/routine"
)

func trusted(t testing.TB, p *bpf.Program) *bpf.Verified {
	t.Helper()
	v, err := bpf.Trust(p)
	if err != nil {
		t.Fatalf("%v\n%v", err, p)
	}
	return v
}

// readProgram gets {address, size}, reads with a helper to its stack, and leaves
// {result, what is there then}.
func readProgram(t testing.TB, helper bpfasm.BuiltinFunc, size bpfasm.Instruction) *bpf.Verified {
	const buf = 64
	insns := bpfasm.Instructions{bpfasm.Mov.Reg(bpfasm.R6, bpfasm.R1), bpfasm.LoadImm(bpfasm.R0, 0x5a5a5a5a5a5a5a5a, bpfasm.DWord)}
	for off := int16(-buf); off < 0; off += 8 {
		insns = append(insns, bpfasm.StoreMem(bpfasm.R10, off, bpfasm.R0, bpfasm.DWord))
	}
	insns = append(insns, bpfasm.Mov.Reg(bpfasm.R1, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R1, -buf), size,
		bpfasm.LoadMem(bpfasm.R3, bpfasm.R6, 0, bpfasm.DWord), helper.Call(), bpfasm.StoreMem(bpfasm.R6, 0, bpfasm.R0, bpfasm.DWord))
	for off := int16(0); off < buf; off += 8 {
		insns = append(insns, bpfasm.LoadMem(bpfasm.R1, bpfasm.R10, off-buf, bpfasm.DWord), bpfasm.StoreMem(bpfasm.R6, 16+off, bpfasm.R1, bpfasm.DWord))
	}
	return trusted(t, &bpf.Program{Name: "read", Input: bpf.Input{Memory: true, Size: 16 + buf}, Maps: testMaps,
		Insns: append(insns, bpfasm.Mov.Imm(bpfasm.R0, 0), bpfasm.Return())})
}

// readUser is the memory of the harness, as far as it is known.
func (h *harness) readUser(addr uint64, buf []byte) bool {
	off := addr - uint64(codeBase)
	if off > codeSize || off+uint64(len(buf)) > codeSize {
		return false
	}
	copy(buf, h.code[off:])
	return true
}

func TestProbeReadUser(t *testing.T) {
	h := newHelperHarness(t, arenaNear, testMaps)
	m := newModel(h)
	m.ReadUser = h.readUser
	r := rand.New(rand.NewPCG(1, 7))
	const end = uint64(codeBase) + codeSize
	text := h.code[codeSize-3*abi.PageSize:]
	for i := range text {
		text[i] = byte(1 + r.IntN(255))
		if r.IntN(20) == 0 {
			text[i] = 0
		}
	}
	addresses := []uint64{0, 1, end, end - 1, end + 1000, 1 << 47, 1<<47 - 1, 1<<47 - abi.PageSize, 1 << 63, ^uint64(0), ^uint64(7)}
	for range 60 {
		addresses = append(addresses, end-r.Uint64N(80), end-abi.PageSize-40+r.Uint64N(80), end-2*abi.PageSize+r.Uint64N(100))
	}
	for i, helper := range []bpfasm.BuiltinFunc{bpfasm.FnProbeReadUser, bpfasm.FnProbeReadUserStr, bpfasm.FnProbeReadUser, bpfasm.FnProbeReadUserStr} {
		if i == 2 { // a part of it need not be asked for
			h.env.Memory = routine.Memory{Stack: 0x690, Permanent: []abi.Range{{Start: 4, End: 8}, {Start: abi.Addr(end) - 2*abi.PageSize, End: abi.Addr(end) - 7}}}
			h.useHelpers()
		}
		for _, v := range []*bpf.Verified{
			readProgram(t, helper, bpfasm.LoadMem(bpfasm.R2, bpfasm.R6, 8, bpfasm.DWord)),
			readProgram(t, helper, bpfasm.Mov.Imm(bpfasm.R2, 33)),
		} {
			for _, at := range addresses {
				memory := make([]byte, 80)
				binary.LittleEndian.PutUint64(memory, at)
				binary.LittleEndian.PutUint64(memory[8:], r.Uint64N(65))
				want := bytes.Clone(memory)
				if _, err := m.RunMemory(v, want); err != nil {
					t.Fatal(err)
				}
				if _, err := h.callFunction(v, memory); err != nil {
					t.Fatal(err)
				}
				if got := h.code[memoryBase-codeBase:][:len(want)]; !bytes.Equal(got, want) {
					t.Fatalf("%v of %d bytes at %#x: %x, not %x", helper, memory[8], at, got, want)
				}
			}
		}
		slot := h.slotBase(h.slotOf(h.tp))
		if direct, asked := h.word(slot+abi.SlotReads), h.word(slot+abi.SlotAsked); asked == 0 || (direct == 0) != (i < 2) {
			t.Errorf("%d reads at once, %d asked for", direct, asked)
		}
	}
}

// What lies on the stack of the running thread is read at once.
func TestReadsOfTheStackAskNobody(t *testing.T) {
	h := newHelperHarness(t, arenaNear, testMaps)
	h.env.Memory = routine.Memory{Stack: 0x690} // where glibc has it
	h.useHelpers()
	for _, helper := range []bpfasm.BuiltinFunc{bpfasm.FnProbeReadUser, bpfasm.FnProbeReadUserStr} {
		v := trusted(t, &bpf.Program{Name: "stack", Maps: testMaps, Insns: bpfasm.Instructions{
			bpfasm.LoadMem(bpfasm.R3, bpfasm.R1, bpf.PtRegsSP, bpfasm.DWord), bpfasm.Mov.Reg(bpfasm.R1, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R1, -64),
			bpfasm.Mov.Imm(bpfasm.R2, 40), helper.Call(), bpfasm.Mov.Imm(bpfasm.R0, 0), bpfasm.Return()}})
		h.install(entrySite, v)
		h.do(request{Op: opLoop, Entry: uint64(entryBase), Threads: 4, Iterations: 1000})
	}
	h.do(request{Op: opStorm, Entry: uint64(entryBase), Iterations: 1000, Keys: 1}) // the first thread's
	var direct, asked uint64
	for slot := range 1 << h.env.Layout.SlotBits {
		direct, asked = direct+h.word(h.slotBase(slot)+abi.SlotReads), asked+h.word(h.slotBase(slot)+abi.SlotAsked)
	}
	if direct < 9000 || asked != 0 {
		t.Errorf("%d reads at once, %d asked for", direct, asked)
	}
}

// What helpers tell about the target is what it knows of itself.
func TestIdentityHelpers(t *testing.T) {
	h := newHelperHarness(t, arenaNear, testMaps)
	call := func(helper bpfasm.BuiltinFunc) uint64 {
		t.Helper()
		v := trusted(t, &bpf.Program{Name: "helper", Input: bpf.Input{Memory: true}, Maps: testMaps,
			Insns: bpfasm.Instructions{bpfasm.Mov.Imm(bpfasm.R1, 0), helper.Call(), bpfasm.Return()}})
		n, err := h.callFunction(v, nil)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := call(bpfasm.FnGetCurrentPidTgid); n != uint64(h.env.TGID)<<32|uint64(h.pid) {
		t.Errorf("get_current_pid_tgid is %#x, the thread is %d", n, h.pid)
	}
	h.env.ThreadID = 0x2d0 // where glibc has it
	if n := call(bpfasm.FnGetCurrentPidTgid); n != uint64(h.env.TGID)<<32|uint64(h.pid) {
		t.Errorf("get_current_pid_tgid is %#x by the thread's own memory, the thread is %d", n, h.pid)
	}
	if n := call(bpfasm.FnGetCurrentUidGid); n != uint64(h.gid)<<32|uint64(h.uid) {
		t.Errorf("get_current_uid_gid is %#x", n)
	}
	if n := call(bpfasm.FnGetSmpProcessorId); n > 1<<12 {
		t.Errorf("get_smp_processor_id is %d", n)
	}
	if n := call(bpfasm.FnGetNumaNodeId); n > 1<<10 {
		t.Errorf("get_numa_node_id is %d", n)
	}
	if a, b := call(bpfasm.FnGetPrandomU32), call(bpfasm.FnGetPrandomU32); a == b || a>>32 != 0 {
		t.Errorf("get_prandom_u32 is %#x and %#x", a, b)
	}
	if a, b := call(bpfasm.FnKtimeGetBootNs), call(bpfasm.FnKtimeGetBootNs); a == 0 || b <= a {
		t.Errorf("ktime_get_boot_ns is %d and %d", a, b)
	}
	if n := call(bpfasm.FnGetFuncIp); n != 0 {
		t.Errorf("get_func_ip is %#x at a site without an address", n)
	}
}

func TestComm(t *testing.T) {
	h := newHelperHarness(t, arenaFar, testMaps)
	for size := range 21 {
		if size == 0 {
			continue
		}
		memory := bytes.Repeat([]byte{0xff}, 24)
		v := trusted(t, &bpf.Program{Name: "comm", Input: bpf.Input{Memory: true, Size: len(memory)}, Maps: testMaps,
			Insns: bpfasm.Instructions{bpfasm.Mov.Imm(bpfasm.R2, int32(size)), bpfasm.FnGetCurrentComm.Call(), bpfasm.Return()}})
		if n, err := h.callFunction(v, memory); err != nil || n != 0 {
			t.Fatal(n, err)
		}
		want := bytes.Repeat([]byte{0xff}, 24)
		clear(want[:size])
		copy(want[:size-1], h.comm)
		if got := h.code[memoryBase-codeBase:][:24]; !bytes.Equal(got, want) {
			t.Errorf("get_current_comm of %d bytes: %q, not %q", size, got, want)
		}
	}
}

// BenchmarkHelper measures calls of a function that calls a helper.
func BenchmarkHelper(b *testing.B) {
	h := newHelperHarness(b, arenaNear, kernelMaps)
	read := func(helper bpfasm.BuiltinFunc, size int32) *bpf.Verified {
		return trusted(b, &bpf.Program{Name: "read", Maps: kernelMaps, Insns: bpfasm.Instructions{
			bpfasm.Mov.Reg(bpfasm.R1, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R1, -64), bpfasm.Mov.Imm(bpfasm.R2, size),
			bpfasm.LoadImm(bpfasm.R3, int64(memoryBase), bpfasm.DWord), helper.Call(), bpfasm.Mov.Imm(bpfasm.R0, 0), bpfasm.Return()}})
	}
	lookup := func(m int) *bpf.Verified {
		return trusted(b, &bpf.Program{Name: "lookup", Maps: kernelMaps, Insns: bpfasm.Instructions{
			bpfasm.LoadMem(bpfasm.R3, bpfasm.R1, bpf.PtRegsDI, bpfasm.DWord), bpfasm.StoreMem(bpfasm.R10, -8, bpfasm.R3, bpfasm.DWord),
			bpf.LoadMap(bpfasm.R1, m), bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R2, -8), bpf.Call(bpfasm.FnMapLookupElem),
			bpfasm.JEq.Imm(bpfasm.R0, 0, "out"), bpfasm.Mov.Imm(bpfasm.R1, 1), bpfasm.AddAtomic.Mem(bpfasm.R0, bpfasm.R1, bpfasm.DWord, 0),
			bpfasm.Mov.Imm(bpfasm.R0, 0).WithSymbol("out"), bpfasm.Return()}})
	}
	copy(h.code[memoryBase-codeBase:], "fifteen letters\x00")
	for name, v := range map[string]*bpf.Verified{
		"read 16": read(bpfasm.FnProbeReadUser, 16), "read string 16": read(bpfasm.FnProbeReadUserStr, 64),
		"array": lookup(0), "hash miss": lookup(4), "clock": trusted(b, &bpf.Program{Name: "clock", Maps: kernelMaps, Insns: bpfasm.Instructions{
			bpfasm.FnKtimeGetNs.Call(), bpfasm.StoreMem(bpfasm.R10, -8, bpfasm.R0, bpfasm.DWord), bpf.LoadMap(bpfasm.R1, 0),
			bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R2, -8), bpf.Call(bpfasm.FnMapLookupElem), bpfasm.Mov.Imm(bpfasm.R0, 0), bpfasm.Return()}}),
	} {
		b.Run(fmt.Sprint(name), func(b *testing.B) {
			h.install(entrySite, v)
			took := h.do(request{Op: opLoop, Entry: uint64(entryBase), Threads: 1, Iterations: uint64(b.N), Regs: [16]uint64{asm.RDI: 3}}).Result
			b.ReportMetric(float64(took)/float64(b.N), "ns/hit")
		})
	}
}

func TestSyscalls(t *testing.T) {
	for want, insns := range map[string]bpfasm.Instructions{
		"":                     {bpf.Call(bpf.HelperGetCurrentPidTgid), bpfasm.RSh.Imm(bpfasm.R0, 32), bpfasm.FnKtimeGetNs.Call(), bpfasm.Return()},
		"get_current_pid_tgid": {bpf.Call(bpf.HelperGetCurrentPidTgid), bpfasm.RSh.Imm(bpfasm.R0, 31), bpfasm.Return()},
		"probe_read_user":      {bpfasm.FnProbeReadUser.Call(), bpfasm.Return()},
		"get_current_comm":     {bpfasm.FnGetCurrentComm.Call(), bpfasm.Return()},
	} {
		got := slices.Collect(maps.Keys(Syscalls(trusted(t, &bpf.Program{Name: "p", Insns: insns}), &Env{})))
		if want == "" && len(got) != 0 || want != "" && !slices.Equal(got, []string{want}) {
			t.Errorf("%q, not %q", got, want)
		}
	}
}

// Helpers take fuel where they can be called again and again, and those that make
// system calls always do: a hit stays short.
func TestHelpersTakeFuel(t *testing.T) {
	h := newHelperHarness(t, arenaNear, kernelMaps)
	m := newModel(h)
	m.ReadUser = h.readUser
	loop := func(body ...bpfasm.Instruction) *bpf.Verified {
		insns := bpfasm.Instructions{bpfasm.Mov.Reg(bpfasm.R6, bpfasm.R1), bpfasm.LoadMem(bpfasm.R7, bpfasm.R1, 0, bpfasm.DWord),
			bpfasm.Instruction{OpCode: bpfasm.StoreImmOp(bpfasm.DWord), Dst: bpfasm.R10, Offset: -8}, bpfasm.Mov.Imm(bpfasm.R8, 0)}
		insns = append(insns, body[0].WithSymbol("loop"))
		insns = append(insns, body[1:]...)
		insns = append(insns, bpfasm.Add.Imm(bpfasm.R8, 1), bpfasm.StoreMem(bpfasm.R6, 8, bpfasm.R8, bpfasm.DWord), bpfasm.JLT.Reg(bpfasm.R8, bpfasm.R7, "loop"),
			bpfasm.Mov.Imm(bpfasm.R0, 0), bpfasm.Return())
		return trusted(t, &bpf.Program{Name: "loop", Input: bpf.Input{Memory: true, Size: 16}, Insns: insns, Maps: kernelMaps})
	}
	read := func(size bpfasm.Instruction) []bpfasm.Instruction {
		return []bpfasm.Instruction{bpfasm.Mov.Reg(bpfasm.R1, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R1, -512), size,
			bpfasm.LoadImm(bpfasm.R3, int64(codeBase), bpfasm.DWord), bpfasm.FnProbeReadUser.Call()}
	}
	for name, v := range map[string]*bpf.Verified{
		"reads":            loop(read(bpfasm.Mov.Imm(bpfasm.R2, 500))...),
		"reads of R7 % 64": loop(append([]bpfasm.Instruction{bpfasm.Mov.Reg(bpfasm.R9, bpfasm.R7), bpfasm.And.Imm(bpfasm.R9, 63)}, read(bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R9))...)...),
		"look-ups":         loop(bpf.LoadMap(bpfasm.R1, 4), bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R2, -8), bpf.Call(bpfasm.FnMapLookupElem)),
		"an array":         loop(bpfasm.StoreImm(bpfasm.R10, -4, 1, bpfasm.Word), bpf.LoadMap(bpfasm.R1, 0), bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10), bpfasm.Add.Imm(bpfasm.R2, -4), bpf.Call(bpfasm.FnMapLookupElem)),
	} {
		for _, rounds := range []uint64{1, 20, 5000} {
			memory := make([]byte, 16)
			binary.LittleEndian.PutUint64(memory, rounds)
			want := bytes.Clone(memory)
			_, err := m.RunMemory(v, want)
			if spent := errors.Is(err, bpf.ErrFuel); err != nil && !spent || spent != (rounds == 5000) {
				t.Errorf("%d %s: %v", rounds, name, err)
			}
			misses := h.word(abi.HdrMisses)
			if _, err := h.callFunction(v, memory); err != nil {
				t.Fatal(err)
			}
			if got := h.code[memoryBase-codeBase:][:16]; !bytes.Equal(got, want) || (h.word(abi.HdrMisses) != misses) != (rounds == 5000) {
				t.Errorf("%d %s: did %d rounds, not %d", rounds, name, binary.LittleEndian.Uint64(got[8:]), binary.LittleEndian.Uint64(want[8:]))
			}
		}
	}
}

func TestStrncmp(t *testing.T) {
	h := newHelperHarness(t, arenaNear, testMaps)
	m := newModel(h)
	v := trusted(t, &bpf.Program{Name: "strncmp", Input: bpf.Input{Memory: true, Size: 32}, Maps: testMaps, Insns: bpfasm.Instructions{
		bpfasm.Mov.Reg(bpfasm.R3, bpfasm.R1), bpfasm.Add.Imm(bpfasm.R3, 16), bpfasm.LoadMem(bpfasm.R2, bpfasm.R1, 31, bpfasm.Byte),
		bpfasm.FnStrncmp.Call(), bpfasm.Return()}})
	for _, c := range []struct {
		a, b string
		n    byte
		want int64
	}{
		{"equal\x00x", "equal\x00y", 8, 0}, {"equal", "equal", 5, 0}, {"a", "b", 1, -1}, {"b", "a", 1, 1}, {"a", "b", 0, 0},
		{"longer", "long\x00", 8, 1}, {"long\x00", "longer", 8, -1}, {"same then a", "same then b", 10, 0}, {"\xff", "\x01", 1, 1},
	} {
		memory := make([]byte, 32)
		copy(memory, c.a)
		copy(memory[16:], c.b)
		memory[31] = c.n
		got, err := h.callFunction(v, memory)
		if err != nil {
			t.Fatal(err)
		}
		want, err := m.RunMemory(v, memory)
		if err != nil || int64(want) != c.want || int64(got) != c.want {
			t.Errorf("%q, %q, %d: compiled %d, interpreted %d, %v, not %d", c.a, c.b, c.n, int64(got), int64(want), err, c.want)
		}
	}
}
