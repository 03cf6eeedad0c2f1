package saturation

import (
	"fmt"
	"slices"

	bpfasm "github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/arena"
	"trapless/internal/bpf"
)

// All sites of a module run the same program, which counts in the cell of an
// array that belongs to the site's address. There is a cell for each byte of
// the modules' text, so that a site's number needs no table.

// counterMap is the array of all modules, one after the other.
func counterMap(mods []*module) abi.MapSpec {
	spec := abi.MapSpec{Name: "hits", Kind: abi.PerSlotArray, KeySize: 4, ValueSize: 8}
	for _, m := range mods {
		spec.MaxEntries += int(m.text.Len())
	}
	return spec
}

// firstCell is the cell of the first byte of module number i.
func firstCell(mods []*module, i int) (n int64) {
	for _, m := range mods[:i] {
		n += int64(m.text.Len())
	}
	return n
}

// counter is the program of module number i.
func counter(mods []*module, i int) (*bpf.Verified, error) {
	zero := int64(mods[i].text.Start) - firstCell(mods, i) // the address of cell 0, if it were the module's
	const ip, cell = bpfasm.R2, bpfasm.R0
	return bpf.Verify(&bpf.Program{Name: "count", Maps: []abi.MapSpec{counterMap(mods)}, Insns: bpfasm.Instructions{
		bpfasm.LoadMem(ip, bpfasm.R1, bpf.PtRegsIP, bpfasm.DWord),
		bpfasm.LoadImm(bpfasm.R3, zero, bpfasm.DWord),
		bpfasm.Sub.Reg(ip, bpfasm.R3),
		bpfasm.StoreMem(bpfasm.R10, -8, ip, bpfasm.Word),
		bpf.LoadMap(bpfasm.R1, 0),
		bpfasm.Mov.Reg(bpfasm.R2, bpfasm.R10),
		bpfasm.Add.Imm(bpfasm.R2, -8),
		bpf.Call(bpf.HelperMapCell),
		{OpCode: bpfasm.JEq.Op(bpfasm.ImmSource), Dst: cell, Offset: 2},
		bpfasm.Mov.Imm(bpfasm.R1, 1),
		bpfasm.AddAtomic.Mem(cell, bpfasm.R1, bpfasm.DWord, 0),
		bpfasm.Mov.Imm(bpfasm.R0, 0),
		bpfasm.Return(),
	}})
}

// collect reads what was counted. Only the slots of threads that there were are
// looked at: the arena is large, and reading it makes memory of it.
func (r *run) collect(a *arena.Arena, mods []*module) error {
	l := a.Layout()
	if losses := a.Losses(); losses.Any() {
		return fmt.Errorf("hits were lost: %+v", losses)
	}
	r.traps = a.Traps()
	slots := []uint64{abi.SlotShared}
	for i := uint64(abi.SlotFirst); i < 1<<l.SlotBits; i++ {
		if a.Load(l.TPTable+8*i) != 0 {
			slots = append(slots, i)
		}
	}
	for _, at := range r.sites {
		i := slices.IndexFunc(mods, func(m *module) bool { return m.text.Contains(at) })
		cell := l.Maps[0].Cells + 8*uint64(firstCell(mods, i)+int64(at-mods[i].text.Start))
		n := uint64(0)
		for _, s := range slots {
			n += a.Load(l.Slots + s<<l.StrideShift + cell)
		}
		p := mods[i].place(at)
		r.probed = append(r.probed, p)
		if n > 0 {
			r.counts[p] = n
			r.hits += n
		}
	}
	return nil
}
