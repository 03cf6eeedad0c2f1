package main

import (
	"strings"
	"testing"
	"time"
)

func TestSummary(t *testing.T) {
	events := `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0}
{"Action":"output","Package":"p","Test":"TestB","Output":"=== RUN   TestB\n"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:7: needs root: ptrace_scope is 2\n"}
{"Action":"skip","Package":"p","Test":"TestB","Elapsed":0}
{"Action":"output","Package":"p","Test":"TestC","Output":"    c_test.go:9: got 1, want 2\n"}
{"Action":"fail","Package":"p","Test":"TestC","Elapsed":0}
{"Action":"fail","Package":"p","Elapsed":0.5}
{"Action":"skip","Package":"empty","Elapsed":0}
{"ImportPath":"q","Action":"build-output","Output":"q.go:1: syntax error\n"}
{"Action":"fail","Package":"q","Elapsed":0,"FailedBuild":"q"}
not json
{"Action":"pass","Package":"r","Elapsed":1.25}`
	var out strings.Builder
	s, err := summarize(strings.NewReader(events), &out)
	if err != nil {
		t.Fatal(err)
	}
	s.print(&out, 90*time.Second)
	want := `    c_test.go:9: got 1, want 2
FAIL  p 0.5s
q.go:1: syntax error
FAIL  q 0.0s
not json
ok    r 1.2s
skip  p.TestB: needs root: ptrace_scope is 2
fail  p.TestC
fail  q: the package, not one of its tests
took 90 s
1 passed, 2 failed, 1 skipped
`
	if out.String() != want {
		t.Errorf("got:\n%s\nwant:\n%s", out.String(), want)
	}
}
