package saturation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"trapless/internal/abi"
	"trapless/internal/bpf"
	"trapless/internal/inject"
	jit "trapless/internal/jit/x86"
	"trapless/internal/plan"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
)

// program is what is run with and without probes. It has to do the same each
// time, and to write what it did.
type program struct {
	name    string
	argv    []string
	env     []string
	stdin   string   // path of a file, "" for none
	modules []string // patterns of the base names of what is probed
	small   bool     // there are few sites, so that all may be probed at any time
	extra   bool     // it is much like another one, and left out where time is short
}

// outcome is what a run shows to the world.
type outcome struct {
	status syscall.WaitStatus
	output string // standard output and error
}

// run is a run with probes.
type run struct {
	outcome
	windows int
	tactics map[plan.Tactic]int // of the sites
	sites   []abi.Addr          // that were probed
	probed  []place             // the same, known once the run is over
	refused map[plan.Reason]int // sites that were not
	counts  map[place]uint64    // hits of the probed sites, where there were any
	hits    uint64
	traps   uint64 // hits that came by a trap

	planning, placing, arming, running time.Duration
}

// deadline bounds one run. It is generous, as it exists to end a hang.
const deadline = 5 * time.Minute

// files makes the files that a run reads and writes.
func (p *program) files(t *testing.T) (in, out *os.File) {
	t.Helper()
	in, err := os.Open(os.DevNull)
	if p.stdin != "" {
		in, err = os.Open(p.stdin)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, err = os.CreateTemp(t.TempDir(), "output"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		out.Close()
	})
	return in, out
}

// environment is the same on every machine, so that nothing differs but what
// the kernel chooses.
var environment = []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "HOME=/nonexistent", "PYTHONHASHSEED=0", "PYTHONDONTWRITEBYTECODE=1"}

func (p *program) command(in, out *os.File) *ptrace.Command {
	return &ptrace.Command{Path: p.argv[0], Args: p.argv, Env: slices.Concat(environment, p.env), Files: []*os.File{in, out, out}}
}

// alone runs the program without probes.
func (p *program) alone(t *testing.T) outcome {
	t.Helper()
	in, out := p.files(t)
	c := p.command(in, out)
	process, err := os.StartProcess(c.Path, c.Args, &os.ProcAttr{Env: c.Env, Files: c.Files})
	if err != nil {
		t.Fatal(err)
	}
	st, err := process.Wait()
	if err != nil {
		t.Fatal(err)
	}
	return outcome{st.Sys().(syscall.WaitStatus), contents(t, out)}
}

func contents(t *testing.T, f *os.File) string {
	t.Helper()
	text, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// saturate runs the program with a counting probe on each instruction of its
// modules that the choice takes, from before its main function to its end.
func (p *program) saturate(t *testing.T, c choice) *run {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	in, out := p.files(t)
	tracer, err := ptrace.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer tracer.Close()
	g, err := tracer.Launch(ctx, p.command(in, out))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	r := newRun()
	if err := r.life(ctx, g, p.modules, c); err != nil {
		_ = syscall.Kill(g.PID, syscall.SIGKILL) // it is ours
		t.Fatalf("%s: %v\n%s", p.name, err, contents(t, out))
	}
	r.output = contents(t, out)
	return r
}

func newRun() *run {
	return &run{refused: map[plan.Reason]int{}, tactics: map[plan.Tactic]int{}, counts: map[place]uint64{}}
}

// life probes a launched program and lets it run to its end.
func (r *run) life(ctx context.Context, g *ptrace.Group, patterns []string, c choice) error {
	mods, target, err := r.probe(ctx, g, patterns, c)
	if err != nil {
		return err
	}
	defer release(mods, target)
	lap := stopwatch()
	if r.status, err = g.Wait(ctx); err != nil {
		return err
	}
	r.running = lap()
	return r.collect(target.Arena(), mods)
}

// probe puts probes into the target of a seized group and lets it go.
func (r *run) probe(ctx context.Context, g *ptrace.Group, patterns []string, c choice) (mods []*module, target *inject.Target, err error) {
	lap := stopwatch()
	if mods, err = modules(g.PID, patterns); err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			release(mods, target)
		}
	}()
	windows, err := r.plan(g.PID, mods, c)
	if err != nil {
		return nil, nil, err
	}
	r.planning = lap()
	layout, err := abi.NewLayout(abi.Config{Threads: 8, Maps: []abi.MapSpec{counterMap(mods)}, JournalSize: 1<<20 + placeTries*256*uint64(len(windows))})
	if err != nil {
		return nil, nil, err
	}
	if target, err = inject.Open(ctx, g, layout, traits(mods)); err != nil {
		return nil, nil, err
	}
	detours, err := r.place(ctx, target, windows)
	for try := 1; errors.Is(err, syscall.EEXIST) && try < placeTries; try++ {
		clear(r.refused)
		if windows, err = r.plan(g.PID, mods, c); err != nil {
			return nil, nil, err
		}
		detours, err = r.place(ctx, target, windows)
	}
	if err != nil {
		return nil, nil, err
	}
	r.placing = lap()
	if err = r.arm(ctx, target, detours); err != nil {
		return nil, nil, err
	}
	r.arming = lap()
	return mods, target, nil
}

// placeTries bounds how often all is planned anew because the target has mapped memory
// where ours was to lie, as a session does it.
const placeTries = 4

// release closes files and memory, of which nothing can be lost.
func release(mods []*module, target *inject.Target) {
	_ = closeAll(mods)
	if target != nil {
		_ = target.Close()
	}
}

// stopwatch tells the time since it was asked last.
func stopwatch() func() time.Duration {
	began := time.Now()
	return func() time.Duration {
		d := time.Since(began)
		began = began.Add(d)
		return d
	}
}

// plan plans all modules.
func (r *run) plan(pid int, mods []*module, c choice) (windows []planned, err error) {
	blocked, err := trapsBlocked(pid)
	if err != nil {
		return nil, err
	}
	if slices.ContainsFunc(mods, func(m *module) bool { return m.elf.Image.Go }) {
		blocked = cmp.Or(blocked, "Go, where it starts threads and is called by C,")
	}
	space, err := inject.FreeSpace(pid, traits(mods))
	if err != nil {
		return nil, err
	}
	for i, m := range mods {
		prog, err := counter(mods, i)
		if err != nil {
			return nil, err
		}
		m.facts.Blocked, m.facts.Space, m.facts.Breakpoints = blocked, space, true
		units := m.plan(c)
		settle(units)
		for _, u := range units {
			for _, w := range u.windows {
				windows = append(windows, planned{w, prog, m.rooms(w)})
			}
			for _, refusal := range u.refused {
				r.refused[refusal.Reason]++
			}
		}
	}
	if len(windows) == 0 {
		return nil, errors.New("not one site can be probed")
	}
	return windows, disjoint(windows)
}

// disjoint makes sure that no two windows change the same byte, but for those
// that know of each other.
func disjoint(windows []planned) error {
	type span struct {
		abi.Range
		w *plan.Window
	}
	var spans []span
	for _, w := range windows {
		spans = append(spans, span{w.Range(), w.Window})
		if w.Cave != 0 {
			spans = append(spans, span{abi.Range{Start: w.Cave, End: w.Cave + 5}, w.Window})
		}
	}
	slices.SortFunc(spans, func(x, y span) int { return cmp.Compare(x.Start, y.Start) })
	for i, x := range spans {
		for _, y := range spans[i+1:] {
			if y.Start >= x.End {
				break
			}
			if x.w != y.w.Host && y.w != x.w.Host {
				return fmt.Errorf("the window at %v (%s, cave %v, %d sites) and that at %v (%s, cave %v, %d sites) both change %v",
					x.w.Start, x.w.Tactic, x.w.Cave, len(x.w.Sites), y.w.Start, y.w.Tactic, y.w.Cave, len(y.w.Sites), y.Start)
			}
		}
	}
	return nil
}

// trapsBlocked names a thread that blocks a trap signal, "" if there is none.
func trapsBlocked(pid int) (string, error) {
	tids, err := proc.Threads(pid)
	if err != nil {
		return "", err
	}
	for _, tid := range tids {
		if st, err := proc.ReadStatus(pid, tid); err == nil && (st.Blocked.Has(int(syscall.SIGTRAP)) || st.Blocked.Has(int(syscall.SIGILL))) {
			return fmt.Sprintf("thread %d", tid), nil
		}
	}
	return "", nil
}

// traits are those of the program that the modules are of.
func traits(mods []*module) inject.Traits {
	if im := mods[0].elf.Image; im.Go {
		return inject.Traits{Thread: jit.FSBase, NoBrk: im.Interp == ""}
	}
	return inject.Traits{}
}

// planned is a window and the program for each of its sites.
type planned struct {
	*plan.Window
	program *bpf.Verified
	stack   []int // the room on the stack at each site, nil where stacks are large
}

func (r *run) place(ctx context.Context, target *inject.Target, windows []planned) ([]*inject.Detour, error) {
	var reqs []inject.Request
	for _, w := range windows {
		req := inject.Request{Window: w.Window, Stack: w.stack}
		for range w.Sites {
			req.Programs = append(req.Programs, []*bpf.Verified{w.program})
		}
		reqs = append(reqs, req)
	}
	detours, refusals, err := target.Place(ctx, reqs)
	r.refuse(windows, refusals)
	return detours, err
}

// refuse notes refusals of windows, by their first sites.
func (r *run) refuse(windows []planned, refusals []*plan.Refusal) {
	sites := map[abi.Addr]int{}
	for _, w := range windows {
		sites[w.Site] = len(w.Sites)
	}
	for _, refusal := range refusals {
		r.refused[refusal.Reason] += sites[refusal.Site]
	}
}

// arm puts the detours in place and lets the target go.
func (r *run) arm(ctx context.Context, target *inject.Target, detours []*inject.Detour) error {
	refusals, err := target.Arm(ctx, detours, func() error { return target.Group().Detach(ctx) })
	if err != nil {
		return err
	}
	if len(refusals) > 0 {
		return fmt.Errorf("%d windows were refused when they were armed; the first: %w", len(refusals), refusals[0])
	}
	r.windows = len(target.Detours())
	for _, d := range target.Detours() {
		for _, s := range d.Window.Sites {
			r.sites = append(r.sites, s.Addr)
			r.tactics[d.Window.Tactic]++
		}
	}
	return nil
}

// String is a line for the log.
func (r *run) String() string {
	return fmt.Sprintf("%d sites in %d windows (%s), %d hits at %d of them, %d by traps; refused: %s; planned in %v, placed in %v, armed in %v, ran for %v",
		len(r.sites), r.windows, inOrder(r.tactics), r.hits, len(r.counts), r.traps, inOrder(r.refused),
		r.planning.Round(time.Millisecond), r.placing.Round(time.Millisecond), r.arming.Round(time.Millisecond), r.running.Round(time.Millisecond))
}

// inOrder lists how many there are of each kind, most first.
func inOrder[K ~string](numbers map[K]int) string {
	kinds := slices.SortedFunc(maps.Keys(numbers), func(x, y K) int { return cmp.Or(cmp.Compare(numbers[y], numbers[x]), cmp.Compare(x, y)) })
	var all []string
	for _, k := range kinds {
		all = append(all, fmt.Sprintf("%s %d", k, numbers[k]))
	}
	return cmp.Or(strings.Join(all, ", "), "none")
}
