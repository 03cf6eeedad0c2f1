// Package inject changes live processes: it gives a target its arena, its code
// regions and its signal handlers, writes detours, applies patches and undoes
// them, and keeps the journal by which a later tracer can do so.
//
// A Target is opened on a seized group of threads. Place writes detours while
// the target runs: nothing leads to them yet. Arm stops all threads, for a few
// milliseconds at a time, writes the patches and opens the gates; Disarm closes
// the gates and writes the original bytes back in the same way. In between the
// group may be detached.
//
// Whatever happens to the tracer, the target goes on: each step leaves it
// consistent, and the journal says what was done. The package decides nothing
// about windows or programs; it takes windows from plan and code from its
// caller.
package inject

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"trapless/internal/abi"
	"trapless/internal/arena"
	"trapless/internal/bpf/routine"
	jit "trapless/internal/jit/x86"
	"trapless/internal/plan"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
)

// Sentinels of this package, besides those of ptrace and proc.
var (
	// ErrProbed: another tracer is at work on the target.
	ErrProbed = errors.New("it is already probed")
	// ErrNoRoom: the target's limits or address space leave no room.
	ErrNoRoom = errors.New("no room in the target's address space")
)

// Traits are what not all targets have in common.
type Traits struct {
	// Thread is how the pointers of all threads, also those to come, can be read.
	Thread jit.ThreadPointer
	// NoBrk: the program never asks for more memory by brk(2).
	NoBrk bool
}

// Target is a process under work.
type Target struct {
	PID int
	Traits

	group *ptrace.Group
	mem   *ptrace.Mem
	files *files

	arena     *arena.Arena
	lock      *os.File // the arena's memory, locked while this tracer is at work
	arenaBase abi.Addr

	syscalls    syscalls
	threadID    int32 // see jit.Env.ThreadID
	tellsThread bool  // a program asks for it
	memory      routine.Memory
	journal     *journal

	home       abi.Addr
	regions    []*Region
	boards     []abi.Range // pages of springboards
	onBoards   map[abi.Addr]bool
	placements placements
	space      *plan.Space // nil before the first placement
	annexes    annexes
	tables     *tables // nil until there is something to put in
	handlers   handlerState
	gatesOpen  bool      // the gates of detours in place, as far as their programs are enabled
	detours    []*Detour // that are in place
	announced  []*Detour // that are about to be, or to be refused
	faulting   int       // of them, how many have instructions that may fault
	looked     int       // the detour whose text was looked at last

	semaphores map[abi.Addr]int // that are raised: the numbers of their entries in the journal
}

// Arena is the tracer's side of the target's arena.
func (t *Target) Arena() *arena.Arena { return t.arena }

// ArenaBase is where the target has mapped its arena.
func (t *Target) ArenaBase() abi.Addr { return t.arenaBase }

// Group is the target's threads.
func (t *Target) Group() *ptrace.Group { return t.group }

// Mem is the target's memory.
func (t *Target) Mem() *ptrace.Mem { return t.mem }

// Open prepares a seized process: it takes out what an earlier tracer may have
// left, and maps an arena of the layout. The threads keep running but for
// moments. The arena and the regions of an earlier session are used again.
func Open(ctx context.Context, g *ptrace.Group, l *abi.Layout, traits Traits) (*Target, error) {
	t := &Target{PID: g.PID, group: g, mem: g.Mem(), files: newFiles(g.PID), Traits: traits}
	if err := t.open(ctx, l); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *Target) open(ctx context.Context, l *abi.Layout) error {
	prev, err := findArena(t.PID, t.mem)
	if err != nil {
		return err
	}
	if prev != nil {
		if _, err := prev.undo(ctx, t); err != nil {
			return err
		}
	}
	if err := t.checkLimits(l, prev); err != nil {
		return err
	}
	if err := t.settle(ctx); err != nil {
		return err
	}
	// Before the stop: the entries may be many.
	if t.journal, err = newJournal(l, prev.carried(int(l.JournalSize/4))); err != nil {
		return err
	}
	if err := t.whileStopped(func() error { return t.group.Stop(ctx) }, func() error {
		return errors.Join(t.mapArena(ctx, l, prev), t.findThreadID(), t.findMemory())
	}); err != nil {
		return err
	}
	return t.adopt(prev)
}

// whileStopped runs f with all threads stopped. A group that is stopped already,
// because it was just launched, stays so.
func (t *Target) whileStopped(stop func() error, f func() error) error {
	if t.group.Held() {
		return f()
	}
	if err := stop(); err != nil {
		return err
	}
	return errors.Join(f(), t.group.Resume())
}

// Close releases what the tracer holds. The target is not touched.
func (t *Target) Close() error {
	t.files.Close()
	if t.lock != nil {
		t.lock.Close() // the kernel unlocks it
	}
	if t.arena == nil {
		return nil
	}
	return t.arena.Close()
}

// checkLimits refuses a target whose limits would make a mapping fail, or whose
// locked memory would have to hold all of it (mlockall(2), MCL_FUTURE).
func (t *Target) checkLimits(l *abi.Layout, prev *previous) error {
	limits, err := proc.ReadLimits(t.PID)
	if err != nil {
		return err
	}
	maps, err := proc.ReadMaps(t.PID)
	if err != nil {
		return err
	}
	used, need := maps.Bytes(), l.Size+regionSize+annexSize
	if prev != nil {
		need -= min(need, prev.size)
	}
	if limits.AddressSpace != proc.Unlimited && used+2*need > limits.AddressSpace {
		return fmt.Errorf("process %d: %w: it uses %d of %d MB that RLIMIT_AS allows, and %d more are needed, as many to be left for itself; raise it by prlimit --as",
			t.PID, ErrNoRoom, used>>20, limits.AddressSpace>>20, need>>20)
	}
	if prev == nil && mapRoom(maps) < otherMaps {
		return fmt.Errorf("process %d: %w: it has %d of the %d mappings that the kernel allows; raise it by sysctl vm.max_map_count",
			t.PID, ErrNoRoom, len(maps), proc.MapLimit())
	}
	tid, err := proc.LiveThread(t.PID)
	if err != nil {
		return err
	}
	st, err := proc.ReadStatus(t.PID, tid)
	if err != nil {
		return err
	}
	if st.VMLck > min(lockedLimit, used/2) {
		return fmt.Errorf("process %d: %w: it has locked %d MB of memory (mlockall), and new mappings would be locked too",
			t.PID, ErrNoRoom, st.VMLck>>20)
	}
	return nil
}

// lockedLimit tells a target that locks a secret or a buffer from one that
// locks everything, in bytes; so does a half of what it has.
const lockedLimit = 16 << 20

// mapArena gives the target a fresh arena, over the one before if that had the
// same size. All threads are stopped, because for a moment the target has a
// descriptor that it knows nothing of: it might close it and use its number.
func (t *Target) mapArena(ctx context.Context, l *abi.Layout, prev *previous) (err error) {
	fd, err := t.makeMemfd(ctx, l.Size)
	defer func() { err = errors.Join(err, t.release(&fd)) }()
	if err != nil {
		return err
	}
	if t.arena, err = arena.Map(fd.ours, l); err != nil {
		return err
	}
	id, err := ownID(t.PID)
	if err != nil {
		return err
	}
	t.arena.Init(id)
	fixed, retired := uint64(mapFixedNoReplace), abi.Range{}
	if prev != nil && prev.size == l.Size {
		t.arenaBase, fixed = prev.base, mapFixed
	} else {
		if t.arenaBase, err = t.chooseAddress(l.Size); err != nil {
			return err
		}
		if prev != nil {
			retired = abi.Range{Start: prev.base, End: prev.base + abi.Addr(prev.size)}
		}
	}
	mem := arenaMemory{t.arena, t.arenaBase}
	if err := t.journal.publish(mem, t.arenaBase, t.home); err != nil {
		return err
	}
	if err := t.claim(fd.ours); err != nil {
		return err
	}
	return t.attachArena(ctx, &fd, l.Size, fixed, retired)
}

// attachArena maps the memfd in the target. An arena that is not used any more
// becomes private memory: a run that was interrupted in it may still write there.
// That comes first, because there must never be two arenas: a later tracer would
// not know which journal to believe.
func (t *Target) attachArena(ctx context.Context, fd *memfd, size, fixed uint64, retired abi.Range) error {
	var b ptrace.Blob
	if retired.Len() != 0 {
		b.Call(sysMmap, ptrace.AddrArg(retired.Start), ptrace.Const(retired.Len()), ptrace.Const(protRead|protWrite),
			ptrace.Const(mapPrivate|mapAnonymous|mapNoReserve|mapFixed), ptrace.Const(^uint64(0)), ptrace.Const(0))
		b.Expect(uint64(retired.Start))
	}
	b.Call(sysMmap, ptrace.AddrArg(t.arenaBase), ptrace.Const(size), ptrace.Const(protRead|protWrite),
		ptrace.Const(mapShared|mapNoReserve|fixed), ptrace.Const(uint64(fd.theirs)), ptrace.Const(0))
	b.Expect(uint64(t.arenaBase))
	b.Call(sysClose, ptrace.Const(uint64(fd.theirs)))
	res, err := t.group.Run(ctx, &b)
	if res != nil && res[len(res)-1] != ptrace.Missing {
		fd.theirs = -1
	}
	if err != nil {
		return fmt.Errorf("process %d: mapping an arena of %d KB at %s: %w", t.PID, size>>10, t.arenaBase, err)
	}
	return nil
}

// chooseAddress finds room in the middle of the largest gap of the address
// space: far from the heap, the stacks and where the kernel puts mappings next.
func (t *Target) chooseAddress(size uint64) (abi.Addr, error) {
	maps, err := proc.ReadMaps(t.PID)
	if err != nil {
		return 0, err
	}
	gaps := maps.Gaps(lowestAddr, highestAddr)
	if len(gaps) == 0 {
		return 0, fmt.Errorf("process %d: %w", t.PID, ErrNoRoom)
	}
	gap := slices.MaxFunc(gaps, func(a, b abi.Range) int { return int(int64(a.Len()) - int64(b.Len())) })
	if gap.Len() < 4*size {
		return 0, fmt.Errorf("process %d: %w: the largest gap has %d MB", t.PID, ErrNoRoom, gap.Len()>>20)
	}
	return (gap.Start + abi.Addr((gap.Len()-size)/2)).PageDown(), nil
}

// The part of the address space of a process in which mappings are placed: not
// below what vm.mmap_min_addr may be, and not in the last page.
const (
	lowestAddr  abi.Addr = 1 << 20
	highestAddr abi.Addr = 1<<47 - abi.PageSize
)

func (t *Target) callFailed(call string, result uint64) error {
	return fmt.Errorf("process %d: %s in the target failed: %w", t.PID, call, errno(result))
}

// arenaMemory reaches the arena by its addresses in the target, through the
// tracer's own mapping.
type arenaMemory struct {
	a    *arena.Arena
	base abi.Addr
}

func (m arenaMemory) ReadAt(p []byte, at abi.Addr) error {
	copy(p, m.a.Mem()[at-m.base:])
	return nil
}

func (m arenaMemory) WriteAt(p []byte, at abi.Addr) error {
	copy(m.a.Mem()[at-m.base:], p)
	ptrace.Step()
	return nil
}
