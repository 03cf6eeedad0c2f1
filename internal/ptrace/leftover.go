package ptrace

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"trapless/internal/abi"
	"trapless/internal/proc"
)

// A tracer that dies while a thread makes the first call leaves its code in the
// slack. The next one restores what the file has there, if it is certain that
// nobody returns to it: no thread stands there, and the memory of the process holds
// no address in it, as the frame of a signal that came inside would.

// leftover is code that a tracer left in the slack of a mapping.
type leftover struct {
	abi.Range
	file []byte // what the file has there
}

// RestoreSlack restores the slack of executable mappings that tracers who died have
// left code in, and returns in how many places it did. Code that may still be in use,
// and that of which it would take long to tell, stays. The group has to be attached.
func (g *Group) RestoreSlack(ctx context.Context) (restored int, err error) {
	err = g.t.do(func() error {
		restored, err = g.restoreSlack(ctx)
		return g.verdict(err)
	})
	return restored, err
}

// SlackLeft reports whether there is still code of tracers who died in the slack.
func (g *Group) SlackLeft() bool {
	maps, err := proc.ReadMaps(g.PID)
	return err == nil && len(g.leftovers(maps)) > 0
}

func (g *Group) restoreSlack(ctx context.Context) (restored int, err error) {
	maps, err := proc.ReadMaps(g.PID)
	if err != nil || len(g.leftovers(maps)) == 0 {
		return 0, err
	}
	if g.mode != modeHold {
		if err := g.stop(ctx, true); err != nil {
			return 0, err
		}
		defer g.resume()
	}
	if maps, err = proc.ReadMaps(g.PID); err != nil {
		return 0, err
	}
	used, err := g.inUse(maps, g.leftovers(maps))
	if err != nil || used == nil {
		return 0, err
	}
	for _, l := range g.leftovers(maps) {
		if used[l.Start] {
			continue
		}
		if err := g.mem.writeText(l.file, l.Start); err != nil {
			return restored, err
		}
		restored++
	}
	return restored, nil
}

// leftovers finds what differs from the files and begins as our code does, with a
// system call.
func (g *Group) leftovers(maps proc.Maps) []leftover {
	var out []leftover
	for _, s := range g.slacks(maps) {
		if !s.m.File() {
			continue // the vDSO is every process's own, and nothing says what it was
		}
		for at := s.at; at+minSlack <= s.m.End; at += maxSlack {
			r := abi.Range{Start: at, End: min(s.m.End, at+maxSlack)}
			if g.unused(s.m, r) {
				break
			}
			var call [syscallInsnLen]byte
			if g.mem.read(call[:], at) != nil || !bytes.Equal(call[:], []byte{0x0f, 0x05}) {
				continue
			}
			if file, ok := g.fileAt(s.m, r); ok {
				out = append(out, leftover{r, file})
			}
		}
	}
	return out
}

// Bounds of what is searched for addresses while all threads are stopped.
const (
	searchPages = 4 << 20  // of address space
	searchBytes = 64 << 20 // that are there
	searchBlock = 256 << 10
)

// inUse says which leftovers somebody may return to, nil if there is too much
// memory to tell. Precondition: all threads are stopped.
func (g *Group) inUse(maps proc.Maps, ls []leftover) (map[abi.Addr]bool, error) {
	used := map[abi.Addr]bool{}
	for _, th := range g.list() {
		r, err := th.readRegs()
		if err != nil && !errors.Is(err, ErrGone) && !errors.Is(err, ErrRunning) {
			return nil, err
		}
		for _, l := range ls {
			if err != nil || l.Contains(abi.Addr(r.RIP)) {
				used[l.Start] = true
			}
		}
	}
	pages, err := os.Open(proc.Path(g.PID, "pagemap"))
	if err != nil {
		return nil, err
	}
	defer pages.Close()
	left := searchBytes
	for i := range maps {
		m := &maps[i]
		if m.Perm&(proc.Read|proc.Write) != proc.Read|proc.Write || strings.HasPrefix(m.Path, "/memfd:trapless") {
			continue
		}
		for _, r := range populated(pages, m) {
			if left -= int(r.Len()); left < 0 {
				return nil, nil
			}
			if err := g.search(r, ls, used); err != nil {
				return nil, err
			}
		}
	}
	return used, nil
}

// populated are the parts of a mapping that are in memory or swapped out
// (Documentation/admin-guide/mm/pagemap.rst, bits 63 and 62); all of it when that is
// not told.
func populated(pages io.ReaderAt, m *proc.Mapping) []abi.Range {
	n := m.Len() / abi.PageSize
	if n > searchPages {
		return []abi.Range{m.Range} // too much
	}
	words := make([]byte, 8*n)
	if _, err := pages.ReadAt(words, int64(8*(m.Start/abi.PageSize))); err != nil {
		return []abi.Range{m.Range}
	}
	var out []abi.Range
	for i := range n {
		if binary.LittleEndian.Uint64(words[8*i:])>>62 == 0 {
			continue
		}
		at := m.Start + abi.Addr(i*abi.PageSize)
		if last := len(out) - 1; last >= 0 && out[last].End == at {
			out[last].End += abi.PageSize
		} else {
			out = append(out, abi.Range{Start: at, End: at + abi.PageSize})
		}
	}
	return out
}

// search notes the leftovers of which a range of memory holds an address. The start of
// one is also where the segment ends, which the loader may know; a frame that
// leads there has the number of the call, in rax, three words before
// (sigcontext, arch/x86/include/uapi/asm/sigcontext.h).
func (g *Group) search(r abi.Range, ls []leftover, used map[abi.Addr]bool) error {
	block := make([]byte, min(searchBlock, r.Len()))
	for at := r.Start; at < r.End; at += abi.Addr(len(block)) {
		b := block[:min(len(block), int(r.End-at))]
		if err := g.mem.read(b, at); err != nil {
			return err
		}
		for i := 0; i+8 <= len(b); i += 8 {
			w := abi.Addr(binary.LittleEndian.Uint64(b[i:]))
			k := slices.IndexFunc(ls, func(l leftover) bool { return l.Contains(w) })
			if k < 0 {
				continue
			}
			if rax := i - 3*8; w != ls[k].Start || rax < 0 || binary.LittleEndian.Uint64(b[rax:]) == sysMmap {
				used[ls[k].Start] = true
			}
		}
	}
	return nil
}
