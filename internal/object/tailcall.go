package object

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"trapless/internal/bpf"
)

// A tail call leads to a program of an array, which is known here: so programs and what
// their tail calls may lead to become one program. A call becomes a jump to a stub behind
// the function, which compares array and index with all that there are and jumps to the
// program that they mean, whose instructions lie behind the function, too: a tail call
// keeps the caller's frame. Where there is none, or when there were too many, the stub
// jumps back behind the call.

// arrayMark is what a reference to a program array becomes, with the map's number.
const arrayMark = 0x7a110000

// tailTarget is an entry of a program array.
type tailTarget struct {
	index   uint32
	program string
}

// programArray reads the entries of a program array.
func (l *loader) programArray(name string, spec *ebpf.MapSpec) ([]tailTarget, error) {
	var out []tailTarget
	for _, kv := range spec.Contents {
		key, err := marshal(kv.Key, 4)
		if err != nil {
			return nil, fmt.Errorf("map %s: key: %w", name, err)
		}
		t := tailTarget{index: binary.LittleEndian.Uint32(key)}
		var ok bool
		if t.program, ok = kv.Value.(string); !ok || l.spec.Programs[t.program] == nil {
			return nil, fmt.Errorf("map %s: entry %d is %v, which is no program of the collection", name, t.index, kv.Value)
		}
		if t.index >= spec.MaxEntries {
			return nil, fmt.Errorf("map %s: there is no entry %d, it has %d", name, t.index, spec.MaxEntries)
		}
		out = append(out, t)
	}
	return out, nil
}

// tailCalled reports whether a program is an entry of a program array.
func (l *loader) tailCalled(name string) bool {
	for _, array := range l.arrays {
		if slices.ContainsFunc(array, func(t tailTarget) bool { return t.program == name }) {
			return true
		}
	}
	return false
}

func isTailCall(in asm.Instruction) bool {
	return in.IsBuiltinCall() && in.Constant == int64(asm.FnTailCall)
}

// linker puts a program and what its tail calls lead to together.
type linker struct {
	*loader
	out    asm.Instructions
	todo   []asm.Instructions // functions that come next
	known  map[string]string  // functions that there are, by their names: their text
	stubs  int
	bodies map[string]string // programs that are behind this function, and their labels
	wanted []string          // those of them that are still to come
}

// link returns a program without tail calls.
func (l *loader) link(name string, insns asm.Instructions) (asm.Instructions, error) {
	if len(l.arrays) == 0 || !slices.ContainsFunc(insns, isTailCall) {
		return insns, nil
	}
	k := &linker{loader: l, known: map[string]string{}}
	main, err := k.split(insns)
	if err != nil {
		return nil, err
	}
	const self = "its start"
	if main[0].Symbol() == "" {
		main[0] = main[0].WithSymbol(self)
	}
	for first := true; first || len(k.todo) > 0; first = false {
		f := main
		k.bodies = map[string]string{}
		if first {
			k.bodies[name] = main[0].Symbol()
		} else {
			f, k.todo = k.todo[0], k.todo[1:]
		}
		if err := k.function(f); err != nil {
			return nil, err
		}
	}
	return k.out, nil
}

// split takes the functions that a program calls apart from the program, and has them
// come later.
func (k *linker) split(insns asm.Instructions) (main asm.Instructions, err error) {
	starts := []int{0}
	for i := range insns {
		s := insns[i].Symbol()
		if i > 0 && s != "" && slices.ContainsFunc(insns, func(in asm.Instruction) bool {
			return (in.IsFunctionCall() || in.IsFunctionReference()) && in.Reference() == s
		}) {
			starts = append(starts, i)
		}
	}
	for n, start := range starts {
		end := len(insns)
		if n+1 < len(starts) {
			end = starts[n+1]
		}
		f := slices.Clone(insns[start:end])
		if n == 0 {
			main = f
			continue
		}
		name, text := f[0].Symbol(), fmt.Sprint(f)
		switch have, ok := k.known[name]; {
		case !ok:
			k.known[name] = text
			k.todo = append(k.todo, f)
		case have != text:
			return nil, fmt.Errorf("a tail call joins programs with different functions %s: give them different names", name)
		}
	}
	return main, nil
}

// function adds a function, and behind it the programs that its tail calls lead to.
func (k *linker) function(f asm.Instructions) error {
	k.segment(f)
	for len(k.wanted) > 0 {
		name := k.wanted[0]
		k.wanted = k.wanted[1:]
		insns, err := k.code(name, k.spec.Programs[name])
		if err != nil {
			return fmt.Errorf("program %s, to which a tail call leads: %w", name, err)
		}
		main, err := k.split(insns)
		if err != nil {
			return err
		}
		relabel(main, k.bodies[name])
		k.segment(main)
	}
	return nil
}

// relabel gives the labels of a program new names, which no other copy has.
func relabel(insns asm.Instructions, label string) {
	renamed := map[string]string{}
	for i := range insns {
		if s := insns[i].Symbol(); s != "" && i > 0 {
			renamed[s] = s + " of " + label
			insns[i] = insns[i].WithSymbol(renamed[s])
		}
	}
	if old := insns[0].Symbol(); old != "" {
		renamed[old] = label
	}
	insns[0] = insns[0].WithSymbol(label)
	for i := range insns {
		if to, ok := renamed[insns[i].Reference()]; ok && !insns[i].IsFunctionCall() && !insns[i].IsFunctionReference() {
			insns[i] = insns[i].WithReference(to)
		}
	}
}

// segment adds instructions, with stubs instead of their tail calls.
func (k *linker) segment(f asm.Instructions) {
	var stubs asm.Instructions
	for i := range f {
		if !isTailCall(f[i]) || i+1 == len(f) {
			continue
		}
		k.stubs++
		stub, back := fmt.Sprint("tail call ", k.stubs), f[i+1].Symbol()
		if back == "" {
			back = fmt.Sprint("behind ", stub)
			f[i+1] = f[i+1].WithSymbol(back)
		}
		jump := asm.Ja.Label(stub)
		jump.Metadata = f[i].Metadata
		f[i] = jump.WithReference(stub)
		stubs = append(stubs, k.stub(stub, back)...)
	}
	k.out = append(append(k.out, f...), stubs...)
}

// stub jumps to the program that r2 and r3 mean, with the context in r1.
func (k *linker) stub(label, back string) asm.Instructions {
	out := asm.Instructions{asm.Mov.Reg32(asm.R3, asm.R3).WithSymbol(label)}
	var enter asm.Instructions
	for _, n := range slices.Sorted(maps.Keys(k.arrays)) {
		next := fmt.Sprintf("%s, not %d", label, n)
		out = append(out, asm.JNE.Imm(asm.R2, int32(arrayMark+n), next))
		for _, t := range k.arrays[n] {
			at := fmt.Sprintf("%s, %d of %d", label, t.index, n)
			out = append(out, asm.JEq.Imm(asm.R3, int32(t.index), at))
			enter = append(enter, bpf.Call(bpf.HelperTailCount).WithSymbol(at), asm.JEq.Imm(asm.R0, 0, back),
				bpf.Call(bpf.HelperContext), asm.Mov.Reg(asm.R1, asm.R0), asm.Ja.Label(k.body(t.program)))
		}
		out = append(out, asm.Ja.Label(back), asm.Mov.Imm(asm.R0, 0).WithSymbol(next))
	}
	return append(append(out, asm.Ja.Label(back)), enter...)
}

// body is the label of a program behind the function, which comes if it is not there.
func (k *linker) body(program string) string {
	label, ok := k.bodies[program]
	if !ok {
		label = fmt.Sprintf("%s behind function %d", program, len(k.known)-len(k.todo))
		k.bodies[program] = label
		k.wanted = append(k.wanted, program)
	}
	return label
}
