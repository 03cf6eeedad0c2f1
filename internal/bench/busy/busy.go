// Package busy compiles and drives the program busy, which calls functions at full speed, counts every
// call and checks every result. Measurements, the demonstration and tests use it. The protocol is in the
// head of source/busy.c; the package knows nothing of probes.
package busy

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
)

//go:embed source/busy.c
var source []byte

// ErrNoCompiler is returned when the program cannot be built.
var ErrNoCompiler = errors.New("no C compiler: install gcc and the C library's headers (Debian: apt-get install gcc libc6-dev)")

// Build writes the program's source into a directory and compiles it there. It returns the program's path.
func Build(ctx context.Context, dir string) (string, error) {
	compiler, err := exec.LookPath("cc")
	if err != nil {
		return "", ErrNoCompiler
	}
	from, to := filepath.Join(dir, "busy.c"), filepath.Join(dir, "busy")
	if err := os.WriteFile(from, source, 0o644); err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, compiler, "-O2", "-g", "-pthread", "-rdynamic", "-o", to, from).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("compile %s: %w: %s", from, err, strings.TrimSpace(string(out)))
	}
	return to, nil
}

// Process is a running busy.
type Process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   *bufio.Reader
}

// Start starts the program at path. It ends when ctx does, at Close, or with this process.
func Start(ctx context.Context, path string, threads int) (*Process, error) {
	cmd := exec.CommandContext(ctx, path, strconv.Itoa(threads))
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{cmd: cmd, stdin: stdin, out: bufio.NewReader(stdout)}
	if _, err := p.answer("ready"); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Pid is the process's id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Run is what one run took.
type Run struct {
	Function string
	Threads  int
	Calls    uint64        // on all threads
	Elapsed  time.Duration // from the first thread's start to the last one's end
	CPU      time.Duration // summed over the threads
	Cycles   uint64        // of the time stamp counter, summed over the threads
}

// Run makes each of the first threads call a function so often.
func (p *Process) Run(function string, threads int, calls uint64) (Run, error) {
	return p.ask(fmt.Sprintf("run %d %s %d", calls, function, threads))
}

// Spin makes the first threads call a function until Stop.
func (p *Process) Spin(function string, threads int) error {
	if err := p.send(fmt.Sprintf("spin %s %d", function, threads)); err != nil {
		return err
	}
	_, err := p.answer("spinning")
	return err
}

// Stop ends what Spin began.
func (p *Process) Stop() (Run, error) { return p.ask("stop") }

// Keys makes later calls draw their first argument from so many keys (at most 1024), evenly. 0 restores
// the first pattern, 0 1 0 2 0 1 0 3 0 1 0 2 0 1 0 4.
func (p *Process) Keys(n int) error {
	if err := p.send(fmt.Sprintf("keys %d", n)); err != nil {
		return err
	}
	_, err := p.answer("keys")
	return err
}

// Counts is what the program has counted since it started.
type Counts struct {
	Calls uint64
	Sizes uint64           // sum of the second arguments
	Keys  map[int64]uint64 // calls by first argument
}

// Counts asks for the calls of one function.
func (p *Process) Counts(function string) (Counts, error) {
	if err := p.send("counts " + function); err != nil {
		return Counts{}, err
	}
	fields, err := p.answer("counts")
	if err != nil {
		return Counts{}, err
	}
	return parseCounts(fields)
}

// Close ends the process. It returns an error unless every check that the process made of itself held.
func (p *Process) Close() error {
	p.stdin.Close()
	rest, readErr := io.ReadAll(p.out)
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("busy (pid %d): %w: %s", p.Pid(), err, strings.TrimSpace(string(rest)))
	}
	return readErr
}

func (p *Process) ask(command string) (Run, error) {
	if err := p.send(command); err != nil {
		return Run{}, err
	}
	fields, err := p.answer("ran")
	if err != nil {
		return Run{}, err
	}
	return parseRun(fields)
}

func (p *Process) send(line string) error {
	if _, err := io.WriteString(p.stdin, line+"\n"); err != nil {
		return fmt.Errorf("busy (pid %d): %q: %w", p.Pid(), line, err)
	}
	return nil
}

// answer reads the line that answers a command and returns its name=value fields.
func (p *Process) answer(verb string) ([]field, error) {
	line, err := p.out.ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("busy (pid %d): waiting for %q: %w", p.Pid(), verb, err)
	}
	words := strings.Fields(line)
	if len(words) == 0 || words[0] != verb {
		return nil, fmt.Errorf("busy (pid %d): answered %q, want %q", p.Pid(), strings.TrimSpace(line), verb)
	}
	var fields []field
	for _, w := range words[1:] {
		name, value, _ := strings.Cut(w, "=")
		fields = append(fields, field{name, value})
	}
	return fields, nil
}

type field struct{ name, value string }

func parseRun(fields []field) (Run, error) {
	var r Run
	var wrong uint64
	for _, f := range fields {
		if f.name == "function" {
			r.Function = f.value
			continue
		}
		n, err := strconv.ParseUint(f.value, 10, 64)
		if err != nil {
			return Run{}, fmt.Errorf("busy: %s: %w", f.name, err)
		}
		switch f.name {
		case "threads":
			r.Threads = int(n)
		case "calls":
			r.Calls = n
		case "ns":
			r.Elapsed = time.Duration(n)
		case "cpu_ns":
			r.CPU = time.Duration(n)
		case "cycles":
			r.Cycles = n
		case "wrong":
			wrong = n
		}
	}
	if wrong != 0 {
		return r, fmt.Errorf("busy: a call of %s returned a wrong result", r.Function)
	}
	return r, nil
}

func parseCounts(fields []field) (Counts, error) {
	c := Counts{Keys: map[int64]uint64{}}
	for _, f := range fields {
		if f.name == "function" {
			continue
		}
		n, err := strconv.ParseUint(f.value, 10, 64)
		if err != nil {
			return Counts{}, fmt.Errorf("busy: %s: %w", f.name, err)
		}
		switch f.name {
		case "calls":
			c.Calls = n
		case "sizes":
			c.Sizes = n
		default:
			key, err := strconv.ParseInt(f.name, 10, 64)
			if err != nil {
				return Counts{}, fmt.Errorf("busy: counts: %w", err)
			}
			c.Keys[key] = n
		}
	}
	return c, nil
}
