// Package saturation probes every instruction of whole programs. It has tests
// alone.
//
// A program that shows its results is run twice: alone, and with a counting
// probe on each instruction, or on each of a random choice, of its own code and
// of its libraries. Both must do the same. Few sites make windows of their own,
// many share them, so that different choices make different windows. What is
// counted is compared with a run by single steps, and unwinders have to find
// their way through probed frames as they do through others.
//
// Set TRAPLESS_LONG=1 for all programs and choices, and allow for an hour.
package saturation

import (
	"fmt"
	"os"
	"testing"
	"time"

	"trapless/internal/plan"
)

// long reports whether all is run that there is, instead of a sample.
func long() bool { return os.Getenv("TRAPLESS_LONG") != "" }

// total is what runs add up to.
type total struct {
	runs, placed, hit int
	hits, traps       uint64
	tactics           map[plan.Tactic]int
	refused           map[plan.Reason]int
	took              time.Duration
}

func (sum *total) add(r *run) {
	sum.runs++
	sum.placed += len(r.sites)
	sum.hit += len(r.counts)
	sum.hits += r.hits
	sum.traps += r.traps
	sum.tactics, sum.refused = plus(sum.tactics, r.tactics), plus(sum.refused, r.refused)
	sum.took += r.planning + r.placing + r.arming + r.running
}

func plus[K comparable](sum, more map[K]int) map[K]int {
	if sum == nil {
		sum = map[K]int{}
	}
	for k, n := range more {
		sum[k] += n
	}
	return sum
}

func (sum *total) String() string {
	refused := 0
	for _, n := range sum.refused {
		refused += n
	}
	return fmt.Sprintf("%d runs in %v: %d sites probed (%s), %d of them hit, %d hits, %.4f%% of them by a trap; %.3f%% of all sites refused: %s",
		sum.runs, sum.took.Round(time.Second), sum.placed, inOrder(sum.tactics), sum.hit, sum.hits, 100*float64(sum.traps)/float64(sum.hits),
		100*float64(refused)/float64(sum.placed+refused), inOrder(sum.refused))
}

// fewest is how many sites all runs together have to probe, when all is run.
const fewest = 1_000_000

// TestSaturated: a program of which every instruction is probed does what it
// does otherwise.
func TestSaturated(t *testing.T) {
	var sum total
	for i, p := range append(ours(t), debian(t)...) {
		for _, c := range p.choices(uint64(i)) {
			t.Run(fmt.Sprintf("%s, %v", p.name, c), func(t *testing.T) {
				want := p.alone(t)
				r := p.saturate(t, c)
				t.Log(r)
				if r.outcome != want {
					t.Errorf("it ended with %#x and %q, alone with %#x and %q", r.status, short(r.output), want.status, short(want.output))
				}
				if r.hits == 0 {
					t.Error("not one hit was counted")
				}
				sum.add(r)
			})
		}
	}
	t.Log(&sum)
	if long() && sum.placed < fewest {
		t.Errorf("%d sites were probed, want %d at least", sum.placed, fewest)
	}
}

// choices are those that are made of a program's sites.
func (p *program) choices(seed uint64) []choice {
	switch {
	case long() && p.extra:
		return []choice{{[]int{1, 2, 5, 20}[seed%4], seed, ""}}
	case long():
		return []choice{{1, 0, ""}, {2, 1, ""}, {3, 2, ""}, {5, 3, ""}, {20, 4, ""}, {100, 5, ""}, {1000, 6, ""}}
	case p.extra:
		return nil
	case p.small:
		return []choice{{1, 0, ""}, {3, seed, ""}}
	}
	return []choice{{20, seed, ""}}
}

// short is the end of an output.
func short(s string) string { return s[max(0, len(s)-300):] }
