package lang

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// scripter makes random statements over variables of type uint64 and carries
// them out in Go.
type scripter struct {
	*oracle
	vars   []uint64
	b      strings.Builder
	events []string
	counts int64 // of the map
	total  uint64
	ended  bool
}

func (s *scripter) text(live bool, format string, args ...any) bool {
	fmt.Fprintf(&s.b, format, args...)
	return live && !s.ended
}

// term is an expression over arguments and variables, as a uint64.
func (s *scripter) term() (string, uint64) {
	copy(s.args[:], s.vars)
	x := s.expr(s.IntN(4))
	return "(uint64)(" + x.text + ")", x.v
}

// stmt makes a statement; live tells whether it is carried out.
func (s *scripter) stmt(depth int, live bool) {
	i := s.IntN(len(s.vars))
	live = live && !s.ended
	switch s.IntN(9) {
	case 0, 1:
		text, v := s.term()
		if s.text(live, "$v%d = %s; ", i, text) {
			s.vars[i] = v
		}
	case 2:
		text, v := s.term()
		op := []string{"+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>"}[s.IntN(10)]
		if s.text(live, "$v%d %s= %s; ", i, op, text) {
			s.vars[i] = arith(op, s.vars[i], v, op == "-")
		}
	case 3:
		s.increment(i, live)
	case 4:
		if depth > 0 {
			s.branch(depth-1, live)
		}
	case 5:
		text, v := s.term()
		if s.text(live, "print(%s); ", text) {
			s.events = append(s.events, fmt.Sprintf("print %d", v))
		}
	case 6:
		text, v := s.term()
		if s.text(live, `printf("x", %s, $v%d, pid); `, text, i) {
			s.events = append(s.events, fmt.Sprintf("printf %d,%d,4711", v, s.vars[i]))
		}
	case 7:
		text, v := s.term()
		if s.text(live, "@ = sum(%s); ", text) {
			s.counts++
			s.total += v
		}
	case 8:
		if s.IntN(4) == 0 && s.text(live, "return; ") {
			s.ended = true
		}
	}
}

func (s *scripter) increment(i int, live bool) {
	j := s.IntN(len(s.vars))
	form := s.IntN(4)
	text := []string{"$v%d = $v%d++; ", "$v%d = --$v%d; ", "$v%d = 3 - $v%d++; ", "$v%d = $v%d-- * 2; "}[form]
	if !s.text(live, text, i, j) {
		return
	}
	old := s.vars[j]
	s.vars[j] += []uint64{1, ^uint64(0), 1, ^uint64(0)}[form]
	s.vars[i] = []uint64{old, old - 1, 3 - old, old * 2}[form]
}

func (s *scripter) branch(depth int, live bool) {
	text, v := s.term()
	live = s.text(live, "if (%s) { ", text)
	for range s.IntN(4) {
		s.stmt(depth, live && v != 0)
	}
	if s.IntN(2) == 0 {
		// What ran in the first branch may have ended the run.
		s.text(true, "} else { ")
		for range s.IntN(4) {
			s.stmt(depth, live && v == 0)
		}
	}
	s.text(true, "} ")
}

func TestRandomPrograms(t *testing.T) {
	n := 3000
	if testing.Short() {
		n = 300
	}
	for seed := range uint64(n) {
		r := rand.New(rand.NewPCG(seed, 2))
		s := &scripter{oracle: &oracle{Rand: r, vars: 1 + r.IntN(6)}}
		s.vars = make([]uint64, s.oracle.vars)
		s.b.WriteString("uprobe:a:f { ")
		args := make([]uint64, 6)
		for i := range args {
			args[i] = r.Uint64() >> r.IntN(64)
		}
		for i := range s.vars {
			fmt.Fprintf(&s.b, "let $v%d: uint64 = arg%d; ", i, i)
			s.vars[i] = args[i]
		}
		for i := len(s.vars); i < 6; i++ {
			s.args[i] = args[i] // other leaves are arguments
		}
		for range r.IntN(12) {
			s.stmt(3, true)
		}
		src := strings.ReplaceAll(s.b.String(), `printf("x"`, `printf("%d %d %d"`) + "@ = sum(1) }"
		b := newBench(t, src, Options{})
		got := b.run(0, args...)
		if want := strings.Join(s.events, "; "); got != want {
			t.Fatalf("seed %d, arguments %d:\n%s\ngot  %s\nwant %s\n%s", seed, args, src, got, want, b.script.Probes[0].Prog)
		}
		if !s.ended {
			s.counts++
			s.total++
		}
		if c, sum := int64(b.cell(0, CellCount)), b.cell(0, CellTotal); c != s.counts || sum != s.total {
			t.Fatalf("seed %d: %s\ncounted %d, sum %d; want %d, %d", seed, src, c, sum, s.counts, s.total)
		}
	}
}
