// Package crowd compiles and drives the program crowd, which has a great number of functions to be probed at the
// same time, and threads at work in them. The protocol is in the head of source/crowd.c; the package knows nothing
// of probes.
package crowd

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"trapless/internal/bench/busy"
)

//go:embed source/crowd.c
var source []byte

// Functions is a pattern of the names of all of the program's functions, One the name of the one that is timed.
const (
	Functions = "crowd_*"
	One       = "crowd_0"
)

// Build compiles the program with so many functions in a directory, and returns its path.
func Build(ctx context.Context, dir string, functions int) (string, error) {
	compiler, err := exec.LookPath("cc")
	if err != nil {
		return "", busy.ErrNoCompiler
	}
	from, to := filepath.Join(dir, "crowd.c"), filepath.Join(dir, "crowd")
	if err := os.WriteFile(from, source, 0o644); err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, compiler, "-O2", "-pthread", fmt.Sprintf("-DCROWD=%d", functions), "-o", to, from).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("compile %s: %w: %s", from, err, strings.TrimSpace(string(out)))
	}
	return to, nil
}

// Process is a running crowd.
type Process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	out    *bufio.Reader
	stderr strings.Builder
}

// Start starts the program at path with so many threads. It ends when ctx does, or by Quit.
func Start(ctx context.Context, path string, threads int) (*Process, error) {
	p := &Process{cmd: exec.CommandContext(ctx, path, strconv.Itoa(threads))}
	p.cmd.Stderr = &p.stderr
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(stdout)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	if line, err := p.out.ReadString('\n'); line != "ready\n" {
		return nil, errors.Join(fmt.Errorf("crowd began with %q", line), err, p.cmd.Process.Kill(), p.cmd.Wait())
	}
	return p, nil
}

// Pid is the process's id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Time calls crowd_0 so often while the threads rest, and returns what one call took of CPU time, in ns.
func (p *Process) Time(calls int) (float64, error) {
	n, err := p.ask(fmt.Sprintf("time %d", calls), "time %d")
	return float64(n) / float64(calls), err
}

// Rest lets the threads rest, or work again.
func (p *Process) Rest(rest bool) error {
	n := 0
	if rest {
		n = 1
	}
	_, err := p.ask(fmt.Sprintf("rest %d", n), "rest %d")
	return err
}

// Quit ends the program and returns how many calls it made.
func (p *Process) Quit() (calls uint64, err error) {
	n, err := p.ask("quit", "calls %d")
	return uint64(n), errors.Join(err, p.stdin.Close(), p.cmd.Wait())
}

// Kill ends the program at once, if it has not ended.
func (p *Process) Kill() {
	if p.cmd.ProcessState == nil {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
}

func (p *Process) ask(line, answer string) (n int64, err error) {
	if _, err := fmt.Fprintln(p.stdin, line); err != nil {
		return 0, p.explain(err)
	}
	got, err := p.out.ReadString('\n')
	if err != nil {
		return 0, p.explain(err)
	}
	if _, err := fmt.Sscanf(got, answer, &n); err != nil {
		return 0, fmt.Errorf("crowd answered %q to %q: %w", got, line, err)
	}
	return n, nil
}

// explain adds what the program had to say.
func (p *Process) explain(err error) error {
	time.Sleep(10 * time.Millisecond) // for it to be said
	return fmt.Errorf("crowd: %w %s", err, p.stderr.String())
}
