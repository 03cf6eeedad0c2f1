package inject

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"trapless/internal/abi"
	"trapless/internal/plan"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
)

// Springboards lie where the jumps of cramped windows lead to, far from the code
// regions as a rule, each on a page of its own or with a few others. They are
// private, executable and never writable, as regions are, and stay as long.

// boardKey is the key of a window's springboard.
func boardKey(w *plan.Window) uint64 { return uint64(w.Site) | 1<<63 }

// boardCalls is how many mappings one piece of injected code makes.
const boardCalls = 32

// mapBoards maps the pages of springboards that the space has reserved since the
// last time.
func (t *Target) mapBoards(ctx context.Context, s *plan.Space) error {
	var fresh []abi.Range
	for _, whole := range s.Boards() {
		if !t.onBoard(whole.Start) {
			fresh = append(fresh, whole)
		}
	}
	for part := range slices.Chunk(fresh, boardCalls) {
		var b ptrace.Blob
		for _, r := range part {
			b.Call(sysMmap, ptrace.AddrArg(r.Start), ptrace.Const(r.Len()), ptrace.Const(protRead|protExec),
				ptrace.Const(mapPrivate|mapAnonymous|mapNoReserve|mapFixedNoReplace), ptrace.Const(^uint64(0)), ptrace.Const(0))
			b.Expect(uint64(r.Start))
		}
		beforeMapping(part[len(part)-1])
		results, err := t.group.Run(ctx, &b)
		if err != nil {
			err = fmt.Errorf("process %d: mapping %d pages for springboards, the first at %s: %w", t.PID, len(part), part[0].Start, err)
		}
		for i, r := range part {
			if i >= len(results) || results[i] != uint64(r.Start) {
				break // the calls behind one that failed were not made
			}
			if _, jerr := t.record(entry{kind: entryBoard, a: uint64(r.Start), b: r.Len()}); jerr != nil {
				return errors.Join(err, jerr)
			}
			t.addBoard(r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// isBoard reports whether an anonymous executable mapping lies where the journal
// says that a springboard's pages are.
func isBoard(maps proc.Maps, r abi.Range) bool {
	m := maps.Find(r.Start)
	return r.Start%abi.PageSize == 0 && r.End > r.Start && r.Len() <= 2*abi.PageSize && m != nil && !m.File() &&
		m.Perm == proc.Read|proc.Exec && m.Start <= r.Start && r.End <= m.End
}

func (t *Target) addBoard(r abi.Range) {
	if t.onBoards == nil {
		t.onBoards = map[abi.Addr]bool{}
	}
	t.boards = append(t.boards, r)
	for at := r.Start; at < r.End; at += abi.PageSize {
		t.onBoards[at] = true
	}
}

// onBoard reports whether an address lies on a springboard's page.
func (t *Target) onBoard(at abi.Addr) bool { return t.onBoards[at.PageDown()] }

// link finds the springboards of detours that were placed, writes them, and gives
// each detour its patch. It returns the detours in the order in which they are to
// be applied.
func (b *builder) link(ctx context.Context, detours []*Detour) ([]*Detour, []*plan.Refusal, error) {
	of := map[*plan.Window]*Detour{}
	var windows []*plan.Window
	for _, d := range detours {
		if d != nil {
			of[d.Window] = d
			windows = append(windows, d.Window)
		}
	}
	links, refusals := b.space.Link(windows, func(w *plan.Window) abi.Addr { return of[w].At }, b.keptBoards)
	if err := b.mapBoards(ctx, b.space); err != nil {
		return nil, nil, err
	}
	var ordered []*Detour
	for _, k := range links {
		d := of[k.Window]
		d.patch = k.Patch
		if k.Board != 0 && !k.Kept {
			if err := b.write(placement{k.Board, plan.BoardSize, boardKey(k.Window)}, plan.BoardCode(k.Board, k.Detour)); err != nil {
				return nil, nil, err
			}
		}
		ordered = append(ordered, d)
	}
	return ordered, refusals, nil
}

// keptBoards are the springboards from a window to its detour that an earlier
// session left.
func (b *builder) keptBoards(w *plan.Window, detour abi.Addr) (list []abi.Addr) {
	for _, p := range b.placements.byKey[boardKey(w)] {
		if same, err := b.holds(p, plan.BoardCode(p.at, detour)); err == nil && same {
			list = append(list, p.at)
		}
	}
	return list
}
