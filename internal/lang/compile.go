package lang

import (
	"fmt"

	"trapless/internal/abi"
	"trapless/internal/bpf"
	"trapless/internal/diag"
)

// DefaultMaxMapKeys is the number of keys that a map holds when neither the
// script nor the caller says otherwise, as in bpftrace.
const DefaultMaxMapKeys = 4096

// MaxSource is the largest script, in bytes.
const MaxSource = 1 << 20

// Options are what a script's meaning depends on besides its text.
type Options struct {
	Params     []string          // $1, $2, ...
	Config     map[string]string // settings that precede those of the script, by their names
	MaxMapKeys int               // default of the setting max_map_keys; 0 means DefaultMaxMapKeys

	Named  map[string]string // options of the script's own, --name=value
	Child  int               // the process that was started for the script, 0 if there is none
	Types  TypeSource        // may be nil
	Target bool              // the script is for a process that is named
	Clock  string            // the map that holds the time which tseries() sees, without '@'; the real time if empty

	// Places are the attach points of single functions or markers that fit one with a
	// wildcard, none if that is not known. May be nil.
	Places func(a *AttachPoint) []AttachPoint
	Cgroup func(path string) (uint64, bool) // the number of a control group; may be nil
	Kernel func(name string) (uint64, bool) // the address of a symbol of the kernel; may be nil
	TAI    uint64                           // CLOCK_TAI minus CLOCK_MONOTONIC, in nanoseconds
	Checks bool                             // reads that fail, of maps and of memory, are told of
}

// Compile compiles a script. Name is what errors call it, usually its path.
// The error is a diag.List of all that is wrong.
func Compile(src, name string, opts Options) (*Script, error) {
	source := diag.NewSource(name, src)
	diags := &diag.Collector{Source: source, Limit: maxErrors}
	if len(src) > MaxSource {
		diags.Errorf(diag.Span{}, "the script has %d bytes, the limit is %d", len(src), MaxSource)
		return nil, diags.Err()
	}
	tree := parse(source, diags, opts.Params)
	if len(tree.probes) == 0 && diags.ErrorCount() == 0 {
		diags.Errorf(diag.Span{Start: len(src), End: len(src)}, "the script has no probe").
			Hint("a probe is: uprobe:PATH:FUNCTION { statements }")
	}
	findLines(tree, diags, opts.Types)
	expand(tree, diags, opts.Places)
	stacksByDWARF(tree, diags, opts.Target)
	if opts.Types != nil {
		for _, p := range tree.probes {
			for i := range p.attach {
				opts.Types.Use(&p.attach[i])
			}
		}
	}
	c := check(tree, diags, &opts)
	if err := diags.Err(); err != nil {
		return nil, err
	}
	s := &Script{Source: source, Maps: c.buildMaps(), Settings: c.config.settings(), clock: opts.Clock}
	s.addStacks(c.stacks)
	s.addProcess(c.process)
	s.scratchMap = len(s.Maps)
	for i, n := range tree.probes {
		s.addProbes(n, lower(s, c, n, fmt.Sprintf("probe%d", i+1)))
	}
	s.finishMaps()
	if err := diags.Err(); err != nil {
		return nil, err
	}
	s.Warnings = diags.Sorted(diag.Warning)
	return s, nil
}

// findLines makes attach points at addresses of those at lines of source.
func findLines(tree *scriptNode, diags *diag.Collector, types TypeSource) {
	for _, p := range tree.probes {
		var all []AttachPoint
		for _, a := range p.attach {
			if a.Line == 0 {
				all = append(all, a)
				continue
			}
			if types == nil {
				diags.Errorf(a.Span, "lines of source can only be found where debug information can be read")
				all = append(all, a)
				continue
			}
			found, err := types.Lines(&a)
			if err != nil {
				diags.Errorf(a.Span, "%v", err)
				all = append(all, a)
			}
			for _, at := range found {
				a.Addr = at
				all = append(all, a)
			}
		}
		p.attach = all
	}
}

// finishMaps adds the scratch memory to the maps, and tells the programs of them.
func (s *Script) finishMaps() {
	if len(s.Remarks) > 0 {
		s.scratch = max(s.scratch, 8) // the remarks come behind it
	}
	if s.scratch > 0 {
		spec := abi.MapSpec{Name: "@(scratch)", Kind: abi.PerSlotArray, KeySize: 4, ValueSize: s.scratch, MaxEntries: 1}
		s.Maps = append(s.Maps, Map{Name: spec.Name, Spec: spec, Agg: Hist, Hidden: true})
	}
	s.addRemarks()
	specs := s.MapSpecs()
	for i := range s.Probes {
		s.Probes[i].Prog.Maps = specs
	}
}

// ParseAttach parses attach points as they stand before an action block, such as
// uprobe:libc:malloc+4. The error is a diag.List.
func ParseAttach(text string) ([]AttachPoint, error) {
	source := diag.NewSource("attach point", text+" { }")
	diags := &diag.Collector{Source: source, Limit: maxErrors}
	tree := parse(source, diags, nil)
	if len(tree.probes) != 1 && diags.ErrorCount() == 0 {
		diags.Errorf(diag.Span{End: len(text)}, "expected attach points, as uprobe:PATH:FUNCTION")
	}
	if len(tree.probes) == 1 {
		findLines(tree, diags, nil)
	}
	if err := diags.Err(); err != nil {
		return nil, err
	}
	return tree.probes[0].attach, nil
}

// addProbes adds a Probe for each kind of attach points of an action block.
func (s *Script) addProbes(n *probeNode, prog *bpf.Program) {
	first := len(s.Probes)
	for _, a := range n.attach {
		i := first
		for i < len(s.Probes) && s.Probes[i].Kind != a.Kind {
			i++
		}
		if i == len(s.Probes) {
			s.Probes = append(s.Probes, Probe{Kind: a.Kind, Prog: prog, Retval: survey(n).retval, Text: s.Source.Slice(n.span), Span: n.span})
		}
		s.Probes[i].Attach = append(s.Probes[i].Attach, a)
	}
}
