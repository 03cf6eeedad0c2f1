package session

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"trapless/internal/abi"
	"trapless/internal/lang"
	"trapless/internal/plan"
)

// Changes of the probes of a session at work. They may be made from any
// goroutine, also while another one is in Run, but not by a Sink.

// ErrEnded: the session is over.
var ErrEnded = errors.New("the session has ended")

// ErrBreakpoints: the session may not use breakpoints.
var ErrBreakpoints = errors.New("breakpoints are not allowed, because one would kill a thread that blocks SIGTRAP; start the session with --breakpoints")

// ErrNoProbe: there is no such probe.
var ErrNoProbe = errors.New("no such probe")

// ProbeSpec asks for probes.
type ProbeSpec struct {
	// At says where, as in a script: uprobe:libc:malloc+4. Without the provider it
	// is that of the program's own probe.
	At string
	// Program is the number of the probe of the script whose program is to run.
	Program int
	// Disabled registers it without letting it run.
	Disabled bool
	// Cookie is what the program gets from bpf_get_attach_cookie.
	Cookie uint64
}

// ProbeInfo describes a probe.
type ProbeInfo struct {
	ID   int      `json:"id"`
	Addr abi.Addr `json:"addr"`
	Type string   `json:"type"` // k, or r for the probe of a function's return
	// Symbol is the function, by the name that was asked for, Aliases are its
	// other names.
	Symbol  string   `json:"symbol"`
	Aliases []string `json:"aliases,omitempty"`
	Offset  uint64   `json:"offset"`
	Module  string   `json:"module"` // the file's path
	// Whether the program may run.
	Enabled bool `json:"enabled"`
	// State is how the site is patched: OPTIMIZED by a jump, BOOSTED by a
	// breakpoint, GONE with its library, REFUSED, or DISARMED.
	State  State       `json:"state"`
	Tactic plan.Tactic `json:"tactic,omitempty"`
	Reason plan.Reason `json:"reason,omitempty"` // of a refusal
	Detail string      `json:"detail,omitempty"`
	// Hits are the runs of the program since it was registered, Missed those of
	// them that lost something because another run was in the way. A program that
	// does nothing counts nothing.
	Hits   uint64 `json:"hits"`
	Missed uint64 `json:"missed"`
	// Program is the number of the script's probe, Text its attach points.
	Program int    `json:"program"`
	Text    string `json:"text"`
}

// State is how a site is patched.
type State string

// The states.
const (
	Optimized State = "OPTIMIZED"
	Boosted   State = "BOOSTED"
	Gone      State = "GONE"
	RefusedAt State = "REFUSED"
	Disarmed  State = "DISARMED"
)

// Register adds probes and returns them. It fails, and adds none, if not one of
// them can be put in place; those that are refused say so.
func (s *Session) Register(ctx context.Context, specs ...ProbeSpec) ([]ProbeInfo, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.atWork(); err != nil {
		return nil, err
	}
	patterns, err := s.specPatterns(specs)
	if err != nil {
		return nil, err
	}
	added, err := s.registry.add(patterns)
	if err != nil {
		return nil, err
	}
	err = s.apply(ctx)
	infos := s.infos(added)
	if err == nil {
		err = noneLeft(infos)
	}
	if err != nil {
		s.registry.drop(patterns, added)
		if s.atWork() == nil {
			err = errors.Join(err, s.apply(context.WithoutCancel(ctx)))
		}
		return nil, err
	}
	return infos, nil
}

// noneLeft is the reason why none of several probes is there, nil if one is.
func noneLeft(infos []ProbeInfo) error {
	for i := range infos {
		if infos[i].State != RefusedAt {
			return nil
		}
	}
	if len(infos) == 0 {
		return fmt.Errorf("nothing was found that %w", ErrNothing)
	}
	p := &infos[0]
	return fmt.Errorf("%s+%#x %w: %s: %s", p.Symbol, p.Offset, ErrNothing, p.Reason, p.Detail)
}

// specPatterns reads what is asked for.
func (s *Session) specPatterns(specs []ProbeSpec) ([]*pattern, error) {
	var all []*pattern
	for _, spec := range specs {
		probes := s.config.Script.Probes
		if spec.Program < 0 || spec.Program >= len(probes) {
			return nil, fmt.Errorf("the script has %d probes, so there is no program %d", len(probes), spec.Program)
		}
		p := &probes[spec.Program]
		if !p.InTarget() {
			return nil, fmt.Errorf("the program of %s runs in the tracer", p.Text)
		}
		at := spec.At
		if !strings.HasPrefix(at, p.Kind.String()+":") && !(strings.HasPrefix(at, "u") && strings.Contains(at, "probe:")) {
			at = p.Kind.String() + ":" + at
		}
		points, err := lang.ParseAttach(at)
		if err != nil {
			return nil, err
		}
		for i := range points {
			if points[i].Kind != p.Kind {
				return nil, fmt.Errorf("%s: the program of %s is one of a %s", points[i].Text, p.Text, p.Kind)
			}
			all = append(all, &pattern{probe: p, attach: &points[i], program: s.programs[spec.Program].WithCookie(spec.Cookie), cookie: spec.Cookie,
				index: spec.Program, disabled: spec.Disabled})
		}
	}
	return all, nil
}

// Unregister removes probes.
func (s *Session) Unregister(ctx context.Context, ids ...int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	probes, err := s.find(ids)
	if err != nil {
		return err
	}
	s.registry.remove(probes)
	return s.apply(ctx)
}

// SetEnabled lets probes run, or not. The target is not stopped and its text is
// not changed; runs that have begun end.
func (s *Session) SetEnabled(on bool, ids ...int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	probes, err := s.find(ids)
	if err != nil {
		return err
	}
	return s.registry.enable(probes, on)
}

// Arm patches all sites, or restores all of them. It changes no probe's own state.
func (s *Session) Arm(ctx context.Context, on bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.atWork(); err != nil {
		return err
	}
	return s.attached(ctx, func(ctx context.Context, then func() error) error { return s.registry.arm(ctx, on, then) })
}

// Armed reports whether the sites are patched, and whether by jumps (see Arm and
// Optimize).
func (s *Session) Armed() (armed, optimized bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.registry
	return s.armed && r != nil && !r.disarmed, r != nil && !r.boosted
}

// Optimize lets sites have jumps (on), or breakpoints where they may have those:
// not where code runs while the signals are blocked. It fails with ErrBreakpoints
// in a session that may not use any.
func (s *Session) Optimize(ctx context.Context, on bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.atWork(); err != nil {
		return err
	}
	if !on && !s.config.Breakpoints {
		return fmt.Errorf("process %d: %w", s.PID, ErrBreakpoints)
	}
	s.registry.optimize(on)
	return s.apply(ctx)
}

// Probes describes all probes, by their numbers. After Close there are none.
func (s *Session) Probes() []ProbeInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.registry == nil || s.closed {
		return nil
	}
	return s.infos(slices.DeleteFunc(slices.Clone(s.registry.probes), func(p *Probe) bool { return p.pattern.internal }))
}

// atWork fails when the session is not.
func (s *Session) atWork() error {
	if !s.armed || s.registry == nil || !s.target.Mem().Alive() {
		return s.over()
	}
	return nil
}

// over says that the session has ended.
func (s *Session) over() error { return fmt.Errorf("process %d: %w", s.PID, ErrEnded) }

func (s *Session) find(ids []int) ([]*Probe, error) {
	if err := s.atWork(); err != nil {
		return nil, err
	}
	var probes []*Probe
	for _, id := range ids {
		p, err := s.registry.find(id)
		if err != nil {
			return nil, err
		}
		probes = append(probes, p)
	}
	return probes, nil
}

// apply makes the target what the registry wants.
func (s *Session) apply(ctx context.Context) error {
	err := s.attached(ctx, s.registry.apply)
	s.refused, s.sites = s.registry.refused(), s.registry.inPlace()
	return err
}

// attached runs f on the attached target. f lets the target go by then.
func (s *Session) attached(ctx context.Context, f func(ctx context.Context, then func() error) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.timeout())
	defer cancel()
	if err := s.reach(ctx); err != nil {
		return err
	}
	err := f(ctx, func() error { return s.letGo(ctx) })
	if derr := s.letGo(ctx); derr != nil && !gone(derr) {
		err = errors.Join(err, derr)
	}
	s.notePauses()
	return err
}

func (s *Session) infos(probes []*Probe) []ProbeInfo {
	out := make([]ProbeInfo, len(probes))
	for i, p := range probes {
		out[i] = s.registry.info(p)
	}
	return out
}

// info describes a probe.
func (r *registry) info(p *Probe) ProbeInfo {
	s := p.site
	in := ProbeInfo{ID: p.ID, Addr: s.addr, Type: "k", Symbol: s.fn.Name(), Aliases: s.fn.Names, Module: s.module.path, Enabled: !p.disabled,
		Offset: uint64(s.at - s.fn.Start), Program: p.pattern.index, Text: p.pattern.probe.Text}
	if asked := p.pattern.attach.Func; slices.Contains(s.fn.Names, asked) {
		in.Symbol = asked
	}
	if len(in.Aliases) == 1 {
		in.Aliases = nil
	}
	if p.pattern.probe.Kind == lang.Uretprobe {
		in.Type = "r"
	}
	if r.target != nil && p.refusal == nil {
		hits, missed := r.target.Arena().Hits(p.counter)
		in.Hits, in.Missed = hits-p.hits, missed-p.missed
	}
	refusal := p.refusal
	if refusal == nil {
		refusal = s.refusal
	}
	switch {
	case s.module.gone:
		in.State = Gone
	case refusal != nil:
		in.State, in.Reason, in.Detail = RefusedAt, refusal.Reason, refusal.Detail
	case r.disarmed || s.detour == nil || !s.detour.InPlace():
		in.State = Disarmed
	case s.detour.Window.Boosted:
		in.State, in.Tactic = Boosted, tacticAt(s)
	default:
		in.State, in.Tactic = Optimized, tacticAt(s)
	}
	return in
}

// tacticAt is the tactic by which a site is patched.
func tacticAt(s *site) plan.Tactic {
	w := s.detour.Window
	if s.addr != w.Start && w.Tactic != plan.Trap {
		return plan.Earlier
	}
	return w.Tactic
}

// String is a line as in the kernel's list of kprobes.
func (p *ProbeInfo) String() string {
	var flags strings.Builder
	switch p.State {
	case Optimized, Boosted, Gone, Disarmed:
		fmt.Fprintf(&flags, "[%s]", p.State)
	case RefusedAt:
		fmt.Fprintf(&flags, "[REFUSED %s]", p.Reason)
	}
	disabled := ""
	if !p.Enabled && p.State != Gone {
		disabled = "[DISABLED]"
	}
	return fmt.Sprintf("%s %s%s  hits=%d missed=%d", p.where(), disabled, &flags, p.Hits, p.Missed)
}

func (p *ProbeInfo) where() string {
	return fmt.Sprintf("%016x  %s  %s+0x%x  %s", uint64(p.Addr), p.Type, p.Symbol, p.Offset, path.Base(p.Module))
}

// Reads tells how programs have read the target's memory, in pieces of a page at most.
type Reads struct {
	Direct uint64 `json:"direct"` // at once: the running thread's stack, and the program's own data
	Asked  uint64 `json:"asked"`  // after the kernel was asked whether the page is there
}

// Reads is how memory was read so far; after Close it tells nothing.
func (s *Session) Reads() Reads {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.arena == nil || s.closed {
		return Reads{}
	}
	direct, asked := s.arena.Reads()
	return Reads{direct, asked}
}
