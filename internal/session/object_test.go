package session

import (
	"bytes"
	"context"
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"trapless/internal/arena"
	"trapless/internal/bpf"
	"trapless/internal/object"
	"trapless/internal/testkit"
)

// sinkOf collects what programs of an object write.
type sinkOf struct {
	records []arena.Record
	printed string
	ended   int
}

func (s *sinkOf) Record(r arena.Record) error { s.records = append(s.records, r); return nil }
func (s *sinkOf) Print(text string) error     { s.printed += text; return nil }

func (s *sinkOf) End(read func(int) []arena.Raw) error {
	s.ended++
	read(0)
	return nil
}

// TestConstantsArePrivate writes over what the arena holds of .rodata. The program
// must not see it: what was verified depends on the contents. A record goes to the
// object's sink, not to the script's events.
func TestConstantsArePrivate(t *testing.T) {
	insns := asm.Instructions{
		asm.LoadMem(asm.R6, asm.R1, bpf.PtRegsDI, asm.DWord).WithSymbol("p"),
		asm.And.Imm(asm.R6, 3),
		asm.LSh.Imm(asm.R6, 3),
		asm.LoadMapValue(asm.R1, 0, 0).WithReference(".rodata"),
		asm.Add.Reg(asm.R1, asm.R6),
		asm.LoadMem(asm.R2, asm.R1, 0, asm.DWord),
		asm.StoreMem(asm.R10, -8, asm.R2, asm.DWord),
		asm.LoadMapValue(asm.R1, 0, 0).WithReference(".data"),
		asm.AddAtomic.Mem(asm.R1, asm.R2, asm.DWord, 0),
		asm.LoadMapPtr(asm.R1, 0).WithReference("ring"),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, -8),
		asm.Mov.Imm(asm.R3, 8),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnRingbufOutput.Call(),
		asm.Mov.Imm(asm.R0, 0),
		asm.Return(),
	}
	section := func(name string, words ...uint64) *ebpf.MapSpec {
		var b []byte
		for _, w := range words {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
		return &ebpf.MapSpec{Name: name, Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(b)), MaxEntries: 1,
			Contents: []ebpf.MapKV{{Key: uint32(0), Value: b}}}
	}
	p := testkit.Busy(t, 1)
	o, err := object.New("test", &ebpf.CollectionSpec{
		Programs: map[string]*ebpf.ProgramSpec{"p": {Name: "p", Type: ebpf.Kprobe, SectionName: "uprobe/" + exe(t, p.Pid()) + ":work", Instructions: insns}},
		Maps: map[string]*ebpf.MapSpec{".rodata": section(".rodata", 1, 10, 100, 1000), ".data": section(".data", 5),
			"ring": {Name: "ring", Type: ebpf.RingBuf, MaxEntries: 1 << 16}},
	}, object.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var sink sinkOf
	c := Config{Script: o.Script(), Object: &sink, RingSize: o.RingSize(), Warn: t.Logf}
	numbers := map[string]int{}
	for n, m := range o.Maps {
		numbers[m.Name] = n
		for _, e := range m.Contents {
			c.Contents = append(c.Contents, Content{n, e.Key, e.Value})
		}
	}
	s, err := Attach(t.Context(), p.Pid(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.arena.SetValue(numbers[".rodata"], 0, bytes.Repeat([]byte{0x5a}, 32))
	run(t, p, 16, "work", 1) // the first argument is 0 1 0 2 0 1 0 3 0 1 0 2 0 1 0 4
	if got, want := binary.LittleEndian.Uint64(s.arena.Value(numbers[".data"], 0)), uint64(5+9*1+4*10+2*100+1000); got != want {
		t.Errorf("the sum is %d, not %d", got, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err != nil {
		t.Error(err)
	}
	if len(sink.records) != 16 || sink.ended != 1 || sink.printed != "" {
		t.Fatalf("%d records, ended %d times, printed %q", len(sink.records), sink.ended, sink.printed)
	}
	for i, want := range []uint64{1, 10, 1, 100} {
		if r := sink.records[i]; r.Map != numbers["ring"] || binary.LittleEndian.Uint64(r.Payload) != want {
			t.Errorf("record %d: %+v", i, r)
		}
	}
}
