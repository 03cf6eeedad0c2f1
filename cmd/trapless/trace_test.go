package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"trapless/internal/bench/busy"
	"trapless/internal/testkit"
)

// program is busy, running.
type running struct {
	*busy.Process
	t    *testing.T
	path string
	pid  string
}

func startBusy(t *testing.T, flags ...testkit.Flags) *running {
	t.Helper()
	path := testkit.Compile(t, "busy.c", append(flags, testkit.Exported)...)
	p := testkit.StartBusy(t, path, 2)
	return &running{p, t, path, strconv.Itoa(p.Pid())}
}

// probe expands NAME@ to a probe of busy's function.
func (p *running) script(src string) string {
	return regexp.MustCompile(`(\S+)@ \{|(\S+)@ /`).ReplaceAllStringFunc(src, func(m string) string {
		name, rest, _ := strings.Cut(m, "@")
		return fmt.Sprintf("uprobe:%q:%s%s", p.path, name, rest)
	})
}

// attach starts trapless on busy and returns when it is armed.
func (p *running) attach(src string, args ...string) *tracer {
	p.t.Helper()
	return traceArmed(p.t, append([]string{"-p", p.pid, "-e", p.script(src)}, args...)...)
}

func (p *running) call(function string, calls uint64) {
	p.t.Helper()
	if _, err := p.Run(function, 1, calls); err != nil {
		p.t.Fatal(err)
	}
}

func (p *running) restored() {
	p.t.Helper()
	if changes := testkit.TextChanges(p.t, p.Pid()); len(changes) != 0 {
		p.t.Errorf("the text differs: %q", changes)
	}
}

var blankLines = regexp.MustCompile(`(?m)^\n`)

// TestScripts compares what scripts print with what is known of the calls: in
// 16 of them the first argument, the key, is 0 1 0 2 0 1 0 3 0 1 0 2 0 1 0 4.
func TestScripts(t *testing.T) {
	p := startBusy(t)
	for _, c := range []struct{ name, script, want string }{
		{"count", `work@ { @ = count(); }`, "@: 16\n"},
		{"keys", `work@ { @[arg0] = count(); }`, "@[3]: 1\n@[4]: 1\n@[2]: 2\n@[1]: 4\n@[0]: 8\n"},
		{"keys of two parts", `work@ /arg0 > 2/ { @[arg0, arg0 * 2] = count(); }`, "@[3, 6]: 1\n@[4, 8]: 1\n"},
		{"sum", `work@ { @ = sum(arg0); }`, "@: 15\n"},
		{"predicates", `work@ /arg0 == 0/ { @zero = count(); } work@ /arg0 != 0/ { @other = count(); }`, "@other: 8\n@zero: 8\n"},
		{"order", `work@ { printf("%d ", arg0); }`, "0 1 0 2 0 1 0 3 0 1 0 2 0 1 0 4 \n"},
		{"BEGIN and END", `BEGIN { printf("begin\n"); } work@ { @ = count(); } END { printf("end\n"); clear(@); }`, "begin\nend\n"},
		{"two places", `work@,work_push@ { @ = count(); } work@ { @one = count(); }`, "@: 16\n@one: 16\n"},
		{"exit", `work@ /arg0 == 3/ { printf("three\n"); exit(); }`, "three\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p.t = t
			r := p.attach(strings.ReplaceAll(c.script, "work@,work_push@ {", fmt.Sprintf("uprobe:%q:work,uprobe:%q:work_push {", p.path, p.path)))
			p.call("work", 16)
			var got result
			if c.name == "exit" {
				got = r.wait()
			} else {
				got = r.end(os.Interrupt)
			}
			if blankLines.ReplaceAllString(got.stdout, "") != c.want {
				t.Errorf("printed %q, want %q\n%s", got.stdout, c.want, got.stderr)
			}
			p.restored()
		})
	}
	p.t = t
}

// TestEveryInstruction probes each instruction of functions that are used all
// the time and check themselves. Each is counted exactly or refused.
func TestEveryInstruction(t *testing.T) {
	objdump := testkit.Command(t, "objdump", "binutils")
	for _, flags := range []testkit.Flags{testkit.PIE, testkit.NoPIE, {"-O0"}} {
		p := startBusy(t, flags)
		probed := 0
		for _, function := range []string{"work", "work_push", "work_mov"} {
			out, err := exec.Command(objdump, "-d", "--no-show-raw-insn", "--disassemble="+function, p.path).Output()
			if err != nil {
				t.Fatal(err)
			}
			var first uint64
			for _, m := range regexp.MustCompile(`(?m)^ +([0-9a-f]+):\t(\S+)`).FindAllStringSubmatch(string(out), -1) {
				at, err := strconv.ParseUint(m[1], 16, 64)
				if err != nil {
					t.Fatal(err)
				}
				if first == 0 {
					first = at
				}
				probed += p.checkInstruction(fmt.Sprintf("%s+%d", function, at-first), function)
				if at == first {
					probed += p.checkInstruction(fmt.Sprintf("%#x", at), function)
				}
				if strings.HasPrefix(m[2], "ret") {
					break
				}
			}
		}
		p.restored()
		if probed < 10 {
			t.Errorf("%v: only %d instructions could be probed", flags, probed)
		}
	}
}

// checkInstruction returns how many places were probed: 1 or 0.
func (p *running) checkInstruction(place, function string) int {
	p.t.Helper()
	r := start(p.t, "trace", "-v", "-p", p.pid, "-e", p.script(place+"@ { @ = count(); }"))
	select {
	case <-r.armed:
	case err := <-r.ended:
		if s := r.stderr.String(); !strings.Contains(s, "cannot be probed: ") {
			p.t.Errorf("%s: %v: %s", place, err, s)
		}
		return 0
	}
	p.call(function, 1000)
	if got := r.end(os.Interrupt).value(p.t, "@"); got != 1000 {
		p.t.Errorf("%s was run 1000 times, counted %d", place, got)
	}
	return 1
}

// TestIntervals: what is printed and cleared in between adds up to all calls.
func TestIntervals(t *testing.T) {
	p := startBusy(t)
	r := p.attach(`work@ { @ = count(); } interval:ms:20 { print(@); clear(@); }`)
	for range 20 {
		p.call("work", 10000)
	}
	got := r.end(os.Interrupt)
	var sum uint64
	for _, m := range regexp.MustCompile(`(?m)^@: (\d+)$`).FindAllStringSubmatch(got.stdout, -1) {
		n, err := strconv.ParseUint(m[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	if sum != 200000 {
		t.Errorf("%d calls were printed, 200000 made:\n%s", sum, got.stdout)
	}
}

// TestEnds: however a session ends, it ends in order.
func TestEnds(t *testing.T) {
	const count = `work@ { @ = count(); } END { printf("end\n"); }`
	check := func(t *testing.T, p *running, r result, status int) {
		t.Helper()
		if r.status != status {
			t.Errorf("exit status %d, want %d\n%s", r.status, status, r.stderr)
		}
		if !strings.Contains(r.stdout, "end\n") || r.value(t, "@") != 1000 {
			t.Errorf("printed %q", r.stdout)
		}
		if p != nil {
			p.restored()
		}
	}
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(sig.String(), func(t *testing.T) {
			p := startBusy(t)
			r := p.attach(count)
			p.call("work", 1000)
			check(t, p, r.end(sig), 0)
		})
	}
	t.Run("exit from an interval", func(t *testing.T) {
		p := startBusy(t)
		r := p.attach(`work@ { @ = count(); } interval:s:2 { exit(7); } END { printf("end\n"); }`)
		p.call("work", 1000)
		check(t, p, r.wait(), 7)
	})
	t.Run("duration", func(t *testing.T) {
		p := startBusy(t)
		r := p.attach(count, "--duration", "2s")
		p.call("work", 1000)
		check(t, p, r.wait(), 0)
	})
	t.Run("exit in BEGIN", func(t *testing.T) {
		p := startBusy(t)
		r := runToEnd(t, "trace", "-p", p.pid, "-e", p.script(`BEGIN { printf("begin\n"); exit(3); } work@ { @ = count(); } END { printf("end\n"); }`))
		if r.status != 3 || strings.TrimSpace(r.stdout) != "begin\nend" {
			t.Errorf("%+v", r)
		}
		p.restored()
	})
	t.Run("target exits", func(t *testing.T) {
		path := testkit.Compile(t, "busy.c", testkit.Exported)
		p := testkit.StartCommand(t, exec.Command(path, "1"))
		p.Line()
		r := traceArmed(t, "-p", strconv.Itoa(p.Pid), "-e", fmt.Sprintf(`uprobe:%q:work { @ = count(); } END { printf("end\n"); }`, path))
		p.Ask("run 1000 work 1")
		p.Stop()
		check(t, nil, r.wait(), 0)
	})
	t.Run("target is killed", func(t *testing.T) {
		path := testkit.Compile(t, "busy.c", testkit.Exported)
		p := testkit.StartCommand(t, exec.Command(path, "1"))
		p.Line()
		r := traceArmed(t, "-p", strconv.Itoa(p.Pid), "-e", fmt.Sprintf(`uprobe:%q:work { @ = count(); } END { printf("end\n"); }`, path))
		p.Ask("run 1000 work 1")
		p.Kill()
		check(t, nil, r.wait(), 0)
	})
	t.Run("target runs another program", func(t *testing.T) {
		p := testkit.StartCommand(t, exec.Command("/bin/sh", "-c", "read line; exec cat"))
		r := traceArmed(t, "-p", strconv.Itoa(p.Pid), "-e", `uprobe:libc:read { @ = count(); }`)
		p.Send("go")
		if res := r.wait(); res.status != 0 || res.value(t, "@") == 0 {
			t.Errorf("%+v", res)
		}
		if got := p.Ask("still alive"); got != "still alive" {
			t.Errorf("the new program said %q", got)
		}
		p.Stop()
	})
}

// TestEndsWithoutReader: a session ends in order when nobody reads what it prints, or can.
func TestEndsWithoutReader(t *testing.T) {
	t.Run("nobody reads the output", func(t *testing.T) {
		p := startBusy(t)
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer read.Close()
		cmd := exec.Command(program, "trace", "-v", "-p", p.pid, "-e", p.script(`work@ { printf("%100d\n", arg0); }`))
		cmd.Stdout = write
		r := startCmd(t, cmd)
		write.Close()
		r.waitArmed()
		for range 20 { // more than the pipe and trapless itself hold
			p.call("work", 1000)
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		for until := time.Now().Add(testkit.Deadline); len(testkit.TextChanges(t, p.Pid())) != 0; { // it is not waited for who reads
			if time.Now().After(until) {
				t.Fatal("the probes are still there")
			}
			time.Sleep(10 * time.Millisecond)
		}
		if _, err := io.Copy(io.Discard, read); err != nil {
			t.Fatal(err)
		}
		if res := r.wait(); res.status != 0 {
			t.Errorf("%+v", res)
		}
	})
	t.Run("output is closed", func(t *testing.T) {
		p := startBusy(t)
		read, write, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(program, "trace", "-v", "-p", p.pid, "-e", p.script(`work@ { printf("%d\n", arg0); }`))
		cmd.Stdout = write
		r := startCmd(t, cmd)
		write.Close()
		r.waitArmed()
		read.Close()
		p.call("work", 1000)
		if res := r.wait(); res.status != exitFailed || !strings.Contains(res.stderr, "writing the output") {
			t.Errorf("%+v", res)
		}
		p.restored()
	})
}
