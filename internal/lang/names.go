package lang

import "strings"

// provider is a probe type of the language.
type provider struct {
	name    string
	aliases []string
	kind    ProbeKind // 0 when it is not supported
	kernel  bool      // it probes the kernel or the hardware
}

var providers = []provider{
	{name: "uprobe", aliases: []string{"u"}, kind: Uprobe},
	{name: "interval", aliases: []string{"i"}, kind: Interval},
	{name: "begin", kind: Begin},
	{name: "end", kind: End},
	{name: "uretprobe", aliases: []string{"ur"}, kind: Uretprobe},
	{name: "usdt", aliases: []string{"U"}, kind: Usdt},
	{name: "profile", aliases: []string{"p"}},
	{name: "watchpoint", aliases: []string{"w"}},
	{name: "self"},
	{name: "test"},
	{name: "bench"},
	{name: "kprobe", aliases: []string{"k"}, kernel: true},
	{name: "kretprobe", aliases: []string{"kr"}, kernel: true},
	{name: "tracepoint", aliases: []string{"t"}, kernel: true},
	{name: "rawtracepoint", aliases: []string{"rt"}, kernel: true},
	{name: "fentry", aliases: []string{"f", "kfunc"}, kernel: true},
	{name: "fexit", aliases: []string{"fr", "kretfunc"}, kernel: true},
	{name: "software", aliases: []string{"s"}, kernel: true},
	{name: "hardware", aliases: []string{"h"}, kernel: true},
	{name: "iter", aliases: []string{"it"}, kernel: true},
}

// usable are the providers that an error may suggest.
var usable = map[string]bool{"uprobe": true, "uretprobe": true, "usdt": true, "interval": true, "begin": true, "end": true}

// findProvider looks a name up: full names in any case, aliases as they are.
func findProvider(name string) (provider, bool) {
	for _, p := range providers {
		if p.name == strings.ToLower(name) {
			return p, true
		}
		for _, a := range p.aliases {
			if a == name {
				return p, true
			}
		}
	}
	return provider{}, false
}

// Builtins that are supported, besides the arguments.
const (
	builtinPid    = "pid"
	builtinTid    = "tid"
	builtinComm   = "comm"
	builtinRetval = "retval"
)

// set makes a set of words.
func set(words string) map[string]bool {
	m := make(map[string]bool)
	for _, w := range strings.Fields(words) {
		m[w] = true
	}
	return m
}

var (
	// functions of bpftrace that do not exist here yet.
	unsupportedFunctions = set(`signal signal_thread stack_len unwatch
		write_user errname syscall_name pcomm leader_comm leader_tid`)
	// builtins of bpftrace that do not exist here yet.
	unsupportedBuiltins = set(`ctx leader_comm leader_tid pcomm config`)
	// builtins that are known when the script is compiled, and others.
	constantNames = set("ncpus cpid has_cpid usermode probetype probe")
	otherBuiltins = set("func elapsed dur username args ustack cgroup ppid numaid")
	// functions and builtins about the kernel.
	kernelNames = set(`curtask debugf jiffies kfunc_allowed kfunc_exist kptr kstack
		ksym override path percpu_kaddr skboutput socket_cookie`)
)

// isValueName reports whether a bare name may be a value, supported or not.
func isValueName(name string) bool {
	return name == builtinPid || name == builtinTid || name == builtinComm || name == builtinRetval || helperBuiltins[name].helper != 0 ||
		isArgName(name) || constantNames[name] || otherBuiltins[name] || unsupportedBuiltins[name] || kernelNames[name] || unsupportedFunctions[name] || functions[name] != nil || name == "true" || name == "false"
}

// isWrapped reports whether the name is that of a builtin inside a macro of the
// same name.
func isWrapped(name string) bool {
	inner, ok := strings.CutPrefix(name, "__builtin_")
	return ok && isValueName(inner)
}

// isArgName reports whether the name is arg0, arg1, ... or sarg0, ...
func isArgName(name string) bool {
	name = strings.TrimPrefix(name, "s")
	digits, ok := strings.CutPrefix(name, "arg")
	if !ok || digits == "" {
		return false
	}
	return strings.Trim(digits, "0123456789") == ""
}

// nearest is the word of a table that a misspelt name was probably meant to
// be, and empty when none is near.
func nearest[T any](name string, table map[string]T) string {
	best, bestDistance := "", 3
	switch {
	case len(name) < 3:
		return ""
	case len(name) < 6:
		bestDistance = 2
	}
	for word := range table {
		d := distance(name, word)
		if d < bestDistance || d == bestDistance && best != "" && word < best {
			best, bestDistance = word, d
		}
	}
	return best
}

// distance is the number of characters to insert, delete, replace or swap with
// their neighbour that makes b of a (optimal string alignment).
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return len(a) + len(b)
	}
	var rows [3][65]int
	before, last, row := rows[0][:], rows[1][:], rows[2][:]
	for j := range len(b) + 1 {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(row[j-1]+1, last[j]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
