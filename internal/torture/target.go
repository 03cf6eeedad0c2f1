package torture

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"trapless/testdata"
)

// kind is a program that is tortured. It checks itself all the time.
type kind struct {
	name     string
	source   string
	args     []string
	flags    []string
	library  string   // source of a library that is its first argument
	exported []string // functions that are probed besides what is found
	// exact: it notices what a kill may leave, so no tracer is killed: a system call that
	// fails with EINTR, or a change of a signal action that it makes in the microsecond
	// in which a tracer that gives that action back is killed, and which is lost.
	exact bool
	// execs: it is another program every now and then, and sessions end.
	execs bool
	// traps: no thread blocks the trap signals for long, so that there may be
	// breakpoints.
	traps bool
	// follow: sessions may follow the processes that it makes.
	follow bool
}

// kinds are all of them.
var kinds = []kind{
	{name: "signals", source: "storm.c", traps: true},
	{name: "blocked-signals", source: "signals.c"},
	{name: "handlers", source: "handlers.c", exact: true},
	{name: "go", source: "goload.go", args: []string{"profile"}},
	{name: "exceptions", source: "unwind.cpp", traps: true, follow: true},
	{name: "fork", source: "forker.c", follow: true},
	{name: "exec", source: "executor.c", execs: true, follow: true},
	{name: "dlopen", source: "dl.c", library: "dl_library.c", args: []string{"30", "10"}},
	{name: "servers", source: "servers.c"},
	{name: "blocking", source: "blocking.c", exact: true},
	{name: "seccomp", source: "servers.c", args: []string{"filter"}},
	{name: "strict-seccomp", source: "states.c", args: []string{"seccomp"}}, // refused
	{name: "threads", source: "threads.c", follow: true},
	{name: "coroutines", source: "coroutines.c", traps: true},
	{name: "huge-pages", source: "many.c", args: []string{"8", "huge"}, flags: []string{"-DMANY=50000", "-DALIGN=7", "-Wl,-z,max-page-size=0x200000"}},
}

// errUnavailable: this machine cannot give what a target needs.
var errUnavailable = errors.New("unavailable")

// isGo reports whether the target is a Go program.
func (k *kind) isGo() bool { return filepath.Ext(k.source) == ".go" }

// build compiles a target into a directory and returns its command line.
func (k *kind) build(ctx context.Context, dir string) ([]string, error) {
	for _, name := range []string{"target.h", k.source, k.library} {
		if name == "" {
			continue
		}
		text, err := testdata.Targets.ReadFile("targets/" + name)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return nil, err
		}
	}
	program := filepath.Join(dir, k.name)
	if k.isGo() {
		return append([]string{program}, k.args...), compileGo(ctx, filepath.Join(dir, k.source), program)
	}
	if err := compile(ctx, filepath.Join(dir, k.source), program, append(k.flags, "-rdynamic")...); err != nil {
		return nil, err
	}
	argv := []string{program}
	if k.library != "" {
		library := program + ".so"
		if err := compile(ctx, filepath.Join(dir, k.library), library, "-fPIC", "-shared"); err != nil {
			return nil, err
		}
		argv = append(argv, library)
	}
	return append(argv, k.args...), nil
}

func compile(ctx context.Context, source, program string, flags ...string) error {
	compiler := "cc"
	if filepath.Ext(source) == ".cpp" {
		compiler = "c++"
	}
	path, err := exec.LookPath(compiler)
	if err != nil {
		return fmt.Errorf("%w: no compiler %s: install gcc, g++ and the C library's headers", errUnavailable, compiler)
	}
	args := append([]string{"-O2", "-g", "-pthread"}, flags...)
	out, err := exec.CommandContext(ctx, path, append(args, "-o", program, source, "-ldl")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("compiling %s: %w\n%s", source, err, out)
	}
	return nil
}

func compileGo(ctx context.Context, source, program string) error {
	path, err := exec.LookPath("go")
	if err != nil {
		return fmt.Errorf("%w: no Go compiler: install Go, and have its go command in PATH", errUnavailable)
	}
	cmd := exec.CommandContext(ctx, path, "build", "-o", program, source)
	cmd.Env = append(os.Environ(), "GO111MODULE=off", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compiling %s: %w\n%s", source, err, out)
	}
	return nil
}

// process is a running target.
type process struct {
	pid   int
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{}
	err   error // of the end

	// mu guards out.
	mu  sync.Mutex
	out bytes.Buffer
}

// readyTime and stopTime bound what a target may take.
const (
	readyTime = 20 * time.Second
	stopTime  = 60 * time.Second
)

// start starts a target and waits until it is ready.
func start(argv []string) (*process, error) {
	p := &process{cmd: exec.Command(argv[0], argv[1:]...), ended: make(chan struct{})}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stderr = p.cmd.Stdout
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.pid = p.cmd.Process.Pid
	ready := make(chan struct{})
	go p.read(stdout, ready)
	select {
	case <-ready:
		return p, nil
	case <-p.ended:
		out := p.output()
		if strings.Contains(out, "unavailable") {
			return nil, fmt.Errorf("%w: %s", errUnavailable, strings.TrimSpace(out))
		}
		return nil, fmt.Errorf("%s ended before it was ready: %v\n%s", argv[0], p.err, out)
	case <-time.After(readyTime):
		p.kill()
		return nil, fmt.Errorf("%s is not ready within %v\n%s", argv[0], readyTime, p.output())
	}
}

func (p *process) read(stdout io.Reader, ready chan struct{}) {
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		p.mu.Lock()
		p.out.WriteString(lines.Text() + "\n")
		p.mu.Unlock()
		if strings.HasPrefix(lines.Text(), "ready ") && ready != nil {
			close(ready)
			ready = nil
		}
	}
	p.err = p.cmd.Wait()
	close(p.ended)
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// alive reports whether the target runs.
func (p *process) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// kill ends the target and what it has started.
func (p *process) kill() {
	_ = syscall.Kill(-p.pid, syscall.SIGKILL) // it may have ended
	<-p.ended
}

// stop asks the target to end, and returns what it has to complain about.
func (p *process) stop() error {
	_, _ = io.WriteString(p.stdin, "stop\n") // its end shows below
	select {
	case <-p.ended:
	case <-time.After(stopTime):
		p.kill()
		return fmt.Errorf("it did not end within %v\n%s", stopTime, p.output())
	}
	_ = syscall.Kill(-p.pid, syscall.SIGKILL) // children that are left
	if out := p.output(); p.err != nil || !strings.HasSuffix(out, "\nok\n") {
		return fmt.Errorf("it ended with %v\n%s", p.err, out)
	}
	return nil
}
