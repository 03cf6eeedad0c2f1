package trapless

import (
	"context"

	"trapless/internal/control"
	"trapless/internal/session"
)

// The probes of a Session can be changed while it is at work, from any goroutine:
//
//	added, err := s.Register(ctx, trapless.ProbeSpec{At: "libc:calloc", Program: 0})
//	...
//	err = s.SetEnabled(false, added[0].ID)
//
// The methods are those of the embedded session: Register, Unregister, SetEnabled,
// Arm, Optimize, Probes and Armed.

// ProbeSpec asks for probes: the program of one of the script's probes, at more
// places.
type ProbeSpec = session.ProbeSpec

// ProbeInfo describes a probe.
type ProbeInfo = session.ProbeInfo

// State is how the site of a probe is patched.
type State = session.State

// The states.
const (
	Optimized = session.Optimized // by a jump
	Boosted   = session.Boosted   // by a breakpoint whose handler goes to the detour
	Gone      = session.Gone      // not: its library was unloaded
	Refused   = session.RefusedAt // not: Reason and Detail say why
	Disarmed  = session.Disarmed  // not: all were disarmed
)

// More errors to compare with by errors.Is.
var (
	ErrEnded       = session.ErrEnded       // the session is over
	ErrNoProbe     = session.ErrNoProbe     // there is no such probe
	ErrOwnChild    = session.ErrOwnChild    // it is a child of this process, which Start has not started
	ErrBreakpoints = session.ErrBreakpoints // the session may not use any: Options.Breakpoints
	ErrNoSession   = control.ErrNoSession   // no session of ours is at work on the process
)

// Serve lets other processes of the same user, and of root, ask for the session's
// probes and change them (see Control), until the function that it returns is
// called. Where the session probes several processes, each is asked by its own number.
func (s *Session) Serve() (stop func(), err error) {
	srv, err := control.Serve(s.Session)
	if err != nil {
		return nil, err
	}
	return srv.Close, nil
}

// ControlRequest is what the session of another process is asked to do. Command is
// status, enable, disable, arm, disarm, optimize, unoptimize, register or
// unregister. Probes are numbers, symbols with '*' for any characters, such symbols
// behind the name of a file and a colon, or "all".
type ControlRequest struct {
	Command string
	Probes  []string    // of enable, disable and unregister
	Specs   []ProbeSpec // of register
}

// Status is what a session says of itself.
type Status = control.Answer

// Control asks the session that is at work on a process, in another process of the
// same user. It returns the state afterwards.
func Control(ctx context.Context, pid int, rq ControlRequest) (*Status, error) {
	return control.Ask(ctx, pid, &control.Request{Command: control.Command(rq.Command), Probes: rq.Probes, Specs: rq.Specs})
}
