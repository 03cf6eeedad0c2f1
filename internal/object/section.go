package object

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"

	"trapless/internal/lang"
)

// section is the name of a program's section, taken apart as libbpf does
// (tools/lib/bpf/libbpf.c, attach_uprobe and attach_uprobe_multi; its
// documentation calls it the program's type):
//
//	uprobe/PATH:FUNCTION+OFFSET
//	uretprobe.multi/PATH:PATTERN
//	usdt/PATH:PROVIDER:NAME
//
// PATH is a file or the name of a library. What stands behind the first slash
// without a colon is a name for people.
type section struct {
	name     string
	manual   bool // it begins with "?": not to be loaded by itself
	provider string
	kind     lang.ProbeKind
	multi    bool
	session  bool
	target   string // PATH:FUNCTION, empty when it says none
}

func parseSection(name string) section {
	s := section{name: name}
	name, s.manual = strings.CutPrefix(name, "?")
	head, rest, _ := strings.Cut(name, "/")
	head = strings.TrimSuffix(head, ".s")
	s.provider, s.multi = strings.CutSuffix(head, ".multi")
	s.provider, s.session = strings.CutSuffix(s.provider, ".session")
	switch {
	case s.provider == "usdt":
		s.kind = lang.Usdt
	case strings.Contains(s.provider, "ret"):
		s.kind = lang.Uretprobe
	default:
		s.kind = lang.Uprobe
	}
	if s.user() && strings.Contains(rest, ":") {
		s.target = rest
	}
	return s
}

// user reports whether the section is one for programs of processes.
func (s *section) user() bool {
	return s.provider == "uprobe" || s.provider == "uretprobe" || s.provider == "usdt"
}

// check refuses programs that are no probes of a process.
func (s *section) check(spec *ebpf.ProgramSpec) error {
	switch {
	case s.session:
		return fmt.Errorf("SEC(%q): a session's program decides at the entry whether it runs at the return, which is not possible here; write a uprobe and a uretprobe", s.name)
	case spec.Type != ebpf.Kprobe && spec.Type != ebpf.UnspecifiedProgram:
		return fmt.Errorf("SEC(%q): a program of type %v has no meaning in a process", s.name, spec.Type)
	}
	return nil
}

// attach is where the section says that the program is to be put.
func (s *section) attach() ([]lang.AttachPoint, error) {
	if s.target == "" {
		return nil, nil
	}
	path, function, _ := strings.Cut(s.target, ":")
	if s.kind == lang.Usdt {
		provider, name, ok := strings.Cut(function, ":")
		if path == "" || provider == "" || name == "" || !ok {
			return nil, fmt.Errorf("SEC(%q): expected usdt/PATH:PROVIDER:NAME", s.name)
		}
		return []lang.AttachPoint{{Kind: s.kind, Path: path, Provider: provider, Func: name, Text: s.name}}, nil
	}
	a := lang.AttachPoint{Kind: s.kind, Path: path, Func: function, Text: s.name}
	switch {
	case path == "" || function == "":
		return nil, fmt.Errorf("SEC(%q): expected %s/PATH:FUNCTION", s.name, s.provider)
	case s.multi && strings.Contains(function, "?"):
		return nil, fmt.Errorf("SEC(%q): '?' in a pattern is not supported; write '*', or put the program there by --attach", s.name)
	case s.multi:
		a.Wildcard = strings.Contains(function, "*")
		return []lang.AttachPoint{a}, nil
	}
	if name, off, ok := strings.Cut(function, "+"); ok {
		n, err := strconv.ParseUint(off, 0, 63)
		if err != nil || name == "" {
			return nil, fmt.Errorf("SEC(%q): %q is no function with an offset", s.name, function)
		}
		if s.kind == lang.Uretprobe && n != 0 {
			return nil, fmt.Errorf("SEC(%q): a return has no offset", s.name)
		}
		a.Func, a.Offset = name, n
	}
	return []lang.AttachPoint{a}, nil
}

// withKind puts the kind before an attach point that says none.
func withKind(kind lang.ProbeKind, text string) string {
	provider, _, _ := strings.Cut(text, ":")
	switch provider {
	case "uprobe", "uretprobe", "usdt", "u", "ur", "U":
		return text
	}
	return kind.String() + ":" + text
}

// list names things in order.
func list(names iter.Seq[string]) string { return strings.Join(slices.Sorted(names), ", ") }

// errKernel is why something of the kernel's is refused.
var errKernel = errors.New("the program runs in a process, which has none of the kernel's")
