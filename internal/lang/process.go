package lang

import (
	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
)

// What a program asks of its process and cannot find out itself stands in a hidden map,
// which the tracer writes.

// The words of that map.
const (
	ProcessCgroup = iota // the number of the control group
	ProcessParent        // the process that started this one
	ProcessWords
)

var processFacts = map[string]struct {
	word int
	typ  Type
}{"cgroup": {ProcessCgroup, uint64Type}, "ppid": {ProcessParent, intType(4, false)}}

// processFact types a builtin that is a word of the map.
func (c *checker) processFact(name string) Type {
	c.process = true
	return processFacts[name].typ
}

// addProcess adds the map, if a program asks for a word of it.
func (s *Script) addProcess(asked bool) {
	if !asked {
		return
	}
	s.process = len(s.Maps) + 1
	spec := abi.MapSpec{Name: "@(process)", Kind: abi.Array, KeySize: 4, ValueSize: 8 * ProcessWords, MaxEntries: 1}
	s.Maps = append(s.Maps, Map{Name: spec.Name, Spec: spec, Agg: Hist, Hidden: true})
}

// ProcessMap is the number of the map, false if there is none.
func (s *Script) ProcessMap() (int, bool) { return s.process - 1, s.process > 0 }

// processWord reads a word of the map.
func (l *lowerer) processWord(name string, h home) {
	n, _ := l.script.ProcessMap()
	l.emit(asm.LoadMapValue(asm.R1, n, uint32(8*processFacts[name].word)))
	l.emit(asm.LoadMem(asm.R0, asm.R1, 0, asm.DWord))
	l.setHome(h, asm.R0)
}
