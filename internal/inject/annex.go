package inject

import (
	"context"
	"encoding/binary"
	"fmt"

	"trapless/internal/abi"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
)

// Annexes are private memory of the target that it may write, for the pair
// tables. A forked child has its own copy. Memory is given out from the front and
// never taken back. The directory of the pair tables is at the start of the first
// one; the last word of its page says how much of the last annex is in use.
type annexes struct {
	all  []abi.Range
	used uint64 // bytes of the last one
}

const (
	annexSize = 4 << 20 // bytes of the first annex; each next one has twice as many
	annexUsed = abi.PageSize - 8
)

// inside reports whether memory lies in one annex.
func (an *annexes) inside(at abi.Addr, size uint64) bool {
	for _, r := range an.all {
		if r.Contains(at) && uint64(r.End-at) >= size {
			return true
		}
	}
	return false
}

// allocAnnex gives out zeroed memory, of an annex that is mapped if need be.
func (t *Target) allocAnnex(ctx context.Context, size uint64) (abi.Addr, error) {
	an := &t.annexes
	if n := len(an.all); n == 0 || an.all[n-1].Len()-an.used < size {
		next := uint64(annexSize)
		if n > 0 {
			next = 2 * an.all[n-1].Len()
		}
		for next < size {
			next *= 2
		}
		if err := t.mapAnnex(ctx, next); err != nil {
			return 0, err
		}
	}
	last := an.all[len(an.all)-1]
	at := last.Start + abi.Addr(an.used)
	an.used += (size + 63) &^ 63
	return at, t.mem.WriteAt(words([]uint64{an.used}), an.all[0].Start+annexUsed)
}

func (t *Target) mapAnnex(ctx context.Context, size uint64) error {
	at, err := t.chooseAddress(size)
	if err != nil {
		return err
	}
	var b ptrace.Blob
	b.Call(sysMmap, ptrace.AddrArg(at), ptrace.Const(size), ptrace.Const(protRead|protWrite),
		ptrace.Const(mapPrivate|mapAnonymous|mapNoReserve|mapFixedNoReplace), ptrace.Const(^uint64(0)), ptrace.Const(0))
	b.Expect(uint64(at))
	if _, err := t.group.Run(ctx, &b); err != nil {
		return fmt.Errorf("process %d: mapping %d KB for tables at %s: %w", t.PID, size>>10, at, err)
	}
	t.annexes.all = append(t.annexes.all, abi.Range{Start: at, End: at + abi.Addr(size)})
	t.annexes.used = 0
	if len(t.annexes.all) == 1 {
		t.annexes.used = abi.PageSize
	}
	_, err = t.record(entry{kind: entryAnnex, a: uint64(at), b: size})
	return err
}

// openTables makes the pair tables, or takes over those of an earlier tracer.
func (t *Target) openTables(ctx context.Context) error {
	if t.tables != nil {
		return nil
	}
	an := &t.annexes
	ts := &tables{mem: t.mem, alloc: t.allocAnnex}
	if len(an.all) == 0 {
		if err := t.mapAnnex(ctx, annexSize); err != nil {
			return err
		}
	}
	ts.dir = an.all[0].Start
	t.tables = ts
	return ts.adopt(an.inside)
}

// adoptAnnexes takes over the annexes that a journal names, if the target's maps
// agree.
func (t *Target) adoptAnnexes(maps proc.Maps, es []entry) error {
	an := &t.annexes
	for _, e := range es {
		if e.kind != entryAnnex {
			continue
		}
		r := abi.Range{Start: abi.Addr(e.a), End: abi.Addr(e.a + e.b)}
		m := maps.Find(r.Start)
		if m == nil || m.File() || m.Perm != proc.Read|proc.Write || r.End <= r.Start || r.End > m.End || r.Start%abi.PageSize != 0 {
			an.all = nil
			break
		}
		an.all = append(an.all, r)
	}
	if len(an.all) == 0 {
		return nil
	}
	var raw [8]byte
	if err := t.mem.ReadAt(raw[:], an.all[0].Start+annexUsed); err != nil {
		return err
	}
	an.used = min(binary.LittleEndian.Uint64(raw[:]), an.all[len(an.all)-1].Len()) &^ 63
	if len(an.all) == 1 {
		an.used = max(an.used, abi.PageSize)
	}
	return nil
}
