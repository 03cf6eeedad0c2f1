package object

import (
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// tailCaller is a collection of two programs, of which the first calls what an array has.
func tailCaller(change func(*ebpf.CollectionSpec)) *ebpf.CollectionSpec {
	program := func(name string, insns asm.Instructions) *ebpf.ProgramSpec {
		insns[0] = insns[0].WithSymbol(name)
		return &ebpf.ProgramSpec{Name: name, Type: ebpf.Kprobe, SectionName: "uprobe", Instructions: insns, License: "GPL"}
	}
	helper := func(n int32) asm.Instructions {
		return asm.Instructions{asm.Mov.Imm(asm.R0, n).WithSymbol("helper"), asm.Return()}
	}
	call := asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoCall, Constant: -1}.WithReference("helper")
	spec := &ebpf.CollectionSpec{
		Programs: map[string]*ebpf.ProgramSpec{
			"first": program("first", append(asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1), call, asm.Mov.Reg(asm.R1, asm.R6), asm.LoadMapPtr(asm.R2, 0).WithReference("progs"),
				asm.Mov.Imm(asm.R3, 1), asm.FnTailCall.Call(), asm.Mov.Imm(asm.R0, 0), asm.Return()}, helper(1)...)),
			"second": program("second", append(asm.Instructions{call, asm.Return()}, helper(1)...)),
		},
		Maps: map[string]*ebpf.MapSpec{"progs": {Name: "progs", Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 2,
			Contents: []ebpf.MapKV{{Key: uint32(1), Value: "second"}}}},
	}
	if change != nil {
		change(spec)
	}
	return spec
}

// Programs that are joined share a function; what tail calls lead to needs no place of
// its own. What cannot be joined is refused by name.
func TestTailCalls(t *testing.T) {
	obj, err := New("tails", tailCaller(nil), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if p := obj.Programs; len(p) != 2 || p[0].TailCalled || !p[1].TailCalled {
		t.Errorf("the programs are %+v", p)
	}
	n := 0
	for _, in := range obj.Programs[0].Prog.Insns {
		if in.Symbol() == "helper" {
			n++
		}
	}
	if n != 1 {
		t.Errorf("the function is there %d times:\n%v", n, obj.Programs[0].Prog)
	}
	for want, change := range map[string]func(*ebpf.CollectionSpec){
		"entry 1 is third, which is no program of the collection": func(s *ebpf.CollectionSpec) { s.Maps["progs"].Contents[0].Value = "third" },
		"entry 1 is 7, which is no program of the collection":     func(s *ebpf.CollectionSpec) { s.Maps["progs"].Contents[0].Value = 7 },
		"there is no entry 2, it has 2":                           func(s *ebpf.CollectionSpec) { s.Maps["progs"].Contents[0].Key = uint32(2) },
		"joins programs with different functions helper":          func(s *ebpf.CollectionSpec) { s.Programs["second"].Instructions[2].Constant = 5 },
		"this one refers to no program array": func(s *ebpf.CollectionSpec) {
			s.Programs["first"].Instructions[3] = asm.LoadImm(asm.R2, 5, asm.DWord)
			delete(s.Maps, "progs")
		},
		"tail_count takes the context": func(s *ebpf.CollectionSpec) { s.Programs["first"].Instructions[2] = asm.Mov.Reg(asm.R1, asm.R10) },
		"map_lookup_elem takes a map in r1, which is a number": func(s *ebpf.CollectionSpec) {
			s.Programs["first"].Instructions[3].Dst, s.Programs["first"].Instructions[4].Dst, s.Programs["first"].Instructions[5] = asm.R1, asm.R2, asm.FnMapLookupElem.Call()
		},
	} {
		if _, err := New("tails", tailCaller(change), Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %q", err, want)
		}
	}
}
