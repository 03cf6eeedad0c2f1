package lang

import (
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"trapless/internal/diag"
)

// corpus finds scripts in a checkout of bpftrace, which is not part of this
// project: the programs of its runtime tests, and its tools.
func corpus(t *testing.T) map[string]string {
	t.Helper()
	dir := os.Getenv("TRAPLESS_BPFTRACE")
	if dir == "" {
		t.Skip("needs a checkout of https://github.com/bpftrace/bpftrace; TRAPLESS_BPFTRACE says where it is")
	}
	scripts := map[string]string{}
	files, _ := filepath.Glob(filepath.Join(dir, "tests/runtime/*"))
	tools, _ := filepath.Glob(filepath.Join(dir, "tools/*.bt"))
	for _, path := range append(files, tools...) {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // a directory
		}
		base := filepath.Base(path)
		if strings.HasSuffix(base, ".bt") {
			scripts[base] = string(text)
			continue
		}
		name := ""
		for line := range strings.Lines(string(text)) {
			if n, ok := strings.CutPrefix(line, "NAME "); ok {
				name = base + ": " + strings.TrimSpace(n)
			} else if prog, ok := strings.CutPrefix(line, "PROG "); ok {
				scripts[name] = prog
			}
		}
	}
	if len(scripts) == 0 {
		t.Fatalf("%s holds no scripts of bpftrace", dir)
	}
	return scripts
}

// rejects are beginnings of messages that say that a script is wrong, not that
// something in it does not exist here.
var rejects = []string{"expected", "unexpected", "unknown", "undefined", "invalid", "only a ", "'"}

// TestCorpusIsUnderstood: what bpftrace takes compiles, or is refused by the name
// of what is missing.
func TestCorpusIsUnderstood(t *testing.T) {
	scripts := corpus(t)
	var compiled, named int
	var wrong []string
	for name, src := range scripts {
		_, err := Compile(src, name, Options{})
		if err == nil {
			compiled++
			continue
		}
		bad := ""
		for _, d := range err.(diag.List) {
			for _, r := range rejects {
				if strings.HasPrefix(d.Message, r) && bad == "" {
					bad = d.Message
				}
			}
		}
		if bad == "" {
			named++
		} else {
			wrong = append(wrong, name+": "+bad)
		}
	}
	sort.Strings(wrong)
	t.Logf("of %d scripts %d compile, %d are refused by name, %d are not understood:\n%s",
		len(scripts), compiled, named, len(wrong), strings.Join(wrong, "\n"))
	if 10*len(wrong) > len(scripts) {
		t.Errorf("%d of %d scripts are not understood", len(wrong), len(scripts))
	}
}
