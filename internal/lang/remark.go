package lang

import (
	"fmt"

	"github.com/cilium/ebpf/asm"

	"trapless/internal/abi"
	"trapless/internal/diag"
	"trapless/internal/unix"
)

// Report is something that a running script has to say about a place in it, or about
// none: of errorf() and warnf(), or what went wrong in a program.
type Report struct {
	Kind     string // "errorf", "warnf", "helper_error", "runtime_error"; or "error"
	Severity diag.Severity
	Source   *diag.Source // nil if there is no place
	Span     diag.Span
	From     []diag.Span // where the macros stand that the place came from, the innermost first
	Text     string
	Helper   string // of a helper_error: what failed, by the kernel's names
	Retcode  int    // and how
}

// Remark is a place in a program where something may go wrong at run time. Programs
// count how often it does, in a word of a hidden map, so that what goes well costs
// nothing. The tracer looks at the words and tells.
type Remark struct {
	Span    diag.Span
	From    []diag.Span
	Text    string
	Helper  string // the kernel's helper that is to blame, empty if none is
	Retcode int    // what it returned
}

// Report is what is said when it happened.
func (r *Remark) Report(source *diag.Source) *Report {
	out := &Report{Kind: "runtime_error", Severity: diag.Warning, Source: source, Span: r.Span, From: r.From, Text: r.Text, Helper: r.Helper, Retcode: r.Retcode}
	if r.Helper != "" {
		out.Kind = "helper_error"
	}
	return out
}

// Diagnostic is the report as it is printed.
func (r *Report) Diagnostic() *diag.Diagnostic {
	d := &diag.Diagnostic{Severity: r.Severity, Source: r.Source, Span: r.Span, Message: r.Text}
	if r.Helper != "" {
		d.Details = append(d.Details, fmt.Sprintf("Additional Info - helper: %s, retcode: %d", r.Helper, r.Retcode))
	}
	for _, at := range r.From {
		d.Note(at, "expanded from")
	}
	return d
}

// What bpftrace says of these.
const (
	divisionText = "Divide or modulo by 0 detected. This can lead to unexpected results. 1 is being used as the result."
	outsideText  = "Array access out of bounds. This can lead to unexpected results."
	lookupText   = "Can't lookup map element because it does not exist."
	deleteText   = "Can't delete map element because it does not exist."
)

// remark counts that something went wrong, and destroys the two registers.
func (l *lowerer) remark(r Remark, a, b asm.Register) {
	s := l.script
	n := 0
	for n < len(s.Remarks) && (s.Remarks[n].Span != r.Span || s.Remarks[n].Text != r.Text) {
		n++
	}
	if n == len(s.Remarks) {
		s.Remarks = append(s.Remarks, r)
	}
	l.emit(asm.LoadMapValue(a, s.remarkMap(), uint32(8*n)))
	l.movImm(b, 1)
	l.emit(asm.AddAtomic.Mem(a, b, asm.DWord, 0))
}

// unread remarks that a helper could not read the target's memory: r0 is negative.
func (l *lowerer) unread(helper string) {
	if !l.checks || l.reads == nil {
		return
	}
	const badAddress = 14 // EFAULT
	good := l.newLabel()
	l.jumpImm(asm.JSGE, asm.R0, 0, good)
	l.remark(Remark{Span: l.reads.span, From: l.reads.from, Text: unix.Strerror(badAddress), Helper: helper, Retcode: -badAddress}, asm.R1, asm.R2)
	l.bind(good)
}

// remarkMap is the number of the map that counts remarks: it comes behind the scratch
// memory.
func (s *Script) remarkMap() int { return s.scratchMap + 1 }

// addRemarks adds that map, if there are any.
func (s *Script) addRemarks() {
	if len(s.Remarks) == 0 {
		return
	}
	spec := abi.MapSpec{Name: "@(remarks)", Kind: abi.PerSlotArray, KeySize: 4, ValueSize: 8 * len(s.Remarks), MaxEntries: 1}
	s.Maps = append(s.Maps, Map{Name: spec.Name, Spec: spec, Agg: Hist, Hidden: true})
}

// RemarkMap is the number of the map that counts remarks, false if there are none.
func (s *Script) RemarkMap() (int, bool) { return s.remarkMap(), len(s.Remarks) > 0 }
