package inject

import (
	"bytes"
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
	const base, data, size = 0x10000000, 0x10010000, 0x4000
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
	foreignInt3 := a.PC()
	a.Int3()
	returns(44)
	foreignIll := a.PC()
	a.Ud2()
	scene, err := a.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	const faultOrig = 0x12345678
	// Pairs that match nothing, so that the search has to go both ways.
	far := []pair{{1, 2}, {base, 3}, {int3At - 1, 4}, {illAt + 1, 5}, {^abi.Addr(0), 6}}
	boundaries := encodeTable(append(far, pair{int3At, int3Moved}, pair{illAt, illMoved}))
	faults := encodeTable(append(far, pair{faultMoved, faultOrig}))

	region := make([]byte, size)
	copy(region, code)
	copy(region[0x1000:], scene)
	copy(region[0x2000:], boundaries)
	copy(region[0x3000:], faults)
	var out bytes.Buffer
	for _, v := range []abi.Addr{base, size, data, handler, restorer, base + 0x2000, base + 0x3000,
		int3At, illAt, faultAt, faultOrig, foreignInt3, foreignIll} {
		out.Write(binary.LittleEndian.AppendUint64(nil, uint64(v)))
	}
	out.Write(region)
	return out.Bytes()
}

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
		{"foreign-trap-goes-to-the-target", 0},
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
