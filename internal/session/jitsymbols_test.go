package session

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"trapless/internal/testkit"
)

// TestJITSymbolsOfAnybody: everybody may put something in the place of the file that names JIT-compiled code.
func TestJITSymbolsOfAnybody(t *testing.T) {
	cmd := exec.Command("/bin/sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	name := "/tmp/perf-" + strconv.Itoa(cmd.Process.Pid) + ".map"
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	defer os.Remove(name)
	if err := syscall.Mkfifo(name, 0o666); err != nil {
		t.Fatal(err)
	}
	j := jitSymbols{pid: cmd.Process.Pid}
	if name, _, ok := j.find(0x1000); ok { // it does not wait for a writer
		t.Errorf("a pipe says %q", name)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, fmt.Append(nil, "1000 10 compiled\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if testkit.IsRoot() {
		const other = 65534
		if err := os.Chown(name, other, other); err != nil {
			t.Fatal(err)
		}
		if name, _, ok := j.find(0x1000); ok {
			t.Errorf("a file of somebody else says %q", name)
		}
		if err := os.Chown(name, os.Getuid(), os.Getgid()); err != nil {
			t.Fatal(err)
		}
	}
	if name, _, ok := j.find(0x1000); !ok || name != "compiled" {
		t.Errorf("the program's own file says %q, %v", name, ok)
	}
}
