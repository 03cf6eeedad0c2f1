package session

import (
	"strings"
	"testing"

	"trapless/internal/testkit"
)

// sandboxed calls a function that has a program which makes a system call, getuid.
const sandboxed = `:probed { @[uid] = count(); }`

func checkSandbox(t *testing.T, p *testkit.Target) {
	t.Helper()
	if last := p.Stop(); len(last) == 0 || last[len(last)-1] != "ok" {
		t.Errorf("last lines %q\n%s", last, p.Output())
	}
}

// TestFiltersAreAsked: programs that make system calls run under filters that let
// these pass, as those of containers do, and are refused under others.
func TestFiltersAreAsked(t *testing.T) {
	if !testkit.IsRoot() {
		t.Skip("only root may read filters (PTRACE_SECCOMP_GET_FILTER)")
	}
	p := testkit.Start(t, testkit.Compile(t, "sandbox.c"), "allow", "110") // 110 is getppid
	s, r := attach(t, p.Pid, "uprobe:"+exe(t, p.Pid)+sandboxed)
	p.Ask("call 1000")
	finish(t, s)
	if e := r.maps["@"]; len(e) != 1 || e[0].Value[0] != 1000 {
		t.Errorf("counted %v", e)
	}
	checkSandbox(t, p)

	p = testkit.Start(t, testkit.Compile(t, "sandbox.c"), "102") // getuid
	_, _, err := tryAttach(t, p.Pid, "uprobe:"+exe(t, p.Pid)+sandboxed)
	if err == nil || !strings.Contains(err.Error(), "get_current_uid_gid") || !strings.Contains(err.Error(), "does not let system call 102 pass") {
		t.Errorf("under a filter that kills for getuid: %v", err)
	}
	p.Ask("call 1000")
	checkSandbox(t, p)
}

// TestFiltersThatComeLater: a program that puts itself into a sandbox keeps its probes
// if the filter lets their calls pass, and else loses them.
func TestFiltersThatComeLater(t *testing.T) {
	if !testkit.IsRoot() {
		t.Skip("only root may read filters (PTRACE_SECCOMP_GET_FILTER)")
	}
	for filter, says := range map[string]string{"allow": "lets pass", "102": "does not let system call 102 pass", "strict": "strict mode"} {
		t.Run(filter, func(t *testing.T) {
			p := testkit.Start(t, testkit.Compile(t, "sandbox.c"))
			w := watch(t, p.Pid, "uprobe:"+exe(t, p.Pid)+sandboxed)
			p.Ask("call 10")
			p.Ask("filter " + filter)
			w.wait(says)
			want := uint64(20)
			if filter != "allow" {
				want = 10
				if err := <-w.done; err != nil {
					t.Error(err)
				}
			}
			p.Ask("call 10")
			if filter == "allow" {
				w.end()
			}
			if e := w.rec.maps["@"]; len(e) != 1 || e[0].Value[0] != want {
				t.Errorf("counted %v, want %d", e, want)
			}
			if changes := testkit.TextChanges(t, p.Pid); len(changes) != 0 {
				t.Errorf("the text differs: %q", changes)
			}
			checkSandbox(t, p)
		})
	}
}
