package trapless_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"

	"trapless"
	"trapless/internal/abi"
	"trapless/internal/object"
	"trapless/internal/testkit"
)

// argument is the offset of the n-th argument in struct pt_regs.
func argument(n int) int16 { return []int16{112, 104, 96, 88, 72, 64}[n] }

// result is the offset of what a function returns.
const result = 80

// lookup is a map's value for the key of so many bytes at r10-8, in r0; without one
// it goes to none.
func lookup(name, none string) asm.Instructions {
	return asm.Instructions{
		asm.LoadMapPtr(asm.R1, 0).WithReference(name),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, -8),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, none),
	}
}

// addOne adds 1 to the word that r0 points to.
func addOne() asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0)}
}

func join(parts ...asm.Instructions) (all asm.Instructions) {
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

// done ends a program.
func done() asm.Instructions {
	return asm.Instructions{asm.Mov.Imm(asm.R0, 0).WithSymbol("done"), asm.Return()}
}

// byHand is a collection of programs that no compiler is needed for. The places are
// functions of the program orders at a path.
func byHand(path string) *ebpf.CollectionSpec {
	countByKey := join(asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, argument(0), asm.DWord).WithSymbol("count_by_key"),
		asm.StoreMem(asm.R10, -8, asm.R6, asm.DWord),
	}, lookup("counts", "new"), addOne(), asm.Instructions{
		asm.Ja.Label("done"),
		asm.Mov.Imm(asm.R1, 1).WithSymbol("new"),
		asm.StoreMem(asm.R10, -16, asm.R1, asm.DWord),
		asm.LoadMapPtr(asm.R1, 0).WithReference("counts"),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, -8),
		asm.Mov.Reg(asm.R3, asm.R10),
		asm.Add.Imm(asm.R3, -16),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call(),
	}, done())
	countResults := join(asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, result, asm.DWord).WithSymbol("count_results"),
		asm.And.Imm(asm.R6, 7),
		asm.StoreMem(asm.R10, -8, asm.R6, asm.DWord),
	}, lookup("results", "done"), addOne(), done())
	tell := join(asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, argument(1), asm.DWord).WithSymbol("tell"),
		asm.LoadMapPtr(asm.R1, 0).WithReference("events"),
		asm.Mov.Imm(asm.R2, 16),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnRingbufReserve.Call(),
		asm.JEq.Imm(asm.R0, 0, "done"),
		asm.StoreMem(asm.R0, 0, asm.R6, asm.DWord),
		asm.Mov.Imm(asm.R1, 42),
		asm.StoreMem(asm.R0, 8, asm.R1, asm.DWord),
		asm.Mov.Reg(asm.R1, asm.R0),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRingbufSubmit.Call(),
	}, done())
	// It adds the number of .rodata that the lowest bits of the argument choose to
	// that of .bss.
	choose := join(asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, argument(0), asm.DWord).WithSymbol("choose"),
		asm.And.Imm(asm.R6, 3),
		asm.LSh.Imm(asm.R6, 3),
		asm.LoadMapValue(asm.R1, 0, 0).WithReference(".rodata"),
		asm.Add.Reg(asm.R1, asm.R6),
		asm.LoadMem(asm.R2, asm.R1, 0, asm.DWord),
		asm.LoadMapValue(asm.R1, 0, 8).WithReference(".bss"),
		asm.AddAtomic.Mem(asm.R1, asm.R2, asm.DWord, 0),
	}, done())
	program := func(section string, insns asm.Instructions) *ebpf.ProgramSpec {
		return &ebpf.ProgramSpec{Name: insns[0].Symbol(), Type: ebpf.Kprobe, SectionName: section, Instructions: insns, License: "MIT"}
	}
	number := &btf.Int{Name: "long", Size: 8, Encoding: btf.Signed}
	return &ebpf.CollectionSpec{
		Programs: map[string]*ebpf.ProgramSpec{
			"count_by_key":  program("uprobe/"+path+":count", countByKey),
			"count_results": program("uretprobe/"+path+":nest", countResults),
			"tell":          program("uprobe/"+path+":greet", tell),
			"choose":        program("uprobe/"+path+":spread", choose),
		},
		Maps: map[string]*ebpf.MapSpec{
			"counts":  {Name: "counts", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 64},
			"results": {Name: "results", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 8, Key: &btf.Int{Name: "int", Size: 4}, Value: number},
			"events":  {Name: "events", Type: ebpf.RingBuf, MaxEntries: 1 << 18},
			".rodata": {Name: ".rodata", Type: ebpf.Array, KeySize: 4, ValueSize: 32, MaxEntries: 1, Flags: 1 << 7,
				Contents: []ebpf.MapKV{{Key: uint32(0), Value: append(make([]byte, 24), 3, 1, 0, 0, 0, 0, 0, 0)}}},
			".bss": {Name: ".bss", Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 1},
		},
	}
}

// TestCollectionByHandAsInTheKernel is TestObjectsAsInTheKernel without a compiler.
func TestCollectionByHandAsInTheKernel(t *testing.T) {
	target := testkit.Compile(t, "orders.c")
	compareWithKernel(t, target, byHand(target))
}

// TestCollection uses a collection as programs for the kernel use one.
func TestCollection(t *testing.T) {
	path := testkit.Compile(t, "orders.c")
	p := testkit.Start(t, path)
	coll, err := trapless.NewCollection(byHand(path), trapless.CollectionOptions{PID: p.Pid})
	if err != nil {
		t.Fatal(err)
	}
	defer coll.Close()
	ex, err := trapless.OpenExecutable(path)
	if err != nil {
		t.Fatal(err)
	}
	run(t, p) // nothing is attached
	counts, err := ex.Uprobe("count", coll.Programs["count_by_key"], nil)
	if err != nil {
		t.Fatal(err)
	}
	tell, err := ex.UprobeMulti([]string{"greet"}, coll.Programs["tell"], &trapless.UprobeOptions{PID: p.Pid})
	if err != nil {
		t.Fatal(err)
	}
	run(t, p)
	if err := errors.Join(counts.Close(), tell.Close(), tell.Close()); err != nil {
		t.Fatal(err)
	}
	run(t, p) // nothing is attached any more
	checkCounts(t, coll)
	checkEvents(t, coll)
	for _, row := range []struct {
		symbol, program string
		o               trapless.UprobeOptions
		want            string
	}{
		{"no_such_function", "tell", trapless.UprobeOptions{}, "no_such_function"},
		{"count", "tell", trapless.UprobeOptions{Offset: 4096}, "no offset 4096"},
		{"count", "tell", trapless.UprobeOptions{PID: p.Pid + 1}, "the collection is in process"},
		{"count", "absent", trapless.UprobeOptions{}, "no such program"},
	} {
		if _, err := ex.Uprobe(row.symbol, coll.Programs[row.program], &row.o); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("want %q: %v", row.want, err)
		}
	}
	p.Stop()
	select {
	case <-coll.Done():
	case <-time.After(testkit.Deadline):
		t.Error("the collection did not notice that the process ended")
	}
	if err := coll.Maps["counts"].Lookup(uint64(0), new(uint64)); err != nil {
		t.Errorf("the map cannot be read after the process has ended: %v", err)
	}
	if err := coll.Close(); err != nil {
		t.Error(err)
	}
	if err := coll.Maps["counts"].Lookup(uint64(0), new(uint64)); !errors.Is(err, trapless.ErrEnded) {
		t.Errorf("a map of a closed collection: %v", err)
	}
	if it := coll.Maps["counts"].Iterate(); it.Next(new(uint64), new(uint64)) || !errors.Is(it.Err(), trapless.ErrEnded) {
		t.Errorf("iterating over a map of a closed collection: %v", it.Err())
	}
}

func checkCounts(t *testing.T, coll *trapless.Collection) {
	t.Helper()
	m, sum, keys := coll.Maps["counts"], uint64(0), 0
	var key, value uint64
	it := m.Iterate()
	for it.Next(&key, &value) {
		var again uint64
		if err := m.Lookup(key, &again); err != nil || again != value {
			t.Errorf("key %d: %d, %d, %v", key, value, again, err)
		}
		sum, keys = sum+value, keys+1
	}
	if it.Err() != nil || sum != rounds || keys != 16 {
		t.Errorf("%d calls of %d keys, not %d of 16, %v", sum, keys, rounds, it.Err())
	}
	if err := m.Lookup(uint64(99), &value); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("key 99: %v", err)
	}
	if err := m.Update(uint64(3), uint64(1), trapless.UpdateNoExist); !errors.Is(err, trapless.ErrKeyExist) {
		t.Errorf("update of key 3: %v", err)
	}
	if err := errors.Join(m.Put(uint64(99), uint64(7)), m.Lookup(uint64(99), &value), m.Delete(uint64(99))); err != nil || value != 7 {
		t.Errorf("key 99: %d, %v", value, err)
	}
	if err := m.Delete(uint64(99)); !errors.Is(err, trapless.ErrKeyNotExist) {
		t.Errorf("deleting key 99 again: %v", err)
	}
	results := coll.Maps["results"]
	if err := errors.Join(results.Put(uint32(7), int64(-3)), results.Lookup(uint32(7), &value)); err != nil || int64(value) != -3 {
		t.Errorf("an element of an array: %d, %v", value, err)
	}
	if err := results.Lookup(uint32(8), &value); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("behind the end of an array: %v", err)
	}
	if err := coll.Maps["events"].Lookup([]byte{}, &value); err == nil || !strings.Contains(err.Error(), "NewReader") {
		t.Errorf("a key of a ring: %v", err)
	}
	if err := m.Put(uint32(1), uint64(7)); err == nil || !strings.Contains(err.Error(), "4 bytes instead of 8") {
		t.Errorf("a short key: %v", err)
	}
	if err := coll.Maps[".rodata"].Put(uint32(0), make([]byte, 32)); err == nil {
		t.Error("constants were changed")
	}
	if _, err := trapless.NewReader(m); err == nil {
		t.Error("a hash was taken for a ring")
	}
}

func checkEvents(t *testing.T, coll *trapless.Collection) {
	t.Helper()
	r, err := trapless.NewReader(coll.Maps["events"])
	if err != nil {
		t.Fatal(err)
	}
	r.SetDeadline(time.Now().Add(testkit.Deadline))
	for i := range rounds {
		rec, err := r.Read()
		if err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("%016x", uint64(i%3)<<56); fmt.Sprintf("%x", rec.RawSample) != want+"2a00000000000000" {
			t.Fatalf("record %d: %x", i, rec.RawSample)
		}
	}
	r.SetDeadline(time.Now())
	if _, err := r.Read(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one record too many, or %v", err)
	}
	if err := r.Close(); err != nil || r.Lost() != 0 {
		t.Errorf("%d lost, %v", r.Lost(), err)
	}
	if _, err := r.Read(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestLoadSpec runs a collection as a script is run, on a program from its start.
func TestLoadSpec(t *testing.T) {
	path := testkit.Compile(t, "orders.c")
	programs, err := trapless.LoadSpec("by hand", byHand(path), trapless.ObjectOptions{Attach: map[string][]string{"tell": {}}})
	if err != nil {
		t.Fatal(err)
	}
	if left := programs.Unattached(); len(left) != 1 || left[0] != "tell" {
		t.Errorf("unattached: %q", left)
	}
	var out strings.Builder
	p := testkit.Start(t, path)
	s, err := trapless.Attach(t.Context(), p.Pid, programs, trapless.Options{Output: &out})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	run(t, p)
	cancel()
	if err := errors.Join(<-ended, s.Close()); err != nil {
		t.Fatal(err)
	}
	p.Stop()
	for _, want := range []string{"counts[3]: ", "results[1]: ", ".bss: "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

// cookies counts calls by bpf_get_attach_cookie, and by bpf_get_func_ip.
func cookies() *ebpf.CollectionSpec {
	count := func(name string, helper asm.BuiltinFunc) *ebpf.ProgramSpec {
		insns := join(asm.Instructions{helper.Call().WithSymbol(name), asm.StoreMem(asm.R10, -8, asm.R0, asm.DWord)},
			lookup("counts", "new"), addOne(), asm.Instructions{
				asm.Ja.Label("done"),
				asm.Mov.Imm(asm.R1, 1).WithSymbol("new"),
				asm.StoreMem(asm.R10, -16, asm.R1, asm.DWord),
				asm.LoadMapPtr(asm.R1, 0).WithReference("counts"),
				asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -8), asm.Mov.Reg(asm.R3, asm.R10), asm.Add.Imm(asm.R3, -16), asm.Mov.Imm(asm.R4, 0),
				asm.FnMapUpdateElem.Call(),
			}, done())
		return &ebpf.ProgramSpec{Name: name, Type: ebpf.Kprobe, SectionName: "uprobe", Instructions: insns, License: "GPL"}
	}
	return &ebpf.CollectionSpec{
		Programs: map[string]*ebpf.ProgramSpec{"cookie": count("cookie", asm.FnGetAttachCookie), "func_ip": count("func_ip", asm.FnGetFuncIp)},
		Maps:     map[string]*ebpf.MapSpec{"counts": {Name: "counts", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 64}},
	}
}

// placement is a program at functions of the program orders, with cookies.
type placement struct {
	program   string
	functions []string
	returns   bool
	cookies   []uint64
}

var placements = []placement{
	{"cookie", []string{"count"}, false, []uint64{7}}, {"cookie", []string{"spread"}, false, []uint64{1<<63 + 5}}, {"cookie", []string{"spread"}, true, []uint64{8}},
	{"cookie", []string{"greet"}, false, []uint64{0}}, {"cookie", []string{"nest", "try_it"}, false, []uint64{100, 101}}, {"cookie", []string{"nest", "six"}, true, []uint64{102, 103}},
	{"func_ip", []string{"count"}, false, []uint64{1}}, {"func_ip", []string{"count"}, true, []uint64{1}}, {"func_ip", []string{"nest"}, true, []uint64{1}}, {"func_ip", []string{"place"}, false, []uint64{1}},
}

// TestCookiesAsInTheKernel puts programs at several places with cookies, and compares
// what they see with what the kernel lets them see. So it does with the addresses of
// the functions.
func TestCookiesAsInTheKernel(t *testing.T) {
	target := testkit.Compile(t, "orders.c")
	p := testkit.Start(t, target)
	inKernel, err := ebpf.NewCollection(cookies())
	skipWithoutKernel(t, err)
	defer inKernel.Close()
	ex, err := link.OpenExecutable(target)
	if err != nil {
		t.Fatal(err)
	}
	var links []link.Link
	for _, at := range placements {
		prog := inKernel.Programs[at.program]
		for i, f := range at.functions {
			attach := ex.Uprobe
			if at.returns {
				attach = ex.Uretprobe
			}
			l, err := attach(f, prog, &link.UprobeOptions{PID: p.Pid, Cookie: at.cookies[i]})
			skipWithoutKernel(t, err)
			links = append(links, l)
		}
	}
	run(t, p)
	for _, l := range links {
		l.Close()
	}
	want := kernelMap(t, &object.Map{Name: "counts", Spec: abi.MapSpec{Kind: abi.Hash, ValueSize: 8}}, inKernel.Maps["counts"])

	coll, err := trapless.NewCollection(cookies(), trapless.CollectionOptions{PID: p.Pid, Warn: t.Errorf})
	if err != nil {
		t.Fatal(err)
	}
	defer coll.Close()
	ours, err := trapless.OpenExecutable(target)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range placements {
		attach, many := ours.Uprobe, ours.UprobeMulti
		if at.returns {
			attach, many = ours.Uretprobe, ours.UretprobeMulti
		}
		if len(at.functions) == 1 {
			_, err = attach(at.functions[0], coll.Programs[at.program], &trapless.UprobeOptions{Cookie: at.cookies[0]})
		} else {
			_, err = many(at.functions, coll.Programs[at.program], &trapless.UprobeOptions{Cookies: at.cookies})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ours.UprobeMulti([]string{"nest", "six"}, coll.Programs["cookie"], &trapless.UprobeOptions{Cookies: []uint64{1}}); err == nil {
		t.Error("one cookie is enough for two functions")
	}
	run(t, p)
	if got := ourMap(t, coll.Maps["counts"]); !slices.Equal(got, want) || len(got) < 8 {
		t.Errorf("the kernel has\n%s\ntrapless has\n%s", strings.Join(want, "\n"), strings.Join(got, "\n"))
	}
}
