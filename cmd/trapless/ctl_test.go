package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"trapless"
	"trapless/internal/testkit"
)

// ask runs status or ctl until the session can be reached.
func (p *running) ask(args ...string) string {
	p.t.Helper()
	return askOf(p.t, p.pid, args...)
}

// askOf is ask for any process.
func askOf(t *testing.T, pid string, args ...string) string {
	t.Helper()
	until := time.Now().Add(testkit.Deadline)
	for {
		r := runToEnd(t, append(args, "-p", pid)...)
		if r.status == 0 && r.stderr == "" {
			return r.stdout
		}
		if !strings.Contains(r.stderr, "no session of yours") || time.Now().After(until) {
			t.Fatalf("%q: %+v", args, r)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (p *running) status() trapless.Status {
	p.t.Helper()
	var st trapless.Status
	if err := json.Unmarshal([]byte(p.ask("status", "--json")), &st); err != nil {
		p.t.Fatal(err)
	}
	return st
}

// TestStatusAndControl looks at the probes of a session from outside, and changes
// them. The counts are those of the times in which each probe was enabled.
func TestStatusAndControl(t *testing.T) {
	p := startBusy(t)
	r := p.attach(`work@ { @a = count(); } work@ /arg0 == 0/ { @b = count(); } work_push@ { @c = count(); }`, "--breakpoints")
	p.call("work", 1600)
	lines := p.ask("status")
	line := `[0-9a-f]{16}  k  %s\+0x0  busy-\w+ \[OPTIMIZED\]  hits=%d missed=0\n`
	if want := "^" + fmt.Sprintf(line, "work", 1600) + fmt.Sprintf(line, "work", 1600) + fmt.Sprintf(line, "work_push", 0) + "$"; !regexp.MustCompile(want).MatchString(lines) {
		t.Errorf("printed %q, want %s", lines, want)
	}
	st := p.status()
	if len(st.Probes) != 3 || !st.Armed || !st.Optimized || st.PID != p.Pid() {
		t.Fatalf("status %+v", st)
	}
	first := fmt.Sprint(st.Probes[0].ID)
	if got := p.ask("ctl", "disable", first); !strings.Contains(got, "work+0x0  "+filepath.Base(p.path)+" [DISABLED][OPTIMIZED]  hits=1600") {
		t.Errorf("printed %q", got)
	}
	p.call("work", 1600)
	p.ask("ctl", "disarm")
	p.restored()
	p.call("work", 1600)
	p.ask("ctl", "enable", "work*")
	p.ask("ctl", "arm")
	p.call("work", 1600)
	if got := p.ask("ctl", "optimize", "off"); strings.Count(got, "[BOOSTED]") != 3 {
		t.Errorf("printed %q", got)
	}
	p.call("work", 1600)
	p.call("work_push", 1600)
	if got := p.ask("ctl", "optimize", "on"); strings.Count(got, "[OPTIMIZED]") != 3 {
		t.Errorf("printed %q", got)
	}
	p.ask("ctl", "register", p.path+":work_mov", "--program", "2")
	p.call("work_mov", 1600)
	p.ask("ctl", "unregister", "work_mov", filepath.Base(p.path)+":work_push")
	p.call("work_push", 1600)
	if st := p.status(); len(st.Probes) != 2 || st.Probes[1].Hits != 4*1600 {
		t.Errorf("status %+v", st)
	}
	res := r.end(os.Interrupt)
	for name, want := range map[string]int64{"@a": 3 * 1600, "@b": 4 * 800, "@c": 2 * 1600} {
		if got := res.value(t, name); got != want {
			t.Errorf("%s = %d, want %d", name, got, want)
		}
	}
	p.restored()
	for _, args := range [][]string{{"status"}, {"ctl", "arm"}} {
		refused(t, exitFailed, "no session of yours is at work on it", append(args, "-p", p.pid)...)
	}
}

// TestControlReachesChildren asks for the probes of each process that a session follows, and
// changes those of one.
func TestControlReachesChildren(t *testing.T) {
	path := testkit.Compile(t, "offspring.c")
	p := testkit.Start(t, path)
	pid := strconv.Itoa(p.Pid)
	r := traceArmed(t, "--follow", "-p", pid, "-e", fmt.Sprintf("uprobe:%q:probed { @[pid] = count(); }", path))
	children := []string{strings.TrimPrefix(p.Ask("fork"), "child "), strings.TrimPrefix(p.Ask("fork"), "child ")}
	probe := func(pid string, args ...string) trapless.ProbeInfo {
		t.Helper()
		var st trapless.Status
		if err := json.Unmarshal([]byte(askOf(t, pid, append(args, "--json")...)), &st); err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(st.PID) != pid || len(st.Probes) != 1 {
			t.Fatalf("process %s: %+v", pid, st)
		}
		return st.Probes[0]
	}
	for _, of := range append(children, pid) {
		for until := time.Now().Add(testkit.Deadline); probe(of, "status").Hits == 0; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("process %s: nothing is counted", of)
			}
		}
	}
	if probe(children[0], "ctl", "disable", "all").Enabled || !probe(children[1], "status").Enabled || !probe(pid, "status").Enabled {
		t.Error("the probe of one child was disabled, and is not, or others are")
	}
	if got := probe(children[1], "ctl", "disarm"); got.State != trapless.Disarmed {
		t.Errorf("disarmed, it is %+v", got)
	}
	before := probe(children[0], "status").Hits
	if got := probe(children[0], "ctl", "enable", "probed"); !got.Enabled {
		t.Errorf("enabled, it is %+v", got)
	}
	for until := time.Now().Add(testkit.Deadline); probe(children[0], "status").Hits == before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("nothing is counted any more")
		}
	}
	p.Stop()
	r.wait()
	for _, of := range children {
		refused(t, exitFailed, "no session of yours", "status", "-p", of)
	}
}

func TestControlRefuses(t *testing.T) {
	p := startBusy(t)
	r := p.attach(`work@ { @ = count(); }`)
	p.status()
	for args, want := range map[string]string{
		"disable nosuch":         "nosuch: no such probe",
		"disable 77":             "77: no such probe",
		"unregister x:work":      "x:work: no such probe",
		"register nosuch":        "uprobe",
		"optimize off":           "--breakpoints",
		"register libc:nosuchfn": "nosuchfn",
	} {
		refused(t, exitFailed, want, append(append([]string{"ctl"}, strings.Fields(args)...), "-p", p.pid)...)
	}
	for _, args := range []string{"", "enable", "arm all", "optimize", "optimize maybe", "register", "reboot"} {
		refused(t, exitUsage, "--help", append(append([]string{"ctl"}, strings.Fields(args)...), "-p", p.pid)...)
	}
	refused(t, exitUsage, "-p PID", "status")
	p.call("work", 16)
	if got := r.end(os.Interrupt).value(t, "@"); got != 16 {
		t.Errorf("counted %d", got)
	}
}

// TestControlIsForTheUserAlone: another user finds no session.
func TestControlIsForTheUserAlone(t *testing.T) {
	if !testkit.IsRoot() {
		t.Skip("needs root, to become another user")
	}
	p := startBusy(t)
	r := p.attach(`work@ { @ = count(); }`)
	p.status()
	for _, args := range [][]string{{"status", "-p", p.pid}, {"ctl", "-p", p.pid, "disarm"}} {
		out, err := testkit.AsOrdinaryUser(t, exec.Command(program, args...)).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "no session of yours") {
			t.Errorf("%q: %v, %s", args, err, out)
		}
	}
	p.call("work", 16)
	if got := r.end(os.Interrupt).value(t, "@"); got != 16 {
		t.Errorf("counted %d", got)
	}
}
