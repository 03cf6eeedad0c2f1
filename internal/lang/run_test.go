package lang

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"trapless/internal/abi"
	"trapless/internal/bpf"
	"trapless/internal/diag"
	"trapless/internal/usdt"
)

// bench is a script on an arena of its own, run by the interpreter.
type bench struct {
	t       testing.TB
	script  *Script
	machine bpf.Machine
	progs   []*bpf.Verified
	events  []string
}

func mustCompile(t testing.TB, src string, opts Options) *Script {
	t.Helper()
	s, err := Compile(src, "test.bt", opts)
	if err != nil {
		var b strings.Builder
		diag.WriteText(&b, err.(diag.List))
		t.Fatalf("does not compile:\n%s", b.String())
	}
	return s
}

func newBench(t testing.TB, src string, opts Options) *bench {
	t.Helper()
	b := &bench{t: t, script: mustCompile(t, src, opts)}
	layout, err := abi.NewLayout(abi.Config{Threads: 1, Maps: b.script.MapSpecs()})
	if err != nil {
		t.Fatal(err)
	}
	b.machine = bpf.Machine{Arena: arena(layout), Layout: layout, Slot: abi.SlotTracer, TGID: 4711, Event: b.event}
	for _, p := range b.script.Probes {
		v, err := usdt.Verify(p.Prog)
		if err != nil {
			t.Fatalf("%s\nis not valid: %v\n%s", src, err, p.Prog)
		}
		b.progs = append(b.progs, v)
	}
	return b
}

// arena makes an arena, aligned.
func arena(l *abi.Layout) []byte {
	words := make([]uint64, l.Size/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), l.Size)
}

// event writes an event down as "kind: values".
func (b *bench) event(payload []byte) bool {
	a, values, err := b.script.Event(payload)
	if err != nil {
		b.t.Fatalf("event: %v", err)
	}
	var parts []string
	for _, v := range values {
		parts = append(parts, show(v))
	}
	s := a.Kind.String()
	switch a.Kind {
	case PrintMap:
		s += fmt.Sprintf(" %s top %d div %d", b.script.Maps[a.Map].Name, a.Top, a.Div)
	case Clear, Zero:
		s += " " + b.script.Maps[a.Map].Name
	}
	b.events = append(b.events, strings.TrimSpace(s+" "+strings.Join(parts, ",")))
	return true
}

func show(v Value) string {
	switch {
	case v.Elems != nil:
		var parts []string
		for _, e := range v.Elems {
			parts = append(parts, show(e))
		}
		return "(" + strings.Join(parts, ",") + ")"
	case v.Type.Kind == String:
		return v.Str
	case v.Str != "":
		return fmt.Sprintf("%q", v.Str)
	case v.Type.Kind == Bool:
		return fmt.Sprint(v.Int != 0)
	case v.Type.Signed:
		return fmt.Sprint(int64(v.Int))
	}
	return fmt.Sprint(v.Int)
}

// run runs probe n with arguments and returns the events since the last run.
func (b *bench) run(n int, args ...uint64) string {
	b.t.Helper()
	var ctx bpf.Regs
	for i, a := range args {
		ctx[bpf.ArgOffset(i)/8] = a
	}
	if err := b.machine.Run(b.progs[n], &ctx); err != nil {
		b.t.Fatalf("run: %v\n%s", err, b.script.Probes[n].Prog)
	}
	out := strings.Join(b.events, "; ")
	b.events = nil
	return out
}

// cell reads a word of the tracer's cell of a map without keys.
func (b *bench) cell(m, off int) uint64 {
	l := b.machine.Layout
	at := l.Slots + uint64(abi.SlotTracer)<<l.StrideShift + l.Maps[m].Cells + uint64(off)
	return binary.LittleEndian.Uint64(b.machine.Arena[at:])
}

// entries lists the cells of a map with keys of one part, as "key=words".
func (b *bench) entries(m int) string {
	l := b.machine.Layout
	ml := &l.Maps[m]
	mask := uint64(int64(ml.KeyMask))
	var out []string
	for pos := range ml.Positions() {
		word := binary.LittleEndian.Uint64(b.machine.Arena[ml.Dir+8*uint64(pos):])
		if word == 0 {
			continue
		}
		key := word ^ mask
		if pos == 1<<ml.DirBits {
			key = mask
		}
		cell := l.Slots + uint64(abi.SlotTracer)<<l.StrideShift + ml.Cells + uint64(pos*ml.ValueSize)
		s := fmt.Sprintf("%d=", int64(key))
		for off := 0; off < ml.ValueSize; off += 8 {
			s += fmt.Sprintf("%d,", int64(binary.LittleEndian.Uint64(b.machine.Arena[cell+uint64(off):])))
		}
		out = append(out, strings.TrimSuffix(s, ","))
	}
	return sorted(out)
}

func sorted(s []string) string {
	for i := range s {
		for j := i; j > 0 && s[j] < s[j-1]; j-- {
			s[j], s[j-1] = s[j-1], s[j]
		}
	}
	return strings.Join(s, " ")
}
