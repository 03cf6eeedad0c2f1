package testkit

import (
	"context"
	"testing"
	"time"

	"trapless/internal/bench/busy"
)

// Busy compiles and starts the busy target. The process ends with the test; the test fails unless every
// check that the target makes of itself held.
func Busy(t testing.TB, threads int, flags ...Flags) *busy.Process {
	t.Helper()
	return StartBusy(t, Compile(t, "busy.c", append(flags, Exported)...), threads)
}

// StartBusy is Busy for a program that is compiled already.
func StartBusy(t testing.TB, path string, threads int) *busy.Process {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	p, err := busy.Start(ctx, path, threads)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer cancel()
		defer time.AfterFunc(Deadline, cancel).Stop() // kills a process that hangs
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}
