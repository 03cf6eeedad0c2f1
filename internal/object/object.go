// Package object makes probes of BPF object files, as clang and libbpf's headers
// make them for uprobes of the kernel. It takes an ebpf.CollectionSpec, which
// package ebpf of cilium reads from a file or a program makes itself, and returns
// programs that are verified, where they are to be put, and the maps with what
// they hold at the start.
//
// What has no meaning in a process is refused by name: variables of the kernel's
// configuration, the kernel's symbols and functions, relocations against its
// types (but for struct pt_regs), and maps that the engine does not have. A
// program that is none of a process's probe, say one of a tracepoint, is left
// out, with a remark.
//
// The package knows no process and no arena; it reads no BTF of the kernel.
package object

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"trapless/internal/bpf"
	"trapless/internal/lang"
	"trapless/internal/usdt"
)

// Object is what an object file holds for a process.
type Object struct {
	Name     string
	Programs []Program // ordered by name
	Maps     []Map     // ordered by name; a map's number is its index
	Remarks  []string  // what was left out, and why
}

// Program is a program that was verified.
type Program struct {
	Name       string
	Section    string
	Kind       lang.ProbeKind // Uprobe, Uretprobe or Usdt, as the section says
	Prog       *bpf.Program
	Result     bool // it reads what a function returns
	TailCalled bool // tail calls may lead to it

	// Attach is where it is to be put, of any kind. It is empty when neither
	// the section nor the user says.
	Attach []lang.AttachPoint
}

// ErrObject wraps every reason why an object file cannot be used.
var ErrObject = errors.New("BPF object")

// New makes an object of a collection, which stays as it is. Name is what
// messages call it.
func New(name string, spec *ebpf.CollectionSpec, o Options) (*Object, error) {
	l := &loader{spec: spec, options: o, object: &Object{Name: name}, numbers: map[string]int{}, unusable: map[int]error{}, arrays: map[int][]tailTarget{}, set: map[string][]byte{}}
	if err := l.load(); err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrObject, name, err)
	}
	return l.object, nil
}

// loader makes an object.
type loader struct {
	spec     *ebpf.CollectionSpec
	options  Options
	object   *Object
	numbers  map[string]int       // of maps
	set      map[string][]byte    // variables, by the user
	unusable map[int]error        // maps that the engine does not have, and why
	arrays   map[int][]tailTarget // program arrays, by their numbers
}

func (l *loader) load() error {
	for name := range l.options.Attach {
		if l.spec.Programs[name] == nil {
			return fmt.Errorf("it has no program %s; it has %s", name, list(maps.Keys(l.spec.Programs)))
		}
	}
	if err := l.overrides(); err != nil {
		return err
	}
	if err := l.maps(); err != nil {
		return err
	}
	if err := l.recordTypes(); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(l.spec.Programs)) {
		p, err := l.program(name, l.spec.Programs[name])
		switch {
		case err == nil:
			l.object.Programs = append(l.object.Programs, *p)
		case l.optional(name):
			l.object.Remarks = append(l.object.Remarks, fmt.Sprintf("program %s is left out: %v", name, err))
		default:
			return fmt.Errorf("program %s: %w", name, err)
		}
	}
	if len(l.object.Programs) == 0 {
		return fmt.Errorf("it has no program for a process: %w", errors.Join(l.remarks()...))
	}
	return nil
}

func (l *loader) remarks() []error {
	var out []error
	for _, r := range l.object.Remarks {
		out = append(out, errors.New(r))
	}
	return out
}

// optional reports whether an object is of use without a program: one that is no
// uprobe by its section, or that says that it is not to be loaded by itself.
func (l *loader) optional(name string) bool {
	if l.options.Attach[name] != nil {
		return false
	}
	s := parseSection(l.spec.Programs[name].SectionName)
	return s.manual || !s.user()
}

// program makes and verifies a program.
func (l *loader) program(name string, spec *ebpf.ProgramSpec) (*Program, error) {
	s := parseSection(spec.SectionName)
	if err := s.check(spec); err != nil {
		return nil, err
	}
	p := &Program{Name: name, Section: spec.SectionName, Kind: s.kind}
	var err error
	if p.Attach, err = l.attach(p, &s); err != nil {
		return nil, err
	}
	if p.Prog, err = l.instructions(name, spec); err != nil {
		return nil, err
	}
	v, err := usdt.Verify(p.Prog)
	if err != nil {
		return nil, l.whyNot(p.Prog, err)
	}
	for _, a := range p.Attach {
		if a.Kind != lang.Usdt && usdt.Uses(p.Prog) {
			return nil, fmt.Errorf("%s: the program reads arguments of a USDT probe, which a %s does not have", a.Text, a.Kind)
		}
	}
	if err := l.usesOnlyMaps(p.Prog, v); err != nil {
		return nil, err
	}
	p.Result = v.UsesResult()
	p.TailCalled = l.tailCalled(name)
	return p, nil
}

// attach says where a program is to be put.
func (l *loader) attach(p *Program, s *section) ([]lang.AttachPoint, error) {
	texts, ok := l.options.Attach[p.Name]
	if !ok {
		return s.attach()
	}
	var all []lang.AttachPoint
	for _, text := range texts {
		points, err := lang.ParseAttach(withKind(p.Kind, text))
		if err != nil {
			return nil, err
		}
		for _, a := range points {
			if !slices.Contains(probeKinds, a.Kind) {
				return nil, fmt.Errorf("%s: a program of an object file runs at a uprobe, a uretprobe or a usdt probe, not at %s", text, a.Kind)
			}
		}
		all = append(all, points...)
	}
	return all, nil
}

// Script is the object as a session takes it: for each program, in their order, a
// probe of each kind, with the places where it is to be put so.
func (o *Object) Script() *lang.Script {
	s := &lang.Script{}
	for i := range o.Programs {
		p := &o.Programs[i]
		for _, kind := range probeKinds {
			probe := lang.Probe{Kind: kind, Prog: p.Prog, Retval: p.Result, Text: fmt.Sprintf("%s (%s)", p.Name, p.Section)}
			for _, a := range p.Attach {
				if a.Kind == kind {
					probe.Attach = append(probe.Attach, a)
				}
			}
			s.Probes = append(s.Probes, probe)
		}
	}
	for i := range o.Maps {
		s.Maps = append(s.Maps, lang.Map{Name: o.Maps[i].Name, Spec: o.Maps[i].Spec, Agg: lang.Plain})
	}
	return s
}

// ScriptProbe is the number of the probe in Script of program number i.
func ScriptProbe(i int, kind lang.ProbeKind) int {
	return len(probeKinds)*i + slices.Index(probeKinds, kind)
}

// probeKinds are the kinds of probes that programs of an object file run at.
var probeKinds = []lang.ProbeKind{lang.Uprobe, lang.Uretprobe, lang.Usdt}
