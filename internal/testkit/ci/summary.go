package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"sort"
	"strings"
	"time"
)

// event is a line of go test -json (cmd/internal/test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string // of build output
	Test       string
	Output     string
	Elapsed    float64 // seconds
}

// summary is what a test run came to.
type summary struct {
	passed      int
	failedTests []string          // "package.Test"
	failedPkgs  []string          // packages that failed without a failing test: build errors, panics, timeouts
	skips       map[string]string // by "package.Test", the reason
	output      map[string]*bytes.Buffer
	failedIn    map[string]bool // packages with a failing test
}

// summarize reads the events of a test run. It prints each package's result as it comes, and the output
// of every failed test.
func summarize(events io.Reader, w io.Writer) (*summary, error) {
	s := &summary{skips: map[string]string{}, output: map[string]*bytes.Buffer{}, failedIn: map[string]bool{}}
	r := bufio.NewReader(events)
	for {
		line, err := r.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(w, "%s", line) // what is not an event is for the reader
			} else {
				s.add(e, w)
			}
		}
		if err == io.EOF {
			return s, nil
		}
		if err != nil {
			return s, err
		}
	}
}

func (s *summary) add(e event, w io.Writer) {
	id := e.Package + "." + e.Test
	switch e.Action {
	case "output":
		s.buffer(id).WriteString(e.Output)
	case "build-output":
		fmt.Fprint(w, e.Output)
	case "pass":
		if e.Test != "" {
			s.passed++
		} else {
			fmt.Fprintf(w, "ok    %s %.1fs\n", e.Package, e.Elapsed)
		}
		delete(s.output, id)
	case "fail":
		s.fail(e, id, w)
	case "skip":
		if e.Test != "" {
			s.skips[id] = reason(s.buffer(id).String())
		}
		delete(s.output, id)
	}
}

func (s *summary) buffer(id string) *bytes.Buffer {
	if s.output[id] == nil {
		s.output[id] = &bytes.Buffer{}
	}
	return s.output[id]
}

func (s *summary) fail(e event, id string, w io.Writer) {
	fmt.Fprintf(w, "%s", s.buffer(id))
	delete(s.output, id)
	if e.Test != "" {
		s.failedTests = append(s.failedTests, id)
		s.failedIn[e.Package] = true
		return
	}
	fmt.Fprintf(w, "FAIL  %s %.1fs\n", e.Package, e.Elapsed)
	if !s.failedIn[e.Package] {
		s.failedPkgs = append(s.failedPkgs, e.Package)
	}
}

// reason finds why a test was skipped in what it printed: "    file_test.go:12: why".
func reason(output string) string {
	for line := range strings.Lines(output) {
		if _, why, ok := strings.Cut(line, ".go:"); ok && !strings.HasPrefix(line, "=== ") {
			if _, why, ok := strings.Cut(why, ": "); ok {
				return strings.TrimSpace(why)
			}
		}
	}
	return "no reason given"
}

func (s *summary) failed() int { return len(s.failedTests) + len(s.failedPkgs) }

func (s *summary) print(w io.Writer, took time.Duration) {
	var ids []string
	for id := range s.skips {
		ids = append(ids, id)
	}
	sort.Strings(ids)
	for _, id := range ids {
		fmt.Fprintf(w, "skip  %s: %s\n", id, s.skips[id])
	}
	for _, id := range s.failedTests {
		fmt.Fprintf(w, "fail  %s\n", id)
	}
	for _, pkg := range s.failedPkgs {
		fmt.Fprintf(w, "fail  %s: the package, not one of its tests\n", pkg)
	}
	fmt.Fprintf(w, "took %.0f s\n%d passed, %d failed, %d skipped\n", took.Seconds(), s.passed, s.failed(), len(s.skips))
}
