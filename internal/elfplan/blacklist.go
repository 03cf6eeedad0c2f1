package elfplan

import (
	"slices"
	"strings"

	"trapless/internal/plan"
)

// goUntouchable are functions of Go's runtime that must not be probed, with the reason (runtime/*_amd64.s and
// sys_linux_amd64.s of Go 1.18 to 1.26).
var goUntouchable = map[string]string{
	"_rt0_amd64 _rt0_amd64_linux _rt0_amd64_lib _rt0_amd64_linux_lib runtime.rt0_go": "runs before the thread has a thread pointer",
	"runtime.clone runtime.settls": "runs in a new thread that still has its parent's thread pointer",
	// Their callers keep the frame pointer below the stack pointer, where a call does not expect anything.
	"runtime.duffzero runtime.duffcopy":                   "is called in the middle, with a register saved below the stack pointer",
	"runtime.goexit":                                      "is entered behind its first instruction, as if that were a call",
	"runtime.sigreturn runtime.sigreturn__sigaction":      "is the return from a signal handler, which the kernel and debuggers know by its bytes",
	"runtime.asyncPreempt":                                "is called by a signal handler wherever a goroutine stands, with just enough stack for itself",
	"runtime.debugCallV1 runtime.debugCallV2 debugCall32": "is called by debuggers",
}

// blacklistGo lists the ranges of those functions.
func (m *Module) blacklistGo() []plan.NoTouch {
	if m.Funcs.Go == nil {
		return nil
	}
	reasons := map[string]string{}
	for names, reason := range goUntouchable {
		for _, name := range strings.Fields(names) {
			reasons[name] = reason
		}
	}
	var out []plan.NoTouch
	for _, fn := range m.Funcs.All() {
		i := slices.IndexFunc(fn.Names, func(name string) bool { return reasons[name] != "" })
		if fn.Go && i >= 0 {
			out = append(out, plan.NoTouch{Range: m.Bias.Range(fn.Range), Reason: plan.Blacklisted,
				Name: fn.Names[i] + ", which " + reasons[fn.Names[i]]})
		}
	}
	return out
}
