package testkit

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// CompileObject compiles a C source to a BPF object file for a version of the instruction set ("v1" to
// "v4"), with clang, which is installed where that is possible. Flags are added to the command.
func CompileObject(t testing.TB, source, cpu string, flags ...string) string {
	t.Helper()
	clang := Command(t, "clang", "clang")
	out := filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(source), ".c")+".o")
	args := append([]string{"-O2", "-g", "-target", "bpf", "-mcpu=" + cpu, "-Wall", "-Wno-unused"}, flags...)
	cmd := exec.Command(clang, append(args, "-c", source, "-o", out)...)
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, text)
	}
	return out
}

// LibbpfFlags are what CompileObject needs for sources that include libbpf's headers, which are installed
// where that is possible.
func LibbpfFlags(t testing.TB) []string {
	t.Helper()
	if _, err := os.Stat("/usr/include/bpf/bpf_helpers.h"); err != nil {
		RequirePackage(t, "libbpf-dev")
	}
	return []string{"-D__TARGET_ARCH_x86", "-I/usr/include/x86_64-linux-gnu"}
}
