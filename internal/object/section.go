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
	s.kind = lang.Uprobe
	if strings.Contains(s.provider, "ret") {
		s.kind = lang.Uretprobe
	}
	if strings.HasPrefix(s.provider, "u") && strings.Contains(rest, ":") {
		s.target = rest
	}
	return s
}

// check refuses programs that are no probes of a process.
func (s *section) check(spec *ebpf.ProgramSpec) error {
	switch {
	case s.provider == "usdt":
		return fmt.Errorf("SEC(%q): what a USDT probe's arguments are is told by maps that libbpf fills; put the program at the probe's place by --attach, as a uprobe", s.name)
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
		if err != nil {
			return nil, fmt.Errorf("SEC(%q): %q is no offset", s.name, off)
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
	if provider == "uprobe" || provider == "uretprobe" || provider == "u" || provider == "ur" {
		return text
	}
	return kind.String() + ":" + text
}

// list names things in order.
func list(names iter.Seq[string]) string { return strings.Join(slices.Sorted(names), ", ") }

// errKernel is why something of the kernel's is refused.
var errKernel = errors.New("the program runs in a process, which has none of the kernel's")
