package inject

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"trapless/internal/abi"
	"trapless/internal/plan"
)

// The journal says what was done to a target, so that any later tracer can undo
// it or build on it. It lives in the arena, which the target may scribble over:
// whoever reads it checks each entry against the target's maps, text and files
// before acting on it, and no entry can make a tracer write anything but the
// bytes of the target's own file, or lower a number that lies in private memory
// which the target may write itself.
//
// An entry is written whole before the count that covers it, and before the
// deed that it describes; its state word is the only one that changes later.

type entryKind uint32

const (
	entryRegion    entryKind = iota + 1 // a = start, b = size: a code region
	entryPlacement                      // a = start, b = length: code in a region; c = site or 0
	entryPatch                          // a = window, b = length, c = detour; old and new bytes
	entryAction                         // a = signal, b = our handler, c = data page
	entryBoard                          // a = start, b = size: pages of springboards
	entryAnnex                          // a = start, b = size: memory for pair tables
	entrySemaphore                      // a = address, b = its value before; c = semaphoreDone once it is raised
)

// entryState is what is known of a deed.
type entryState uint32

const (
	statePending entryState = iota + 1 // about to be done, done, or half done
	stateUndone
)

// maxWindow is the room for a patch in bytes.
const maxWindow = plan.MaxLen

type entry struct {
	kind     entryKind
	state    entryState
	a, b, c  uint64
	old, new [maxWindow]byte
}

const entrySize = 8 + 3*8 + 2*maxWindow

func (e *entry) appendTo(out []byte) []byte {
	out = binary.LittleEndian.AppendUint32(out, uint32(e.kind))
	out = binary.LittleEndian.AppendUint32(out, uint32(e.state))
	for _, v := range []uint64{e.a, e.b, e.c} {
		out = binary.LittleEndian.AppendUint64(out, v)
	}
	out = append(out, e.old[:]...)
	return append(out, e.new[:]...)
}

func decodeEntry(b []byte) entry {
	e := entry{
		kind:  entryKind(binary.LittleEndian.Uint32(b)),
		state: entryState(binary.LittleEndian.Uint32(b[4:])),
		a:     binary.LittleEndian.Uint64(b[8:]),
		b:     binary.LittleEndian.Uint64(b[16:]),
		c:     binary.LittleEndian.Uint64(b[24:]),
	}
	copy(e.old[:], b[32:])
	copy(e.new[:], b[32+maxWindow:])
	return e
}

// Words of the journal's header, in bytes from abi.HdrJournal.
const (
	jrnCount  = 0x00 // u64: entries
	jrnTracer = 0x08 // u64: pid of the tracer, 0 when none is at work
	jrnStart  = 0x10 // u64: that tracer's start time, in clock ticks since boot
	jrnHome   = 0x18 // u64: address of the foothold region
	jrnOffset = 0x20 // u64: offset of the first entry in the arena
	jrnSize   = 0x28 // u64: bytes of room for entries
	jrnWords  = 6
)

// memory is what the journal needs of a target's memory.
type memory interface {
	ReadAt(p []byte, at abi.Addr) error
	WriteAt(p []byte, at abi.Addr) error
}

// journal is an open journal in the arena at base.
type journal struct {
	mem     memory
	base    abi.Addr // of the arena
	offset  uint64
	size    uint64
	entries []entry
	actions []int // the numbers of those of entryAction
	spare   []int // of those of patches that were undone, behind all that are pending
}

// maxEntries bounds what a tracer reads of a journal, and so what one writes: a
// target can make an arena of any size. All instructions of python3 take a
// million.
const maxEntries = 1 << 21

var errJournalFull = errors.New("the journal is full")

// header is the decoded journal header.
type header struct {
	count, tracer, start, home, offset, size uint64
}

func readHeader(mem memory, base abi.Addr) (header, error) {
	var raw [8 * jrnWords]byte
	if err := mem.ReadAt(raw[:], base+abi.HdrJournal); err != nil {
		return header{}, err
	}
	w := func(off int) uint64 { return binary.LittleEndian.Uint64(raw[off:]) }
	return header{w(jrnCount), w(jrnTracer), w(jrnStart), w(jrnHome), w(jrnOffset), w(jrnSize)}, nil
}

// openJournal reads the journal of an existing arena of the given size. Entries
// are decoded but not believed.
func openJournal(mem memory, base abi.Addr, arenaSize uint64) (*journal, header, error) {
	h, err := readHeader(mem, base)
	if err != nil {
		return nil, h, err
	}
	if h.offset > arenaSize || h.size > arenaSize-h.offset || h.count > min(h.size/entrySize, maxEntries) {
		return nil, h, fmt.Errorf("the journal at %s does not make sense: the target wrote over it", base)
	}
	raw := make([]byte, h.count*entrySize)
	if err := mem.ReadAt(raw, base+abi.Addr(h.offset)); err != nil {
		return nil, h, err
	}
	j := &journal{mem: mem, base: base, offset: h.offset, size: h.size}
	for i := range int(h.count) {
		j.add(decodeEntry(raw[i*entrySize:]))
	}
	return j, h, nil
}

// newJournal starts a journal with the given entries in a fresh arena.
func newJournal(mem memory, base abi.Addr, l *abi.Layout, home abi.Addr, carried []entry) (*journal, error) {
	j := &journal{mem: mem, base: base, offset: l.Journal, size: l.JournalSize}
	if err := j.putWords(jrnHome, uint64(home), j.offset, j.size); err != nil {
		return nil, err
	}
	return j, j.append(carried...)
}

// append adds entries and publishes them.
func (j *journal) append(es ...entry) error {
	at := uint64(len(j.entries)) * entrySize
	if at+uint64(len(es))*entrySize > j.size || len(j.entries)+len(es) > maxEntries {
		return errJournalFull
	}
	raw := make([]byte, 0, len(es)*entrySize)
	for i := range es {
		raw = es[i].appendTo(raw)
	}
	if err := j.mem.WriteAt(raw, j.base+abi.Addr(j.offset+at)); err != nil {
		return err
	}
	j.entries = slices.Grow(j.entries, len(es))
	for _, e := range es {
		j.add(e)
	}
	return j.putWords(jrnCount, uint64(len(j.entries)))
}

func (j *journal) add(e entry) {
	if e.kind == entryAction {
		j.actions = append(j.actions, len(j.entries))
	}
	j.entries = append(j.entries, e)
}

// setState changes the state of entry number i.
func (j *journal) setState(i int, s entryState) error {
	j.entries[i].state = s
	var raw [4]byte
	binary.LittleEndian.PutUint32(raw[:], uint32(s))
	return j.mem.WriteAt(raw[:], j.at(i)+4)
}

// at is where entry number i lies.
func (j *journal) at(i int) abi.Addr { return j.base + abi.Addr(j.offset+uint64(i)*entrySize) }

// setTracer names the process that is at work; zeros for none.
func (j *journal) setTracer(pid, start uint64) error { return j.putWords(jrnTracer, pid, start) }

func (j *journal) putWords(off int, ws ...uint64) error {
	return j.mem.WriteAt(words(ws), j.base+abi.HdrJournal+abi.Addr(off))
}

// words encodes words as the target reads them.
func words(ws []uint64) []byte {
	var raw []byte
	for _, w := range ws {
		raw = binary.LittleEndian.AppendUint64(raw, w)
	}
	return raw
}
