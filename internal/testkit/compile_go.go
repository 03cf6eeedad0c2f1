package testkit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// GoBuild says how a Go program is built.
type GoBuild struct {
	CGO   bool     // with the C library
	Old   bool     // by Debian's Go 1.19, the oldest form of function table that is read
	Flags []string // of go build
}

// The ways of building that make files of different kinds.
var (
	PureGo     = GoBuild{}
	GoPIE      = GoBuild{Flags: []string{"-buildmode=pie"}}
	GoStripped = GoBuild{Flags: []string{"-ldflags=-s -w"}}
	CGO        = GoBuild{CGO: true}
	CGOPIE     = GoBuild{CGO: true, Flags: []string{"-buildmode=pie"}}
	CGOStatic  = GoBuild{CGO: true, Flags: []string{"-ldflags=-linkmode=external -extldflags=-static -s -w"}}
	OldGo      = GoBuild{Old: true}
)

// The package of the old Go, and its tool.
const (
	oldGoPackage = "golang-1.19-go"
	oldGo        = "/usr/lib/go-1.19/bin/go"
)

// CompileGo builds a Go program of testdata/targets, which is one file, and returns its path. The same
// source is built once a machine in each way. The Go that runs the tests builds it; programs with C need a C
// compiler besides, as those of Compile do.
func CompileGo(t testing.TB, source string, b GoBuild) string {
	t.Helper()
	if b.CGO {
		requireCompiler(t, source)
	}
	if _, err := os.Stat(oldGo); b.Old && err != nil {
		if os.Getenv("TRAPLESS_LONG") == "" {
			t.Skipf("needs the Debian package %s, which has 470 MB, so that only a long run installs it (TRAPLESS_LONG=1)", oldGoPackage)
		}
		RequirePackage(t, oldGoPackage)
	}
	out, err := b.build(TargetSource(t, source))
	if err != nil {
		t.Fatalf("testkit: %v", err)
	}
	return out
}

func (b GoBuild) build(path string) (string, error) {
	tool := "go"
	if b.Old {
		tool = oldGo
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	version, err := exec.Command(tool, "version").Output()
	if err != nil {
		return "", fmt.Errorf("go version: %w", err)
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s%s%v%q", text, version, b.CGO, b.Flags)
	dir, err := CacheDir()
	if err != nil {
		return "", err
	}
	base := strings.TrimSuffix(filepath.Base(path), ".go")
	out := filepath.Join(dir, base+"-"+hex.EncodeToString(h.Sum(nil))[:16])
	if _, err := os.Stat(out); err == nil {
		return out, nil
	}
	tmp := fmt.Sprintf("%s.%d", out, os.Getpid())
	defer os.Remove(tmp)
	args := append(append([]string{"build", "-o", tmp}, b.Flags...), path)
	cmd := exec.Command(tool, args...)
	cmd.Env = append(os.Environ(), "GO111MODULE=off", "CGO_ENABLED=0")
	if b.CGO {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
	}
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, text)
	}
	return out, os.Rename(tmp, out)
}
