package object

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"trapless/internal/abi"
	"trapless/internal/bpf"
)

// instructions makes a program of a specification's instructions: references to
// maps become numbers, and relocations are resolved.
func (l *loader) instructions(name string, spec *ebpf.ProgramSpec) (*bpf.Program, error) {
	if spec.ByteOrder != nil && spec.ByteOrder != binary.LittleEndian {
		return nil, fmt.Errorf("it is compiled for %v; compile with -target bpfel", spec.ByteOrder)
	}
	insns, err := l.code(name, spec)
	if err == nil {
		insns, err = l.link(name, insns)
	}
	if err != nil {
		return nil, err
	}
	p := &bpf.Program{Name: name, Insns: insns, Constants: map[int][]byte{}}
	for i := range l.object.Maps {
		m := &l.object.Maps[i]
		p.Maps = append(p.Maps, m.Spec)
		if m.ReadOnly() && len(m.Contents) == 1 {
			p.Constants[i] = m.Contents[0].Value
		}
	}
	return p, nil
}

// code is a program's instructions, with references and relocations resolved.
func (l *loader) code(name string, spec *ebpf.ProgramSpec) (asm.Instructions, error) {
	insns, err := usdtCalls(spec.Instructions)
	if err != nil {
		return nil, err
	}
	if err := relocate(insns); err != nil {
		return nil, err
	}
	for i := range insns {
		if err := l.reference(&insns[i]); err != nil {
			return nil, fmt.Errorf("instruction %d: %w%s", i, err, at(insns, i))
		}
	}
	return insns, nil
}

// reference gives a map's number to an instruction that refers to it.
func (l *loader) reference(in *asm.Instruction) error {
	ref := in.Reference()
	switch {
	case in.IsLoadFromMap() && ref == "" && in.Src == asm.PseudoMapValue:
		return fmt.Errorf("it reads a variable of the kernel's configuration (%s): %w", l.kconfig(), errKernel)
	case in.IsLoadFromMap():
		return l.mapReference(in, ref)
	case in.IsConstantLoad(asm.DWord) && ref != "" && in.Src == asm.R0:
		return fmt.Errorf("it refers to the kernel's symbol %s: %w", ref, errKernel)
	case in.IsKfuncCall():
		return fmt.Errorf("it calls the kernel's function %s: %w", ref, errKernel)
	}
	return nil
}

func (l *loader) mapReference(in *asm.Instruction, name string) error {
	n, ok := l.numbers[name]
	if !ok {
		return fmt.Errorf("there is no map %q", name)
	}
	if _, ok := l.arrays[n]; ok {
		mark := asm.LoadImm(in.Dst, arrayMark+int64(n), asm.DWord)
		mark.Metadata = in.Metadata
		*in = mark.WithReference("")
		return nil
	}
	in.Constant = in.Constant>>32<<32 | int64(n)
	return nil
}

// usesOnlyMaps refuses a verified program that may come to use a map which the engine
// lacks.
func (l *loader) usesOnlyMaps(p *bpf.Program, v *bpf.Verified) error {
	code := v.Code()
	for i := range code.Insns {
		in := &code.Insns[i]
		if in.Kind != bpf.LoadRef && in.Kind != bpf.LoadValue || code.Dead[i] {
			continue
		}
		if err := l.unusable[int(in.Imm)]; err != nil {
			return fmt.Errorf("instruction %d: %w%s", i, err, at(p.Insns, i))
		}
	}
	return nil
}

// whyNot is why a program was not verified: the first map that the engine lacks, if
// it uses one, or else what the verifier says.
func (l *loader) whyNot(p *bpf.Program, err error) error {
	for i := range p.Insns {
		if in := &p.Insns[i]; in.IsLoadFromMap() {
			if missing := l.unusable[int(int32(in.Constant))]; missing != nil {
				return fmt.Errorf("instruction %d: %w%s", i, missing, at(p.Insns, i))
			}
		}
	}
	return err
}

// kconfig names the variables that the object file wants of the kernel's
// configuration.
func (l *loader) kconfig() string {
	var section *btf.Datasec
	if l.spec.Types == nil || l.spec.Types.TypeByName(".kconfig", &section) != nil {
		return ".kconfig"
	}
	var names []string
	for _, v := range section.Vars {
		names = append(names, v.Type.TypeName())
	}
	return strings.Join(names, ", ")
}

// at is where in its source an instruction stands, for a message.
func at(insns asm.Instructions, i int) string {
	for ; i >= 0; i-- {
		if line, ok := insns[i].Source().(*btf.Line); ok {
			return fmt.Sprintf(" (%s:%d: %s)", line.FileName(), line.LineNumber(), strings.TrimSpace(line.Line()))
		}
		if insns[i].Symbol() != "" {
			break
		}
	}
	return ""
}

// relocate resolves the CO-RE relocations of a program against what a process
// has: struct pt_regs. A type or a field that does not exist there is answered so
// where the program asks for that; else the instruction becomes one that the
// verifier refuses if it can be reached, as the kernel does.
func relocate(insns asm.Instructions) error {
	var relocations []*btf.CORERelocation
	var where []int
	for i := range insns {
		if r := btf.CORERelocationMetadata(&insns[i]); r != nil {
			relocations, where = append(relocations, r), append(where, i)
		}
	}
	if len(relocations) == 0 {
		return nil
	}
	target, err := processTypes()
	if err != nil {
		return err
	}
	for k, r := range relocations {
		fixups, err := btf.CORERelocate([]*btf.CORERelocation{r}, []*btf.Spec{target}, binary.LittleEndian, localType)
		if err == nil {
			err = fixups[0].Apply(&insns[where[k]])
		}
		if err != nil {
			return fmt.Errorf("instruction %d: CO-RE relocation %v: %w; of the kernel's types a process has struct pt_regs alone%s", where[k], r, err, at(insns, where[k]))
		}
	}
	return nil
}

// localType is asked for the number of a type of the program's own, which nothing
// here knows.
func localType(btf.Type) (btf.TypeID, error) {
	return 0, errors.New("type numbers are not supported")
}

// processTypes are the kernel's types that a process has: struct pt_regs, with the
// names of its fields inside the kernel and those for programs
// (arch/x86/include/asm/ptrace.h, arch/x86/include/uapi/asm/ptrace.h).
func processTypes() (*btf.Spec, error) {
	var types []btf.Type
	for _, names := range [][]string{
		{"r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di", "orig_ax", "ip", "cs", "flags", "sp", "ss"},
		{"r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi", "orig_rax", "rip", "cs", "eflags", "rsp", "ss"},
	} {
		word := &btf.Int{Name: "long unsigned int", Size: 8, Encoding: btf.Unsigned}
		regs := &btf.Struct{Name: "pt_regs", Size: bpf.PtRegsEnd}
		for i, name := range names {
			regs.Members = append(regs.Members, btf.Member{Name: name, Type: word, Offset: btf.Bits(64 * i)})
		}
		types = append(types, regs)
	}
	b, err := btf.NewBuilder(types, nil)
	if err != nil {
		return nil, err
	}
	return b.Spec()
}

// RingSize is how many bytes a thread's ring needs for the object's rings.
func (o *Object) RingSize() uint64 {
	size := uint64(0)
	for i := range o.Maps {
		m := &o.Maps[i]
		if m.Ring() {
			size = max(size, min(max(m.Size, leastRing), mostRing))
		}
	}
	for i := range o.Programs {
		if size == 0 && prints(o.Programs[i].Prog) {
			size = leastRing
		}
	}
	for size&(size-1) != 0 { // to a power of two
		size += size & -size
	}
	return size
}

// Limits of a thread's ring, in bytes.
const (
	leastRing = 64 << 10
	mostRing  = 1 << 20
)

// prints reports whether a program writes lines by trace_printk.
func prints(p *bpf.Program) bool {
	return slices.ContainsFunc(p.Insns, func(in asm.Instruction) bool {
		return in.IsBuiltinCall() && (in.Constant == int64(asm.FnTracePrintk) || in.Constant == int64(asm.FnTraceVprintk))
	})
}

// Specs are the maps as an arena needs them, by number.
func (o *Object) Specs() []abi.MapSpec {
	specs := make([]abi.MapSpec, len(o.Maps))
	for i := range o.Maps {
		specs[i] = o.Maps[i].Spec
	}
	return specs
}
