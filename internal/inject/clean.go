package inject

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"trapless/internal/abi"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
)

// previous is the arena that an earlier tracer left in a target, with its journal.
type previous struct {
	base    abi.Addr
	size    uint64
	journal *journal
	header  header
	file    string // by which its memory can be opened, with the rights for that
}

// Undone says what was taken out of a target.
type Undone struct {
	Patches int `json:"patches"` // places of the text that were restored
	Actions int `json:"actions"` // signal actions that were given back
	Slack   int `json:"slack"`   // ends of text that were restored, where a tracer died at its first step
}

// Clean takes out what a dead tracer left in a seized process. It returns
// ErrProbed if the tracer is alive, and zeros if there is nothing.
func Clean(ctx context.Context, g *ptrace.Group) (Undone, error) {
	t := &Target{PID: g.PID, group: g, mem: g.Mem(), files: newFiles(g.PID)}
	defer t.files.Close()
	prev, err := findArena(t.PID, t.mem)
	var u Undone
	if err == nil && prev != nil {
		u, err = prev.undo(ctx, t)
	}
	if err == nil {
		u.Slack, err = restoreSlack(ctx, g)
	}
	return u, err
}

// restoreSlack restores the ends of text, also where an address of our code is found in
// what was the frame of a signal: other frames come to lie there.
func restoreSlack(ctx context.Context, g *ptrace.Group) (n int, err error) {
	for pause := slackPause; ; pause *= 2 {
		restored, err := g.RestoreSlack(ctx)
		n += restored
		if err != nil || pause > slackPatience || !g.SlackLeft() {
			return n, err
		}
		select {
		case <-ctx.Done():
			return n, nil
		case <-time.After(pause):
		}
	}
}

const (
	slackPause    = 10 * time.Millisecond
	slackPatience = 300 * time.Millisecond
)

// findArena looks for an arena among the target's mappings. A mapping of that
// name that holds none, or one that does not make sense, is left alone.
func findArena(pid int, mem *ptrace.Mem) (*previous, error) {
	maps, err := proc.ReadMaps(pid)
	if err != nil {
		return nil, err
	}
	for i := range maps {
		m := &maps[i]
		if !strings.HasPrefix(m.Path, "/memfd:"+arenaName) || m.Offset != 0 || m.Perm&proc.Shared == 0 {
			continue
		}
		var head [16]byte
		if err := mem.ReadAt(head[:], m.Start); err != nil {
			return nil, err
		}
		if binary.LittleEndian.Uint64(head[abi.HdrMagic:]) != abi.Magic {
			continue
		}
		if v := binary.LittleEndian.Uint32(head[abi.HdrVersion:]); v != abi.Version {
			return nil, fmt.Errorf("process %d: %w by another version of trapless (arena version %d)", pid, ErrProbed, v)
		}
		// A forked child has its parent's arena, and its patched text.
		j, h, err := openJournal(mem, m.Start, m.Len())
		if err != nil {
			return nil, fmt.Errorf("process %d: %w", pid, err)
		}
		p := &previous{m.Start, m.Len(), j, h, mapFile(pid, m)}
		if p.ownedBy(pid) || p.workedIn(maps) {
			return p, nil
		}
	}
	return nil, nil
}

// workedIn reports whether an arena is that of a process with these mappings, or that of
// the one that it was forked from: code was run in it. A trapless at work has the arena
// of its target mapped, too.
func (p *previous) workedIn(maps proc.Maps) bool {
	m := maps.Find(abi.Addr(p.header.home))
	return m != nil && !m.File() && m.Perm == proc.Read|proc.Exec
}

// undo takes out what the journal says is in place. All threads are stopped
// meanwhile, whatever they were doing.
func (p *previous) undo(ctx context.Context, t *Target) (Undone, error) {
	var u Undone
	owned := p.ownedBy(t.PID)
	if owned {
		if err := p.checkTracer(t.PID); err != nil {
			return u, err
		}
	}
	// What holds for the parent need not hold for a forked child.
	inPlace := func(e entry) bool {
		return e.state == statePending || !owned && (e.kind == entryPatch || e.kind == entryAction || e.kind == entrySemaphore)
	}
	if !slices.ContainsFunc(p.journal.entries, inPlace) {
		return u, nil
	}
	evenStopped := func() error { return t.group.StopEvenStopped(ctx) }
	err := t.whileStopped(evenStopped, func() error {
		return errors.Join(p.undoText(t, owned, inPlace, &u), p.undoSemaphores(t, owned))
	})
	if err != nil {
		return u, err
	}
	if u.Actions, err = p.undoActions(ctx, t, owned); err != nil || !owned {
		return u, err
	}
	return u, p.journal.setTracer(0, 0)
}

// undoText restores the text. It works on a target that a signal has stopped.
func (p *previous) undoText(t *Target, owned bool, inPlace func(entry) bool, u *Undone) error {
	maps, err := proc.ReadMaps(t.PID)
	if err != nil {
		return err
	}
	for i := range slices.Backward(p.journal.entries) { // a patch may depend on earlier ones
		e := &p.journal.entries[i]
		if e.kind != entryPatch || !inPlace(*e) {
			continue
		}
		changed, err := t.unpatch(maps, e)
		if err != nil {
			return err
		}
		if changed {
			u.Patches++
		}
		if owned {
			if err := p.journal.setState(i, stateUndone); err != nil {
				return err
			}
		}
	}
	return nil
}

// undoActions gives the signal actions back, which needs code to run in the
// target.
func (p *previous) undoActions(ctx context.Context, t *Target, owned bool) (n int, err error) {
	pending := func(e entry) bool { return e.kind == entryAction && (e.state == statePending || !owned) }
	if !slices.ContainsFunc(p.journal.entries, pending) {
		return 0, nil
	}
	if err := t.settle(ctx); err != nil {
		return 0, err
	}
	for try := 0; ; try++ {
		inside := false
		err = t.whileStopped(func() error { return t.group.Stop(ctx) }, func() (err error) {
			if inside, err = p.inside(t); err != nil || inside && try < disarmTries {
				return err
			}
			inside = false
			n, err = t.returnActions(ctx, p.journal, owned)
			return err
		})
		if err != nil || !inside || t.group.Held() {
			return n, err
		}
		time.Sleep(time.Millisecond << try)
	}
}

// inside reports whether a thread is in one of the regions that the journal names,
// or is on the way there by a trap: it still needs the handlers.
func (p *previous) inside(t *Target) (bool, error) {
	var regions, patches []abi.Range
	for _, e := range p.journal.entries {
		r := abi.Range{Start: abi.Addr(e.a), End: abi.Addr(e.a + e.b)}
		switch e.kind {
		case entryRegion, entryBoard:
			regions = append(regions, r)
		case entryPatch:
			patches = append(patches, r)
		}
	}
	threads, err := t.group.Stopped()
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(threads, func(th ptrace.Stopped) bool {
		at := abi.Addr(th.Regs.RIP)
		in := func(r abi.Range) bool { return r.Contains(at) }
		trapped := func(r abi.Range) bool { return r.Contains(at) || r.Contains(at-1) }
		return slices.ContainsFunc(regions, in) || slices.ContainsFunc(patches, trapped) && trapPending(th.Thread)
	}), nil
}

// unpatch restores the text of one entry and reports whether it had to. The
// entry is believed only as far as the target's file says the same: nothing else
// is ever written.
func (t *Target) unpatch(maps proc.Maps, e *entry) (bool, error) {
	if e.b == 0 || e.b > maxWindow {
		return false, fmt.Errorf("process %d: the journal names a patch of %d bytes: the target wrote over it", t.PID, e.b)
	}
	at, n := abi.Addr(e.a), int(e.b)
	old, patched := e.old[:n], e.new[:n]
	cur := make([]byte, n)
	if maps.Find(at) == nil || t.mem.ReadAt(cur, at) != nil {
		return false, nil // a library was unloaded
	}
	want, ok := original(at, cur, old, patched)
	if !ok || bytes.Equal(cur, want) {
		return false, nil
	}
	text, err := t.files.read(maps, at, n)
	if err != nil {
		return false, err
	}
	if !bytes.Equal(text, old) {
		return false, fmt.Errorf("process %d: the journal wants other bytes at %s than the file has: the target wrote over it", t.PID, at)
	}
	return true, writeText(t.mem, at, cur, want)
}

// carried are the entries that a new journal starts with: what stays mapped. The
// pieces of code in a region are told apart, so that they are found again, unless
// they take more than room bytes: then neighbours become one.
func (p *previous) carried(room int) []entry {
	if p == nil {
		return nil
	}
	var regions, pieces []entry
	for _, e := range p.journal.entries {
		switch e.kind {
		case entryRegion, entryBoard, entryAnnex:
			regions = append(regions, e)
		case entryPlacement:
			pieces = append(pieces, e)
		}
	}
	size := func() (n int) {
		for _, es := range [][]entry{regions, pieces} {
			for i := range es {
				n += es[i].size()
			}
		}
		return n
	}
	for gap := uint64(0); size() > room && gap <= regionSize; gap = max(2*gap, 64) {
		pieces = joined(pieces, regions, gap)
	}
	return append(regions, pieces...)
}

// joined makes one of pieces in the same region that lie no further apart than
// gap. They belong to no site any more.
func joined(pieces, regions []entry, gap uint64) []entry {
	slices.SortFunc(pieces, func(x, y entry) int { return cmp.Compare(x.a, y.a) })
	var out []entry
	for _, e := range pieces {
		if len(out) > 0 {
			last := &out[len(out)-1]
			end := max(last.a+last.b, e.a+e.b)
			near := e.a <= last.a+last.b || e.a-last.a-last.b <= gap
			one := func(r entry) bool { return r.a <= last.a && last.a < end && end <= r.a+r.b }
			if near && slices.ContainsFunc(regions, one) {
				last.b, last.c = end-last.a, 0
				continue
			}
		}
		out = append(out, e)
	}
	return out
}
