package abi

import (
	"errors"
	"fmt"
	"math/bits"
)

// The arena is one shared mapping. It starts with a header page; the layout of
// what follows is computed by NewLayout, the same way for the tracer and for
// the code that it generates. Target code may scribble over all of it, so
// neither side takes an index or a pointer from it without a mask or a check.

// Magic starts every arena; Version changes with any incompatible layout.
const (
	Magic   = 0x5353454c50415254 // "TRAPLESS", little endian
	Version = 5
)

// Offsets of words in the arena header, in bytes from the arena's base.
const (
	HdrMagic     = 0x00  // u64
	HdrVersion   = 0x08  // u32
	HdrTGID      = 0x0c  // u32: the target, by its id in its own pid namespace
	HdrStop      = 0x10  // u64: nonzero once a program has called exit()
	HdrMisses    = 0x18  // u64: runs that found no exclusive state, lock-added
	HdrDrops     = 0x20  // u64: map updates dropped because the map was full, lock-added
	HdrTraps     = 0x28  // u64: hits that came by a trap at a boundary inside a window, lock-added by the handlers
	HdrSharedTP  = 0x40  // u64[SharedTPs]: thread pointers that several threads share
	HdrClock     = 0xc0  // u64: how often the clock was published; see ClockSize
	HdrMailbox   = 0x100 // u64[MailboxWords]: results of injected code
	HdrSession   = 0x300 // u64[16]: session facts, see package arena
	HdrJournal   = 0x400 // u64[8]: the journal's own header, see package inject
	HeaderSize   = PageSize
	SharedTPs    = 16
	MailboxWords = 32
)

// The clock relates the time stamp counter to CLOCK_MONOTONIC: a counter of t is
// ClockNS + (t-ClockTSC)*ClockMult/2^32 nanoseconds. Publication n writes the
// copy n%2 behind HdrClock and then n to HdrClock, so a reader never waits for a
// tracer, not even for one that was killed: it reads again only when the number
// has changed meanwhile. Offsets are in bytes from HdrClock + 8 + ClockSize*(n%2).
const (
	ClockTSC  = 0
	ClockNS   = 8
	ClockMult = 16 // nanoseconds a tick, in units of 2^-32; 0 while there is no clock
	ClockSize = 24
)

// MaxClockMult is the largest ClockMult: no counter runs at less than 1 GHz, and less
// than 2^32 ticks times it fit 64 bits.
const MaxClockMult = 1 << 32

// Offsets in a slot, in bytes from the slot's base. A slot belongs to one
// thread at a time, so its words have one writer, but for SlotRingTail, which
// only the tracer writes.
const (
	SlotClaim    = 0x00 // u64: stack pointer of the run that claimed the slot, 0 when free
	SlotRingHead = 0x08 // u64: bytes ever produced; published last
	SlotDrops    = 0x10 // u64: records dropped because the ring was full
	SlotMisses   = 0x18 // u64: runs that were not executed
	SlotReads    = 0x20 // u64: reads of the target's memory that were made at once
	SlotAsked    = 0x28 // u64: those before which the kernel was asked for the page
	SlotRingTail = 0x40 // u64: bytes ever consumed; on a line of its own
	SlotCells    = 0x80 // first map cell
)

// HitCarry is what a probe's counter in a slot, a byte, counts to: the run that
// makes it 0 again adds so many to the probe's sum.
const HitCarry = 256

// Slot numbers with a fixed meaning. Threads get the others.
const (
	SlotTracer = 0 // programs that run in the tracer
	SlotShared = 1 // threads without a slot; every update is a locked instruction
	SlotFirst  = 2
)

// Offsets in a ring record, in bytes. Records are 8-byte aligned and may wrap.
const (
	RecSize    = 0 // u32: size of the whole record in bytes, a multiple of 8
	RecFlags   = 4 // u32: number of the map plus one, or 0; bytes at the end that are no payload << 16
	RecTSC     = 8 // u64: rdtsc when the record was reserved
	RecPayload = 16
)

// RecTrace is what a record of trace_printk has for the number of its map plus one.
const RecTrace = 0xffff

// MaxRecord is the largest record, in bytes.
const MaxRecord = 4096

// HashMul spreads keys: position = (x * HashMul) >> (64-bits).
// It is 2^64 divided by the golden ratio (Knuth, TAOCP 6.4).
const HashMul = 0x9e3779b97f4a7c15

// HashTP spreads thread pointers by their lower halves: position = uint32(x * HashTP) >> (32-bits).
// It is 2^32 divided by the golden ratio, less 2^32, to be an immediate operand.
const HashTP = 0x9e3779b9 - 1<<32

// HashKey is the hash of a key of several words. Its position in a directory
// is HashKey >> (64-DirBits). For one word it is the plain product above.
func HashKey(words []uint64) uint64 {
	var h uint64
	for _, w := range words {
		h = (bits.RotateLeft64(h, 32) ^ w) * HashMul
	}
	return h
}

// ProbeLimit is the number of consecutive positions that a lookup tries.
const ProbeLimit = 64

// MapKind tells how a map lies in the arena.
type MapKind uint8

const (
	// PerSlotArray has MaxEntries cells in every slot and no directory.
	PerSlotArray MapKind = iota + 1
	// PerSlotHash has a shared directory of keys and a cell for each
	// directory position in every slot.
	PerSlotHash

	// Array has MaxEntries values that all threads share.
	Array
	// Hash is a table of states, values and keys that all threads share, from
	// which entries can be deleted.
	Hash
	// RingBuf and PerfEventArray have records in the slots' rings, which bear
	// the map's number.
	RingBuf
	PerfEventArray

	// LRUHash is a Hash in which entries that were not used for some time make
	// room for new ones when it is full.
	LRUHash

	// PerThread has one entry in every slot. Its keys are the numbers of threads,
	// each of which uses its own alone and deletes it again.
	PerThread

	// StackTrace has stacks by their numbers, as HelperStackID gives them: see
	// unwind.go.
	StackTrace
)

// MapSpec is what a program asks of a map.
type MapSpec struct {
	Name       string
	Kind       MapKind
	KeySize    int // bytes: 4 for an array, 1 to MaxKey for a hash
	ValueSize  int // bytes, positive, at most MaxValue
	MaxEntries int // positive; of a PerSlotHash the number of keys that it ever holds

	// MaxWord is the word of a value that only ever grows: over all slots it is
	// the largest that counts, as an unsigned number, where other words are
	// added up. 0 if there is none.
	MaxWord int
}

// Limits of a map, in bytes.
const (
	MaxKey   = 64
	MaxValue = 1 << 16
	// MaxTableValue is that of a table: key and state must be within reach of an eBPF
	// instruction from each other, whose offsets have 16 bits.
	MaxTableValue = 1<<15 - 256
)

// Stride is the distance of values in bytes, a multiple of 8.
func (m *MapSpec) Stride() int { return (m.ValueSize + 7) &^ 7 }

// Entry is the distance of shared values in bytes. A position of a table is a
// multiple of 16 bytes long, and its state lies 8 bytes before its value.
func (m *MapSpec) Entry() int {
	switch {
	case m.Kind == StackTrace:
		return stackHead + m.Stride()
	case !m.IsTable():
		return m.Stride()
	}
	n := 16 + m.Stride()
	if m.KeyWords() > 1 {
		n += 8 * m.KeyWords()
	}
	return (n + 15) &^ 15
}

// KeyWords is the number of 8-byte words that hold a key; a shorter key is
// extended by zero bytes.
func (m *MapSpec) KeyWords() int { return (m.KeySize + 7) / 8 }

// Shared reports whether all threads use the same values.
func (m *MapSpec) Shared() bool { return m.Kind == Array || m.IsTable() }

// IsHash reports whether the map finds values by keys of any kind.
func (m *MapSpec) IsHash() bool { return m.Kind == PerSlotHash || m.IsTable() }

// IsTable reports whether state, value and key of an entry lie together.
func (m *MapSpec) IsTable() bool { return m.Kind == Hash || m.Kind == LRUHash }

// IsRing reports whether the map stands for records in the slots' rings.
func (m *MapSpec) IsRing() bool { return m.Kind == RingBuf || m.Kind == PerfEventArray }

// Phases of a position of a table: the low byte of its state word. The second
// byte is 1 if an entry of an LRUHash was used lately (StateUsed). The others are a
// number that grows whenever the position gets another entry, so that a state
// that was read once tells whether the entry is still the same.
//
// A deleted entry keeps its key, and the next one with this key takes its place.
// Only if the table is full are deleted ones given up, for others to take. Whoever
// enters a key in a new place owns the position while it writes the key and the
// value (PhaseBusy), then shows it (PhaseEntering) and looks for others that do the
// same with the same key: what lies behind it on the key's way is turned down
// (PhaseRefused), and one before it is helped and turns it down itself, so that
// one of them becomes an entry, whoever dies meanwhile. (Purcell and Harris,
// Non-blocking Hashtables with Open Addressing, 2005.)
const (
	PhaseEmpty    = 0 // never used: a search ends here
	PhasePresent  = 1
	PhaseDead     = 2 // deleted; the key stays
	PhaseBusy     = 3 // somebody writes key and value
	PhaseEntering = 4 // key and value are there, and may become an entry
	PhaseRefused  = 5 // and will not
	PhaseGone     = 6 // free for any key

	StateUsed   = 1 << 8
	StateNext   = 1 << 16 // the next number
	StatePhase  = 0xff
	StateNumber = -1 << 16 // mask of the number
)

// Places in a position of a table, in bytes from its value. The key's word lies at
// Stride, and the words of a long key follow it.
const (
	EntryState = -8
	EntryUsed  = -7 // u8: StateUsed
)

// ThreadKey is added to the key of a PerThread map where it has an entry: the word
// before its cell. It is 0 where there is none.
const ThreadKey = 1 << 63

// MapLayout says where a map lies. Offsets are in bytes.
//
// The directory of a hash whose keys have up to 8 bytes holds, at each position,
// key^KeyMask, and 0 where it is empty; the one key equal to KeyMask lives at
// position 1<<DirBits, which is occupied when the word there is 1.
//
// The directory of a hash with longer keys holds at each position a node
// number plus one in the low 32 bits and the high 32 bits of the key's hash in
// the high ones, 0 where it is empty. Nodes are taken in turn by a locked add
// on the word at Nodes; node i is at Nodes+8+8*i*KeyWords and holds the key. It
// is written before the directory word that names it is published by one
// compare-and-swap, and never again.
//
// A table has neither: the key's word is the key itself, if it has up to 8 bytes,
// or else HashKey of it. A key lies at one of ProbeLimit positions from the one
// that its hash tells, none of which is empty.
type MapLayout struct {
	MapSpec
	DirBits   uint   // log2 of directory positions (hash only)
	Dir       uint64 // from the arena's base: u64 per position, and one more
	KeyMask   int32  // sign-extended to 64 bits
	Nodes     uint64 // from the arena's base (keys of more than 8 bytes)
	NodeCount int
	Used      uint64 // from the arena's base: u64 of occupied positions, lock-added
	Hand      uint64 // from the arena's base: u64 that goes around a table in search of entries to give up
	Cells     uint64 // from a slot's base: Stride bytes per position, unless values are shared
	Values    uint64 // from the arena's base: the first value of an Array or table; the next is Entry bytes behind it
}

// Positions is the number of cells of the map in each slot.
func (m *MapLayout) Positions() int {
	switch {
	case m.IsTable():
		return 1 << m.DirBits
	case m.IsHash():
		return 1<<m.DirBits + 1
	case m.Kind == StackTrace:
		return 1 << m.DirBits
	case m.IsRing():
		return 0
	case m.Kind == PerThread:
		return 1
	}
	return m.MaxEntries
}

// State, Value, Word and KeyWord are where parts of a position of a table lie, from
// the arena's base.
func (m *MapLayout) State(pos uint64) uint64 { return m.Value(pos) - 8 }
func (m *MapLayout) Value(pos uint64) uint64 { return m.Values + pos*uint64(m.Entry()) }
func (m *MapLayout) Word(pos uint64) uint64  { return m.Value(pos) + uint64(m.Stride()) }
func (m *MapLayout) KeyWord(pos uint64, i int) uint64 {
	return m.Word(pos) + 8 + 8*uint64(i)
}

// Layout is where everything lies in an arena.
type Layout struct {
	SlotBits    uint   // log2 of the number of slots
	StrideShift uint   // log2 of the distance of slots in bytes
	TPTable     uint64 // u64 per slot: the thread pointer that owns it, 0 when free
	Slots       uint64 // slot i is at Slots + i<<StrideShift
	Journal     uint64
	JournalSize uint64
	RingOff     uint64 // from a slot's base
	RingSize    uint64 // bytes, a power of two; 0 without a ring
	Hits        uint64 // from a slot's base: for each probe a byte, runs that began, modulo HitCarry
	HitSums     uint64 // u64 per probe, lock-added: runs that are not in the slots' bytes
	Missed      uint64 // u64 per probe, lock-added: runs that could not do something for want of exclusive state
	Probes      int    // for which there are hit counters
	Maps        []MapLayout
	Unwind      uint64 // table of unwind rules, see unwind.go; 0 without one
	UnwindRows  int    // for which it has room
	Size        uint64 // of the arena, whole pages
}

// Config is what NewLayout needs to know.
type Config struct {
	Threads     int // expected at the same time; slots for twice as many are laid out
	Probes      int // that have counters of their hits
	Maps        []MapSpec
	RingSize    uint64 // bytes per slot, a power of two of at least a page, or 0
	JournalSize uint64 // bytes, whole pages
	UnwindRows  int    // room for unwind rules, for maps of stacks
}

// ErrLayout wraps every reason why a layout cannot be made.
var ErrLayout = errors.New("arena layout")

// NewLayout computes the layout of an arena. It is deterministic.
func NewLayout(c Config) (*Layout, error) {
	if c.RingSize&(c.RingSize-1) != 0 || (c.RingSize != 0 && c.RingSize < PageSize) {
		return nil, fmt.Errorf("%w: ring of %d bytes is not a power of two of at least a page", ErrLayout, c.RingSize)
	}
	l := &Layout{Journal: HeaderSize, JournalSize: pageUp(c.JournalSize), RingSize: c.RingSize}
	l.SlotBits = uint(bits.Len(uint(max(2*c.Threads, 60) + SlotFirst - 1)))
	next := l.Journal + l.JournalSize
	l.TPTable = next
	next += pageUp(8 << l.SlotBits)
	cells := uint64(SlotCells)
	for i, spec := range c.Maps {
		m, err := newMapLayout(spec, i)
		if err != nil {
			return nil, err
		}
		next = m.place(next)
		switch m.Kind {
		case PerSlotArray, PerSlotHash:
			m.Cells = cells
			cells += (uint64(m.Stride()*m.Positions()) + 63) &^ 63
		case PerThread:
			m.Cells = cells + 8 // behind the key
			cells += 16
		}
		l.Maps = append(l.Maps, m)
	}
	if c.UnwindRows > 0 {
		l.Unwind, l.UnwindRows = next, c.UnwindRows
		next += pageUp(uint64(UnwindHead + UnwindRowSize*c.UnwindRows))
	}
	l.HitSums, l.Probes = next, c.Probes
	next += pageUp(8 * uint64(c.Probes))
	l.Missed = next
	next += pageUp(8 * uint64(c.Probes))
	l.Hits = cells
	cells += (uint64(c.Probes) + 63) &^ 63
	if l.RingSize != 0 {
		l.RingOff = pageUp(cells)
		cells = l.RingOff + l.RingSize
	}
	l.StrideShift = uint(bits.Len64(pageUp(cells) - 1))
	l.Slots = next
	l.Size = next + 1<<(l.SlotBits+l.StrideShift)
	return l, nil
}

// place puts what all threads share of a map at next, and returns what follows.
func (m *MapLayout) place(next uint64) uint64 {
	switch {
	case m.IsTable():
		const counters = 128
		m.Used, m.Hand = next, next+64
		m.Values = next + counters + 8
		next += pageUp(uint64(counters + m.Entry()*m.Positions()))
	case m.IsHash():
		m.Dir = next
		next += pageUp(8 * uint64(m.Positions()))
		m.Used, m.Nodes = next, next+64
		next += pageUp(64 + 8 + uint64(m.NodeCount*8*m.KeyWords()))
	case m.Kind == StackTrace:
		m.Values = next + stackHead
		next += pageUp(uint64(m.Entry() * m.Positions()))
	case m.Shared():
		m.Values = next
		next += pageUp(uint64(m.Entry() * m.Positions()))
	}
	return next
}

// maxShared is the largest size of a map's shared values, in bytes.
const maxShared = 1 << 30

func newMapLayout(s MapSpec, index int) (MapLayout, error) {
	m := MapLayout{MapSpec: s, KeyMask: keyMask(index)}
	switch {
	case s.IsRing():
		return m, nil
	case s.MaxEntries <= 0 || s.MaxEntries > 1<<24:
		return m, fmt.Errorf("%w: map %s: %d entries", ErrLayout, s.Name, s.MaxEntries)
	case s.ValueSize <= 0 || s.ValueSize > MaxValue || s.Shared() && s.MaxEntries*s.Entry() > maxShared:
		return m, fmt.Errorf("%w: map %s: values of %d bytes", ErrLayout, s.Name, s.ValueSize)
	}
	if s.IsTable() && s.ValueSize > MaxTableValue {
		return m, fmt.Errorf("%w: map %s: values of %d bytes; a hash may have %d", ErrLayout, s.Name, s.ValueSize, MaxTableValue)
	}
	switch s.Kind {
	case PerSlotArray, Array:
		if s.KeySize != 4 {
			return m, fmt.Errorf("%w: array %s: keys of %d bytes", ErrLayout, s.Name, s.KeySize)
		}
	case PerThread:
		if s.KeySize != 8 || s.ValueSize != 8 {
			return m, fmt.Errorf("%w: map %s: keys of %d bytes and values of %d", ErrLayout, s.Name, s.KeySize, s.ValueSize)
		}
	case PerSlotHash, Hash, LRUHash:
		if s.KeySize <= 0 || s.KeySize > MaxKey {
			return m, fmt.Errorf("%w: map %s: keys of %d bytes", ErrLayout, s.Name, s.KeySize)
		}
		m.DirBits = uint(bits.Len(uint(2*s.MaxEntries - 1)))
		if s.KeyWords() > 1 && !s.IsTable() {
			m.NodeCount = 1 << m.DirBits
		}
	case StackTrace:
		if s.KeySize != 4 || s.ValueSize%8 != 0 || s.MaxEntries*s.Entry() > maxShared {
			return m, fmt.Errorf("%w: stack_trace %s: keys of %d bytes, %d values of %d", ErrLayout, s.Name, s.KeySize, s.MaxEntries, s.ValueSize)
		}
		m.DirBits = uint(bits.Len(uint(s.MaxEntries - 1)))
	default:
		return m, fmt.Errorf("%w: map %s: kind %d", ErrLayout, s.Name, s.Kind)
	}
	return m, nil
}

// keyMask gives each map its own value that stands for "empty" when it is a
// key; it only has to be a key that programs seldom use.
func keyMask(index int) int32 { return int32(-0x5a17c3e1 - 0x1003*int32(index)) }

func pageUp(n uint64) uint64 { return (n + PageSize - 1) &^ (PageSize - 1) }
