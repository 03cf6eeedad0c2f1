package routine

import (
	"testing"

	"trapless/internal/abi"
	"trapless/internal/bpf"
)

// Every routine decodes: no label is missing, and no way leads out of it. What
// they do is tested where they are compiled.
func TestRoutinesAreClosed(t *testing.T) {
	var maps []abi.MapSpec
	for _, kind := range []abi.MapKind{abi.Hash, abi.LRUHash, abi.PerSlotHash} {
		for _, size := range []int{1, 3, 4, 8, 9, 16, 63} {
			maps = append(maps, abi.MapSpec{Name: "h", Kind: kind, KeySize: size, ValueSize: 100 - size, MaxEntries: 10})
		}
	}
	for _, kind := range []abi.MapKind{abi.Array, abi.PerSlotArray} {
		maps = append(maps, abi.MapSpec{Name: "a", Kind: kind, KeySize: 4, ValueSize: 7, MaxEntries: 10})
	}
	l, err := abi.NewLayout(abi.Config{Threads: 1, Maps: maps})
	if err != nil {
		t.Fatal(err)
	}
	for i := range l.Maps {
		ml := &l.Maps[i]
		programs := []*bpf.Program{Update(ml, 0x1000), Next(ml, 0x1000)}
		if !ml.Shared() {
			programs = append(programs, LookupSlot(ml, l, 0x1000))
		}
		if ml.IsHash() {
			programs = append(programs, Lookup(ml, 0x1000))
		}
		if ml.IsTable() {
			programs = append(programs, Delete(ml, 0x1000))
		}
		for _, p := range programs {
			if _, err := bpf.Decode(p); err != nil {
				t.Errorf("%+v: %v\n%v", ml.MapSpec, err, p)
			}
		}
	}
}
