package bpftrace_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// outcome of a case.
type outcome struct {
	skipped string // why it did not run
	failed  string // why it failed
	output  string
	took    time.Duration
}

// attachTime is how long a script may take until its probes are in place, as in bpftrace's runner.
const attachTime = 10 * time.Second

// endTime is how long a command may take to end after its output has.
const endTime = 2 * time.Second

// notice is the line that tells that the probes are in place.
const notice = "__BPFTRACE_NOTIFY_PROBES_ATTACHED"

// bench is where cases run, one at a time: a directory with the suite's programs and files.
type bench struct {
	dir     string
	command string // that stands for bpftrace
}

// places keeps cases apart that write to places outside of their bench.
var places sync.Mutex

// run runs a case.
func (b *bench) run(c *testCase) (o outcome) {
	if strings.Contains(c.run+c.setup+strings.Join(c.befores, ""), "/tmp/") || strings.Contains(strings.Join(c.befores, ""), "mountns") {
		places.Lock() // their places are the same for all
		defer places.Unlock()
	}
	if why := b.unmet(c); why != "" {
		return outcome{skipped: why}
	}
	began := time.Now()
	defer func() { o.took = time.Since(began) }()
	if err := b.shell(c.setup); err != nil {
		return outcome{failed: "SETUP: " + err.Error()}
	}
	defer func() {
		if err := b.shell(c.cleanup); err != nil && o.failed == "" {
			o.failed = "CLEANUP: " + err.Error()
		}
	}()
	befores, enter, err := b.startBefores(c)
	defer stopAll(befores)
	if err != nil {
		return outcome{failed: "BEFORE: " + err.Error()}
	}
	command := b.commandLine(c, enter)
	if len(befores) > 0 {
		command = strings.ReplaceAll(command, "{{BEFORE_PID}}", strconv.Itoa(lastDescendant(befores[0].Process.Pid)))
	}
	return b.judge(c, command, enter)
}

// unmet says why a case cannot run on this machine.
func (b *bench) unmet(c *testCase) string {
	if c.arch != "" && !archOK(c.arch) {
		return "for " + c.arch
	}
	if k, v, ok := strings.Cut(c.skipIfEnvHas, "="); ok && os.Getenv(k) == v {
		return "the environment has " + c.skipIfEnvHas
	}
	for _, f := range c.features {
		if kernelFeatures[f] || strings.HasPrefix(f, "!") {
			return "needs the feature " + f
		}
	}
	for _, r := range c.requires {
		if b.shell(r) != nil {
			return "requires " + r
		}
	}
	return ""
}

// kernelFeatures are features of kernels, or of bpftrace's build, that a case may require.
var kernelFeatures = map[string]bool{"btf": true, "fentry": true, "dpath": true, "iter": true, "kprobe_multi": true,
	"kprobe_session": true, "skboutput": true, "jiffies64": true, "probe_read_kernel": true, "aot": true}

func archOK(arch string) bool {
	any, found := false, false
	for _, a := range strings.Split(arch, "|") {
		a = strings.TrimSpace(a)
		if not, ok := strings.CutPrefix(a, "!"); ok {
			if not == "x86_64" || not == "le" {
				return false
			}
			continue
		}
		any = true
		found = found || a == "x86_64" || a == "le"
	}
	return found || !any
}

// shell runs a command line in the directory.
func (b *bench) shell(line string) error {
	if line == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), attachTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", line)
	cmd.Dir = b.dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// commandLine is what runs the script, in the namespaces that enter enters.
func (b *bench) commandLine(c *testCase, enter string) string {
	if c.run != "" {
		return enter + strings.ReplaceAll(c.run, "{{BPFTRACE}}", b.command)
	}
	flags := ""
	if len(c.expects) > 0 && c.expects[0].mode == "json" {
		flags = " -q -f json"
	}
	return enter + b.command + flags + " -e '" + strings.ReplaceAll(c.prog, "'", `'\''`) + "'"
}

// judge runs a command line and compares what it printed.
func (b *bench) judge(c *testCase, command, enter string) outcome {
	cmd := exec.Command("bash", "-c", command)
	cmd.Dir = b.dir
	cmd.Env = append([]string{"test=" + c.name, notice + "=1", "PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, c.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	r, w, err := os.Pipe()
	if err != nil {
		return outcome{failed: err.Error()}
	}
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Start()
	w.Close()
	if err != nil {
		return outcome{failed: err.Error()}
	}
	out, late := b.watch(c, cmd, r, enter)
	kill := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	timer := time.AfterFunc(endTime, kill) // it has closed its output, and is about to end
	err = cmd.Wait()
	timer.Stop()
	kill() // what it left behind
	o := outcome{output: escaped(out)}
	if missed := c.failures(b.dir, o.output); len(missed) > 0 {
		o.failed = strings.Join(missed, "; ")
		if late {
			o.failed = "timeout; " + o.failed
		}
		return o
	}
	code := cmd.ProcessState.ExitCode()
	switch {
	case late:
	case c.willFail && err == nil:
		o.failed = "exit status 0, should have failed"
	case !c.willFail && code != c.returnCode:
		o.failed = fmt.Sprintf("exit status %d, want %d", code, c.returnCode)
	}
	return o
}

// watch collects the output, starts AFTER when the probes are in place, and ends what takes too long.
func (b *bench) watch(c *testCase, cmd *exec.Cmd, r *os.File, enter string) (out []byte, late bool) {
	defer r.Close()
	lines := make(chan []byte)
	go func() {
		defer close(lines)
		for in := bufio.NewReader(r); ; {
			line, err := in.ReadBytes('\n')
			lines <- line
			if err == io.EOF || err != nil {
				return
			}
		}
	}()
	timer := time.NewTimer(attachTime)
	defer timer.Stop()
	var after *exec.Cmd
	defer func() { stopAll([]*exec.Cmd{after}) }()
	attached, kills := false, 0
	for {
		select {
		case line, ok := <-lines:
			if !ok {
				return out, late
			}
			out = append(out, line...)
			if attached || string(bytes.TrimSpace(line)) != notice {
				continue
			}
			attached = true
			if c.exact() {
				out = nil
			}
			timer.Reset(time.Duration(c.timeout) * time.Second)
			after = b.startAfter(c, enter)
		case <-timer.C:
			late = true
			sig := syscall.SIGTERM
			if kills++; kills > 1 {
				sig = syscall.SIGKILL
			}
			_ = syscall.Kill(-cmd.Process.Pid, sig)
			timer.Reset(time.Second)
		}
	}
}

func (b *bench) startAfter(c *testCase, enter string) *exec.Cmd {
	if c.after == "" {
		return nil
	}
	cmd := exec.Command("bash", "-c", enter+c.after)
	cmd.Dir = b.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if cmd.Start() != nil {
		return nil
	}
	return cmd
}

// startBefores starts the programs that run beside the script, and waits until they are what they will be.
func (b *bench) startBefores(c *testCase) (started []*exec.Cmd, enter string, err error) {
	for i, line := range c.befores {
		words := strings.Fields(line)
		if c.newPIDNS && i == 0 {
			words = append(strings.Fields("unshare --fork --pid --mount-proc -r --kill-child --"), words...)
		} else if c.newPIDNS {
			words = append(strings.Fields(enter), words...)
		}
		cmd := exec.Command(words[0], words[1:]...)
		if strings.HasPrefix(words[0], ".") {
			cmd.Path = filepath.Join(b.dir, words[0])
		}
		cmd.Dir = b.dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return started, enter, err
		}
		started = append(started, cmd)
		last := strings.Fields(line)
		if err := awaitComm(cmd.Process.Pid, filepath.Base(last[len(last)-1])); err != nil {
			return started, enter, err
		}
		if c.newPIDNS && i == 0 {
			enter = fmt.Sprintf("nsenter -p -m -t %d ", lastDescendant(cmd.Process.Pid))
		}
	}
	return started, enter, nil
}

// awaitComm waits until a process, or one that it started, has a name.
func awaitComm(pid int, name string) error {
	name = name[:min(len(name), 15)]
	for end := time.Now().Add(attachTime); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if comm(pid) == name || comm(lastDescendant(pid)) == name {
			return nil
		}
	}
	return fmt.Errorf("no process %s within %v", name, attachTime)
}

func comm(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)) // it may have ended
	return strings.TrimSpace(string(b))
}

// lastDescendant is the process at the end of the line of first children.
func lastDescendant(pid int) int {
	for {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		first := strings.Fields(string(b))
		if err != nil || len(first) == 0 {
			return pid
		}
		if pid, err = strconv.Atoi(first[0]); err != nil {
			return pid
		}
	}
}

// stopAll kills what was started, with its group.
func stopAll(cmds []*exec.Cmd) {
	for _, cmd := range cmds {
		if cmd != nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
			_ = cmd.Wait()
		}
	}
}
