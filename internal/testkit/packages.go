package testkit

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Command is the path of a program that the test needs, from a Debian package that is installed when we
// are root. Otherwise the test is skipped with a reason.
func Command(t testing.TB, name, debianPackage string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	RequirePackage(t, debianPackage)
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("needs the program %s: not in the package %s", name, debianPackage)
	}
	return path
}

// RequirePackage installs a Debian package when it is missing and we are root, once a test binary.
// Otherwise it skips the test with a reason. No service of the package is started.
func RequirePackage(t testing.TB, name string) {
	t.Helper()
	if err := installed(name); err != nil {
		t.Skipf("needs the Debian package %s: %v", name, err)
	}
}

func requireCompiler(t testing.TB, source string) {
	t.Helper()
	if compilerFor(source) == "c++" {
		Command(t, "c++", "g++")
		return
	}
	Command(t, "cc", "gcc")
	if _, err := os.Stat("/usr/include/stdlib.h"); err != nil {
		RequirePackage(t, "libc6-dev")
	}
}

var (
	// packagesMu guards packages.
	packagesMu sync.Mutex
	packages   = map[string]error{}
)

func installed(name string) error {
	packagesMu.Lock()
	defer packagesMu.Unlock()
	err, known := packages[name]
	if !known {
		err = install(name)
		packages[name] = err
	}
	return err
}

func install(name string) error {
	if exec.Command("dpkg", "-s", name).Run() == nil {
		return nil
	}
	if !IsRoot() {
		return errors.New("it is not installed and we are not root")
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return errors.New("it is not installed and there is no apt-get")
	}
	unlock, err := lockInstallation()
	if err != nil {
		return err
	}
	defer unlock()
	if aptGet("install", "-y", "--no-install-recommends", name) == nil {
		return nil
	}
	if err := aptGet("update"); err != nil { // the lists are old or missing
		return err
	}
	return aptGet("install", "-y", "--no-install-recommends", name)
}

// lockInstallation keeps the test binaries of several packages from running apt-get at once, and services
// from being started while it runs.
func lockInstallation() (unlock func(), err error) {
	lock, err := os.OpenFile(filepath.Join(os.TempDir(), "trapless-apt.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		lock.Close()
		return nil, err
	}
	const policy = "/usr/sbin/policy-rc.d" // exit 101: services may not be started (invoke-rc.d)
	ours := false
	if file, err := os.OpenFile(policy, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755); err == nil {
		ours = true
		fmt.Fprintln(file, "#!/bin/sh\nexit 101")
		file.Close()
	}
	return func() {
		if ours {
			os.Remove(policy)
		}
		lock.Close()
	}, nil
}

func aptGet(args ...string) error {
	cmd := exec.Command("apt-get", append([]string{"-q", "-o", "DPkg::Lock::Timeout=300"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get %s: %w: %s", args[0], err, complaint(string(out)))
	}
	return nil
}

// complaint finds the error in what apt-get printed.
func complaint(output string) string {
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "E: ") {
			return strings.TrimSpace(line)
		}
	}
	return "no message"
}
