package torture

import (
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"trapless"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
)

// A worker is the tracer: a process of its own, which may be killed at any moment.
// It attaches to the target, changes probes at random, and takes everything out.
// It prints a line for each thing that it has done, and one for what went wrong.

// workerVar makes a process a worker: its value is an order.
const workerVar = "TRAPLESS_TORTURE_WORKER"

// order is what a worker is to do.
type order struct {
	PID     int    `json:"pid"`
	Program string `json:"program"` // the target's file
	Library string `json:"library"` // that it loads, if any
	Go      bool   `json:"go"`      // it is a Go program
	Seed    uint64 `json:"seed"`
	Changes int    `json:"changes"`
	MS      int64  `json:"ms"`     // for the changes
	Traps   bool   `json:"traps"`  // breakpoints are allowed
	Follow  bool   `json:"follow"` // probe the processes that it makes, too
	Clean   bool   `json:"clean"`  // only take out what a killed tracer has left
}

// Worker does the work of a worker, if this process is one, and ends it then.
func Worker() {
	text, ok := os.LookupEnv(workerVar)
	if !ok {
		return
	}
	_ = os.Unsetenv(workerVar) // it has a name
	var o order
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		err = o.work()
	}
	if err != nil {
		fmt.Printf("error %q\n", err.Error())
		os.Exit(1)
	}
	fmt.Println("done")
	os.Exit(0)
}

// cFunctions are functions of the C library that most programs call.
var cFunctions = []string{"malloc", "free", "calloc", "realloc", "qsort", "read", "write", "poll", "epoll_wait", "nanosleep",
	"clock_nanosleep", "pthread_mutex_lock", "pthread_mutex_unlock", "sigaction", "pthread_sigmask", "getpid", "fork", "vfork",
	"posix_spawn", "execve", "waitpid", "dlopen", "dlsym", "dlclose", "pthread_create", "timer_settime"}

// places are where probes may be.
type places struct {
	r         *rand.Rand
	program   string
	library   string
	functions []elf.Symbol
	goes      bool // it is a Go program: it has no C library, and names of other kinds
}

func newPlaces(seed uint64, program, library string, functions []elf.Symbol, goes bool) *places {
	return &places{rand.New(rand.NewPCG(seed, 0x746f7274757265)), program, library, functions, goes}
}

// The functions of a Go program: its own begin so, and one in so many others is taken.
const (
	goOwn    = "main."
	goOthers = 40
)

// functionsOf lists the functions of a program. Of a Go program's these are its own,
// and some others.
func functionsOf(name string, goes bool) ([]elf.Symbol, error) {
	f, err := elf.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	var out []elf.Symbol
	others := 0
	for _, s := range all {
		switch {
		case elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Size == 0:
			continue
		case goes && !strings.HasPrefix(s.Name, goOwn):
			if others++; others%goOthers != 0 {
				continue
			}
		case !goes && strings.ContainsAny(s.Name, ".@"):
			continue
		}
		out = append(out, s)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: no functions", name)
	}
	return out, nil
}

// entry is the entry of some function.
func (p *places) entry() string {
	switch n := p.r.IntN(10); {
	case n == 0 && !p.goes:
		return "libc:" + cFunctions[p.r.IntN(len(cFunctions))]
	case n == 1 && p.library != "":
		return fmt.Sprintf("%q:library_work", p.library)
	}
	return fmt.Sprintf("%q:%q", p.program, p.functions[p.r.IntN(len(p.functions))].Name)
}

// any is some place: an entry, an instruction or something that is none, or many
// functions.
func (p *places) any() string {
	f := &p.functions[p.r.IntN(len(p.functions))]
	switch n := p.r.IntN(20); {
	case n < 8:
		return p.entry()
	case n == 8 && p.goes:
		return fmt.Sprintf("%q:%s%c*", p.program, goOwn, 'a'+rune(p.r.IntN(26)))
	case n == 8:
		return fmt.Sprintf("%q:%s*", p.program, f.Name[:1+p.r.IntN(len(f.Name))])
	}
	return fmt.Sprintf("%q:%q+%d", p.program, f.Name, p.r.Uint64N(f.Size))
}

// script has programs of all kinds.
func (p *places) script() string {
	var b strings.Builder
	for i, body := range []string{"@a = count();", "@b[arg0] = count();", "@c = sum(arg1);", "@d[arg0 & 7, arg1 & 7] = count();"} {
		fmt.Fprintf(&b, "uprobe:%s { %s }\n", p.entry(), body)
		if p.r.IntN(8) == i {
			fmt.Fprintf(&b, "uretprobe:%s { @r%d = count(); }\n", p.entry(), i)
		}
	}
	if p.r.IntN(3) == 0 {
		fmt.Fprintf(&b, "uprobe:%s /arg0 == 3/ { printf(\"%%d %%d\\n\", arg0, arg1); }\n", p.entry())
	}
	return b.String()
}

// tolerable reports whether an error is none of ours: the target has ended, is
// stopped or busy, or what was asked for cannot be.
func tolerable(err error) bool {
	for _, e := range []error{trapless.ErrNothing, trapless.ErrEnded, trapless.ErrNoProcess, trapless.ErrNoProbe, trapless.ErrBreakpoints,
		proc.ErrZombie, ptrace.ErrSeccomp, ptrace.ErrGone, ptrace.ErrExec, ptrace.ErrBusy, ptrace.ErrStopped, ptrace.ErrNoThread, ptrace.ErrInCall, ptrace.ErrRseq} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// work attaches, makes changes, and takes everything out.
func (o *order) work() error {
	if o.Clean {
		_, err := trapless.Clean(context.Background(), o.PID)
		if err == nil || tolerable(err) {
			fmt.Println("fault clean")
			return nil
		}
		return fmt.Errorf("cleaning: %w", err)
	}
	functions, err := functionsOf(o.Program, o.Go)
	if err != nil {
		return err
	}
	p := newPlaces(o.Seed, o.Program, o.Library, functions, o.Go)
	var script *trapless.Script
	if script, err = trapless.Compile("torture", p.script()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := trapless.Attach(ctx, o.PID, script, trapless.Options{Output: io.Discard, Breakpoints: o.Traps, Follow: o.Follow})
	if err != nil {
		// A process that has just been started, or replaced, has not mapped all yet.
		if tolerable(err) || strings.Contains(err.Error(), "has not mapped") {
			fmt.Println("refused attach")
			return nil
		}
		return fmt.Errorf("attaching: %w", err)
	}
	if o.Follow {
		fmt.Println("fault follow")
	}
	fmt.Println("fault attach")
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	w := &worker{s, p}
	until := time.Now().Add(time.Duration(o.MS) * time.Millisecond)
	for i := 0; i < o.Changes && time.Now().Before(until); i++ {
		if err := w.change(ctx); err != nil && !tolerable(err) {
			return err
		}
	}
	cancel()
	if err := errors.Join(<-ended, s.Close()); err != nil && !tolerable(err) {
		return fmt.Errorf("ending: %w", err)
	}
	fmt.Println("fault detach")
	return nil
}

type worker struct {
	*trapless.Session
	*places
}

// some are the numbers of some probes.
func (w *worker) some() []int {
	all := w.Probes()
	if len(all) == 0 {
		return nil
	}
	if w.r.IntN(8) == 0 {
		all = all[:1+w.r.IntN(len(all))]
	} else {
		i := w.r.IntN(len(all))
		all = all[i : i+1]
	}
	var ids []int
	for _, p := range all {
		ids = append(ids, p.ID)
	}
	return ids
}

// change makes one change.
func (w *worker) change(ctx context.Context) error {
	what, err := "", error(nil)
	switch n := w.r.IntN(100); {
	case n < 30:
		what = "register"
		spec := trapless.ProbeSpec{At: w.any(), Program: w.r.IntN(4), Disabled: w.r.IntN(5) == 0}
		if _, err := w.Register(ctx, spec); err != nil {
			what = "refused register" // whatever the reason is
		}
	case n < 50:
		what = "unregister"
		err = w.Unregister(ctx, w.some()...)
	case n < 65:
		what = "enable"
		err = w.SetEnabled(true, w.some()...)
	case n < 80:
		what = "disable"
		err = w.SetEnabled(false, w.some()...)
	case n < 85:
		what, err = "toggles", w.toggle()
	case n < 88:
		what, err = "disarm", w.Arm(ctx, false)
	case n < 93:
		what, err = "arm", w.Arm(ctx, true)
	case n < 96:
		what, err = "optimize off", w.Optimize(ctx, false)
	default:
		what, err = "optimize on", w.Optimize(ctx, true)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if refused, ok := strings.CutPrefix(what, "refused "); ok {
		fmt.Println("refused", refused)
	} else {
		fmt.Println("fault", what)
	}
	time.Sleep(time.Duration(w.r.IntN(4)) * time.Millisecond)
	return nil
}

// toggle enables and disables one probe over and over.
func (w *worker) toggle() error {
	ids := w.some()
	if len(ids) == 0 {
		return nil
	}
	for i := range 200 {
		if err := w.SetEnabled(i%2 == 0, ids[0]); err != nil {
			return err
		}
	}
	return nil
}
