package saturation

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"trapless/internal/testkit"
)

// services are the targets that check themselves while they run, with what
// their hazard is about.
func services() []*service {
	libc, cxx := []string{"libc.so.6"}, []string{"libstdc++.so*", "libgcc_s.so*"}
	return []*service{
		{source: "faults.c", modules: libc},     // handlers of faults look at the faulting address
		{source: "signals.c", modules: libc},    // handlers interrupt everything
		{source: "windows.c", modules: libc},    // what must not be jumped over
		{source: "coroutines.c", modules: libc}, // stacks are changed
		{source: "threads.c", args: []string{"8"}, modules: libc},
		{source: "forker.c", modules: libc},   // children go on without a tracer
		{source: "blocking.c", modules: libc}, // system calls are restarted
		{source: "unwind.cpp", modules: cxx},  // exceptions, backtraces, cancelled threads
		{source: "rseq.c", modules: libc},     // restartable sequences
		// All that Go's runtime system does. The functions of main recover from faults, divisions and panics.
		{source: "goload.go", build: testkit.PureGo, args: []string{"profile"}, again: "burst 2", own: "main."},
		{source: "goload.go", build: testkit.GoPIE, again: "burst 2", own: "main."},
		{source: "gocgo.go", build: testkit.CGO, modules: libc, again: "burst 2", own: "main."}, // C's threads in Go, and Go's in C
	}
}

// TestServices probes all instructions of programs that are at work, and takes
// the probes out of them again.
func TestServices(t *testing.T) {
	var sum total
	for i, s := range services() {
		for _, c := range s.probings(t, uint64(i)) {
			t.Run(fmt.Sprintf("%s, %v", s.name(), c), func(t *testing.T) {
				r := s.saturate(t, c, 300*time.Millisecond)
				t.Log(r)
				if r.hits == 0 {
					t.Error("not one hit was counted")
				}
				sum.add(r)
			})
		}
	}
	t.Log(&sum)
}

// probings are what is probed of a service: all of its own functions, and some
// of all that it runs.
func (s *service) probings(t *testing.T, seed uint64) []probing {
	own := []string{filepath.Base(s.compile(t))}
	all := append(own, s.modules...)
	list := []probing{{own, choice{1, 0, s.own}}, {all, choice{20, seed, ""}}}
	if long() {
		list = append(list, probing{all, choice{1, 0, ""}}, probing{all, choice{2, 1, ""}}, probing{all, choice{5, 2, ""}})
	}
	return list
}
