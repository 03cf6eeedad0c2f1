// Command ci runs every check of the project and says, at the end, how many tests ran, failed and were
// skipped, each skip with its reason. With -fuzz it runs every fuzz target for the given time instead.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

func main() {
	fuzz := flag.Duration("fuzz", 0, "run each fuzz target for so long, instead of the tests")
	flag.Parse()
	run := test
	if *fuzz > 0 {
		run = func() error { return fuzzAll(*fuzz) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "FAILED:", err)
		os.Exit(1)
	}
}

// test runs the checks in order of their speed. Only the tests go on after a failure, to list all of them.
func test() error {
	for _, check := range []func() error{formatted, command("go", "vet", "./..."), command("go", "build", "./...")} {
		if err := check(); err != nil {
			return err
		}
	}
	// The tests stop, continue and patch processes and wait for them: a deadline far beyond what they
	// take turns a hang into a failure that names its test.
	begin := time.Now()
	cmd := exec.Command("go", "test", "-json", "-timeout", "15m", "./...")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	s, readErr := summarize(out, os.Stdout)
	runErr := cmd.Wait()
	s.print(os.Stdout, time.Since(begin))
	switch {
	case readErr != nil:
		return readErr
	case runErr != nil || s.failed() > 0:
		return fmt.Errorf("go test: %d tests failed (%v)", s.failed(), runErr)
	case s.passed == 0:
		return fmt.Errorf("go test: no test ran")
	}
	return nil
}

func formatted() error {
	fmt.Println("+ gofmt -l")
	files, err := exec.Command("git", "ls-files", "*.go").Output()
	if err != nil { // not a clone: every file counts
		files, err = exec.Command("find", ".", "-name", "*.go").Output()
		if err != nil {
			return err
		}
	}
	out, err := exec.Command("gofmt", append([]string{"-l"}, strings.Fields(string(files))...)...).CombinedOutput()
	if len(bytes.TrimSpace(out)) > 0 {
		return fmt.Errorf("gofmt would change:\n%s", out)
	}
	return err
}

func command(name string, args ...string) func() error {
	return func() error {
		fmt.Println("+", name, strings.Join(args, " "))
		cmd := exec.Command(name, args...)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
		}
		return nil
	}
}

// fuzzAll runs the fuzz targets one after another: go test takes one at a time.
func fuzzAll(each time.Duration) error {
	packages, err := exec.Command("go", "list", "./...").Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	targets := 0
	for _, pkg := range strings.Fields(string(packages)) {
		list, err := exec.Command("go", "test", "-list", "^Fuzz", pkg).Output()
		if err != nil {
			return fmt.Errorf("go test -list %s: %w", pkg, err)
		}
		for _, name := range strings.Fields(string(list)) {
			if !strings.HasPrefix(name, "Fuzz") {
				continue
			}
			targets++
			err := command("go", "test", "-run", "^$", "-fuzz", "^"+name+"$", "-fuzztime", each.String(), "-fuzzminimizetime", "2s", pkg)()
			if err != nil {
				return err
			}
		}
	}
	fmt.Printf("%d fuzz targets, %v each: no failure\n", targets, each)
	return nil
}
