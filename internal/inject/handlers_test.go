package inject

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"trapless/internal/abi"
	x86 "trapless/internal/asm/x86"
)

// handlerScene is the code file of testdata/handlers.c: handlers, their tables
// and code that runs into them.
func handlerScene(t *testing.T) []byte {
	t.Helper()
	const base, data, size = 0x10000000, 0x10020000, 0x10000
	code, handler, restorer, err := handlerCode(base, data)
	if err != nil {
		t.Fatal(err)
	}
	a := x86.New(base + 0x1000)
	returns := func(n uint64) abi.Addr {
		at := a.PC()
		a.MovRI(x86.RAX, n)
		a.Ret()
		return at
	}
	int3Moved, illMoved := returns(42), returns(43)
	int3At := a.PC()
	a.Int3()
	illAt := a.PC()
	a.Raw(0x06)
	faultAt := a.PC()
	a.OpRR(x86.Xor, 4, x86.RAX, x86.RAX)
	faultMoved := a.PC()
	a.Load(8, x86.RAX, x86.At(x86.RAX, 0))
	callAt := a.PC()
	a.OpRR(x86.Xor, 4, x86.RAX, x86.RAX)
	a.Push(x86.RAX)
	callMoved := a.PC()
	a.JmpMem(x86.At(x86.RAX, 0))
	divideAt := a.PC()
	a.OpRR(x86.Xor, 4, x86.RCX, x86.RCX)
	divideMoved := a.PC()
	a.Raw(0xf7, 0xf1) // div %ecx
	foreignInt3 := a.PC()
	a.Int3()
	returns(44)
	foreignIll := a.PC()
	a.Ud2()
	wasInt3 := a.PC()
	a.Int3()
	returns(44)
	wasGone := a.PC()
	a.Nop(1)
	scene, err := a.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	const faultOrig = 0x12345678
	region := make([]byte, size)
	copy(region, code)
	copy(region[0x1000:], scene)
	ts := handlerTables(t, fakeMemory(region), base, base+0x2000)
	boundaries := []pair{{int3At, int3Moved}, {illAt, illMoved}}
	for _, b := range append(boundaries, pair{wasInt3, base}, pair{wasGone, base}) {
		if err := ts.enter(t.Context(), boundaryTable, []pair{b}); err != nil {
			t.Fatal(err)
		}
	}
	if err := ts.enter(t.Context(), faultTable, []pair{{faultMoved, faultOrig}, {divideMoved, faultOrig}}); err != nil {
		t.Fatal(err)
	}
	if err := ts.enter(t.Context(), pushedTable, []pair{{callMoved, faultOrig}}); err != nil {
		t.Fatal(err)
	}
	if err := ts.publish(); err != nil {
		t.Fatal(err)
	}
	if err := ts.set(boundaries); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	for _, v := range []abi.Addr{base, size, data, handler, restorer, base + 0x2000,
		int3At, illAt, faultAt, callAt, divideAt, faultOrig, foreignInt3, foreignIll, wasInt3, wasGone} {
		out.Write(binary.LittleEndian.AppendUint64(nil, uint64(v)))
	}
	out.Write(region)
	return out.Bytes()
}

// handlerTables are tables in a region at base, with their directory at dir. They
// hold pairs that match nothing, so that a search has to go on.
func handlerTables(t *testing.T, region fakeMemory, base, dir abi.Addr) *tables {
	t.Helper()
	next := dir + abi.PageSize
	ts := &tables{mem: movedMemory{region, base}, dir: dir, alloc: func(_ context.Context, size uint64) (abi.Addr, error) {
		at := next
		next += abi.Addr(size)
		return at, nil
	}}
	var far []pair
	for i := range abi.Addr(300) {
		far = append(far, pair{base + 8*i, base}, pair{0x555500000000 + i, 0x555500000000})
	}
	for k := range tableKinds {
		if err := ts.enter(t.Context(), k, far); err != nil {
			t.Fatal(err)
		}
	}
	return ts
}

// movedMemory is memory at another address than 0.
type movedMemory struct {
	fakeMemory
	base abi.Addr
}

func (m movedMemory) ReadAt(p []byte, at abi.Addr) error  { return m.fakeMemory.ReadAt(p, at-m.base) }
func (m movedMemory) WriteAt(p []byte, at abi.Addr) error { return m.fakeMemory.WriteAt(p, at-m.base) }

func TestHandlersInAProcess(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler: the handlers are not executed")
	}
	dir := t.TempDir()
	bin, scene := filepath.Join(dir, "handlers"), filepath.Join(dir, "code")
	if out, err := exec.Command(cc, "-O1", "-Wall", "-o", bin, "testdata/handlers.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.WriteFile(scene, handlerScene(t), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		dies syscall.Signal // 0: exits with status 0
	}{
		{"boundaries", 0},
		{"boundaries-beside-a-handler", 0},
		{"fault-is-reported-at-its-own-address", 0},
		{"division-is-reported-at-its-own-address", 0},
		{"fault-of-a-call-that-has-pushed", 0},
		{"foreign-trap-goes-to-the-target", 0},
		{"own-trap-where-ours-was", 0},
		{"taken-out-meanwhile", 0},
		{"one-shot-handler", syscall.SIGTRAP},
		{"sent-signal-reaches-the-handler", 0},
		{"sent-signal-is-ignored", 0},
		{"own-trap-is-not-ignored", syscall.SIGTRAP},
		{"default-int3", syscall.SIGTRAP},
		{"default-sent-trap", syscall.SIGTRAP},
		{"default-ill", syscall.SIGILL},
		{"default-segv", syscall.SIGSEGV},
		{"default-sent-segv", syscall.SIGSEGV},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, err := exec.Command(bin, scene, c.name).CombinedOutput()
			var died syscall.Signal
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				if ws := exit.Sys().(syscall.WaitStatus); ws.Signaled() {
					died = ws.Signal()
				}
			}
			if died != c.dies || (c.dies == 0 && err != nil) {
				t.Errorf("ended with %v, wanted signal %d\n%s", err, c.dies, out)
			}
		})
	}
}
