package session

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"trapless/internal/proc"
	"trapless/internal/testkit"
)

// TestProcessLeavesItsMemory: the process becomes another program while a second one goes on in the memory that
// both had, patches and all. The session ends, the new program is not touched, and no program runs any more.
func TestProcessLeavesItsMemory(t *testing.T) {
	path := testkit.Compile(t, "ptrace_life.c")
	p := testkit.StartCommand(t, exec.Command(path, "leave", path, "threads", "1"))
	if line := p.Line(); line != "ready" {
		t.Fatal(line)
	}
	s, _ := attach(t, p.Pid, "uprobe:"+path+":compute { @ = count(); }")
	for n := counted(s, 0); n == 0; n = counted(s, 0) {
		time.Sleep(time.Millisecond)
	}
	p.Send("leave")
	if line := p.Line(); line != "ready" {
		t.Fatalf("after execve: %q\n%s", line, p.Output())
	}
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Deadline)
	defer cancel()
	if err := s.Run(ctx); err != nil || ctx.Err() != nil {
		t.Errorf("the session ended with %v, %v", err, ctx.Err())
	}
	if !s.target.Mem().Alive() {
		t.Error("the memory has ended, although a process has it")
	}
	for tries, before := 0, uint64(0); counted(s, 0) != before; tries++ { // a run that had begun may end late
		if tries == 100 {
			t.Fatal("calls are counted after the end")
		}
		before = counted(s, 0)
		time.Sleep(20 * time.Millisecond)
	}
	if err := proc.Check(p.Pid); err != nil {
		t.Errorf("the new program: %v", err)
	}
	if changes := testkit.TextChanges(t, p.Pid); len(changes) != 0 {
		t.Errorf("its text differs: %q", changes)
	}
	p.Kill()
}
