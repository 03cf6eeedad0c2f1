package bpftrace_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// testCase is a test of bpftrace's runtime suite. tests/README.md of bpftrace describes the fields.
type testCase struct {
	file, name    string
	run, prog     string
	expects       []expect
	timeout       int // seconds
	befores       []string
	after         string
	setup         string
	cleanup       string
	requires      []string
	features      []string
	env           []string
	arch          string
	willFail      bool
	newPIDNS      bool
	returnCode    int
	skipIfEnvHas  string
	localize      int64 // -1 if no time is to be filled in
	kernelTooMany bool  // MAX_KERNEL is given
}

// expect is what the output has to hold, or not.
type expect struct{ mode, text string }

func (c *testCase) id() string { return c.file + "." + c.name }

// readCases reads a file of the suite.
func readCases(path string) ([]*testCase, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all []*testCase
	var block []string
	flush := func() error {
		if len(block) == 0 {
			return nil
		}
		c, err := readCase(filepath.Base(path), block)
		block = nil
		all = append(all, c)
		return err
	}
	for _, line := range strings.Split(string(text), "\n") {
		switch {
		case strings.HasPrefix(line, "#"):
		case line == "":
			if err := flush(); err != nil {
				return nil, err
			}
		default:
			block = append(block, line)
		}
	}
	return all, flush()
}

// readCase reads the lines of one case. A line that is indented by more than the name of the field before
// continues that field.
func readCase(file string, lines []string) (*testCase, error) {
	c := &testCase{file: file, timeout: 5, localize: -1}
	last := ""
	for _, line := range lines {
		if n := len(last) + 1; last != "" && len(line) >= n && strings.TrimSpace(line[:n]) == "" {
			switch {
			case last == "PROG":
				c.prog += "\n" + line[n:]
				continue
			case last == "EXPECT" || last == "EXPECT_REGEX":
				c.expects[len(c.expects)-1].text += "\n" + line[n:]
				continue
			}
		}
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		last = name
		if err := c.set(name, strings.TrimLeft(value, " ")); err != nil {
			return c, fmt.Errorf("%s: %s: %w", c.id(), line, err)
		}
	}
	return c, nil
}

// expectModes are the fields that say what is expected.
var expectModes = map[string]string{"EXPECT": "text", "EXPECT_NONE": "text_none", "EXPECT_REGEX": "regex",
	"EXPECT_REGEX_NONE": "regex_none", "EXPECT_FILE": "file", "EXPECT_JSON": "json"}

func (c *testCase) set(name, value string) (err error) {
	texts := map[string]*string{"NAME": &c.name, "RUN": &c.run, "PROG": &c.prog, "AFTER": &c.after, "SETUP": &c.setup,
		"CLEANUP": &c.cleanup, "ARCH": &c.arch, "SKIP_IF_ENV_HAS": &c.skipIfEnvHas}
	if to := texts[name]; to != nil {
		*to = value
		return nil
	}
	if mode := expectModes[name]; mode != "" {
		c.expects = append(c.expects, expect{mode, value})
		return nil
	}
	switch name {
	case "TIMEOUT":
		c.timeout, err = strconv.Atoi(value)
	case "BEFORE":
		c.befores = append(c.befores, value)
	case "REQUIRES":
		c.requires = append(c.requires, value)
	case "REQUIRES_FEATURE":
		c.features = append(c.features, strings.Fields(value)...)
	case "ENV":
		c.env = append(c.env, strings.Fields(value)...)
	case "WILL_FAIL":
		c.willFail = true
	case "NEW_PIDNS":
		c.newPIDNS = true
	case "RETURN_CODE":
		c.returnCode, err = strconv.Atoi(value)
	case "LOCALIZE_TIMESTAMPS":
		c.localize, err = strconv.ParseInt(value, 10, 64)
	case "MIN_KERNEL":
	case "MAX_KERNEL":
		c.kernelTooMany = true
	default:
		return fmt.Errorf("unknown field %s", name)
	}
	return err
}

// exact reports whether only the output after the probes' attachment is compared.
func (c *testCase) exact() bool {
	return len(c.expects) > 0 && (c.expects[0].mode == "json" || c.expects[0].mode == "file")
}

// otherProbes finds attach points of the kernel and of hardware, also where a listing asks for them.
var otherProbes = regexp.MustCompile(`(?i)(^|[^\w:./$@-])(kprobe|kretprobe|k|kr|tracepoint|t|rawtracepoint|rt|fentry|fexit|f|fr|` +
	`kfunc|kretfunc|software|s|hardware|h|profile|p|watchpoint|w|asyncwatchpoint|aw|iter|it|self|bench|test|\*ware)(:|\*)[\w*/:]`)

// otherListing finds listings of what only a kernel has.
var otherListing = regexp.MustCompile(`kprobe|tracepoint|software|hardware|fentry|fexit|rawtracepoint|iter:|profile|struct (task_struct|file|bpf_iter)|kstruct|--aot`)

// scriptFile finds the scripts of the suite that a command runs.
var scriptFile = regexp.MustCompile(`runtime/scripts/[\w.]+`)

// selected reports whether a case uses only BEGIN, END, interval, uprobe, uretprobe and usdt.
func (c *testCase) selected(dir string) bool {
	text := c.prog + "\n" + c.run
	for _, name := range scriptFile.FindAllString(c.run, -1) {
		if b, err := os.ReadFile(filepath.Join(dir, "tests", name)); err == nil {
			text += "\n" + string(b)
		}
	}
	return !otherProbes.MatchString(text) && !otherListing.MatchString(text)
}
