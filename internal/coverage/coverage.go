// Package coverage tells how much of an ELF file can be probed without a trap.
// It plans the sites of a file as a session would plan them in a process, each
// as if it were the only one, and sums up tactics, refusals and costs. It takes
// an io.ReaderAt and touches no process, so the one thing it cannot know is
// which addresses a target has free: it assumes the usual ones.
package coverage

import (
	"context"
	"fmt"
	"io"
	"slices"

	"trapless/internal/abi"
	"trapless/internal/elfplan"
	"trapless/internal/image"
	insn "trapless/internal/insn/x86"
	"trapless/internal/plan"
	"trapless/internal/unix"
)

// Sites says which instructions are sites.
type Sites string

// The sets of sites.
const (
	Entries Sites = "entries" // where calls of each function are counted that has at least five bytes
	Returns Sites = "returns" // near returns
	All     Sites = "all"     // every instruction
)

// Parse checks the name of a set.
func Parse(s string) (Sites, error) {
	switch Sites(s) {
	case Entries, Returns, All:
		return Sites(s), nil
	}
	return "", fmt.Errorf("no sites are called %q: entries, returns or all", s)
}

// Result is what was found of one file.
type Result struct {
	File     string              `json:"file"`
	Sites    Sites               `json:"sites"`
	N        int                 `json:"n"`
	TrapFree float64             `json:"trap_free"` // share of the sites, 0 to 1
	ByTactic map[plan.Tactic]int `json:"by_tactic"` // numbers of sites
	Refused  map[plan.Reason]int `json:"refused"`
	// PlanNS is the processor time of planning per site in nanoseconds:
	// decoding, control flow and liveness, but not reading the file.
	PlanNS float64 `json:"plan_ns_per_site"`
	// DetourBytes are the relocated instructions and the jump back of a
	// planned site, on average; programs, and what saves registers for them,
	// come on top.
	DetourBytes float64 `json:"detour_bytes_per_site"`
	// Unresolved are the indirect jumps to addresses that are computed in a way
	// that is not understood.
	Unresolved int `json:"unresolved_switches"`
	// Short are the functions of less than five bytes, which are not counted
	// among the entries.
	Short int `json:"short_functions,omitempty"`
}

// File measures one file, which the caller has opened under a name.
func File(ctx context.Context, name string, r io.ReaderAt, size int64, sites Sites) (*Result, error) {
	m := &elfplan.Module{}
	var err error
	if m.Image, err = image.New(r, size); err != nil {
		return nil, err
	}
	var space *plan.Space
	m.Bias, space = typical(m.Image)
	if m.Funcs, err = m.Image.Functions(); err != nil {
		return nil, err
	}
	facts, err := m.Facts()
	if err != nil {
		return nil, err
	}
	facts.Space, facts.Breakpoints = space, true
	c := &counter{facts: facts, Result: Result{File: name, Sites: sites,
		ByTactic: map[plan.Tactic]int{}, Refused: map[plan.Reason]int{}}}
	if err := c.file(ctx, m); err != nil {
		return nil, err
	}
	return c.result(), nil
}

// counter sums up.
type counter struct {
	Result
	facts   *plan.Facts
	took    uint64 // processor time in nanoseconds
	bytes   int
	planned int
}

// file counts the sites of all functions, of which it holds two at a time.
func (c *counter) file(ctx context.Context, m *elfplan.Module) error {
	all := slices.DeleteFunc(slices.Clone(m.Funcs.All()), func(fn image.Func) bool { return fn.Len() == 0 })
	var f *plan.Func
	for i := range len(all) + 1 {
		if err := ctx.Err(); err != nil {
			return err
		}
		var next *plan.Func
		var start abi.Addr
		if i < len(all) {
			var err error
			if next, err = describe(m, all[i]); err != nil {
				return err
			}
			start = next.Start
		}
		if f != nil {
			if start == f.End()+abi.Addr(len(f.Pad)) {
				f.Next = next
			}
			c.function(f, start)
		}
		f = next
	}
	return nil
}

// describe describes a function and what leads into it.
func describe(m *elfplan.Module, fn image.Func) (*plan.Func, error) {
	f, err := m.Func(fn)
	if err != nil {
		return nil, err
	}
	return f, m.FindEntries([]*plan.Func{f})
}

// function counts the sites of one function. Those from next on are the next
// function's, which may begin inside this one.
func (c *counter) function(f *plan.Func, next abi.Addr) {
	began := unix.ProcessTime()
	p := plan.Prepare(f, c.facts)
	for _, j := range p.Jumps() {
		if j.Kind == plan.Unresolved {
			c.Unresolved++
		}
	}
	for _, site := range p.Instructions(c.wanted(f)) {
		if next != 0 && site >= next {
			break
		}
		w, r := p.Alone(site)
		c.N++
		if r != nil {
			c.Refused[r.Reason]++
			continue
		}
		c.planned++
		c.ByTactic[w.Tactic]++
		c.bytes += w.RelocatedSize()
		if w.Host != nil {
			c.bytes += w.Host.RelocatedSize()
		}
	}
	c.took += unix.ProcessTime() - began
}

// wanted selects instructions.
func (c *counter) wanted(f *plan.Func) func(at abi.Addr, in insn.Inst) bool {
	switch c.Sites {
	case Entries:
		entry := f.EntrySite()
		if f.Entry && len(f.Code) < shortFunction {
			c.Short++
			entry = 0
		}
		return func(at abi.Addr, _ insn.Inst) bool { return at == entry && f.Entry }
	case Returns:
		return func(_ abi.Addr, in insn.Inst) bool { return in.Branch == insn.BranchRet }
	}
	return func(abi.Addr, insn.Inst) bool { return true }
}

// shortFunction is what a jump of five bytes does not fit in.
const shortFunction = 5

func (c *counter) result() *Result {
	if c.N > 0 {
		c.TrapFree = float64(c.planned-c.ByTactic[plan.Trap]) / float64(c.N)
		c.PlanNS = float64(c.took) / float64(c.N)
	}
	if c.planned > 0 {
		c.DetourBytes = float64(c.bytes) / float64(c.planned)
	}
	return &c.Result
}
