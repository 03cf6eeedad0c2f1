package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"trapless/internal/abi"
	"trapless/internal/testkit"
)

// mapKinds are the kernel's map types, as the engine has them.
var mapKinds = map[ebpf.MapType]abi.MapKind{
	ebpf.Hash: abi.Hash, ebpf.Array: abi.Array, ebpf.PerCPUHash: abi.PerSlotHash, ebpf.PerCPUArray: abi.PerSlotArray,
	ebpf.LRUHash: abi.LRUHash, ebpf.StackTrace: abi.StackTrace, ebpf.RingBuf: abi.RingBuf, ebpf.PerfEventArray: abi.PerfEventArray,
}

// objectPrograms reads the programs of an object file.
func objectPrograms(t testing.TB, path string) []*Program {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpec(path)
	if err != nil {
		t.Fatal(err)
	}
	var maps []abi.MapSpec
	constants := map[int][]byte{}
	numbers := map[string]int{}
	for name, m := range spec.Maps {
		kind, ok := mapKinds[m.Type]
		if !ok {
			t.Fatalf("%s: map %s is a %v", path, name, m.Type)
		}
		if strings.HasPrefix(name, ".rodata") {
			constants[len(maps)] = m.Contents[0].Value.([]byte)
		}
		numbers[name] = len(maps)
		maps = append(maps, abi.MapSpec{Name: name, Kind: kind, KeySize: int(m.KeySize), ValueSize: int(m.ValueSize), MaxEntries: int(m.MaxEntries)})
	}
	var out []*Program
	for name, p := range spec.Programs {
		prog := &Program{Name: name, Insns: slices.Clone(p.Instructions), Maps: maps, Constants: constants}
		for i := range prog.Insns {
			in := &prog.Insns[i]
			if in.IsLoadFromMap() {
				in.Constant = in.Constant>>32<<32 | int64(numbers[in.Reference()])
			}
		}
		out = append(out, prog)
	}
	slices.SortFunc(out, func(a, b *Program) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// TestVerifyObjects verifies what clang makes of programs like those that
// people write.
func TestVerifyObjects(t *testing.T) {
	sources, err := filepath.Glob("testdata/objects/*.c")
	if err != nil || len(sources) == 0 {
		t.Fatal(err, "no sources")
	}
	programs := 0
	for _, source := range sources {
		for _, cpu := range []string{"v1", "v2", "v3"} {
			if cpu != "v3" && filepath.Base(source) == "narrow.c" {
				continue
			}
			for _, p := range objectPrograms(t, testkit.CompileObject(t, source, cpu)) {
				programs++
				if _, err := verify(p, options{missing: true}); err != nil {
					t.Errorf("%s, %s: %v", source, cpu, err)
				}
			}
		}
	}
	t.Logf("%d programs", programs)
}

// TestRefusedObjects verifies programs of which each is refused at the line of
// its source that says so.
func TestRefusedObjects(t *testing.T) {
	const source = "testdata/refused.c"
	text, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	wants := map[string]int{} // "line: word"
	for i, line := range strings.Split(string(text), "\n") {
		if _, word, ok := strings.Cut(line, "/* want "); ok {
			wants[fmt.Sprintf("%d: %s", i+1, strings.TrimSuffix(word, " */"))]++
		}
	}
	for _, p := range objectPrograms(t, testkit.CompileObject(t, source, "v3")) {
		_, err := verify(p, options{missing: true})
		var e *InsnError
		if !errors.As(err, &e) {
			t.Errorf("%s: %v", p.Name, err)
			continue
		}
		_, line, _ := strings.Cut(e.Source, "refused.c:")
		line, _, _ = strings.Cut(line, ":")
		if got := fmt.Sprintf("%s: %s", line, e.Word); wants[got] == 0 {
			t.Errorf("%s is refused at %s\n%v", p.Name, got, err)
		} else {
			delete(wants, got)
		}
	}
	for want := range wants {
		t.Errorf("nothing is refused at %s", want)
	}
}
