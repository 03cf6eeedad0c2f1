package testkit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Flags are compiler flags. The sets below are how the same source becomes the kinds of file that have
// to be told apart.
type Flags []string

var (
	PIE      = Flags{"-fPIE", "-pie"}
	NoPIE    = Flags{"-fno-pie", "-no-pie"}
	Static   = Flags{"-static"}
	Shared   = Flags{"-fPIC", "-shared"}
	Stripped = Flags{"-s"}
	// Exported puts every function into .dynsym, so that a stripped program still names them.
	Exported = Flags{"-rdynamic"}
	// Musl is for the C library musl, with the headers of the kernel.
	Musl = Flags{"-specs=" + muslSpecs, "-idirafter", "/usr/include", "-idirafter", "/usr/include/x86_64-linux-gnu"}
	// MuslStatic is how the programs of small containers are linked.
	MuslStatic = append(slices.Clip(Musl), "-static")
)

// muslSpecs is the file of musl-tools that tells gcc of musl.
const muslSpecs = "/usr/lib/x86_64-linux-musl/musl-gcc.specs"

// String names flags in the names of tests.
func (f Flags) String() string {
	if f.IsMusl() {
		return strings.Join(append([]string{"musl"}, f[len(Musl):]...), " ")
	}
	return strings.Join(f, " ")
}

// IsMusl reports whether flags are for musl.
func (f Flags) IsMusl() bool { return slices.Contains(f, "-specs="+muslSpecs) }

// Compile compiles a program of testdata/targets, "busy.c" for instance, and returns its path. Without
// other flags it is optimized (-O2), position independent, dynamically linked, and has symbols and DWARF.
// The same source, flags and compiler are compiled once a machine. The test is skipped, with the reason,
// when there is no compiler and none can be installed.
func Compile(t testing.TB, source string, flags ...Flags) string {
	t.Helper()
	return CompileFile(t, TargetSource(t, source), flags...)
}

// CompileFile is Compile for a source file anywhere; a .cpp file is compiled as C++.
func CompileFile(t testing.TB, path string, flags ...Flags) string {
	t.Helper()
	args := compilerArgs(path, flags)
	key, err := cacheKey(path, args)
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	dir, err := CacheDir()
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	base := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	out := filepath.Join(dir, base+"-"+key)
	if _, err := os.Stat(out); err == nil {
		return out
	}
	requireCompiler(t, path)
	if slices.ContainsFunc(flags, Flags.IsMusl) {
		RequirePackage(t, "musl-tools")
	}
	if err := compileTo(out, path, args); err != nil {
		t.Fatalf("testkit: %v", err)
	}
	return out
}

func compilerFor(path string) string {
	if filepath.Ext(path) == ".cpp" {
		return "c++"
	}
	return "cc"
}

func compilerArgs(path string, flags []Flags) []string {
	args := []string{compilerFor(path), "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"}
	for _, f := range flags {
		args = append(args, f...)
	}
	return args
}

// Copy copies a program, so that no process of another test runs the same file: kernel
// uprobes write into all that have it mapped.
func Copy(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(t.TempDir(), filepath.Base(path)+"-copy")
	if err := os.WriteFile(own, text, 0o755); err != nil {
		t.Fatal(err)
	}
	return own
}

// compileTo writes the program under a name of its own and renames it, so that tests of several packages
// can want the same program at once.
func compileTo(out, path string, args []string) error {
	tmp := fmt.Sprintf("%s.%d", out, os.Getpid())
	defer os.Remove(tmp)
	args = append(args, "-o", tmp, path, "-ldl")
	if text, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, text)
	}
	return os.Rename(tmp, out)
}

// cacheKey names a compilation: the source, the header that targets share, the flags and the compiler.
func cacheKey(path string, args []string) (string, error) {
	h := sha256.New()
	for _, file := range []string{path, filepath.Join(filepath.Dir(path), "target.h")} {
		text, err := os.ReadFile(file)
		if err != nil && file == path {
			return "", err
		}
		h.Write(text)
	}
	fmt.Fprintf(h, "%q", args)
	if compiler, err := exec.LookPath(args[0]); err == nil {
		version, err := exec.Command(compiler, "--version").Output()
		if err != nil {
			return "", fmt.Errorf("%s --version: %w", compiler, err)
		}
		h.Write(version)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// CacheDir is a directory for what is made or fetched once a machine. Every user can read it and only we
// can write, also when it was there before.
func CacheDir() (string, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("trapless-targets-%d", os.Getuid()))
	if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
		return "", err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(owner.Uid) != os.Getuid() || info.Mode().Perm()&0o022 != 0 {
		return "", fmt.Errorf("%s: not a directory of ours alone; remove it", dir)
	}
	return dir, os.Chmod(dir, 0o755)
}
