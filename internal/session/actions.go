package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"trapless/internal/arena"
	"trapless/internal/diag"
	"trapless/internal/lang"
	"trapless/internal/unix"
)

// systemTime bounds a command of system(): nothing else is printed meanwhile.
const systemTime = 60 * time.Second

// act does what an event asks for. Everything that is printed comes in the order of
// the events.
func (s *Session) act(a *lang.Action, values []lang.Value) {
	for i := range values {
		s.lookUp(&values[i])
	}
	switch a.Kind {
	case lang.Printf, lang.PrintValue:
		s.check(s.config.Sink.Printf(a, values))
	case lang.PrintMap:
		s.printMap(a.Map, a.Top, a.Div)
	case lang.PrintEntry:
		s.printEntry(a.Map, values)
	case lang.Clear, lang.Zero:
		s.reset(a.Map, a.Kind)
	case lang.DeleteEntry:
		m := &s.config.Script.Maps[a.Map]
		if m.Agg == lang.TSeries {
			s.series[a.Map].remove(m, values)
			return
		}
		s.views[a.Map].remove(s.all(a.Map), func(e *arena.Entry) bool { return slices.EqualFunc(m.KeyParts(e.Key), values, sameValue) })
	case lang.Exit:
		s.stopped = true
		if len(values) > 0 {
			s.status = int(int32(values[0].Int))
		}
	case lang.Errorf, lang.Warnf:
		r := &lang.Report{Kind: a.Kind.String(), Source: s.config.Script.Source, Span: a.Span, From: a.From, Text: s.config.Sink.Text(a, values)}
		if a.Kind == lang.Warnf {
			r.Severity = diag.Warning
		}
		s.check(s.config.Sink.Report(r))
	case lang.Cat:
		s.cat(a, values)
	case lang.System:
		s.system(a, values)
	case lang.Join:
		s.check(s.config.Sink.Say(a, joined(a.Text, values)+"\n"))
	case lang.PrintTime:
		s.check(s.config.Sink.Say(a, s.config.Sink.Time(a.Text, time.Now())))
	}
}

// joined is what join() prints.
func joined(between string, values []lang.Value) string {
	var parts []string
	for _, v := range values {
		if v.Str == "" {
			break
		}
		parts = append(parts, v.Str)
	}
	return strings.Join(parts, between)
}

func (s *Session) cat(a *lang.Action, values []lang.Value) {
	name := s.config.Sink.Text(a, values)
	f, err := os.Open(name)
	if err == nil {
		defer f.Close()
		var text []byte
		if text, err = io.ReadAll(io.LimitReader(f, int64(s.config.Script.MaxCat))); err == nil {
			s.check(s.config.Sink.Say(a, string(text)))
			return
		}
	}
	var errno syscall.Errno
	errors.As(err, &errno)
	s.check(s.config.Sink.Report(&lang.Report{Kind: "error", Text: fmt.Sprintf("failed to open file '%s' (%s)", name, unix.Strerror(int(errno)))}))
}

// system runs a command by the shell and prints what it prints. A command that we
// outlive dies with us.
func (s *Session) system(a *lang.Action, values []lang.Value) {
	if !s.config.Unsafe {
		s.config.Warn("system() is not run without --unsafe")
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), systemTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", s.config.Sink.Text(a, values))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.config.Warn("system(): %v", err)
	}
	if ctx.Err() != nil {
		s.config.Warn("system(): ended after %v", systemTime)
	}
	s.check(s.config.Sink.Say(a, string(out)))
}

// printEntry prints the entry of a map that has a key; one that is not there is zero.
func (s *Session) printEntry(i int, key []lang.Value) {
	m := &s.config.Script.Maps[i]
	for _, e := range s.entries(i) {
		if slices.EqualFunc(m.KeyParts(e.Key), key, sameValue) {
			s.check(s.config.Sink.PrintEntry(m, e.Value))
			return
		}
	}
	s.check(s.config.Sink.PrintEntry(m, make([]uint64, m.Spec.Stride()/8)))
}

func sameValue(a, b lang.Value) bool {
	return a.Int == b.Int && a.Str == b.Str && slices.EqualFunc(a.Elems, b.Elems, sameValue)
}

// reset does clear() or zero() to map number i.
func (s *Session) reset(i int, kind lang.ActionKind) {
	m := &s.config.Script.Maps[i]
	if m.Agg == lang.TSeries {
		s.series[i].reset(kind == lang.Zero)
		return
	}
	if m.Agg == lang.Plain {
		s.pull()
		if kind == lang.Clear {
			s.arena.Clear(i)
		} else {
			from := 0
			if len(m.Keys) == 0 { // that it has a value stays
				from = 1
			}
			s.arena.Zero(i, from)
		}
		s.push()
		return
	}
	entries := s.all(i)
	if kind == lang.Clear {
		s.views[i].clear(entries)
	} else {
		s.views[i].zero(entries)
	}
	s.resetMax(i)
}
