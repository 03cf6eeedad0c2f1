package bpftrace_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// failures says which expectations an output does not meet.
func (c *testCase) failures(dir, output string) []string {
	var all []string
	for _, e := range c.expects {
		ok, err := e.met(dir, output, c.localize)
		switch {
		case err != nil:
			all = append(all, fmt.Sprintf("%s %q: %v", e.mode, e.text, err))
		case !ok:
			all = append(all, fmt.Sprintf("%s %q", e.mode, e.text))
		}
	}
	return all
}

// met checks one expectation. Files are named from dir.
func (e expect) met(dir, output string, localize int64) (bool, error) {
	switch e.mode {
	case "text", "text_none":
		re, err := regexp.Compile(`(?m)^\s*` + regexp.QuoteMeta(e.text) + `\s*$`)
		return err == nil && re.MatchString(output) == (e.mode == "text"), err
	case "regex", "regex_none":
		re, err := regexp.Compile("(?m)" + strings.NewReplacer(`\Z`, `\z`).Replace(e.text))
		return err == nil && re.MatchString(output) == (e.mode == "regex"), err
	}
	want, err := os.ReadFile(filepath.Join(dir, e.text))
	if err != nil {
		return false, err
	}
	got, text := strings.TrimSpace(output), strings.TrimSpace(string(want))
	switch {
	case e.mode == "file":
		if localize >= 0 {
			text = strings.ReplaceAll(text, "%H", time.Unix(localize, 0).Format("15"))
		}
		return got == text, nil
	case filepath.Ext(e.text) == ".ndjson":
		return sameLines(strings.Split(got, "\n"), strings.Split(text, "\n"))
	}
	return sameJSON(got, text)
}

func sameLines(got, want []string) (bool, error) {
	if len(got) != len(want) {
		return false, fmt.Errorf("%d lines, want %d", len(got), len(want))
	}
	for i := range got {
		if ok, err := sameJSON(got[i], want[i]); !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

func sameJSON(got, want string) (bool, error) {
	var values [2]any
	for i, s := range []string{got, want} {
		d := json.NewDecoder(bytes.NewReader([]byte(s)))
		d.UseNumber()
		if err := d.Decode(&values[i]); err != nil {
			return false, err
		}
		if d.More() {
			return false, fmt.Errorf("more than one line of JSON")
		}
	}
	return reflect.DeepEqual(values[0], values[1]), nil
}

// escaped is output with bytes that are not UTF-8 written as \xNN.
func escaped(b []byte) string {
	var s strings.Builder
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r == utf8.RuneError && n == 1 {
			fmt.Fprintf(&s, `\x%02x`, b[0])
		} else {
			s.Write(b[:n])
		}
		b = b[n:]
	}
	return s.String()
}
