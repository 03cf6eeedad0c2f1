// Package conformance reads the test cases of the BPF conformance suite
// (bpf_conformance, a public project): a program in assembly or as words, the
// memory that it gets, and what it must return. It knows the suite's data
// format and assembler syntax, and no engine.
package conformance

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Case is one case of the suite.
type Case struct {
	Name   string // the file's, without .data
	Code   []byte // encoded instructions, little endian
	Memory []byte // what r1 points to and r2 is the length of; nil without
	Result uint64 // what r0 must be in the end
	Error  string // what the program must be refused for, instead of a result
}

// Cases is the number of cases of the suite at version 4 of the instruction set.
const Cases = 313

// dirVariable names the directory with the suite's files.
const dirVariable = "BPF_CONFORMANCE"

// Load reads the suite's files from the directory that the environment names, or
// fetches them. Where that cannot be done it skips the test with a reason.
func Load(t testing.TB) []Case {
	t.Helper()
	dir := os.Getenv(dirVariable)
	if dir == "" {
		var err error
		if dir, err = fetched(); err != nil {
			t.Skipf("needs the test cases of bpf_conformance, which cannot be fetched (%v): set %s to its directory tests", err, dirVariable)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.data"))
	if err != nil {
		t.Fatal(err)
	}
	var out []Case
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		c, err := Parse(string(text))
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		c.Name = strings.TrimSuffix(filepath.Base(f), ".data")
		out = append(out, *c)
	}
	if len(out) < Cases {
		t.Fatalf("%s holds %d cases, not %d", dir, len(out), Cases)
	}
	return out
}

// Parse reads a case. Sections begin with a line "-- asm", "-- mem", "-- raw",
// "-- result" or "-- error"; others are passed over. A # begins a comment.
func Parse(text string) (*Case, error) {
	sections := map[string][]string{}
	name := ""
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSpace(line)
		if s, ok := strings.CutPrefix(line, "-- "); ok {
			name = s
			if sections[name] == nil {
				sections[name] = []string{}
			}
		} else if line != "" {
			sections[name] = append(sections[name], line)
		}
	}
	c := &Case{}
	var err error
	if words, ok := sections["raw"]; ok {
		c.Code, err = rawWords(words)
	} else {
		c.Code, err = Assemble(sections["asm"])
	}
	if err != nil {
		return nil, err
	}
	if mem, ok := sections["mem"]; ok {
		if c.Memory, err = hexBytes(mem); err != nil {
			return nil, err
		}
	}
	return c, c.expectation(sections)
}

func (c *Case) expectation(sections map[string][]string) error {
	if e, ok := sections["error"]; ok {
		c.Error = strings.Join(append(e, ""), "\n")
		return nil
	}
	result := sections["result"]
	if len(result) != 1 {
		return fmt.Errorf("the result has %d lines", len(result))
	}
	var err error
	c.Result, err = number(result[0], 64)
	return err
}

func rawWords(lines []string) ([]byte, error) {
	var out []byte
	for _, w := range strings.Fields(strings.Join(lines, " ")) {
		n, err := number(w, 64)
		if err != nil {
			return nil, err
		}
		out = binary.LittleEndian.AppendUint64(out, n)
	}
	return out, nil
}

func hexBytes(lines []string) ([]byte, error) {
	out := []byte{}
	for _, w := range strings.Fields(strings.Join(lines, " ")) {
		n, err := strconv.ParseUint(strings.TrimPrefix(w, "0x"), 16, 8)
		if err != nil {
			return nil, err
		}
		out = append(out, byte(n))
	}
	return out, nil
}

// number reads a number of so many bits: hexadecimal ones are unsigned, and
// decimal ones may have a sign.
func number(s string, bits int) (uint64, error) {
	s = strings.TrimPrefix(s, "+")
	if h, ok := strings.CutPrefix(s, "0x"); ok {
		return strconv.ParseUint(h, 16, bits)
	}
	if strings.HasPrefix(s, "-") {
		n, err := strconv.ParseInt(s, 10, bits)
		return uint64(n), err
	}
	return strconv.ParseUint(s, 10, bits)
}
