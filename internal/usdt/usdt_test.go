package usdt_test

import (
	"errors"
	"testing"
	"unsafe"

	"trapless/internal/abi"
	"trapless/internal/bpf"
	"trapless/internal/image"
	"trapless/internal/lang"
	"trapless/internal/usdt"
)

// run runs the program of a script in the interpreter and returns its events.
func run(t *testing.T, p *bpf.Program, events func([]byte)) {
	t.Helper()
	v, err := bpf.Verify(p)
	if err != nil {
		t.Fatalf("%v\n%s", err, p)
	}
	layout, err := abi.NewLayout(abi.Config{Threads: 1, Maps: p.Maps})
	if err != nil {
		t.Fatal(err)
	}
	words := make([]uint64, layout.Size/8)
	m := bpf.Machine{Arena: unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), layout.Size), Layout: layout, Slot: abi.SlotTracer,
		Event: func(b []byte) bool { events(b); return true }}
	if err := m.Run(v, nil); err != nil {
		t.Fatal(err)
	}
}

// Jumps over arguments, and back, lead to where they led, whatever the arguments become.
func TestJumpsLeadToWhereTheyLed(t *testing.T) {
	script, err := lang.Compile(`usdt:x:y {
		if (arg0 == 3) { $a = arg1 + arg2; printf("%d", $a); } else { printf("%d", arg3 * 1000); }
		if (arg4 && arg0 != 4) { printf("%d", arg5); }
		printf("%d", (arg6 == 123456789012345 ? arg1 : 7));
	}`, "t", lang.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for first, want := range map[int64][]uint64{3: {11, 77, 5}, 4: {9000, 5}, 5: {9000, 77, 5}} {
		m := &image.Marker{At: 0x1000}
		for _, value := range []int64{first, 5, 6, 9, 1, 77, 123456789012345} { // of which the last needs a long load
			m.Args = append(m.Args, image.MarkerArg{Size: 8, Kind: image.ArgConstant, Disp: value})
		}
		p, err := usdt.Bind(script.Probes[0].Prog, m)
		if err != nil {
			t.Fatal(err)
		}
		var got []uint64
		run(t, p, func(b []byte) {
			_, values, err := script.Event(b)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, values[0].Int)
		})
		if len(got) != len(want) {
			t.Fatalf("arg0 = %d: %v, want %v", first, got, want)
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("arg0 = %d: %v, want %v", first, got, want)
			}
		}
	}
}

// A template is refused where it was not made a program of.
func TestTemplatesAreNoPrograms(t *testing.T) {
	script, err := lang.Compile(`usdt:x:y { @ = sum(arg1); }`, "t", lang.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := script.Probes[0].Prog
	if !usdt.Uses(p) {
		t.Error("the program uses no argument")
	}
	if _, err := bpf.Verify(p); err == nil {
		t.Error("a template was verified")
	}
	if _, err := usdt.Verify(p); err != nil {
		t.Error(err)
	}
	var arg *usdt.ArgError
	if _, err := usdt.Bind(p, &image.Marker{Provider: "x", Name: "y"}); !errors.As(err, &arg) || arg.N != 1 {
		t.Errorf("a probe without arguments: %v", err)
	}
}
