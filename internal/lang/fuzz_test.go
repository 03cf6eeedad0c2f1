package lang

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"trapless/internal/abi"
	"trapless/internal/bpf"
	"trapless/internal/diag"
	"trapless/internal/usdt"
)

// accepted are scripts that compile, by file name.
func accepted(t testing.TB) map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/accept/*.bt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	out := make(map[string]string)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out[f] = string(b)
	}
	return out
}

var fuzzOptions = Options{Params: []string{"5", "text:x", "-7"}, MaxMapKeys: 16}

func TestAcceptedScripts(t *testing.T) {
	for name, src := range accepted(t) {
		checkCompile(t, name, src)
		if _, err := Compile(src, name, fuzzOptions); err != nil {
			t.Error(err)
		}
	}
}

// TestPrefixes compiles every beginning of every accepted script: what is cut
// off anywhere must be refused with a place, or be a script by itself.
func TestPrefixes(t *testing.T) {
	for name, src := range accepted(t) {
		for i := range len(src) {
			checkCompile(t, name, src[:i])
		}
	}
}

// TestDamage compiles the accepted scripts with one byte left out, doubled or
// replaced.
func TestDamage(t *testing.T) {
	stride := 1
	if testing.Short() {
		stride = 7
	}
	for name, src := range accepted(t) {
		for i := 0; i < len(src); i += stride {
			checkCompile(t, name, src[:i]+src[i+1:])
			checkCompile(t, name, src[:i]+src[i:i+1]+src[i:])
			for _, c := range []string{"{", "}", "(", ")", "\"", "/", ";", "$", "@", "\x00", "\xff", ":"} {
				checkCompile(t, name, src[:i]+c+src[i+1:])
			}
		}
	}
}

func FuzzCompile(f *testing.F) {
	for _, src := range accepted(f) {
		f.Add(src)
	}
	for _, row := range compoundRows {
		f.Add(structs + "uprobe:a:f { " + row.body + " }")
	}
	for _, src := range []string{
		"", "#!", "/*", "begin", "begin{", "u:$2:$1{}", `u:"a\`, "u:a:b+{}", "begin{@[(1,2),3]=sum(1)}", "begin{print(\"%\")}",
		"i:hz:99999999999999999999{}", "begin{if(1){if(0){}}else{}}", "begin{let $x:int8=(((1)))}", "begin{1?2?3:4:5}",
	} {
		f.Add(src)
	}
	f.Fuzz(func(t *testing.T, src string) { checkCompile(t, "fuzz", src) })
}

// checkCompile compiles anything and checks what must hold for all: errors lie
// inside the text, and what compiles is valid and runs.
func checkCompile(t testing.TB, name, src string) {
	t.Helper()
	s, err := Compile(src, name, fuzzOptions)
	var list diag.List
	if err != nil && (!errors.As(err, &list) || len(list) == 0) {
		t.Fatalf("%q: error is no list: %v", src, err)
	}
	if err == nil {
		list = s.Warnings
	}
	for _, d := range list {
		checkSpan(t, src, d.Span, d.Message)
		for _, n := range d.Notes {
			checkSpan(t, src, n.Span, n.Message)
		}
		if strings.ContainsAny(d.Message, "\n") || strings.Contains(d.Message, "%!") && !strings.Contains(src, "%!") {
			t.Fatalf("%q: message %q", src, d.Message)
		}
	}
	if err == nil {
		checkScript(t, src, s)
	}
}

func checkSpan(t testing.TB, src string, at diag.Span, message string) {
	t.Helper()
	if at.Start < 0 || at.End < at.Start || at.End > len(src) {
		t.Fatalf("%q: %q is at %d to %d of %d bytes", src, message, at.Start, at.End, len(src))
	}
}

func checkScript(t testing.TB, src string, s *Script) {
	t.Helper()
	if len(s.Probes) == 0 {
		t.Fatalf("%q: no probes", src)
	}
	var progs []*bpf.Verified
	for _, p := range s.Probes {
		v, err := usdt.Verify(p.Prog)
		if err != nil {
			t.Fatalf("%q\nis not valid: %v\n%s", src, err, p.Prog)
		}
		progs = append(progs, v)
		if len(p.Attach) == 0 || p.Kind == 0 {
			t.Fatalf("%q: probe without attach points", src)
		}
		for _, a := range p.Attach {
			if a.Kind != p.Kind || a.Kind == Interval && a.Every <= 0 || a.Kind == Uprobe && (a.Func == "") == (a.Addr == 0) {
				t.Fatalf("%q: attach point %+v", src, a)
			}
		}
	}
	for _, m := range s.Maps {
		if m.Spec.MaxEntries > 1<<12 {
			return // takes too much memory to try
		}
	}
	layout, err := abi.NewLayout(abi.Config{Threads: 1, Maps: s.MapSpecs()})
	if err != nil {
		t.Fatalf("%q: %v", src, err)
	}
	if layout.Size > 64<<20 {
		return
	}
	now := func() uint64 { return 1 << 40 }
	m := bpf.Machine{Arena: arena(layout), Layout: layout, Slot: abi.SlotTracer, Now: now, Entries: func(int) []bpf.MapEntry { return make([]bpf.MapEntry, 3) }, Event: func(b []byte) bool {
		if _, _, err := s.Event(b); err != nil {
			t.Fatalf("%q: %v", src, err)
		}
		return true
	}}
	for i, p := range progs {
		if err := m.Run(p, &bpf.Regs{1, 2, 3}); err != nil && !errors.Is(err, bpf.ErrFuel) {
			t.Fatalf("%q: %v\n%s", src, err, s.Probes[i].Prog)
		}
	}
}
