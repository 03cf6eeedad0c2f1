package inject

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"trapless/internal/abi"
	"trapless/internal/plan"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
)

// Region is a stretch of the target that holds detours. Its head has gates and
// then a data page for signal handlers; the rest is executable and never writable.
type Region struct {
	abi.Range
	gates []byte   // what is written in the gates
	used  abi.Addr // the end of the last placement, 0 if there is none
}

const (
	regionHead = 2 * abi.PageSize // and one gate for each gateShare bytes
	regionSize = 16 << 20
)

// addPlacement notes what lies in a region, or on a page of springboards.
func (t *Target) addPlacement(p placement) {
	t.placements.add(p)
	if r := t.regionOf(p.at); r != nil {
		r.used = max(r.used, p.whole().End)
	}
}

func (t *Target) addRegion(r *Region) {
	r.gates = make([]byte, firstGate+r.Len()/gateShare)
	t.regions = append(t.regions, r)
}

// head is the part of the region that is no code.
func (r *Region) head() abi.Range {
	return abi.Range{Start: r.Start, End: r.Start + regionHead + abi.Addr(r.Len()/gateShare).PageUp()}
}

// data is the page of the signal handlers, used in one region only.
func (r *Region) data() abi.Addr { return r.head().End - abi.PageSize }

// freeSpace is where detours may lie in the target, its regions and springboards
// included.
func (t *Target) freeSpace() (*plan.Space, error) {
	maps, err := proc.ReadMaps(t.PID)
	if err != nil {
		return nil, err
	}
	c, err := spaceConfig(t.PID, maps, t.Traits, func(r abi.Range) bool { return t.onBoard(r.Start) && t.onBoard(r.End-1) })
	if err != nil {
		return nil, err
	}
	if t.space != nil {
		t.space.Renew(c.Maps)
		return t.space, nil
	}
	c.Boards += len(t.boards) // the target has them already
	t.space = plan.NewSpace(c)
	used := t.used()
	for _, r := range t.regions {
		t.space.Adopt(r.Range, within(used, r.Range))
	}
	for _, r := range t.boards {
		t.space.AdoptBoard(r, within(used, r))
	}
	return t.space, nil
}

// FreeSpace is the free address space of a process, for planning. Mappings that
// look like those of springboards count as free, and what looks like a code region
// as one: an earlier session left them.
func FreeSpace(pid int, traits Traits) (*plan.Space, error) {
	maps, err := proc.ReadMaps(pid)
	if err != nil {
		return nil, err
	}
	c, err := spaceConfig(pid, maps, traits, func(r abi.Range) bool { return r.Len() <= 2*abi.PageSize })
	if err != nil {
		return nil, err
	}
	space := plan.NewSpace(c)
	for _, r := range regionsIn(maps) {
		space.Adopt(r.Range, nil)
	}
	return space, nil
}

// regionsIn are the ranges that are mapped as a code region is, with a head whose
// size is that of a region so long.
func regionsIn(maps proc.Maps) (list []*Region) {
	for i := range max(0, len(maps)-2) { // gates, the handlers' data, code
		r := &Region{Range: abi.Range{Start: maps[i].Start, End: maps[i+2].End}}
		if isRegion(maps, r) {
			list = append(list, r)
		}
	}
	return list
}

// spaceConfig describes the address space of a process, as if anonymous executable
// mappings that the caller knows were not there.
func spaceConfig(pid int, maps proc.Maps, traits Traits, known func(abi.Range) bool) (plan.SpaceConfig, error) {
	var c plan.SpaceConfig
	limits, err := proc.ReadLimits(pid)
	if err != nil {
		return c, err
	}
	tid, err := proc.LiveThread(pid)
	if err != nil {
		return c, err
	}
	st, err := proc.ReadStat(pid, tid)
	if err != nil {
		return c, err
	}
	c = plan.SpaceConfig{RegionSize: regionSize, RegionHead: regionHead, HeadShare: gateShare, StackLimit: limits.Stack, Brk: abi.Addr(st.StartBrk)}
	if traits.NoBrk {
		c.Brk = 0
	}
	c.Boards = max(1, min(mostBoards, mapRoom(maps)-otherMaps))
	c.Maps = mappings(maps, traits, known)
	return c, nil
}

// mappings are those of a process but for the known ones. Of a program without a heap
// the kernel calls so what lies where one would begin, which is a region then
// (fs/proc/task_mmu.c, show_map_vma): nothing grows there.
func mappings(maps proc.Maps, traits Traits, known func(abi.Range) bool) (list []plan.Mapping) {
	for _, m := range maps {
		name := m.Path
		if traits.NoBrk && name == "[heap]" {
			name = ""
		}
		if name != "" || m.Perm != proc.Read|proc.Exec || !known(m.Range) {
			list = append(list, plan.Mapping{Range: m.Range, Name: name})
		}
	}
	return list
}

// mapRoom is how many mappings we may add to a target: half of what the kernel allows
// it besides those that it has. It may want some itself.
func mapRoom(maps proc.Maps) int { return (proc.MapLimit() - len(maps)) / 2 }

const (
	otherMaps  = 256 // that a session needs besides those of springboards, at most
	mostBoards = 16 << 10
)

// used is what placements take up, in the order of addresses.
func (t *Target) used() []abi.Range {
	var used []abi.Range
	for _, p := range t.placements.all {
		used = append(used, p.whole())
	}
	slices.SortFunc(used, func(x, y abi.Range) int { return cmp.Compare(x.Start, y.Start) })
	return used
}

// within is the part of an ordered list of ranges that starts in a range.
func within(list []abi.Range, r abi.Range) []abi.Range {
	at := func(a abi.Addr) int {
		i, _ := slices.BinarySearchFunc(list, a, func(x abi.Range, a abi.Addr) int { return cmp.Compare(x.Start, a) })
		return i
	}
	return list[at(r.Start):at(r.End)]
}

// adopt takes over what an earlier tracer left mapped, as far as the target's
// maps agree with its journal.
func (t *Target) adopt(prev *previous) error {
	if prev == nil {
		return nil
	}
	maps, err := proc.ReadMaps(t.PID)
	if err != nil {
		return err
	}
	if err := t.adoptAnnexes(maps, t.journal.entries); err != nil {
		return err
	}
	for _, e := range t.journal.entries {
		switch e.kind {
		case entryRegion:
			r := &Region{Range: abi.Range{Start: abi.Addr(e.a), End: abi.Addr(e.a + e.b)}}
			if isRegion(maps, r) {
				t.addRegion(r)
			}
		case entryPlacement:
			p := placement{at: abi.Addr(e.a), size: int(e.b), key: e.c}
			if e.b > 0 && e.b <= 2*regionSize && t.holdsPlacement(p) {
				t.addPlacement(p)
			}
		case entryBoard:
			r := abi.Range{Start: abi.Addr(e.a), End: abi.Addr(e.a + e.b)}
			if isBoard(maps, r) {
				t.addBoard(r)
			}
		}
	}
	return t.CloseGates() // a tracer that was killed left them open
}

// holdsPlacement reports whether a placement lies in a region or on a page of
// springboards as a whole.
func (t *Target) holdsPlacement(p placement) bool {
	last := p.at + abi.Addr(p.size-1)
	if r := t.regionOf(p.at); r != nil {
		return r.Contains(last)
	}
	return t.onBoard(p.at) && t.onBoard(last)
}

// isRegion reports whether anonymous mappings of the right protection lie where
// the journal says that a region does.
func isRegion(maps proc.Maps, r *Region) bool {
	if r.Start%abi.PageSize != 0 || r.End%abi.PageSize != 0 || r.End <= r.head().End || r.Len() > 2*regionSize {
		return false
	}
	covered := func(part abi.Range, want proc.Perm) bool {
		for at := part.Start; at < part.End; {
			m := maps.Find(at)
			if m == nil || m.File() || m.Perm != want {
				return false
			}
			at = m.End
		}
		return true
	}
	head := r.head()
	return covered(head, proc.Read|proc.Write) && covered(abi.Range{Start: head.End, End: r.End}, proc.Read|proc.Exec)
}

// isDataBlock reports whether an address may be that of a data block of handlers.
func isDataBlock(maps proc.Maps, at abi.Addr) bool {
	m := maps.Find(at)
	return at%dataBlock == 0 && m != nil && !m.File() && m.Perm == proc.Read|proc.Write
}

func (t *Target) regionOf(at abi.Addr) *Region {
	for _, r := range t.regions {
		if r.Contains(at) {
			return r
		}
	}
	return nil
}

// mapRegions maps the regions that the space has reserved since the last time.
func (t *Target) mapRegions(ctx context.Context, s *plan.Space) error {
	for _, whole := range s.Regions() {
		if slices.ContainsFunc(t.regions, func(r *Region) bool { return r.Start == whole.Start }) {
			continue
		}
		r := &Region{Range: whole}
		if err := t.mapRegion(ctx, r); err != nil {
			return err
		}
		t.addRegion(r)
	}
	return nil
}

// atMapping, when set, is told of memory that is about to be mapped.
var atMapping func(abi.Range)

// AtMappings has f called before regions and springboards are mapped, at places that
// were free a moment ago. It is for tests.
func AtMappings(f func(abi.Range)) { atMapping = f }

func beforeMapping(r abi.Range) {
	if atMapping != nil {
		atMapping(r)
	}
}

func (t *Target) mapRegion(ctx context.Context, r *Region) error {
	none := ptrace.Const(^uint64(0))
	var b ptrace.Blob
	b.Call(sysMmap, ptrace.AddrArg(r.Start), ptrace.Const(r.Len()), ptrace.Const(protRead|protExec),
		ptrace.Const(mapPrivate|mapAnonymous|mapNoReserve|mapFixedNoReplace), none, ptrace.Const(0))
	b.Expect(uint64(r.Start))
	b.Call(sysMmap, ptrace.AddrArg(r.Start), ptrace.Const(r.head().Len()), ptrace.Const(protRead|protWrite),
		ptrace.Const(mapPrivate|mapAnonymous|mapFixed), none, ptrace.Const(0))
	b.Expect(uint64(r.Start))
	b.Call(sysMadvise, ptrace.AddrArg(r.Start), ptrace.Const(r.head().Len()-abi.PageSize), ptrace.Const(madvWipeOnFork))
	b.Expect(0)
	beforeMapping(r.Range)
	if _, err := t.group.Run(ctx, &b); err != nil {
		return fmt.Errorf("process %d: mapping a code region of %d KB at %s: %w", t.PID, r.Len()>>10, r.Start, err)
	}
	_, err := t.record(entry{kind: entryRegion, a: uint64(r.Start), b: r.Len()})
	return err
}

// settle finds the foothold of an earlier session, or makes one.
func (t *Target) settle(ctx context.Context) error {
	if r, ok := t.group.Home(); ok {
		t.home = r.Start
		return nil
	}
	r, ok, err := t.group.FindFoothold(ctx)
	if err != nil {
		return err
	}
	if !ok {
		if _, err := t.group.RestoreSlack(ctx); err != nil { // a tracer may have died just here
			return err
		}
		if r, err = t.group.Foothold(ctx, 0, abi.PageSize); err != nil {
			return err
		}
	}
	t.home = r.Start
	return nil
}
