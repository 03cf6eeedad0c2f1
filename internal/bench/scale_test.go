package bench

import (
	"os"
	"testing"

	"trapless/internal/bench/crowd"
)

// TestMemoryIsThatOfArenasAndCode: what a process has before and after is told apart, and what it has of its own
// does not count.
func TestMemoryIsThatOfArenasAndCode(t *testing.T) {
	m, err := readMemory(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if m.Arena != 0 || m.Code != 0 {
		t.Errorf("this process has %+v", m)
	}
	if d := (Memory{Code: 5000, Data: 300, Arena: 700, Copies: 4096}).since(Memory{Code: 1000, Data: 400}, 10); d != (Memory{Code: 4000, Arena: 700, Total: 4700, Each: 470, Copies: 4096}) {
		t.Errorf("the difference is %+v", d)
	}
}

// TestCrowd runs the program of many functions without probes.
func TestCrowd(t *testing.T) {
	path, err := crowd.Build(t.Context(), t.TempDir(), 1000)
	if err != nil {
		t.Skip(err)
	}
	p, err := crowd.Start(t.Context(), path, 3)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	if ns, err := p.Time(1000); err != nil || ns <= 0 {
		t.Errorf("%v ns, %v", ns, err)
	}
	if calls, err := p.Quit(); err != nil || calls < 1000 {
		t.Errorf("%d calls, %v", calls, err)
	}
}
