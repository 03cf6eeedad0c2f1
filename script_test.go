package trapless

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"trapless/internal/diag"
)

// The files of testdata/scripts hold scripts of one behaviour each, which need no process, and what they print:
//
//	=== NAME
//	params 1 abc       (positional parameters, if any)
//	named name=value   (options of the script's own)
//	config name=value  (settings of the environment)
//	checks             (as with -k)
//	status 3           (of exit(), if it is not 0)
//	clock @ts          (the map with the time that tseries() sees)
//	bpftrace           (Debian's bpftrace 0.17 prints the same, but for spaces at the end of lines)
//	--- script
//	begin { print($1); }
//	--- output
//	1
//	--- errors
//	stdin:1:9-14: WARNING: text    (what is printed on standard error, where that matters; of a
//	script that is refused, that is all)
//
// Outputs without the mark are of newer syntax, or differ between the versions of the language: they follow
// bpftrace's documentation of 0.26.
type scriptCase struct {
	name, script, output, errors string
	options                      CompileOptions
	status                       int
	quiet                        bool // nothing is said of errors
}

func readScriptCases(t *testing.T, path string) []scriptCase {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []scriptCase
	for _, block := range strings.Split("\n"+string(text), "\n=== ")[1:] {
		head, rest, ok := strings.Cut(block+"\n", "\n--- script\n")
		script, output, ok2 := strings.Cut(rest, "\n--- output\n")
		output, errors, ok3 := strings.Cut(output, "--- errors\n")
		if !ok2 {
			script, errors, ok3 = strings.Cut(rest, "\n--- errors\n")
		}
		if !ok || !ok2 && !ok3 {
			t.Fatalf("%s: no script, or neither output nor errors in %q", path, block)
		}
		name, fields, _ := strings.Cut(head, "\n")
		c := scriptCase{name: name, script: script, output: strings.TrimRight(output, "\n"), errors: strings.TrimRight(errors, "\n"), quiet: !ok3}
		c.options.Named, c.options.Config = map[string]string{}, map[string]string{}
		for line := range strings.Lines(fields) {
			words := strings.Fields(line)
			switch words[0] {
			case "params":
				c.options.Params = words[1:]
			case "named", "config":
				name, value, _ := strings.Cut(words[1], "=")
				map[string]map[string]string{"named": c.options.Named, "config": c.options.Config}[words[0]][name] = value
			case "checks":
				c.options.Checks = true
			case "status":
				if c.status, err = strconv.Atoi(words[1]); err != nil {
					t.Fatal(err)
				}
			case "clock":
				c.options.Clock = words[1]
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
	var out, errs strings.Builder
	c.play(t, &out, &errs)
	if got := strings.TrimRight(out.String(), "\n"); got != c.output {
		t.Errorf("%s\nprints %q\nwant   %q", c.script, got, c.output)
	}
	if got := strings.TrimRight(errs.String(), "\n"); got != c.errors && !c.quiet {
		t.Errorf("%s\nsays\n%s\nwant\n%s", c.script, got, c.errors)
	}
}

// play compiles and runs the script.
func (c *scriptCase) play(t *testing.T, out, errs *strings.Builder) {
	script, err := CompileWith("stdin", c.script, c.options)
	var list diag.List
	switch {
	case errors.As(err, &list):
		if err := diag.WriteText(errs, list); err != nil {
			t.Fatal(err)
		}
		return
	case err != nil:
		t.Fatal(err)
	}
	for _, w := range script.Warnings() {
		errs.WriteString(w)
	}
	s, err := Alone(script, Options{Output: out, Errors: errs, Warn: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := s.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if s.Status() != c.status {
		t.Errorf("status %d, want %d", s.Status(), c.status)
	}
}

// TestFilter: begin and end are not asked for by name.
func TestFilter(t *testing.T) {
	script, err := Compile("stdin", `begin { print(1); } interval:s:100 { print(2); } interval:s:200 { print(3); } end { print(4); }`)
	if err != nil {
		t.Fatal(err)
	}
	script.Filter(regexp.MustCompile("200"))
	if got := strings.Join(script.AttachPoints(), " "); got != "begin interval:s:200 end" {
		t.Errorf("%q are left", got)
	}
}
