package lang

import (
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"

	"trapless/internal/diag"
)

// The tests of bpftrace's parser and checker (tests/parser.cpp and others) hold
// programs in C++ string literals, each with what is expected. They are read from a
// checkout (see corpus); nothing of them is kept here.

// cppCase is one call of a test function: its string literals and the text of the
// call.
type cppCase struct {
	program string
	call    string
	name    string // of the function
}

var (
	cppCall = regexp.MustCompile(`(?m)^\s+(test|test_parse_failure|test_macro_parse_failure|test_error|test_for_warning)\s*\(`)
	rawOpen = regexp.MustCompile(`^R"([A-Za-z_]*)\(`)
)

// cppCases finds the calls of test functions in a C++ file.
func cppCases(text string) []cppCase {
	var out []cppCase
	for _, m := range cppCall.FindAllStringSubmatchIndex(text, -1) {
		c := cppCase{name: text[m[2]:m[3]]}
		program, rest, ok := cppString(text[m[1]:])
		if !ok {
			continue
		}
		c.program, c.call = program, untilBalanced(rest)
		out = append(out, c)
	}
	return out
}

// cppString reads a string literal, or several behind one another, at the start of
// an argument.
func cppString(s string) (value, rest string, ok bool) {
	for {
		s = strings.TrimLeft(s, " \t\n")
		if m := rawOpen.FindStringSubmatch(s); m != nil {
			end := strings.Index(s, ")"+m[1]+`"`)
			if end < 0 {
				return value, s, ok
			}
			value += s[len(m[0]):end]
			s, ok = s[end+len(m[1])+2:], true
			continue
		}
		if !strings.HasPrefix(s, `"`) {
			return value, s, ok
		}
		i := 1
		for ; i < len(s) && s[i] != '"'; i++ {
			c := s[i]
			if c == '\\' && i+1 < len(s) {
				i++
				c = map[byte]byte{'n': '\n', 't': '\t', '0': 0, 'r': '\r'}[s[i]]
				if c == 0 {
					c = s[i]
				}
			}
			value += string([]byte{c})
		}
		s, ok = s[min(len(s), i+1):], true
	}
}

// untilBalanced is the text up to the parenthesis that closes a call, with what is
// in strings.
func untilBalanced(s string) string {
	depth := 1
	for i := 0; i < len(s); i++ {
		if m := rawOpen.FindStringSubmatch(s[i:]); m != nil {
			if end := strings.Index(s[i:], ")"+m[1]+`"`); end > 0 {
				i += end + len(m[1]) + 1
				continue
			}
		}
		switch s[i] {
		case '"':
			for i++; i < len(s) && s[i] != '"'; i++ {
				if s[i] == '\\' {
					i++
				}
			}
		case '(', '{':
			depth++
		case ')', '}':
			if depth--; depth == 0 {
				return s[:i]
			}
		}
	}
	return s
}

// userProbes replaces kinds of probes that do not exist here by one that does, and
// reports false for a program about the kernel.
func userProbes(program string) (string, bool) {
	for _, word := range []string{"fentry", "fexit", "kfunc", "tracepoint", "iter:", "kstack", "ksym", "kaddr", "curtask", "rawtracepoint", "hardware",
		"software", "cgroup", "skboutput", "override", "percpu_kaddr", "kptr", "socket_cookie", "debugf", "jiffies", "watchpoint", "path(", "ctx", "import",
		"numaid", "args", "task_struct", "sched", "BTF", "include"} {
		if strings.Contains(program, word) {
			return "", false
		}
	}
	r := regexp.MustCompile(`\b(kprobe|k|kretprobe|kr):`)
	return r.ReplaceAllStringFunc(program, func(s string) string {
		if strings.HasPrefix(s, "kr") {
			return "uretprobe:libc:"
		}
		return "uprobe:libc:"
	}), true
}

// TestCheckerCorpora compiles the programs of bpftrace's own tests: what bpftrace
// accepts is accepted here, what it rejects is rejected.
func TestCheckerCorpora(t *testing.T) {
	dir := os.Getenv("TRAPLESS_BPFTRACE")
	if dir == "" {
		t.Skip("needs a checkout of https://github.com/bpftrace/bpftrace; TRAPLESS_BPFTRACE says where it is")
	}
	for _, file := range []string{"parser.cpp", "type_checker.cpp", "pre_type_check.cpp", "macro_expansion.cpp"} {
		compile := compiles
		if file == "parser.cpp" {
			compile = parses // names and types need not exist
		}
		text, err := os.ReadFile(filepath.Join(dir, "tests", file))
		if err != nil {
			t.Fatal(err)
		}
		var good, bad, agreeGood, agreeBad int
		var wrong []string
		for _, c := range cppCases(string(text)) {
			program, ok := userProbes(c.program)
			if !ok {
				continue
			}
			rejects := strings.Contains(c.name, "failure") || strings.Contains(c.name, "error") || strings.Contains(c.call, "Error{") || strings.Contains(c.call, "ERROR")
			if file == "pre_type_check.cpp" { // the second argument is the error
				second := strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(c.call), ","))
				rejects = second != "" && !strings.HasPrefix(second, `""`)
			}
			err := compile(program)
			if err != nil && err.(diag.List)[0].Message == "the script has no probe" {
				err = nil
			}
			if file == "parser.cpp" && rejects && err == nil {
				err = compiles(program) // some of what it rejects is the checker's here
			}
			switch {
			case rejects:
				bad++
				if err != nil {
					agreeBad++
				} else {
					wrong = append(wrong, "accepted: "+program)
				}
			default:
				good++
				if err == nil {
					agreeGood++
				} else {
					wrong = append(wrong, "rejected: "+program+"\n      "+err.(diag.List)[0].Message)
				}
			}
		}
		sort.Strings(wrong)
		if 100*agreeGood < 70*good || 100*agreeBad < 90*bad {
			t.Errorf("%s: too many differ", file)
		}
		t.Logf("%s: of %d accepted programs %d are accepted, of %d rejected ones %d are rejected\n%s", file, good, agreeGood, bad, agreeBad, strings.Join(wrong, "\n"))
	}
}

func compiles(src string) error {
	_, err := Compile(src, "corpus", Options{})
	return err
}

func parses(src string) error {
	source := diag.NewSource("corpus", src)
	diags := &diag.Collector{Source: source, Limit: maxErrors}
	parse(source, diags, nil)
	return diags.Err()
}
