// Package torture changes the probes of programs at random, kills tracers and
// targets, and looks whether anybody notices: programs that check themselves all
// the time, and the text, which has to be the file's when nobody probes it.
//
// A run is made from a seed, from which each target has its own sequence of
// sessions. What happens in which order is the same for the same seed; what the
// target is just doing is not.
package torture

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Options are what a run is made from.
type Options struct {
	Seed     uint64
	For      time.Duration
	Targets  []string // names; all if empty
	Parallel int      // targets at the same time; 2 if 0
	Log      func(format string, args ...any)
}

// Report is what came of a run.
type Report struct {
	Seed     uint64         `json:"seed"`
	Seconds  float64        `json:"seconds"`
	Failures int            `json:"failures"`
	Errors   []string       `json:"errors,omitempty"` // what failed
	Faults   map[string]int `json:"faults"`           // how many of each were injected
	Refused  map[string]int `json:"refused"`          // what could not be done, and was not
	Sessions map[string]int `json:"sessions"`         // by target
	Skipped  []string       `json:"skipped,omitempty"`
}

// Names lists the targets.
func Names() []string {
	var out []string
	for i := range kinds {
		out = append(out, kinds[i].name)
	}
	return out
}

// Run tortures until the time is over or the context ends.
func Run(ctx context.Context, o Options) (*Report, error) {
	all, err := choose(o.Targets)
	if err != nil {
		return nil, err
	}
	parallel := o.Parallel
	if parallel <= 0 {
		parallel = 2
	}
	parallel = min(parallel, len(all))
	dir, err := os.MkdirTemp("", "trapless-torture-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	began := time.Now()
	t := &torture{options: o, dir: dir, report: Report{Seed: o.Seed, Faults: map[string]int{}, Refused: map[string]int{}, Sessions: map[string]int{}}}
	queue := make(chan *kind, len(all))
	for _, k := range all {
		queue <- k
	}
	close(queue)
	var done sync.WaitGroup
	for range parallel {
		done.Go(func() {
			for k := range queue {
				if ctx.Err() == nil {
					// What compiling takes, the others have to do without.
					left := time.Until(began.Add(o.For)) * time.Duration(parallel) / time.Duration(len(queue)+parallel)
					t.target(ctx, k, max(left, leastTime))
				}
			}
		})
	}
	done.Wait()
	t.report.Seconds = time.Since(began).Seconds()
	return &t.report, nil
}

// leastTime is what each target gets, however late it is.
const leastTime = time.Second

func choose(names []string) ([]*kind, error) {
	var out []*kind
	for i := range kinds {
		if len(names) == 0 || slices.Contains(names, kinds[i].name) {
			out = append(out, &kinds[i])
		}
	}
	for _, n := range names {
		if !slices.Contains(Names(), n) {
			return nil, fmt.Errorf("there is no target %q; there are %s", n, strings.Join(Names(), ", "))
		}
	}
	return out, nil
}

// torture is a run.
type torture struct {
	options Options
	dir     string

	// mu guards report.
	mu     sync.Mutex
	report Report
}

func (t *torture) count(in func(*Report) map[string]int, what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	in(&t.report)[what]++
}

func (t *torture) fault(what string) {
	t.count(func(r *Report) map[string]int { return r.Faults }, what)
}
func (t *torture) refuse(what string) {
	t.count(func(r *Report) map[string]int { return r.Refused }, what)
}

// maxErrors bounds the errors that are kept.
const maxErrors = 50

func (t *torture) fail(k *kind, format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := fmt.Sprintf("%s: ", k.name) + fmt.Sprintf(format, args...)
	t.report.Failures++
	if len(t.report.Errors) < maxErrors {
		t.report.Errors = append(t.report.Errors, text)
	}
	t.log("FAILED %s", text)
}

func (t *torture) log(format string, args ...any) {
	if t.options.Log != nil {
		t.options.Log(format, args...)
	}
}

// target tortures one program for a while.
func (t *torture) target(ctx context.Context, k *kind, d time.Duration) {
	dir := filepath.Join(t.dir, k.name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.fail(k, "%v", err)
		return
	}
	argv, err := k.build(ctx, dir)
	if err != nil {
		t.skipOrFail(k, err)
		return
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(k.name)) // it never fails
	r := rand.New(rand.NewPCG(t.options.Seed, h.Sum64()))
	until := time.Now().Add(d)
	for ctx.Err() == nil && time.Now().Before(until) {
		p, err := start(argv)
		if err != nil {
			t.skipOrFail(k, err)
			return
		}
		v := &victim{torture: t, kind: k, process: p, argv: argv, r: r}
		v.sessions(ctx, until)
	}
}

func (t *torture) skipOrFail(k *kind, err error) {
	if !errors.Is(err, errUnavailable) {
		t.fail(k, "%v", err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.report.Skipped = append(t.report.Skipped, fmt.Sprintf("%s: %v", k.name, err))
}

// victim is a process that is tortured.
type victim struct {
	*torture
	*kind
	*process
	argv []string
	r    *rand.Rand
}

// sessions lets one worker after the other at the process, until it ends or is
// killed, or the time is over.
func (v *victim) sessions(ctx context.Context, until time.Time) {
	defer v.kill()
	for ctx.Err() == nil && time.Now().Before(until) {
		v.count(func(r *Report) map[string]int { return r.Sessions }, v.name)
		killed := v.session(until)
		if killed {
			return
		}
		if !v.alive() {
			v.fail(v.kind, "the target ended: %v\n%s", v.err, v.output())
			return
		}
	}
	v.clean()
	v.checkText("at the end")
	if err := v.stop(); err != nil {
		v.fail(v.kind, "%v", err)
	}
}

// session is the life of one worker. It reports whether the target was killed.
func (v *victim) session(until time.Time) (killed bool) {
	o := order{PID: v.pid, Program: v.argv[0], Seed: v.r.Uint64(), Changes: 1 + v.r.IntN(40), Go: v.isGo(), Traps: v.traps && v.r.IntN(2) == 0, Follow: v.follow && v.r.IntN(3) == 0,
		MS: max(time.Until(until).Milliseconds(), 1)}
	if v.library != "" {
		o.Library = v.argv[1]
	}
	killTracer, killTarget := v.r.IntN(10) < 4 && !v.exact, v.r.IntN(25) == 0
	after := time.Duration(v.r.IntN(300_000)) * time.Microsecond
	cleans := v.r.IntN(2) == 0
	w, err := v.startWorker(&o)
	if err != nil {
		v.fail(v.kind, "starting a tracer: %v", err)
		return false
	}
	timer := time.NewTimer(after)
	defer timer.Stop()
	for {
		select {
		case <-w.ended:
			v.judge(w, &o)
			if !killed && !w.killed {
				v.checkText(fmt.Sprintf("after a session (worker seed %d)", o.Seed))
			}
			if w.killed && cleans {
				v.clean()
				v.checkText(fmt.Sprintf("after a tracer was killed and 'clean' was run (worker seed %d)", o.Seed))
			}
			return killed
		case <-timer.C:
			switch {
			case killTarget:
				killed = true
				v.fault("kill target")
				v.kill()
			case killTracer:
				w.kill()
				v.fault("kill tracer")
			}
		case <-time.After(workerTime):
			w.hung()
			v.fail(v.kind, "a tracer did not end within %v (worker seed %d); its last lines: %q", workerTime, o.Seed, w.last())
			return killed
		}
	}
}

// workerTime bounds a worker.
const workerTime = 90 * time.Second

// judge looks at how a worker ended.
func (v *victim) judge(w *workerProcess, o *order) {
	switch {
	case w.killed:
	case w.failure != "":
		v.fail(v.kind, "a tracer failed (worker seed %d): %s", o.Seed, w.failure)
	case w.err != nil:
		v.fail(v.kind, "a tracer ended with %v (worker seed %d); its last lines: %q", w.err, o.Seed, w.last())
	}
}

// clean takes out what killed tracers have left, in a process of its own: who waits
// for a child cannot trace it at the same time.
func (v *victim) clean() {
	if !v.alive() {
		return
	}
	o := order{PID: v.pid, Clean: true}
	w, err := v.startWorker(&o)
	if err != nil {
		v.fail(v.kind, "starting a tracer: %v", err)
		return
	}
	select {
	case <-w.ended:
		v.judge(w, &o)
	case <-time.After(workerTime):
		w.hung()
		v.fail(v.kind, "cleaning did not end within %v; its last lines: %q", workerTime, w.last())
	}
}

// checkText looks whether the text is as in the files.
func (v *victim) checkText(when string) {
	if !v.alive() || v.execs {
		return
	}
	diff, err := textChanges(v.pid)
	if err == nil && diff != "" && v.alive() {
		v.fail(v.kind, "%s: %s", when, diff)
	}
}

// workerProcess is a worker, running.
type workerProcess struct {
	cmd     *exec.Cmd
	ended   chan struct{}
	killed  bool // by us
	err     error
	failure string

	// mu guards lines.
	mu    sync.Mutex
	lines []string
}

func (v *victim) startWorker(o *order) (*workerProcess, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	w := &workerProcess{cmd: exec.Command("/proc/self/exe"), ended: make(chan struct{})}
	w.cmd.Env = append(os.Environ(), workerVar+"="+string(text))
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.cmd.Stderr = w.cmd.Stdout
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			v.heard(w, lines.Text())
		}
		w.err = w.cmd.Wait()
		close(w.ended)
	}()
	return w, nil
}

// heard takes note of what a worker says.
func (v *victim) heard(w *workerProcess, line string) {
	w.mu.Lock()
	w.lines = append(w.lines, line)
	w.mu.Unlock()
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "fault":
		v.fault(rest)
	case "refused":
		v.refuse(rest)
	case "error":
		w.failure = rest
	}
}

// lastLines are enough for what a program of Go's says at SIGQUIT.
const lastLines = 400

func (w *workerProcess) last() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.lines[max(0, len(w.lines)-lastLines):])
}

// hung ends a worker that does not, which says where it is.
func (w *workerProcess) hung() {
	w.killed = true
	_ = w.cmd.Process.Signal(syscall.SIGQUIT) // it may just have ended
	select {
	case <-w.ended:
	case <-time.After(10 * time.Second):
		w.kill()
		<-w.ended
	}
}

func (w *workerProcess) kill() {
	w.killed = true
	_ = w.cmd.Process.Kill() // it may have ended
}

// String is a summary.
func (r *Report) String() string {
	var b strings.Builder
	table := func(what string, m map[string]int) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			fmt.Fprintf(&b, "%-10s %-18s %8d\n", what, k, m[k])
		}
	}
	table("session of", r.Sessions)
	table("fault", r.Faults)
	table("refused", r.Refused)
	for _, s := range r.Skipped {
		fmt.Fprintf(&b, "skipped %s\n", s)
	}
	for _, e := range r.Errors {
		fmt.Fprintf(&b, "FAILED %s\n", e)
	}
	fmt.Fprintf(&b, "seed %d, %.1f s, %d failures\n", r.Seed, r.Seconds, r.Failures)
	return b.String()
}
