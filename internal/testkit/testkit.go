// Package testkit is what tests share: C programs compiled on demand and driven over their stdin and
// stdout, Debian packages installed where that is possible, and checks that a live process was left as
// it was found (mappings, descriptors, text).
//
// Only tests import it, and it imports no package of the project but the driver of the busy target, so
// that the tests of every package can use it. Nothing here outlives a test: processes are killed when the
// test ends, and die with the test binary if that is killed.
package testkit

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// Deadline is how long a target may take to answer, to become ready or to end. It is generous: it exists
// to turn a hang into a failure, never to judge speed.
const Deadline = 60 * time.Second

// Root is the directory of the module.
func Root(t testing.TB) string {
	t.Helper()
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		t.Fatal("testkit: the test binary has no source paths")
	}
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// TargetSource is the path of a file in testdata/targets.
func TargetSource(t testing.TB, name string) string {
	t.Helper()
	return filepath.Join(Root(t), "testdata", "targets", name)
}

// IsRoot reports whether the tests run as root.
func IsRoot() bool { return os.Geteuid() == 0 }
