package trapless_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"trapless"
	"trapless/internal/testkit"
)

// TestUSDTObject runs programs that read the arguments of USDT probes by libbpf's
// header. What the arguments are is known from the target's source.
func TestUSDTObject(t *testing.T) {
	target := testkit.Compile(t, "usdt.c")
	flags := append(testkit.LibbpfFlags(t), "-DTARGET="+strconv.Quote(target))
	object := testkit.CompileObject(t, filepath.Join("testdata", "objects", "usdt", "places.bpf.c"), "v3", flags...)
	p := testkit.Start(t, target)
	programs, err := trapless.LoadObject(object, trapless.ObjectOptions{Attach: map[string][]string{"on_twice": {"usdt:" + target + ":test:twice"}}})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	s, err := trapless.Attach(t.Context(), p.Pid, programs, trapless.Options{Output: &out})
	if err != nil {
		t.Fatal(err)
	}
	p.Ask("fire 1000")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := errors.Join(s.Run(ctx), s.Close()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		fmt.Sprintf("registers[{.a = %d, .b = %d, .c = %d, .d = -384}]: 1000", int64(-0xfffffff70ff0180), int32(-0x70ff0180), uint32(0x8f00fe80)),
		"memory[{.a = -22, .b = 33, .c = 11, .d = 0}]: 1000",
		"twice[1]: 1000",
		"twice[2]: 1000",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	if _, err := trapless.LoadObject(object, trapless.ObjectOptions{Attach: map[string][]string{"on_twice": {"uprobe:" + target + ":odd"}}}); err == nil ||
		!strings.Contains(err.Error(), "arguments of a USDT probe") {
		t.Errorf("as a uprobe: %v", err)
	}
}

// TestUSDTCollection attaches them by the API.
func TestUSDTCollection(t *testing.T) {
	target := testkit.Compile(t, "usdt.c")
	flags := append(testkit.LibbpfFlags(t), "-DTARGET="+strconv.Quote(target))
	spec, err := trapless.LoadCollectionSpec(testkit.CompileObject(t, filepath.Join("testdata", "objects", "usdt", "places.bpf.c"), "v2", flags...))
	if err != nil {
		t.Fatal(err)
	}
	p := testkit.Start(t, target)
	coll, err := trapless.NewCollection(spec, trapless.CollectionOptions{PID: p.Pid})
	if err != nil {
		t.Fatal(err)
	}
	defer coll.Close()
	if _, err := coll.AttachSections(); err != nil {
		t.Fatal(err)
	}
	p.Ask("fire 10")
	var key, value []byte
	it := coll.Maps["memory"].Iterate()
	if !it.Next(&key, &value) || int64(binary.LittleEndian.Uint64(key)) != -22 || binary.LittleEndian.Uint64(value) != 10 || it.Next(&key, &value) {
		t.Errorf("%x: %x, %v", key, value, it.Err())
	}
}
