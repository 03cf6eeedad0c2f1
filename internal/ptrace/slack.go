package ptrace

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"

	"trapless/internal/abi"
	"trapless/internal/proc"
)

// The first instructions go where nothing is: between the end of an executable
// segment and the end of its last page. The bytes there are mapped because
// pages are, and belong to nobody.

const (
	minSlack = 32 // less never suffices
	maxSlack = 128
)

// slack is the room behind an executable segment.
type slack struct {
	m  *proc.Mapping
	at abi.Addr // to the mapping's end
}

// slacks lists the slack of executable file mappings, and of the vDSO last.
func (g *Group) slacks(maps proc.Maps) []slack {
	var out, last []slack
	for i := range maps {
		m := &maps[i]
		if m.Perm != proc.Read|proc.Exec {
			continue
		}
		var end abi.Addr
		var ok bool
		switch {
		case m.Path == "[vdso]":
			if end, ok = g.segmentEnd(m, m); ok {
				last = append(last, slack{m, (end + 7) &^ 7})
			}
		case m.File():
			head := firstMapping(maps, i)
			if head == nil {
				continue
			}
			if end, ok = g.segmentEnd(head, m); ok {
				out = append(out, slack{m, (end + 7) &^ 7})
			}
		}
	}
	return append(out, last...)
}

// rooms lists where code may be put: one place in each slack that has one.
func (g *Group) rooms(maps proc.Maps) []abi.Range {
	var out []abi.Range
	for _, s := range g.slacks(maps) {
		if r, ok := g.firstUnused(s.m, s.at); ok {
			out = append(out, r)
		}
	}
	return out
}

// firstUnused finds room in the slack of a mapping that starts at an address,
// passing over what a tracer that died may have left there.
func (g *Group) firstUnused(m *proc.Mapping, at abi.Addr) (abi.Range, bool) {
	for ; at+minSlack <= m.End; at += maxSlack {
		r := abi.Range{Start: at, End: min(m.End, at+maxSlack)}
		if g.unused(m, r) {
			return r, true
		}
	}
	return abi.Range{}, false
}

// firstMapping is the mapping of the start of the file behind maps[i]: the
// nearest one below it.
func firstMapping(maps proc.Maps, i int) *proc.Mapping {
	for j := i; j >= 0; j-- {
		if maps[j].Offset == 0 && maps[j].SameFile(&maps[i]) {
			return &maps[j]
		}
	}
	return nil
}

// segmentEnd finds the segment that mapping m is of, by the program headers that
// are in memory at head, and returns where it ends. It is not ok unless segment
// and mapping agree in every respect.
func (g *Group) segmentEnd(head, m *proc.Mapping) (abi.Addr, bool) {
	var h elf.Header64
	var raw [64]byte
	if head.Perm&proc.Read == 0 || g.mem.read(raw[:], head.Start) != nil {
		return 0, false
	}
	if err := binary.Read(bytes.NewReader(raw[:]), binary.LittleEndian, &h); err != nil ||
		!bytes.HasPrefix(raw[:], []byte(elf.ELFMAG)) || h.Phentsize != 56 || h.Phnum > 64 {
		return 0, false
	}
	table := make([]byte, int(h.Phnum)*int(h.Phentsize))
	if h.Phoff+uint64(len(table)) > head.Len() || g.mem.read(table, head.Start+abi.Addr(h.Phoff)) != nil {
		return 0, false
	}
	progs := make([]elf.Prog64, h.Phnum)
	if err := binary.Read(bytes.NewReader(table), binary.LittleEndian, progs); err != nil {
		return 0, false
	}
	return matchSegment(progs, head, m)
}

func matchSegment(progs []elf.Prog64, head, m *proc.Mapping) (abi.Addr, bool) {
	bias, found := abi.Addr(0), false
	for _, p := range progs {
		if elf.ProgType(p.Type) == elf.PT_LOAD && abi.Addr(p.Off).PageDown() == 0 {
			bias, found = head.Start-abi.Addr(p.Vaddr).PageDown(), true
			break
		}
	}
	for _, p := range progs {
		if !found || elf.ProgType(p.Type) != elf.PT_LOAD || elf.ProgFlag(p.Flags)&elf.PF_X == 0 || p.Filesz != p.Memsz {
			continue
		}
		start, end := bias+abi.Addr(p.Vaddr), bias+abi.Addr(p.Vaddr+p.Memsz)
		if start.PageDown() == m.Start && end.PageUp() == m.End && abi.Addr(p.Off).PageDown() == abi.Addr(m.Offset) {
			return end, true
		}
	}
	return 0, false
}

// unused reports whether a part of the slack is as the file has it: zeros, or what the
// linker put behind the segment. Anything else is the work of a tracer that died,
// or of the program, and may be in use.
func (g *Group) unused(m *proc.Mapping, r abi.Range) bool {
	now := make([]byte, r.Len())
	if g.mem.read(now, r.Start) != nil {
		return false
	}
	if bytes.Count(now, []byte{0}) == len(now) {
		return true
	}
	file, ok := g.fileAt(m, r)
	return ok && bytes.Equal(now, file)
}

// fileAt is what a file has for a part of a mapping.
func (g *Group) fileAt(m *proc.Mapping, r abi.Range) ([]byte, bool) {
	f, err := proc.OpenMapped(g.PID, m)
	if err != nil {
		return nil, false
	}
	defer f.Close()
	file := make([]byte, r.Len())
	_, _ = f.ReadAt(file, int64(m.Offset)+int64(r.Start-m.Start)) // behind the file's end there are zeros
	return file, true
}

// mapThroughSlack maps the region by code in somebody's slack.
func (g *Group) mapThroughSlack(ctx context.Context, maps proc.Maps, h *home) error {
	rooms := g.rooms(maps)
	if len(rooms) == 0 {
		return refuse(g.PID, ReasonNoSlack, "no executable file mapping has %d unused bytes at its end", minSlack)
	}
	next := 0
	for tries := 0; ; tries++ {
		room := rooms[next]
		old := make([]byte, room.Len())
		if err := g.mem.ReadAt(old, room.Start); err != nil {
			return err
		}
		err := g.callOnce(ctx, &oneCall{room: room, mapping: h.Range, prot: protRead | protExec,
			put:   func(code []byte) error { return g.mem.writeText(code, room.Start) },
			clean: func() error { return g.mem.writeText(old, room.Start) }})
		switch {
		case errors.Is(err, errRoom) && next+1 < len(rooms):
			next++
			continue
		case errors.Is(err, errRoom):
			return refuse(g.PID, ReasonNoSlack, "the unused bytes at the ends of its %d executable file mappings are too few", len(rooms))
		case err != nil:
			return err
		}
		now, err := proc.ReadMaps(g.PID)
		if err != nil {
			return err
		}
		if m := now.Find(h.Start); m != nil {
			if m.Perm != proc.Read|proc.Exec || m.File() {
				return refuse(g.PID, ReasonFailed, "something else was mapped at %v", h.Start)
			}
			return nil
		}
	}
}
