package trapless_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/perf"
	"github.com/cilium/ebpf/ringbuf"
	"github.com/cilium/ebpf/rlimit"

	"trapless"
	"trapless/internal/lang"
	"trapless/internal/object"
	"trapless/internal/testkit"
)

// outcome is what programs left: for each map its entries, as text.
type outcome map[string][]string

// rounds is how many rounds the program orders is probed for.
const rounds = 1500

// TestObjectsAsInTheKernel attaches the same object file by the kernel's uprobes and
// by trapless, one after the other, to the same process, which does the same each
// time. The maps must be the same.
func TestObjectsAsInTheKernel(t *testing.T) {
	sources, err := filepath.Glob(filepath.Join("testdata", "objects", "*.bpf.c"))
	if err != nil || len(sources) == 0 {
		t.Fatal(err, "no sources")
	}
	target := testkit.Compile(t, "orders.c")
	flags := append(testkit.LibbpfFlags(t), "-DTARGET="+strconv.Quote(target))
	for _, source := range sources {
		for _, cpu := range []string{"v2", "v3"} {
			name := strings.TrimSuffix(filepath.Base(source), ".bpf.c")
			t.Run(name+"-"+cpu, func(t *testing.T) {
				spec, err := ebpf.LoadCollectionSpec(testkit.CompileObject(t, source, cpu, flags...))
				if err != nil {
					t.Fatal(err)
				}
				compareWithKernel(t, target, spec)
			})
		}
	}
}

// compareWithKernel runs a collection in the kernel and by trapless.
func compareWithKernel(t *testing.T, target string, spec *ebpf.CollectionSpec) {
	t.Helper()
	obj, err := object.New(t.Name(), spec, object.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := testkit.Start(t, target)
	want := kernelOutcome(t, p, obj, spec)
	got := ourOutcome(t, p, obj, spec)
	p.Stop()
	entries := 0
	for name := range want {
		entries += len(want[name])
		if !slices.Equal(got[name], want[name]) {
			t.Errorf("map %s: the kernel has\n%s\ntrapless has\n%s", name, strings.Join(want[name], "\n"), strings.Join(got[name], "\n"))
		}
	}
	if entries == 0 {
		t.Error("the programs left nothing")
	}
	t.Logf("%d programs, %d maps, %d entries and records", len(obj.Programs), len(obj.Maps), entries)
}

// run has the program do its rounds.
func run(t *testing.T, p *testkit.Target) {
	t.Helper()
	if line := p.Ask(fmt.Sprintf("run %d", rounds)); !strings.HasPrefix(line, "ran ") {
		t.Fatal(line)
	}
}

// skipWithoutKernel skips a test where the kernel does not let us load programs or
// place uprobes.
func skipWithoutKernel(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, ebpf.ErrNotSupported) {
		t.Skipf("needs the kernel's permission for programs and uprobes: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// kernelOutcome runs the programs in the kernel.
func kernelOutcome(t *testing.T, p *testkit.Target, obj *object.Object, spec *ebpf.CollectionSpec) outcome {
	t.Helper()
	_ = rlimit.RemoveMemlock() // older kernels want it; if it fails, making the collection says so
	coll, err := ebpf.NewCollection(spec)
	skipWithoutKernel(t, err)
	defer coll.Close()
	var links []link.Link
	for i := range obj.Programs {
		for _, a := range obj.Programs[i].Attach {
			l, err := kernelAttach(t, p.Pid, &a, coll.Programs[obj.Programs[i].Name])
			skipWithoutKernel(t, err)
			links = append(links, l)
		}
	}
	rings := kernelRings(t, coll)
	run(t, p)
	for _, l := range links {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	out := outcome{}
	for name, records := range rings {
		out[name] = records()
	}
	for i := range obj.Maps {
		if m := &obj.Maps[i]; !m.Spec.IsRing() {
			out[m.Name] = kernelMap(t, m, coll.Maps[m.Name])
		}
	}
	return out
}

func kernelAttach(t *testing.T, pid int, a *lang.AttachPoint, p *ebpf.Program) (link.Link, error) {
	t.Helper()
	ex, err := link.OpenExecutable(a.Path)
	if err != nil {
		return nil, err
	}
	switch {
	case a.Wildcard && a.Kind == lang.Uretprobe:
		return ex.UretprobeMulti(symbols(t, a), p, &link.UprobeMultiOptions{PID: uint32(pid)})
	case a.Wildcard:
		return ex.UprobeMulti(symbols(t, a), p, &link.UprobeMultiOptions{PID: uint32(pid)})
	case a.Kind == lang.Uretprobe:
		return ex.Uretprobe(a.Func, p, &link.UprobeOptions{PID: pid})
	}
	return ex.Uprobe(a.Func, p, &link.UprobeOptions{PID: pid, Offset: a.Offset})
}

// kernelMap reads a map of the kernel's.
func kernelMap(t *testing.T, m *object.Map, in *ebpf.Map) []string {
	t.Helper()
	var lines []string
	it := in.Iterate()
	for {
		var key, value []byte
		var values [][]byte
		if m.Spec.Shared() {
			if !it.Next(&key, &value) {
				break
			}
			values = [][]byte{value}
		} else if !it.Next(&key, &values) {
			break
		}
		lines = append(lines, entryLine(t, m, key, values)...)
	}
	if err := it.Err(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(lines)
	return lines
}

// entryLine is an entry as text, of which the values of all CPUs are added up.
// Elements of arrays that are zero say nothing.
func entryLine(t *testing.T, m *object.Map, key []byte, values [][]byte) []string {
	t.Helper()
	sum, ok := object.Sum(m.Value, values)
	if !ok {
		t.Fatalf("map %s: values that cannot be added", m.Name)
	}
	text := hex.EncodeToString(sum[:m.Spec.ValueSize])
	if !m.Spec.IsHash() && strings.Trim(text, "0") == "" {
		return nil
	}
	if m.Name == "latency" { // of which only the number of calls is the same
		return slices.Repeat([]string{"a call"}, int(sum[0])+int(sum[1])<<8)
	}
	return []string{hex.EncodeToString(key) + ": " + text}
}

// kernelRings reads the kernel's rings, once the functions are called.
func kernelRings(t *testing.T, coll *ebpf.Collection) map[string]func() []string {
	t.Helper()
	out := map[string]func() []string{}
	for name, m := range coll.Maps {
		switch m.Type() {
		case ebpf.RingBuf:
			r, err := ringbuf.NewReader(m)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { r.Close() })
			out[name] = func() []string {
				r.SetDeadline(time.Now())
				return readAll(t, func() ([]byte, error) { rec, err := r.Read(); return rec.RawSample, err })
			}
		case ebpf.PerfEventArray:
			r, err := perf.NewReader(m, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { r.Close() })
			out[name] = func() []string {
				r.SetDeadline(time.Now())
				// The kernel makes a record's size 4 more than a multiple of 8 and
				// does not say what was its own; CPUs have rings of their own.
				lines := readAll(t, func() ([]byte, error) { rec, err := r.Read(); return rec.RawSample[:len(rec.RawSample)&^7], err })
				slices.Sort(lines)
				return lines
			}
		}
	}
	return out
}

func readAll(t *testing.T, read func() ([]byte, error)) []string {
	t.Helper()
	var lines []string
	for {
		b, err := read()
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, os.ErrClosed) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, hex.EncodeToString(b))
	}
}

// ourOutcome runs the programs in the process.
func ourOutcome(t *testing.T, p *testkit.Target, obj *object.Object, spec *ebpf.CollectionSpec) outcome {
	t.Helper()
	coll, err := trapless.NewCollection(spec, trapless.CollectionOptions{PID: p.Pid, Warn: t.Errorf})
	if err != nil {
		t.Fatal(err)
	}
	defer coll.Close()
	readers := map[string]*trapless.Reader{}
	for name, m := range coll.Maps {
		if m.Ring() {
			if readers[name], err = trapless.NewReader(m); err != nil {
				t.Fatal(err)
			}
		}
	}
	l, err := coll.AttachSections()
	if err != nil {
		t.Fatal(err)
	}
	run(t, p)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	out := outcome{}
	for name, m := range coll.Maps {
		if !m.Spec.IsRing() {
			out[name] = ourMap(t, m)
		}
	}
	if err := coll.Close(); err != nil {
		t.Fatal(err)
	}
	for name, r := range readers {
		out[name] = readAll(t, func() ([]byte, error) { rec, err := r.Read(); return rec.RawSample, err })
		if coll.Maps[name].Type == ebpf.PerfEventArray {
			slices.Sort(out[name])
		}
	}
	return out
}

func ourMap(t *testing.T, m *trapless.Map) []string {
	t.Helper()
	var lines []string
	it := m.Iterate()
	for {
		var key, value []byte
		var values [][]byte
		if m.Spec.Shared() {
			if !it.Next(&key, &value) {
				break
			}
			values = [][]byte{value}
		} else if !it.Next(&key, &values) {
			break
		}
		lines = append(lines, entryLine(t, m.Map, key, values)...)
	}
	if err := it.Err(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(lines)
	return lines
}
