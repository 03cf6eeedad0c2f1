package ptrace

import (
	"bufio"
	"bytes"
	"errors"
	"math/rand/v2"
	"os/exec"
	"testing"
	"time"

	"trapless/internal/abi"
)

// blockingCalls asks the target for the calls that it knows.
func blockingCalls(t *testing.T, exe string) (names []string) {
	out, _ := exec.Command(exe).Output() // it exits 2
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		names = append(names, s.Text())
	}
	if len(names) < 30 {
		t.Fatalf("the target names %d calls: %q", len(names), out)
	}
	return names
}

// disturb does f until the target has ended, at intervals short enough to
// interrupt every call several times and now and then so long that a timeout
// which starts again in full comes to its end.
func disturb(t *testing.T, tg *target, f func(i int) error) (times int) {
	for {
		d := time.Duration(rand.IntN(30)) * time.Millisecond
		if rand.IntN(8) == 0 {
			d = 400 * time.Millisecond
		}
		select {
		case <-tg.waited:
			return times
		case <-time.After(d):
		}
		err := f(times)
		if errors.Is(err, ErrGone) {
			<-tg.waited
			return times
		}
		if err != nil {
			t.Fatal(err)
		}
		times++
	}
}

func wantOK(t *testing.T, tg *target, times int) {
	t.Helper()
	var status *exec.ExitError
	if errors.As(tg.err, &status) && tg.unknown() {
		t.Skip("this kernel does not have the call")
	}
	if line := tg.line(); tg.err != nil || line != "ok" {
		t.Errorf("after %d disturbances the target ended with %v and said %q %s", times, tg.err, line, tg.stderr)
	}
}

func TestStopsAreInvisibleToCalls(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute of sleeping")
	}
	exe := build(t, "ptrace_block.c")
	for _, name := range blockingCalls(t, exe) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tg := start(t, exe, name)
			tr := tracer(t)
			g, err := tr.Seize(within(t, 60*time.Second), tg.pid)
			check(t, err)
			n := disturb(t, tg, func(i int) error {
				ctx := within(t, 20*time.Second)
				if err := g.Stop(ctx); err != nil {
					return err
				}
				if i%2 == 0 {
					return g.Resume()
				}
				if err := g.Detach(ctx); err != nil {
					return err
				}
				return seizeAgain(g)
			})
			wantOK(t, tg, n)
		})
	}
}

// seizeAgain tells a target that has ended between two attachments.
func seizeAgain(g *Group) error {
	err := g.Seize(within(&testing.T{}, 5*time.Second))
	if err != nil {
		return ErrGone
	}
	return nil
}

// The thread that sleeps in the call has to run code as well.
func TestCodeIsInvisibleToCalls(t *testing.T) { codeInCalls(t) }

// Without a tracer that stops it, code returns by itself and makes the call
// again.
func TestCodeThatReturnsIsInvisibleToCalls(t *testing.T) {
	defer func(n uint64) { lingers = n }(lingers)
	lingers = 0
	t.Run("group", codeInCalls)
}

func codeInCalls(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute of sleeping")
	}
	exe := build(t, "ptrace_block.c")
	for _, name := range blockingCalls(t, exe) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tg := start(t, exe, name)
			tr := tracer(t)
			ctx := within(t, 60*time.Second)
			g, err := tr.Seize(ctx, tg.pid)
			check(t, err)
			g.only = tg.pid
			_, err = g.Foothold(ctx, 0, abi.PageSize)
			check(t, err)
			var b Blob
			b.Call(sysGetpid)
			n := disturb(t, tg, func(i int) error {
				ctx := within(t, 20*time.Second)
				if i%2 == 0 {
					if err := g.Stop(ctx); err != nil {
						return err
					}
					defer g.Resume()
				}
				res, err := g.Run(ctx, &b)
				if err == nil && res[0] != uint64(tg.pid) {
					t.Errorf("getpid returned %#x", res)
				}
				if errors.Is(err, ErrNoThread) {
					err = nil
				}
				return err
			})
			wantOK(t, tg, n)
		})
	}
}
