package testkit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Target is a running program that a test started. Its methods fail the test when the program does not
// do what it should in time; they must be called from the test's goroutine.
type Target struct {
	Pid int

	t      testing.TB
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	lines  chan string // of stdout
	ended  chan struct{}
	status error // from Wait; valid once ended is closed

	// outMu guards out.
	outMu sync.Mutex
	out   bytes.Buffer // all of stdout and stderr, for messages
}

// Start starts a program of testdata/targets and waits until it says that it is ready.
func Start(t testing.TB, path string, args ...string) *Target {
	t.Helper()
	target := StartCommand(t, exec.Command(path, args...))
	if line := target.Line(); !strings.HasPrefix(line, "ready ") {
		t.Fatalf("%s: first line %q, want \"ready ...\"", path, line)
	}
	return target
}

// StartCommand starts any program, with stdin and stdout under the test's control. The process is killed
// with its process group when the test ends, and dies with the test binary.
func StartCommand(t testing.TB, cmd *exec.Cmd) *Target {
	t.Helper()
	target := &Target{t: t, cmd: cmd, lines: make(chan string, 1024), ended: make(chan struct{})}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	target.stdin = stdin
	cmd.Stderr = &lockedWriter{&target.outMu, &target.out}
	if err := startTied(t, cmd); err != nil {
		t.Fatalf("start %s: %v", cmd.Path, err)
	}
	target.Pid = cmd.Process.Pid
	go target.collect(stdout)
	t.Cleanup(target.Kill)
	return target
}

// startTied starts a command that the kernel kills when the test binary dies. The signal is sent when the
// *thread* that forked ends (prctl(2), PR_SET_PDEATHSIG), and Go's threads come and go with goroutines
// that lock them, so the thread is held until the test's end.
func startTied(t testing.TB, cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	started := make(chan error)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		started <- cmd.Start()
		<-release
	}()
	return <-started
}

// collect reads stdout to its end and then reaps the process.
func (p *Target) collect(stdout io.Reader) {
	r := bufio.NewReader(stdout)
	for {
		line, err := r.ReadString('\n')
		p.outMu.Lock()
		p.out.WriteString(line)
		p.outMu.Unlock()
		if line != "" {
			select {
			case p.lines <- strings.TrimSuffix(line, "\n"):
			default: // nobody reads the lines of this one; Output has them
			}
		}
		if err != nil {
			break
		}
	}
	close(p.lines)
	p.status = p.cmd.Wait()
	close(p.ended)
}

// Send writes one line to stdin.
func (p *Target) Send(line string) {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		p.t.Fatalf("%s (%d): write %q: %v\n%s", p.cmd.Path, p.Pid, line, err, p.Output())
	}
}

// Line returns the next line of stdout.
func (p *Target) Line() string {
	p.t.Helper()
	select {
	case line, ok := <-p.lines:
		if !ok {
			<-p.ended
			p.t.Fatalf("%s (%d): ended (%v) without another line\n%s", p.cmd.Path, p.Pid, p.status, p.Output())
		}
		return line
	case <-time.After(Deadline):
		p.t.Fatalf("%s (%d): no line within %v\n%s", p.cmd.Path, p.Pid, Deadline, p.Output())
	}
	return ""
}

// Ask writes one line and returns the line that answers it.
func (p *Target) Ask(line string) string {
	p.t.Helper()
	p.Send(line)
	return p.Line()
}

// Stop closes stdin, which ends a target, and requires that its exit status is 0: then every check that
// it made of itself held. It returns its last lines, those not read yet.
func (p *Target) Stop() []string {
	p.t.Helper()
	p.stdin.Close()
	if err := p.Wait(); err != nil {
		p.t.Fatalf("%s (%d): %v\n%s", p.cmd.Path, p.Pid, err, p.Output())
	}
	var rest []string
	for line := range p.lines {
		rest = append(rest, line)
	}
	return rest
}

// Wait waits until the process has ended and returns nil for exit status 0, else the error of
// exec.Cmd.Wait.
func (p *Target) Wait() error {
	p.t.Helper()
	select {
	case <-p.ended:
		return p.status
	case <-time.After(Deadline):
		p.t.Fatalf("%s (%d): has not ended within %v\n%s", p.cmd.Path, p.Pid, Deadline, p.Output())
	}
	return nil
}

// Ended reports whether the process has ended.
func (p *Target) Ended() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// Signal sends a signal.
func (p *Target) Signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatalf("%s (%d): %v: %v", p.cmd.Path, p.Pid, sig, err)
	}
}

// Kill kills the process and what it started, and waits for its end. It may be called more than once.
func (p *Target) Kill() {
	p.stdin.Close()
	if !p.Ended() {
		// A leader that is just being reaped leaves its number free for a moment; pids are handed
		// out in a cycle, so it is not a stranger's yet.
		if err := syscall.Kill(-p.Pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			p.t.Errorf("kill the group of %s (%d): %v", p.cmd.Path, p.Pid, err)
		}
	}
	select {
	case <-p.ended:
	case <-time.After(Deadline):
		p.t.Errorf("%s (%d): survives SIGKILL\n%s", p.cmd.Path, p.Pid, p.Output())
	}
}

// Output is everything the process has written to stdout and stderr so far.
func (p *Target) Output() string {
	p.outMu.Lock()
	defer p.outMu.Unlock()
	return p.out.String()
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// Counts parses lines such as "counts function=probed calls=123" into calls by function.
func Counts(lines []string) map[string]uint64 {
	counts := map[string]uint64{}
	for _, line := range lines {
		var function string
		var calls uint64
		if n, _ := fmt.Sscanf(line, "counts function=%s calls=%d", &function, &calls); n == 2 {
			counts[function] = calls
		}
	}
	return counts
}

// AsOrdinaryUser makes a command run as the user nobody. When we are not root it runs as we do. The
// program must lie where that user can read it, as compiled targets do.
func AsOrdinaryUser(t testing.TB, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	if !IsRoot() {
		return cmd
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Skipf("needs the user nobody: %v", err)
	}
	uid, uidErr := strconv.ParseUint(nobody.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(nobody.Gid, 10, 32)
	if err := errors.Join(uidErr, gidErr); err != nil {
		t.Fatalf("user nobody: %v", err)
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	if cmd.Dir == "" {
		cmd.Dir = os.TempDir()
	}
	return cmd
}
