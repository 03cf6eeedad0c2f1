package bpf

import (
	"encoding/binary"
	"testing"

	"trapless/internal/abi"
)

func TestChangesFromOutside(t *testing.T) {
	l, err := abi.NewLayout(abi.Config{Maps: []abi.MapSpec{
		{Name: "@h", Kind: abi.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 4},
		{Name: "@a", Kind: abi.Array, KeySize: 4, ValueSize: 16, MaxEntries: 1},
	}})
	if err != nil {
		t.Fatal(err)
	}
	m := &Machine{Arena: make([]byte, l.Size), Layout: l}
	key := func(k uint64) []byte { return binary.LittleEndian.AppendUint64(nil, k) }
	value := func(i int, k []byte, word int) (uint64, bool) {
		x := &run{Machine: m}
		pos, ok := x.lookup(&l.Maps[i], k)
		if !ok {
			return 0, false
		}
		return loadWord(m.Arena, x.valueAt(&l.Maps[i], pos)+uint64(8*word)), true
	}
	if !m.Update(0, key(7), key(40)) || !m.Add(0, key(7), 0, 2) || !m.Add(0, key(8), 0, 3) {
		t.Fatal("no room")
	}
	for k, want := range map[uint64]uint64{7: 42, 8: 3} {
		if got, ok := value(0, key(k), 0); !ok || got != want {
			t.Errorf("key %d has %d, %v; want %d", k, got, ok, want)
		}
	}
	m.Delete(0, key(7))
	if _, ok := value(0, key(7), 0); ok {
		t.Error("a key that was deleted is there")
	}
	full := false
	for k := range uint64(64) {
		full = full || !m.Add(0, key(100+k), 0, 1)
	}
	if !full {
		t.Error("a map of 4 entries took 64 keys")
	}
	if !m.Add(1, make([]byte, 4), 1, 5) || !m.Add(1, make([]byte, 4), 1, 5) {
		t.Error("an array has no room")
	}
	if got, _ := value(1, make([]byte, 4), 1); got != 10 {
		t.Errorf("the array has %d, want 10", got)
	}
}
