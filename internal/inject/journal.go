package inject

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
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
// An entry is written whole before the length that covers it, and before the
// deed that it describes; its state byte is the only one that changes later.
//
// Entries are as long as they have to be, for there may be hundreds of thousands
// of them: a word with kind, state, and b in its high half; a; for some kinds c; and of a patch the old and the new bytes, filled up with
// zeros to whole words.

type entryKind uint8

const (
	entryRegion    entryKind = iota + 1 // a = start, b = size: a code region
	entryPlacement                      // a = start, b = length: code in a region; c = site or 0
	entryPatch                          // a = window, c = detour; old and new bytes, b of each
	entryAction                         // a = signal, b = our handler, c = data page
	entryBoard                          // a = start, b = size: pages of springboards
	entryAnnex                          // a = start, b = size: memory for pair tables
	entrySemaphore                      // a = address, b = its value before; c = semaphoreDone once it is raised
	entryKinds
)

// entryState is what is known of a deed.
type entryState uint8

const (
	statePending entryState = iota + 1 // about to be done, done, or half done
	stateUndone
)

// maxWindow is the room for a patch in bytes.
const maxWindow = plan.MaxLen

type entry struct {
	kind     entryKind
	state    entryState
	a, b, c  uint64 // b has 32 bits but in an action
	old, new [maxWindow]byte
	offset   uint64 // from the first entry, in bytes
}

const (
	entryStateAt = 1 // offsets in an entry, in bytes
	entryCAt     = 16
	entryLeast   = 16 // size of an entry, in bytes
)

// size is the entry's length in bytes.
func (e *entry) size() int {
	switch e.kind {
	case entryPatch:
		return 24 + (2*int(e.b)+7)&^7
	case entryPlacement, entrySemaphore:
		return 24
	case entryAction:
		return 32
	}
	return entryLeast
}

// encode appends the entry to out.
func (e *entry) encode(out []byte) []byte {
	if e.kind != entryAction && e.b>>32 != 0 || e.kind == entryPatch && e.b > maxWindow {
		panic(fmt.Sprintf("BUG: a journal entry of kind %d with a length of %d", e.kind, e.b))
	}
	end := len(out) + e.size()
	head := uint64(e.kind) | uint64(e.state)<<(8*entryStateAt)
	if e.kind != entryAction {
		head |= e.b << 32
	}
	out = binary.LittleEndian.AppendUint64(out, head)
	out = binary.LittleEndian.AppendUint64(out, e.a)
	if e.size() > entryLeast {
		out = binary.LittleEndian.AppendUint64(out, e.c)
	}
	switch e.kind {
	case entryAction:
		out = binary.LittleEndian.AppendUint64(out, e.b)
	case entryPatch:
		out = append(out, e.old[:e.b]...)
		out = append(out, e.new[:e.b]...)
	}
	return append(out, make([]byte, end-len(out))...)
}

// decodeEntry decodes the entry that b begins with. It reports false for what no
// tracer writes.
func decodeEntry(b []byte) (entry, bool) {
	if len(b) < entryLeast {
		return entry{}, false
	}
	head := binary.LittleEndian.Uint64(b)
	e := entry{kind: entryKind(head), state: entryState(head >> (8 * entryStateAt)), a: binary.LittleEndian.Uint64(b[8:]), b: head >> 32}
	if e.kind == 0 || e.kind >= entryKinds || e.kind == entryPatch && e.b > maxWindow || e.size() > len(b) {
		return entry{}, false
	}
	if e.size() > entryLeast {
		e.c = binary.LittleEndian.Uint64(b[16:])
	}
	switch e.kind {
	case entryAction:
		e.b = binary.LittleEndian.Uint64(b[24:])
	case entryPatch:
		copy(e.old[:e.b], b[24:])
		copy(e.new[:e.b], b[24+e.b:])
	}
	return e, true
}

// Words of the journal's header, in bytes from abi.HdrJournal.
const (
	jrnUsed   = 0x00 // u64: bytes of entries, and in the high half where they begin, from the first place for them
	jrnTracer = 0x08 // u64: pid of the tracer, 0 when none is at work
	jrnStart  = 0x10 // u64: that tracer's start time, in clock ticks since boot
	jrnHome   = 0x18 // u64: address of the foothold region
	jrnOffset = 0x20 // u64: offset of the first entry in the arena
	jrnSize   = 0x28 // u64: bytes of room for entries
	jrnOwner  = 0x30 // u64: start time of the target, in clock ticks since boot
	jrnSpace  = 0x38 // u64: the tracer's pid namespace, by its inode
	jrnWords  = 8
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
	offset  uint64   // of the room for entries in the arena
	size    uint64
	start   uint64 // of the entries, in the room
	used    uint64 // bytes of entries
	entries []entry
	actions []int  // the numbers of those of entryAction
	raw     []byte // of entries that are to be published
}

// maxJournal bounds what a tracer reads of a journal, in bytes, and so what one
// writes: a target can make an arena of any size. All instructions of python3
// take 64 MB.
const maxJournal = 128 << 20

var errJournalFull = errors.New("the journal is full")

// header is the decoded journal header.
type header struct {
	used, begin, tracer, start, home, offset, size, owner, space uint64
}

func readHeader(mem memory, base abi.Addr) (header, error) {
	var raw [8 * jrnWords]byte
	if err := mem.ReadAt(raw[:], base+abi.HdrJournal); err != nil {
		return header{}, err
	}
	w := func(off int) uint64 { return binary.LittleEndian.Uint64(raw[off:]) }
	used := w(jrnUsed)
	return header{used & math.MaxUint32, used >> 32, w(jrnTracer), w(jrnStart), w(jrnHome), w(jrnOffset), w(jrnSize), w(jrnOwner), w(jrnSpace)}, nil
}

// openJournal reads the journal of an existing arena of the given size. Entries
// are decoded but not believed.
func openJournal(mem memory, base abi.Addr, arenaSize uint64) (*journal, header, error) {
	h, err := readHeader(mem, base)
	if err != nil {
		return nil, h, err
	}
	if h.offset > arenaSize || h.size > arenaSize-h.offset || h.used > maxJournal || h.begin > h.size || h.used > h.size-h.begin {
		return nil, h, senseless(base)
	}
	raw := make([]byte, h.used)
	if err := mem.ReadAt(raw, base+abi.Addr(h.offset+h.begin)); err != nil {
		return nil, h, err
	}
	j := &journal{mem: mem, base: base, offset: h.offset, size: h.size, start: h.begin}
	for len(raw) > 0 {
		e, ok := decodeEntry(raw)
		if !ok {
			return nil, h, senseless(base)
		}
		j.add(e)
		raw = raw[e.size():]
	}
	return j, h, nil
}

func senseless(base abi.Addr) error {
	return fmt.Errorf("the journal at %s does not make sense: the target wrote over it", base)
}

// newJournal makes a journal with the given entries, for an arena that is not
// there yet: see publish.
func newJournal(l *abi.Layout, carried []entry) (*journal, error) {
	j := &journal{offset: l.Journal, size: l.JournalSize}
	for i := range carried {
		j.raw = carried[i].encode(j.raw)
		j.add(carried[i])
	}
	if j.used > j.room() {
		return nil, errJournalFull
	}
	return j, nil
}

// publish writes a new journal into its arena.
func (j *journal) publish(mem memory, base, home abi.Addr) error {
	j.mem, j.base = mem, base
	if err := j.putWords(jrnHome, uint64(home), j.offset, j.size); err != nil {
		return err
	}
	if err := j.mem.WriteAt(j.raw, base+abi.Addr(j.offset)); err != nil {
		return err
	}
	j.raw = nil
	return j.putUsed()
}

// room is how many bytes of entries there may be: half of what the arena has,
// because compact needs the other half.
func (j *journal) room() uint64 { return min(j.size/2, maxJournal) }

// append adds entries and publishes them.
func (j *journal) append(es ...entry) error {
	var raw []byte
	for i := range es {
		raw = es[i].encode(raw)
	}
	if j.used+uint64(len(raw)) > j.room() {
		return errJournalFull
	}
	if err := j.mem.WriteAt(raw, j.base+abi.Addr(j.offset+j.start+j.used)); err != nil {
		return err
	}
	j.entries = slices.Grow(j.entries, len(es))
	for _, e := range es {
		j.add(e)
	}
	return j.putUsed()
}

func (j *journal) add(e entry) {
	if e.kind == entryAction {
		j.actions = append(j.actions, len(j.entries))
	}
	e.offset = j.used
	j.used += uint64(e.size())
	j.entries = append(j.entries, e)
}

// setState changes the state of entry number i.
func (j *journal) setState(i int, s entryState) error {
	j.entries[i].state = s
	return j.mem.WriteAt([]byte{byte(s)}, j.at(i)+entryStateAt)
}

// at is where entry number i lies.
func (j *journal) at(i int) abi.Addr {
	return j.base + abi.Addr(j.offset+j.start+j.entries[i].offset)
}

// putUsed says which entries there are, by one write of one word.
func (j *journal) putUsed() error { return j.putWords(jrnUsed, j.used|j.start<<32) }

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
