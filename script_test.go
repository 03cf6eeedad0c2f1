package trapless

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The files of testdata/scripts hold scripts of one behaviour each, which need no process, and what they print:
//
//	=== NAME
//	params 1 abc       (positional parameters, if any)
//	status 3           (of exit(), if it is not 0)
//	clock @ts          (the map with the time that tseries() sees)
//	bpftrace           (Debian's bpftrace 0.17 prints the same, but for spaces at the end of lines)
//	--- script
//	begin { print($1); }
//	--- output
//	1
//
// Outputs without the mark are of newer syntax, or differ between the versions of the language: they follow
// bpftrace's documentation of 0.26.
type scriptCase struct {
	name, script, output string
	clock                string
	params               []string
	status               int
}

func readScriptCases(t *testing.T, path string) []scriptCase {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []scriptCase
	for _, block := range strings.Split("\n"+string(text), "\n=== ")[1:] {
		head, rest, ok := strings.Cut(block, "\n--- script\n")
		script, output, ok2 := strings.Cut(rest, "\n--- output\n")
		if !ok || !ok2 {
			t.Fatalf("%s: no script or no output in %q", path, block)
		}
		name, fields, _ := strings.Cut(head, "\n")
		c := scriptCase{name: name, script: script, output: strings.TrimRight(output, "\n")}
		for line := range strings.Lines(fields) {
			words := strings.Fields(line)
			switch words[0] {
			case "params":
				c.params = words[1:]
			case "status":
				if c.status, err = strconv.Atoi(words[1]); err != nil {
					t.Fatal(err)
				}
			case "clock":
				c.clock = words[1]
			case "bpftrace":
			default:
				t.Fatalf("%s: %s: unknown field %q", path, name, line)
			}
		}
		all = append(all, c)
	}
	return all
}

func TestScripts(t *testing.T) {
	defer func(l *time.Location) { time.Local = l }(time.Local)
	time.Local = time.UTC
	files, err := filepath.Glob("testdata/scripts/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	n := 0
	for _, f := range files {
		for _, c := range readScriptCases(t, f) {
			n++
			t.Run(strings.TrimSuffix(filepath.Base(f), ".txt")+"/"+c.name, func(t *testing.T) { c.run(t) })
		}
	}
	if n < 300 {
		t.Errorf("there are %d scripts, at least 300 are wanted", n)
	}
}

func (c *scriptCase) run(t *testing.T) {
	script, err := CompileWith("stdin", c.script, CompileOptions{Params: c.params, Clock: c.clock})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	s, err := Alone(script, Options{Output: &out, Warn: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimRight(out.String(), "\n"); got != c.output || s.Status() != c.status {
		t.Errorf("%s\nprints %q, status %d\nwant   %q, status %d", c.script, got, s.Status(), c.output, c.status)
	}
}
