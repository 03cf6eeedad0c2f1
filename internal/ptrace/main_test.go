package ptrace

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The test binary is also the tracer that tests kill: with this variable set it
// runs the named helper instead of the tests.
const helperEnv = "PTRACE_TEST_HELPER"

func TestMain(m *testing.M) {
	if name := os.Getenv(helperEnv); name != "" {
		helpers[name](os.Args[1:])
		os.Exit(0)
	}
	dir, err := os.MkdirTemp("", "ptrace-test")
	if err != nil {
		panic(err)
	}
	buildDir = dir
	_ = os.Chmod(dir, 0o755)
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// helpers run in a process of their own.
var helpers = map[string]func(args []string){}

var (
	buildDir string
	built    sync.Map // source → *buildResult
)

type buildResult struct {
	once sync.Once
	exe  string
	err  error
}

// build compiles a program of testdata/targets once.
func build(t testing.TB, source string, flags ...string) string {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler (cc) on this machine")
	}
	key := source + strings.Join(flags, " ")
	v, _ := built.LoadOrStore(key, &buildResult{})
	r := v.(*buildResult)
	r.once.Do(func() {
		r.exe = filepath.Join(buildDir, fmt.Sprintf("%s-%d", strings.TrimSuffix(source, ".c"), len(key)))
		args := append([]string{"-O2", "-g", "-pthread", "-o", r.exe, "../../testdata/targets/" + source}, flags...)
		if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
			r.err = fmt.Errorf("%v\n%s", err, out)
		}
	})
	if r.err != nil {
		t.Fatalf("building %s: %v", source, r.err)
	}
	return r.exe
}

// target is a running C program. It is a child of a helper and not of this
// process: to wait for a child takes away the stops that its tracer waits for,
// when both are threads of one process.
type target struct {
	t      testing.TB
	cmd    *exec.Cmd // the helper
	pid    int
	stdin  io.WriteCloser
	out    *bufio.Reader
	stderr *syncBuffer
	waited chan struct{}
	err    error
}

func init() { helpers["spawn"] = spawn }

// spawn runs a command, says its process id on descriptor 3 and ends as it does.
func spawn(args []string) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, helperEnv) })
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // whose death the signal is for
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Fprintln(os.NewFile(3, "pid"), cmd.Process.Pid)
	if err := cmd.Wait(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(max(cmd.ProcessState.ExitCode(), 1))
	}
}

// unknown reports whether the target ended because the kernel lacks something.
func (tg *target) unknown() bool { return tg.cmd.ProcessState.ExitCode() == 77 }

// helper is a command that runs a helper in a process of its own.
func helper(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), helperEnv+"="+name)
	return cmd
}

type syncBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// start runs a program and waits for its line "ready".
func start(t testing.TB, exe string, args ...string) *target {
	t.Helper()
	return startUntil(t, "ready", exe, args...)
}

// startUntil runs a program and waits for a line, unless that is empty.
func startUntil(t testing.TB, first, exe string, args ...string) *target {
	t.Helper()
	tg := &target{t: t, stderr: &syncBuffer{}, waited: make(chan struct{})}
	tg.cmd = helper(t, "spawn", append([]string{exe}, args...)...)
	tg.cmd.Stderr = tg.stderr
	tg.stdin, _ = tg.cmd.StdinPipe()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	pr, pw, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	tg.cmd.Stdout = w
	tg.cmd.ExtraFiles = []*os.File{pw}
	if err := tg.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	pw.Close()
	defer pr.Close()
	tg.out = bufio.NewReader(r)
	go func() {
		tg.err = tg.cmd.Wait()
		close(tg.waited)
	}()
	t.Cleanup(func() {
		if t.Failed() {
			select {
			case <-tg.waited:
				t.Logf("the target ended: %v, stderr:\n%s", tg.err, tg.stderr)
			case <-time.After(time.Second):
			}
		}
		if tg.pid != 0 {
			_ = syscall.Kill(tg.pid, syscall.SIGKILL)
		}
		<-tg.waited
		r.Close()
	})
	if _, err := fmt.Fscan(pr, &tg.pid); err != nil {
		t.Fatalf("%s does not start: %v", exe, err)
	}
	if first == "" {
		return tg
	}
	if line := tg.line(); line != first {
		t.Fatalf("target %s says %q, stderr %q", exe, line, tg.stderr)
	}
	return tg
}

// line reads one line of the target's output, "" at its end.
func (tg *target) line() string {
	tg.t.Helper()
	got := make(chan string, 1)
	go func() {
		s, _ := tg.out.ReadString('\n')
		got <- strings.TrimSpace(s)
	}()
	select {
	case s := <-got:
		return s
	case <-time.After(30 * time.Second):
		out, _ := exec.Command("sh", "-c", fmt.Sprintf("cd /proc/%d/task; grep -H . */wchan */syscall; grep -E 'Name|State|TracerPid|SigPnd|SigBlk' */status", tg.pid)).CombinedOutput()
		tg.t.Fatalf("the target says nothing:\n%s", out)
		return ""
	}
}

// finish ends the target's input and wants it to end well.
func (tg *target) finish() string {
	tg.t.Helper()
	tg.stdin.Close()
	line := tg.line()
	select {
	case <-tg.waited:
	case <-time.After(30 * time.Second):
		tg.t.Fatalf("the target does not end")
	}
	if tg.err != nil || !strings.HasPrefix(line, "ok") {
		tg.t.Fatalf("the target ended with %v, said %q, stderr:\n%s", tg.err, line, tg.stderr)
	}
	return line
}

// alive wants the target not to have ended.
func (tg *target) alive() {
	tg.t.Helper()
	select {
	case <-tg.waited:
		tg.t.Fatalf("the target ended: %v, stderr:\n%s", tg.err, tg.stderr)
	default:
	}
}

func tracer(t testing.TB) *Tracer {
	t.Helper()
	tr, err := Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.Close)
	return tr
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
