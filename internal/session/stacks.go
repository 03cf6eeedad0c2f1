package session

import (
	"trapless/internal/abi"
	"trapless/internal/lang"
	"trapless/internal/proc"
)

// Programs walk stacks in the target, by a table of unwind rules that is made of the files that are mapped
// there, and leave addresses. The names come when something is printed.

// usesStacks reports whether a program asks for a stack.
func (s *Session) usesStacks() bool { return s.config.Script.Stacks() }

// readSymbols notes what code is mapped, for names and for unwinding.
func (s *Session) readSymbols() error {
	maps, err := proc.ReadMaps(s.PID)
	if err != nil {
		return err
	}
	if s.symbols == nil {
		s.symbols = newSymbols(s.PID)
		s.symbols.lines = s.config.Script.Lines
	}
	changed := s.symbols.refresh(maps)
	if !s.usesStacks() || !changed {
		return nil
	}
	s.unwind = s.symbols.unwindRows(s.config.Log)
	if s.arena != nil {
		s.publishUnwind()
	}
	return nil
}

// publishUnwind gives programs the table of unwind rules.
func (s *Session) publishUnwind() {
	if s.usesStacks() && s.symbols != nil && !s.arena.PublishUnwind(s.unwind) {
		s.config.Warn("stacks in libraries that were loaded since the start are unwound by the rules from before: %d rules are too many", len(s.unwind))
	}
}

// spareRules is the room for unwind rules of libraries that come later.
const spareRules = 1 << 16

// roomForRules is the room for two tables, the one that is used and the next.
func (s *Session) roomForRules() int {
	if !s.usesStacks() {
		return 0
	}
	return 2 * (len(s.unwind) + len(s.unwind)/2 + spareRules)
}

// lookUp names what is in a value: symbols, and the frames of stacks. Without a target there are none.
func (s *Session) lookUp(v *lang.Value) {
	if s.book != nil {
		s.book.name(v)
		return
	}
	if s.symbols == nil {
		return
	}
	switch v.Type.Kind {
	case lang.Symbol:
		v.Str = s.symbols.name(nameKey{addr: abi.Addr(v.Int), exact: true})
	case lang.Stack:
		v.Elems = s.frames(v)
	default:
		for i := range v.Elems {
			s.lookUp(&v.Elems[i])
		}
	}
}

// frames are the addresses of a stack with their names.
func (s *Session) frames(v *lang.Value) []lang.Value {
	m := s.config.Script.StackMap(v.Type)
	if m < 0 {
		return nil
	}
	var out []lang.Value
	for i, at := range s.arena.Stack(m, v.Int) {
		for _, name := range s.symbols.frame(at, i == 0, v.Type.Format) {
			out = append(out, lang.Value{Type: lang.Type{Kind: lang.Symbol, Size: 8}, Int: uint64(at), Str: name})
		}
	}
	return out
}
