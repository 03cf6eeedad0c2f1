package bpf

import (
	"slices"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

// otherValue is a value of another slot than the run's own.
type otherValue struct {
	ml   *abi.MapLayout
	slot int
	pos  uint64
}

func (o otherValue) bytes(x *run) []byte {
	at := x.cellAt(o.ml, o.slot, o.pos)
	return x.Arena[at : at+uint64(o.ml.ValueSize)]
}

// slotValue is map_lookup_percpu_elem, for which a slot stands for a processor: the
// address of its value of the key, or 0 if there is none, or no such slot.
func (x *run) slotValue() (uint64, error) {
	m, err := x.mapArg(asm.R1)
	if err != nil {
		return 0, err
	}
	ml := &x.Layout.Maps[m]
	if !helperByID[asm.FnMapLookupPercpuElem].TakesMap(ml.Kind) {
		return 0, x.fail(ErrAccess, "map_lookup_percpu_elem does not work on map %s", ml.Name)
	}
	key, err := x.bytes(x.r[asm.R2], ml.KeySize, false)
	if err != nil {
		return 0, err
	}
	slot := uint32(x.r[asm.R3])
	pos, ok := x.find(ml, key, false)
	switch {
	case !ok || slot >= 1<<x.Layout.SlotBits:
		return 0, nil
	case int(slot) == x.Slot:
		return x.valueAddr(m, pos), nil
	}
	o := otherValue{ml, int(slot), pos}
	n := slices.Index(x.others, o)
	if n < 0 {
		n = len(x.others)
		x.others = append(x.others, o)
	}
	return otherAddr + uint64(n)*frameStride, nil
}
