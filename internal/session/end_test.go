package session

import (
	"fmt"
	"testing"

	"trapless/internal/abi"
	"trapless/internal/image"
	insn "trapless/internal/insn/x86"
	"trapless/internal/lang"
	"trapless/internal/plan"
	"trapless/internal/testkit"
)

// TestIndirectCallsAreCounted probes the instruction by which busy calls its
// functions, which cannot move: its program runs at the end of a window before
// it.
func TestIndirectCallsAreCounted(t *testing.T) {
	p := testkit.Busy(t, 2)
	calls := indirectCalls(t, p.Pid())
	if len(calls) == 0 {
		t.Fatal("busy has no indirect call that a window can end at")
	}
	src := ""
	for i, v := range calls {
		src += fmt.Sprintf("uprobe:%s:%v { @n%d = count(); }\n", exe(t, p.Pid()), v, i)
	}
	run(t, p, 1, "work_push", 2) // threads start with signals blocked; these have started
	s, r := attach(t, p.Pid(), src)
	run(t, p, 50000, "work", 2)
	finish(t, s)
	want, err := p.Counts("work")
	if err != nil {
		t.Fatal(err)
	}
	var most uint64
	for _, entries := range r.maps {
		for _, e := range entries {
			most = max(most, e.Value[0])
		}
	}
	if most != want.Calls {
		t.Errorf("counted %v, the target %d calls", r.maps, want.Calls)
	}
}

// indirectCalls are those in the program that a window ends at.
func indirectCalls(t *testing.T, pid int) []image.VAddr {
	t.Helper()
	ms, err := readModules(pid, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ms.Close()
	mods, err := ms.find(&lang.AttachPoint{Path: exe(t, pid)})
	if err != nil {
		t.Fatal(err)
	}
	mod := mods[0]
	facts, err := mod.elf.Facts()
	if err != nil {
		t.Fatal(err)
	}
	var found []image.VAddr
	for _, fn := range mod.funcs.All() {
		f, err := mod.elf.Func(fn)
		if err != nil {
			t.Fatal(err)
		}
		if err := mod.elf.FindEntries([]*plan.Func{f}); err != nil {
			t.Fatal(err)
		}
		planner := plan.Prepare(f, facts)
		isCall := func(_ abi.Addr, in insn.Inst) bool { return in.Branch == insn.BranchCallInd }
		for _, site := range planner.Instructions(isCall) {
			if w, _ := planner.Alone(site); w != nil && w.End() == site {
				found = append(found, mod.bias.VAddr(site))
			}
		}
	}
	return found
}
