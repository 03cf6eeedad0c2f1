package object_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"trapless/internal/abi"
	"trapless/internal/bpf"
	"trapless/internal/lang"
	"trapless/internal/object"
)

// exit0 is a program that does nothing.
func exit0() asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}
}

// withProgram is a collection with one program.
func withProgram(section string, insns asm.Instructions) *ebpf.CollectionSpec {
	return &ebpf.CollectionSpec{Programs: map[string]*ebpf.ProgramSpec{
		"p": {Name: "p", Type: ebpf.Kprobe, SectionName: section, Instructions: insns}}}
}

// TestSections says what sections mean.
func TestSections(t *testing.T) {
	for _, row := range []struct {
		section  string
		kind     lang.ProbeKind
		path, fn string
		off      uint64
		wildcard bool
	}{
		{"uprobe", lang.Uprobe, "", "", 0, false},
		{"uprobe/a_name", lang.Uprobe, "", "", 0, false},
		{"?uretprobe.s", lang.Uretprobe, "", "", 0, false},
		{"uprobe//bin/bash:readline", lang.Uprobe, "/bin/bash", "readline", 0, false},
		{"uprobe/libc:malloc", lang.Uprobe, "libc", "malloc", 0, false},
		{"uprobe/libc.so.6:malloc+0x10", lang.Uprobe, "libc.so.6", "malloc", 16, false},
		{"uprobe.s/./server:handle+12", lang.Uprobe, "./server", "handle", 12, false},
		{"uretprobe//bin/bash:readline", lang.Uretprobe, "/bin/bash", "readline", 0, false},
		{"uprobe.multi//bin/bash:read*", lang.Uprobe, "/bin/bash", "read*", 0, true},
		{"uretprobe.multi.s/libc:m*c", lang.Uretprobe, "libc", "m*c", 0, true},
		{"usdt//bin/bash:provider:name", lang.Usdt, "/bin/bash", "name", 0, false},
		{"usdt", lang.Usdt, "", "", 0, false},
		{"kretprobe/handle_return", lang.Uretprobe, "", "", 0, false},
		{"kprobe/x:y", lang.Uprobe, "", "", 0, false}, // a function of the kernel's
	} {
		o, err := object.New("test", withProgram(row.section, exit0()), object.Options{})
		if err != nil {
			t.Errorf("%s: %v", row.section, err)
			continue
		}
		p := o.Programs[0]
		if p.Kind != row.kind || (len(p.Attach) == 1) != (row.fn != "") {
			t.Errorf("%s: %v at %v", row.section, p.Kind, p.Attach)
		}
		if row.fn == "" {
			continue
		}
		if a := p.Attach[0]; a.Kind != row.kind || a.Path != row.path || a.Func != row.fn || a.Offset != row.off || a.Wildcard != row.wildcard {
			t.Errorf("%s: %+v", row.section, a)
		}
	}
}

// TestAttachInsteadOfSection puts programs elsewhere.
func TestAttachInsteadOfSection(t *testing.T) {
	spec := withProgram("uretprobe//bin/bash:readline", exit0())
	o, err := object.New("test", spec, object.Options{Attach: map[string][]string{"p": {"libc:malloc", "uprobe:libc:free+4"}}})
	if err != nil {
		t.Fatal(err)
	}
	a := o.Programs[0].Attach
	if len(a) != 2 || a[0].Kind != lang.Uretprobe || a[0].Func != "malloc" || a[1].Kind != lang.Uprobe || a[1].Offset != 4 {
		t.Errorf("%+v", a)
	}
	s := o.Script()
	entry, exit := s.Probes[object.ScriptProbe(0, lang.Uprobe)], s.Probes[object.ScriptProbe(0, lang.Uretprobe)]
	if len(entry.Attach) != 1 || entry.Kind != lang.Uprobe || len(exit.Attach) != 1 || exit.Kind != lang.Uretprobe {
		t.Errorf("%+v", s.Probes)
	}
}

// ofMap is a program that looks a map up, with the map.
func ofMap(spec ebpf.MapSpec) *ebpf.CollectionSpec {
	c := withProgram("uprobe", asm.Instructions{
		asm.Mov.Imm(asm.R0, 0),
		asm.StoreMem(asm.R10, -8, asm.R0, asm.DWord),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, -8),
		asm.LoadMapPtr(asm.R1, 0).WithReference("m"),
		asm.FnMapLookupElem.Call(),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	})
	spec.Name = "m"
	c.Maps = map[string]*ebpf.MapSpec{"m": &spec}
	return c
}

// TestRefusals says what is refused, and by which words.
func TestRefusals(t *testing.T) {
	attach := func(at ...string) object.Options { return object.Options{Attach: map[string][]string{"p": at}} }
	config := withProgram("uprobe", asm.Instructions{
		{OpCode: asm.LoadImmOp(asm.DWord), Dst: asm.R1, Src: asm.PseudoMapValue}, asm.Mov.Imm(asm.R0, 0), asm.Return()})
	for _, row := range []struct {
		name    string
		spec    *ebpf.CollectionSpec
		options object.Options
		want    string
	}{
		{"usdt without a name", withProgram("usdt//bin/bash:p", exit0()), object.Options{}, "expected usdt/PATH:PROVIDER:NAME"},
		{"session", withProgram("uprobe.session//bin/bash:f", exit0()), object.Options{}, "session's program"},
		{"no function", withProgram("uprobe//bin/bash:", exit0()), object.Options{}, "expected uprobe/PATH:FUNCTION"},
		{"bad offset", withProgram("uprobe//bin/bash:f+x", exit0()), object.Options{}, "no function with an offset"},
		{"offset of a return", withProgram("uretprobe//bin/bash:f+4", exit0()), object.Options{}, "a return has no offset"},
		{"question mark", withProgram("uprobe.multi//bin/bash:f?", exit0()), object.Options{}, "'?' in a pattern"},
		{"no such program", withProgram("uprobe", exit0()), object.Options{Attach: map[string][]string{"q": nil}}, "no program q; it has p"},
		{"interval", withProgram("uprobe", exit0()), attach("interval:s:1"), "attach point"},
		{"map of maps", ofMap(ebpf.MapSpec{Type: ebpf.HashOfMaps, KeySize: 8, ValueSize: 4, MaxEntries: 1}), object.Options{}, "type HashOfMaps"},
		{"pinned", ofMap(ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 1, Pinning: ebpf.PinByName}), object.Options{}, "pinned"},
		{"flags", ofMap(ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 1, Flags: 1 << 9}), object.Options{}, "flags 0x200"},
		{"long key", ofMap(ebpf.MapSpec{Type: ebpf.Hash, KeySize: 80, ValueSize: 8, MaxEntries: 1}), object.Options{}, "keys of 80 bytes"},
		{"no map", func() *ebpf.CollectionSpec {
			c := ofMap(ebpf.MapSpec{})
			c.Maps = nil
			return c
		}(), object.Options{}, `no map "m"`},
		{"kconfig", config, object.Options{}, "kernel's configuration"},
		{"ksym", withProgram("uprobe", asm.Instructions{asm.LoadImm(asm.R1, 0, asm.DWord).WithReference("jiffies"), asm.Mov.Imm(asm.R0, 0), asm.Return()}),
			object.Options{}, "kernel's symbol jiffies"},
		{"kfunc", withProgram("uprobe", asm.Instructions{{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoKfuncCall, Constant: -1}, asm.Return()}),
			object.Options{}, "kernel's function"},
		{"not verified", withProgram("uprobe", asm.Instructions{asm.Return()}), object.Options{}, "r0 may not have been written"},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := object.New("test", row.spec, row.options)
			if err == nil || !errors.Is(err, object.ErrObject) || !strings.Contains(err.Error(), row.want) {
				t.Errorf("%v; want %q", err, row.want)
			}
		})
	}
}

// TestLeftOut leaves programs out that are none of a process's, and says so.
func TestLeftOut(t *testing.T) {
	spec := withProgram("uprobe", exit0())
	spec.Programs["other"] = &ebpf.ProgramSpec{Name: "other", Type: ebpf.TracePoint, SectionName: "tracepoint/sched/sched_switch", Instructions: exit0()}
	spec.Programs["kernel"] = &ebpf.ProgramSpec{Name: "kernel", Type: ebpf.Kprobe, SectionName: "kprobe/f",
		Instructions: asm.Instructions{asm.FnGetCurrentTask.Call(), asm.Return()}}
	o, err := object.New("test", spec, object.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Programs) != 1 || len(o.Remarks) != 2 || !strings.Contains(o.Remarks[0], "kernel is left out") || !strings.Contains(o.Remarks[1], "no meaning in a process") {
		t.Errorf("%v, remarks %q", o.Programs, o.Remarks)
	}
}

// TestMapNotUsed lets a program refer to a map that the engine lacks where it cannot
// come to it.
func TestMapNotUsed(t *testing.T) {
	for _, never := range []bool{true, false} {
		spec := ofMap(ebpf.MapSpec{Type: ebpf.CGroupArray, KeySize: 4, ValueSize: 4, MaxEntries: 1})
		p := spec.Programs["p"]
		jump := asm.JNE.Imm(asm.R6, 0, "use")
		if !never {
			jump = asm.JEq.Imm(asm.R6, 0, "use")
		}
		p.Instructions[0] = p.Instructions[0].WithSymbol("use")
		p.Instructions = append(asm.Instructions{asm.Mov.Imm(asm.R6, 0).WithSymbol("p"), jump, asm.Mov.Imm(asm.R0, 0), asm.Return()}, p.Instructions...)
		o, err := object.New("test", spec, object.Options{})
		switch {
		case never && err != nil:
			t.Error(err)
		case never && o.RingSize() != 0:
			t.Errorf("rings of %d bytes", o.RingSize())
		case !never && (err == nil || !strings.Contains(err.Error(), "type CGroupArray")):
			t.Errorf("accepted, or another error: %v", err)
		}
	}
}

// TestVariables reads and sets global variables before the programs run.
func TestVariables(t *testing.T) {
	word := &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed}
	spec := withProgram("uprobe", asm.Instructions{
		{OpCode: asm.LoadImmOp(asm.DWord), Dst: asm.R1, Src: asm.PseudoMapValue, Constant: 4 << 32},
		asm.LoadMem(asm.R0, asm.R1, 0, asm.Word), asm.Return()})
	spec.Programs["p"].Instructions[0] = spec.Programs["p"].Instructions[0].WithReference(".rodata")
	spec.Maps = map[string]*ebpf.MapSpec{".rodata": {Name: ".rodata", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1, Flags: 1 << 7,
		Contents: []ebpf.MapKV{{Key: uint32(0), Value: []byte{1, 0, 0, 0, 2, 0, 0, 0}}},
		Value: &btf.Datasec{Name: ".rodata", Size: 8, Vars: []btf.VarSecinfo{
			{Type: &btf.Var{Name: "a", Type: word}, Offset: 0, Size: 4}, {Type: &btf.Var{Name: "b", Type: word}, Offset: 4, Size: 4}}}}}
	spec.Variables = map[string]*ebpf.VariableSpec{"b": {Name: "b", SectionName: ".rodata", Offset: 4, Value: []byte{9, 0, 0, 0}}}
	o, err := object.New("test", spec, object.Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := []byte{1, 0, 0, 0, 9, 0, 0, 0}
	if got := o.Programs[0].Prog.Constants[0]; !bytes.Equal(got, want) || !bytes.Equal(o.Maps[0].Contents[0].Value, want) {
		t.Errorf("constants %v, contents %v", got, o.Maps[0].Contents)
	}
	if got := object.Decode(o.Maps[0].Value, want).String(); got != "{.a = 1, .b = 9}" {
		t.Error(got)
	}
	v, err := bpf.Verify(o.Programs[0].Prog)
	if err != nil {
		t.Fatal(err)
	}
	l, err := abi.NewLayout(abi.Config{Threads: 1, Maps: o.Specs()})
	if err != nil {
		t.Fatal(err)
	}
	if err := bpf.CheckMaps(v, l); err != nil {
		t.Error(err)
	}
}

// usdtProgram is a program that has r2 set by some instructions before it asks for an
// argument of a USDT probe.
func usdtProgram(before ...asm.Instruction) *ebpf.CollectionSpec {
	insns := asm.Instructions{asm.Mov.Reg(asm.R3, asm.R10).WithSymbol("p"), asm.Add.Imm(asm.R3, -8)}
	insns = append(insns, before...)
	call := asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoCall, Constant: -1}
	insns = append(insns, call.WithReference("bpf_usdt_arg"), asm.Return(),
		asm.LoadImm(asm.R0, 0, asm.DWord).WithSymbol("bpf_usdt_arg").WithReference("LINUX_HAS_BPF_COOKIE"), asm.Return())
	return withProgram("usdt", insns)
}

// TestUSDTArguments finds out which argument a program asks for.
func TestUSDTArguments(t *testing.T) {
	for _, row := range []struct {
		name   string
		before []asm.Instruction
		want   string // of the error; none if empty
	}{
		{"constant", []asm.Instruction{asm.Mov.Imm(asm.R2, 3)}, ""},
		{"32 bits", []asm.Instruction{asm.Mov.Imm32(asm.R2, 11)}, ""},
		{"with others between", []asm.Instruction{asm.Mov.Imm(asm.R2, 3), asm.Mov.Imm(asm.R4, 1), asm.StoreMem(asm.R10, -8, asm.R2, asm.DWord)}, ""},
		{"too many", []asm.Instruction{asm.Mov.Imm(asm.R2, 12)}, "no argument 12"},
		{"another register", []asm.Instruction{asm.Mov.Reg(asm.R2, asm.R3)}, "not a constant"},
		{"computed", []asm.Instruction{asm.Mov.Imm(asm.R2, 1), asm.Add.Imm(asm.R2, 1)}, "not a constant"},
		{"loaded", []asm.Instruction{asm.LoadMem(asm.R2, asm.R1, 0, asm.DWord)}, "not a constant"},
		{"never", nil, "not a constant"},
		{"two ways", []asm.Instruction{asm.Mov.Imm(asm.R2, 1), {OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.JEq), Dst: asm.R4, Offset: 1}, asm.Mov.Imm(asm.R2, 2)}, "not a constant"},
	} {
		_, err := object.New("test", usdtProgram(row.before...), object.Options{})
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v; want %q", row.name, err, row.want)
		}
	}
}

// FuzzFile reads files that are damaged.
func FuzzFile(f *testing.F) {
	f.Add([]byte("\x7fELF\x02\x01\x01"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "object.o")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if spec, err := object.ReadFile(path); err == nil {
			_, _ = object.New("fuzz", spec, object.Options{}) // it must end, whatever it says
		}
	})
}

// FuzzSection puts anything into the name of a section.
func FuzzSection(f *testing.F) {
	for _, s := range []string{"uprobe//bin/bash:f+0x10", "uretprobe.multi/libc:m*", "usdt/a:b:c", "?uprobe.s/:+"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		o, err := object.New("fuzz", withProgram(name, exit0()), object.Options{})
		if err != nil {
			return
		}
		for _, p := range o.Programs {
			for _, a := range p.Attach {
				if a.Path == "" || a.Func == "" || a.Kind != p.Kind {
					t.Errorf("%q: %+v", name, a)
				}
			}
		}
	})
}

// TestSet gives variables other values, by text.
func TestSet(t *testing.T) {
	char := &btf.Int{Name: "char", Size: 1, Encoding: btf.Signed}
	types := map[string]btf.Type{
		"byte": &btf.Int{Name: "unsigned char", Size: 1}, "int": &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed},
		"long": &btf.Typedef{Name: "u64", Type: &btf.Int{Name: "long", Size: 8}}, "bool": &btf.Int{Name: "bool", Size: 1, Encoding: btf.Bool},
		"text": &btf.Array{Type: char, Index: char, Nelems: 4}, "struct": &btf.Struct{Name: "s", Size: 8},
	}
	for _, row := range []struct {
		variable, text string
		want           []byte
		err            string
	}{
		{"byte", "255", []byte{255}, ""},
		{"byte", "-128", []byte{0x80}, ""},
		{"byte", "256", nil, "does not fit"},
		{"byte", "-129", nil, "does not fit"},
		{"int", "0x10", []byte{16, 0, 0, 0}, ""},
		{"int", "-2", []byte{0xfe, 0xff, 0xff, 0xff}, ""},
		{"long", "18446744073709551615", bytes.Repeat([]byte{255}, 8), ""},
		{"long", "-1", bytes.Repeat([]byte{255}, 8), ""},
		{"bool", "true", []byte{1}, ""},
		{"text", "abc", []byte("abc\x00"), ""},
		{"text", "abcd", nil, "more than 3 bytes"},
		{"struct", "1", nil, "only numbers and texts"},
		{"nothing", "1", nil, "no variable nothing; it has v"},
	} {
		name, typ := "v", types[row.variable]
		if typ == nil {
			name, typ = row.variable, types["int"]
		}
		size, err := btf.Sizeof(typ)
		if err != nil {
			t.Fatal(err)
		}
		spec := withProgram("uprobe", exit0())
		spec.Maps = map[string]*ebpf.MapSpec{".bss": {Name: ".bss", Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 1}}
		spec.Variables = map[string]*ebpf.VariableSpec{"v": {Name: "v", SectionName: ".bss", Offset: 8, Value: make([]byte, size), Type: &btf.Var{Name: "v", Type: typ}}}
		o, err := object.New("test", spec, object.Options{Set: map[string]string{name: row.text}})
		switch {
		case row.err != "":
			if err == nil || !strings.Contains(err.Error(), row.err) {
				t.Errorf("%s = %s: %v", row.variable, row.text, err)
			}
		case err != nil:
			t.Error(err)
		case !bytes.Equal(o.Maps[0].Contents[0].Value[8:8+size], row.want):
			t.Errorf("%s = %s: %x", row.variable, row.text, o.Maps[0].Contents[0].Value)
		}
	}
}
