package x86

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	asm "trapless/internal/asm/x86"
	"trapless/internal/bpf"
	"trapless/internal/testkit"
)

// mapKinds are the kernel's map types, as the engine has them.
var mapKinds = map[ebpf.MapType]abi.MapKind{
	ebpf.Hash: abi.Hash, ebpf.Array: abi.Array, ebpf.PerCPUHash: abi.PerSlotHash, ebpf.PerCPUArray: abi.PerSlotArray,
	ebpf.LRUHash: abi.Hash, ebpf.StackTrace: abi.StackTrace, ebpf.RingBuf: abi.RingBuf, ebpf.PerfEventArray: abi.PerfEventArray,
}

// object is an object file that clang made.
type object struct {
	maps     []abi.MapSpec
	contents map[int][]byte // of maps that do not begin with zeros
	programs []*bpf.Program
}

func compileObject(t testing.TB, source, cpu string) *object {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpec(testkit.CompileObject(t, source, cpu))
	if err != nil {
		t.Fatal(err)
	}
	o := &object{contents: map[int][]byte{}}
	constants, numbers := map[int][]byte{}, map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(spec.Maps)) {
		m := spec.Maps[name]
		n := len(o.maps)
		if len(m.Contents) == 1 {
			o.contents[n] = m.Contents[0].Value.([]byte)
		}
		if strings.HasPrefix(name, ".rodata") {
			constants[n] = o.contents[n]
		}
		numbers[name] = n
		entries := int(m.MaxEntries)
		if mapKinds[m.Type] == abi.Hash {
			entries = min(entries, 16) // so that it is soon full
		}
		o.maps = append(o.maps, abi.MapSpec{Name: name, Kind: mapKinds[m.Type], KeySize: int(m.KeySize), ValueSize: int(m.ValueSize), MaxEntries: entries})
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Programs)) {
		p := &bpf.Program{Name: name, Insns: slices.Clone(spec.Programs[name].Instructions), Maps: o.maps, Constants: constants}
		for i := range p.Insns {
			if in := &p.Insns[i]; in.IsLoadFromMap() {
				in.Constant = in.Constant>>32<<32 | int64(numbers[in.Reference()])
			}
		}
		o.programs = append(o.programs, p)
	}
	return o
}

// TestObjectsCompiledAsInterpreted runs what clang makes of programs like those
// that people write.
func TestObjectsCompiledAsInterpreted(t *testing.T) {
	sources, err := filepath.Glob(filepath.Join("..", "..", "bpf", "testdata", "objects", "*.c"))
	if err != nil || len(sources) == 0 {
		t.Fatal(err, "no sources")
	}
	ran := 0
	for _, source := range sources {
		for _, cpu := range []string{"v1", "v3"} {
			if cpu == "v1" && filepath.Base(source) == "narrow.c" {
				continue // it is about instructions that v1 lacks
			}
			ran += runObject(t, compileObject(t, source, cpu), filepath.Base(source)+" "+cpu)
		}
	}
	t.Logf("%d programs", ran)
	if ran < 30 {
		t.Errorf("only %d programs ran", ran)
	}
}

func runObject(t *testing.T, o *object, name string) (ran int) {
	if _, err := abi.NewLayout(abi.Config{Threads: 4, Maps: o.maps, RingSize: 1 << 12}); err != nil {
		t.Logf("%s: %v", name, err)
		return 0
	}
	for _, at := range []abi.Addr{arenaNear, arenaFar} {
		h := newHelperHarness(t, at, o.maps)
		for n, b := range o.contents {
			copy(h.arena[h.env.Layout.Maps[n].Values:], b)
		}
		h.env.Constants = map[int]abi.Addr{}
		for _, p := range o.programs {
			for n := range p.Constants { // nobody writes to the harness's arena
				h.env.Constants[n] = h.env.Arena + abi.Addr(h.env.Layout.Maps[n].Values)
			}
		}
		h.putWord(abi.HdrClock+8+abi.ClockNS, 123456789) // it stands still
		m := newModel(h)
		m.Now = func() uint64 { return 123456789 }
		m.ReadUser, m.TID, m.Comm, m.UIDGID = h.readUser, uint32(h.pid), h.comm, uint64(h.gid)<<32|uint64(h.uid)
		for _, p := range o.programs {
			v, err := bpf.Verify(p)
			if err != nil {
				t.Logf("%s, %s: %v", name, p.Name, strings.Split(err.Error(), "\n")[0])
				continue
			}
			if slices.ContainsFunc(p.Insns, func(in bpfasm.Instruction) bool {
				return in.IsBuiltinCall() && (in.Constant == int64(bpfasm.FnGetPrandomU32) || in.Constant == int64(bpfasm.FnGetSmpProcessorId))
			}) {
				t.Logf("%s, %s: what it does depends on chance", name, p.Name)
				continue
			}
			ran++
			for seed := range uint64(20) {
				h.runAlike(t, m, v, p, name, seed)
			}
		}
	}
	return ran
}

// runAlike runs a program at a random site on random registers, some of which
// point to text.
func (h *harness) runAlike(t *testing.T, m *model, v *bpf.Verified, p *bpf.Program, name string, seed uint64) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 11))
	site := randomSite(r)
	h.install(site, v)
	text := h.code[memoryBase-codeBase:][:256]
	for i := range text {
		text[i] = byte('a' + r.IntN(26))
		if r.IntN(12) == 0 {
			text[i] = 0
		}
		if i%64 == 0 { // and to other text
			binary.LittleEndian.PutUint64(text[i:], uint64(memoryBase)+r.Uint64N(300))
		}
	}
	rq := randomRun(r)
	for _, reg := range []asm.Reg{asm.RDI, asm.RSI, asm.RDX} {
		switch r.IntN(3) {
		case 0:
			rq.Regs[reg] = uint64(memoryBase) + r.Uint64N(128)
		case 1:
			rq.Regs[reg] = r.Uint64N(40)
		}
	}
	if err := h.same(m, rq, site, []*bpf.Verified{v}); err != nil {
		t.Fatalf("%s, seed %d, registers %x: %v\n%v", name, seed, rq.Regs, err, p)
	}
}
