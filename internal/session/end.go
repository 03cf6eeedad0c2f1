package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"trapless/internal/abi"
	"trapless/internal/arena"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
	"trapless/internal/unix"
)

// Close takes everything out of the target and lets go of it. It is safe at any
// moment, also after an error, and does nothing the second time. Entries tells the last
// values from then on.
func (s *Session) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	err := s.disarm()
	if s.family != nil {
		s.family.end()
	}
	err = errors.Join(err, s.disarmMembers())
	s.keep()
	s.closed = true
	return errors.Join(err, s.close())
}

// keep copies what can be asked for after Close. An object's maps are of any size, and
// a map of stacks has no entries.
func (s *Session) keep() {
	if s.arena == nil || s.config.Object != nil || s.parent != nil {
		return
	}
	s.last = make([][]arena.Entry, len(s.config.Script.Maps))
	for i := range s.last {
		if s.config.Script.Maps[i].Spec.Kind != abi.StackTrace {
			s.last[i] = s.entries(i)
		}
	}
}

// close gives back what the session holds, after disarm.
func (s *Session) close() error {
	if s.registry != nil {
		s.registry.Close()
	}
	if s.symbols != nil {
		s.symbols.Close()
	}
	if s.private != nil {
		return errors.Join(s.closeMembers(), unix.Unmap(s.private))
	}
	if s.tracer == nil {
		return nil
	}
	var err error
	if s.family != nil {
		err = s.closeMembers()
		s.family.images.Close()
	}
	if s.target != nil {
		err = errors.Join(err, s.target.Close())
	}
	if s.group != nil {
		ctx, cancel := context.WithTimeout(context.Background(), s.timeout())
		defer cancel()
		if derr := s.group.Detach(ctx); derr != nil && !gone(derr) {
			err = errors.Join(err, derr)
		}
		s.notePauses()
		_ = s.group.Close() // a descriptor for reading
	}
	if s.parent == nil || !s.follows() {
		s.tracer.Close()
	}
	return err
}

// gone reports whether an error says that the target has ended.
func gone(err error) bool {
	return errors.Is(err, ptrace.ErrGone) || errors.Is(err, ptrace.ErrExec) || errors.Is(err, proc.ErrNoProcess) || errors.Is(err, proc.ErrZombie)
}

// disarm attaches again and takes the probes out.
func (s *Session) disarm() error {
	if !s.armed {
		return nil
	}
	s.armed = false
	if !s.target.Mem().Alive() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout())
	defer cancel()
	err := s.attachAgain(ctx)
	if err == nil {
		err = s.target.Disarm(ctx, func() error { return s.group.Detach(ctx) })
	}
	if err == nil && s.target.ActionsLeft() && s.target.Mem().Alive() {
		s.config.Warn("process %d is stopped, so that its signal handlers could not be given back; they work, through trapless's, until 'trapless clean -p %d'", s.PID, s.PID)
	}
	if err != nil && gone(err) {
		// Another process may have kept the memory: the programs run there no more.
		if err = s.target.Abandon(); gone(err) {
			return nil
		}
		return err
	}
	if err != nil {
		// Nobody is at work on it any more, so that another tracer may be.
		err = fmt.Errorf("taking the probes out: %w; run: trapless clean -p %d", errors.Join(err, s.target.Abandon()), s.PID)
	}
	return err
}

// attachAgain attaches to a target that is armed. A process has one tracer at a
// time: another one, a debugger or a trapless that only looks, is waited for,
// with the gates closed meanwhile.
func (s *Session) attachAgain(ctx context.Context) error {
	if s.group.Held() {
		return nil // it was armed just now, and something failed before it was let go
	}
	if err := s.group.Detach(ctx); err != nil {
		return err
	}
	for told := false; ; {
		err := s.group.Seize(ctx)
		if !errors.Is(err, proc.ErrTraced) {
			return err
		}
		if !told {
			told = true
			s.config.Warn("%v; waiting for it before the probes can be taken out", err)
			if err := s.target.CloseGates(); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(tracedPause):
		}
	}
}

// tracedPause is how often it is looked whether another tracer has left.
const tracedPause = 20 * time.Millisecond
