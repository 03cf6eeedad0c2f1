package bpftrace_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"trapless/internal/testkit"
)

// newBench compiles the suite's programs as its CMake files do, into a directory that serves later runs too.
func newBench(t *testing.T, dir, command string) *bench {
	t.Helper()
	testkit.Command(t, "cc", "gcc")
	tests := filepath.Join(dir, "tests")
	libs, programs := sources(t, filepath.Join(tests, "testlibs")), sources(t, filepath.Join(tests, "testprogs"))
	final := filepath.Join(os.TempDir(), fmt.Sprintf("trapless-bpftrace-%d-%s", os.Getuid(), digest(t, append(libs, programs...))))
	b := &bench{dir: final, command: command}
	if st, err := os.Lstat(final); err == nil {
		if st.Sys().(*syscall.Stat_t).Uid != uint32(os.Getuid()) {
			t.Fatalf("%s is not ours", final)
		}
		return b
	}
	b.dir = fmt.Sprintf("%s.%d", final, os.Getpid())
	for _, name := range []string{"testprogs/external_debug/dwo", "testprogs/external_debug/dwp", "testprogs/.debug", "testlibs"} {
		if err := os.MkdirAll(filepath.Join(b.dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var lines []string
	for _, src := range libs {
		out := "testlibs/lib" + stem(src) + ".so"
		lines = append(lines, "cc -g -O0 -fPIC -shared -I"+tests+"/include -o "+out+" "+src+" && chmod -x "+out)
	}
	b.compile(t, lines)
	lines = nil
	for _, src := range programs {
		lines = append(lines, programLines(tests, src)...)
	}
	b.compile(t, lines)
	b.compile(t, derived(tests))
	if err := os.Rename(b.dir, final); err != nil {
		t.Fatal(err)
	}
	b.dir = final
	return b
}

// digest names the contents of files.
func digest(t *testing.T, files []string) string {
	t.Helper()
	h := sha256.New()
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(h, "%s %d\n%s", f, len(text), text)
	}
	return hex.EncodeToString(h.Sum(nil))[:16]
}

func stem(path string) string { return strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)) }

func sources(t *testing.T, dir string) []string {
	var all []string
	for _, ext := range []string{"*.c", "*.cpp"} {
		found, err := filepath.Glob(filepath.Join(dir, ext))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

// programLines compile a program as PIE and not.
func programLines(tests, src string) []string {
	cc, flags, libs := "cc", "-g -O0 -fno-omit-frame-pointer -mno-omit-leaf-frame-pointer", " -pthread"
	if filepath.Ext(src) == ".cpp" {
		cc = "c++"
	}
	name := stem(src)
	switch name {
	case "uprobe_nofp":
		flags = "-g -O1 -fomit-frame-pointer -fno-optimize-sibling-calls"
	case "usdt_lib":
		libs += " -Ltestlibs -lusdt_tp -Wl,-rpath,'$ORIGIN/../testlibs' -I" + tests + "/testlibs"
	}
	base := cc + " -w " + flags + " -I" + tests + "/include"
	return []string{
		base + " -no-pie -o testprogs/" + name + " " + src + libs,
		base + " -fpie -pie -o testprogs/" + name + "-pie " + src + libs,
	}
}

// derived makes files from programs: a flat binary, an archive, debug information in places of its own.
func derived(tests string) []string {
	const p = "testprogs/"
	split := "cc -g -O0 -gsplit-dwarf " + tests + "/testprogs/uprobe_test.c -o "
	return []string{
		"cc -c " + tests + "/testprogs/false.c -o " + p + "false.o && objcopy -S -j .text -O binary " + p + "false.o " + p + "false.bin",
		"(cd testprogs && python3 -m zipfile -c archive.zip true)",
		"objcopy --only-keep-debug " + p + "uprobe_test " + p + "external_debug/uprobe_test-stripped.debug && objcopy --strip-debug " + p + "uprobe_test " + p + "uprobe_test-stripped",
		"objcopy --only-keep-debug " + p + "uprobe_separate_debug " + p + ".debug/uprobe_separate_debug-stripped.debug && objcopy --strip-debug " + p +
			"uprobe_separate_debug " + p + "uprobe_separate_debug-stripped && objcopy --add-gnu-debuglink=" + p + ".debug/uprobe_separate_debug-stripped.debug " + p + "uprobe_separate_debug-stripped",
		"(cd " + p + "external_debug/dwo && " + split + "uprobe_test-split)",
		"(cd " + p + "external_debug/dwp && " + split + "uprobe_test-split && (dwp -e uprobe_test-split -o uprobe_test-split.dwp || llvm-dwp -e uprobe_test-split -o uprobe_test-split.dwp))",
		"go build -o " + p + "hello_go " + tests + "/testprogs/hello_go.go",
	}
}

// compile runs command lines, two at a time. What cannot be made is told; the cases that need it will fail.
func (b *bench) compile(t *testing.T, lines []string) {
	next := make(chan string)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for line := range next {
				cmd := exec.Command("/bin/sh", "-c", line)
				cmd.Dir = b.dir
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Logf("%s: %v\n%s", line, err, out)
				}
			}
		})
	}
	for _, line := range lines {
		next <- line
	}
	close(next)
	wg.Wait()
}

// copyBench copies a bench, so that a probe on a file concerns the processes of one bench only, and gives it
// the suite's files.
func copyBench(t *testing.T, from, dir string) string {
	t.Helper()
	to := t.TempDir()
	if out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{"runtime", "self", "include"} {
		if err := os.Symlink(filepath.Join(dir, "tests", name), filepath.Join(to, name)); err != nil {
			t.Fatal(err)
		}
	}
	return to
}
