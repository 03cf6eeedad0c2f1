package session

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"

	"trapless/internal/abi"
	"trapless/internal/arena"
	"trapless/internal/image"
	"trapless/internal/lang"
	"trapless/internal/proc"
	"trapless/internal/unix"
)

// Alone starts a session that touches no process, for a script whose programs all
// run here, and runs BEGIN. It ends with the process that Follow names, if any.
func Alone(c Config) (*Session, error) {
	if i := slices.IndexFunc(c.Script.Probes, needsProcess); i >= 0 {
		return nil, fmt.Errorf("%s: %w", c.Script.Probes[i].Text, ErrNoTarget)
	}
	return newAlone(c)
}

func newAlone(c Config) (*Session, error) {
	s, err := newSession(c)
	if err != nil {
		return nil, err
	}
	layout, err := abi.NewLayout(abi.Config{Maps: s.maps()})
	if err != nil {
		return nil, err
	}
	if s.private, err = unix.MapPrivate(int(layout.Size)); err != nil {
		return nil, fmt.Errorf("the script's maps need %d bytes: %w", layout.Size, err)
	}
	s.arena = arena.New(s.private, layout)
	s.arena.Init(0)
	if err := s.begin(); err != nil {
		return nil, err
	}
	return s, nil
}

// Follow lets a session on its own end when a process does.
func (s *Session) Follow(pid int) { s.PID = pid }

// ended reports whether a process is there no more, or has nothing left to do.
func ended(pid int) bool {
	stat, err := os.ReadFile(proc.Path(pid, "stat"))
	if err != nil {
		return true
	}
	_, state, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ")
	return strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X")
}

// NeedsProcess reports whether a script has probes in processes.
func NeedsProcess(script *lang.Script) bool { return slices.ContainsFunc(script.Probes, needsProcess) }

func needsProcess(p lang.Probe) bool {
	return p.Kind != lang.Begin && p.Kind != lang.End && p.Kind != lang.Interval
}

// Attached is how many probes there are, as bpftrace counts them: BEGIN, END and
// each interval is one, and each function that an attach point names.
func (s *Session) Attached() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for i := range s.config.Script.Probes {
		if p := &s.config.Script.Probes[i]; !needsProcess(*p) {
			n += len(p.Attach)
		}
	}
	if s.fleet != nil {
		return n + s.fleet.attached
	}
	if s.registry == nil {
		return n
	}
	type attached struct {
		pattern *pattern
		module  *module
		start   image.VAddr
		marker  string
	}
	seen := map[attached]bool{}
	for _, p := range s.registry.probes {
		if !p.pattern.internal && p.refusal == nil {
			a := attached{p.pattern, p.site.module, p.site.fn.Start, ""}
			if p.marker != nil { // which may have several places
				a.start, a.marker = 0, p.marker.Provider+":"+p.marker.Name
			}
			seen[a] = true
		}
	}
	return n + len(seen)
}
