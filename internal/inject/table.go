package inject

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"trapless/internal/abi"
)

// Pair tables tell the signal handlers where a thread goes on. They lie in the
// annexes and change while handlers read them, so an entry is one word, and a key
// that was entered once stays.
//
// The directory, a page, has a count and for each stretch of 4 GB its number and
// its tables by their kinds, 0 for none. A table has the number
// of its entries less one, then the entries, a power of two of them, to be found
// at the key's hash and from there upwards. The low half of an entry is that of
// the address from, the high half is to-from+2^31, which is never 0: the two lie
// less than 2 GB apart. An entry of 0 is empty.
//
// A pair that leads to itself says that something of ours was at that address: a
// thread that trapped there before it was taken out executes what is there now.

// pair is an entry of a table.
type pair struct{ from, to abi.Addr }

func (p pair) stretch() uint64 { return uint64(p.from) >> 32 }

// word is the entry of a pair. It panics on one that the planner does not make.
func (p pair) word() uint64 {
	d := int64(p.to - p.from)
	if d != int64(int32(d)) || d == math.MinInt32 {
		panic(fmt.Sprintf("BUG: %v and %v lie too far apart for a pair", p.from, p.to))
	}
	return uint64(uint32(p.from)) | uint64(d-math.MinInt32)<<32
}

// wordToItself is the entry of a key that leads to itself.
func wordToItself(key uint32) uint64 { return uint64(key) | 1<<63 }

// tableKind is a column of the directory.
type tableKind int

const (
	boundaryTable tableKind = iota // from an instruction in a window or at its start to a detour
	faultTable                     // from a moved instruction to the original
	pushedTable                    // the same of a call that has pushed its return address
	tableKinds
)

const (
	dirCount     = 0 // u64
	dirFirst     = 8
	dirEntry     = 8 + 8*int(tableKinds)
	maxStretches = (abi.PageSize - 8 - dirFirst) / dirEntry

	tableMask    = 0 // u64
	tableFirst   = 8
	tableLeast   = 64      // entries
	tableMost    = 1 << 26 // entries, of one that is taken over
	tableHashMul = 0x61c88647
)

// tables are the pair tables of a target, with the tracer's copy of them.
type tables struct {
	mem       memory
	alloc     func(ctx context.Context, size uint64) (abi.Addr, error) // zeroed memory that the target may write
	dir       abi.Addr
	stretches []*stretch
}

type stretch struct {
	number uint64
	kinds  [tableKinds]*table
}

type table struct {
	at        abi.Addr
	words     []uint64 // the entries
	used      int
	published bool // the directory names it
}

// position is that of a key, or of the empty entry where it belongs.
func (t *table) position(key uint32) int {
	i := int(uint64(key) * tableHashMul >> 32)
	for {
		i &= len(t.words) - 1
		if t.words[i] == 0 || uint32(t.words[i]) == key {
			return i
		}
		i++
	}
}

// put enters a word and returns where.
func (t *table) put(w uint64) int {
	i := t.position(uint32(w))
	if t.words[i] == 0 {
		t.used++
	}
	t.words[i] = w
	return i
}

// holds reports whether a table of that many entries has room for n. Tables are
// looked up when something traps, which is rare: it is room that counts.
func holds(entries, n int) bool { return 8*n <= 7*entries }

// trapped reports whether a thread with its program counter here may have met a
// byte of ours that traps, here or, by int3, at the byte before.
func (ts *tables) trapped(pc abi.Addr) bool {
	if ts == nil {
		return false
	}
	for _, s := range ts.stretches {
		t := s.kinds[boundaryTable]
		for _, at := range []abi.Addr{pc, pc - 1} {
			if t != nil && uint64(at)>>32 == s.number && t.words[t.position(uint32(at))] != 0 {
				return true
			}
		}
	}
	return false
}

func (ts *tables) stretch(number uint64) (*stretch, error) {
	for _, s := range ts.stretches {
		if s.number == number {
			return s, nil
		}
	}
	if len(ts.stretches) == maxStretches {
		return nil, fmt.Errorf("%w: code at %d places that lie far apart", ErrNoRoom, maxStretches)
	}
	s := &stretch{number: number}
	ts.stretches = append(ts.stretches, s)
	return s, nil
}

// enter makes sure that the tables have the pairs' keys. A boundary that is new
// leads to itself until it is set; the others lead where they should at once. All
// is seen after publish.
func (ts *tables) enter(ctx context.Context, kind tableKind, pairs []pair) error {
	fresh := map[*stretch][]uint64{}
	for _, p := range pairs {
		s, err := ts.stretch(p.stretch())
		if err != nil {
			return err
		}
		w, have := p.word(), uint64(0)
		if t := s.kinds[kind]; t != nil {
			have = t.words[t.position(uint32(w))]
		}
		switch {
		case kind == boundaryTable && have == 0:
			fresh[s] = append(fresh[s], wordToItself(uint32(w)))
		case kind != boundaryTable && have != w:
			fresh[s] = append(fresh[s], w)
		}
	}
	for s, ws := range fresh {
		if err := ts.enterWords(ctx, s, kind, ws); err != nil {
			return err
		}
	}
	return nil
}

// enterWords enters words in a table, or in a larger copy of it if need be.
// Somebody may be reading the old one, so that stays as it is.
func (ts *tables) enterWords(ctx context.Context, s *stretch, kind tableKind, ws []uint64) error {
	t := s.kinds[kind]
	if t != nil && holds(len(t.words), t.used+len(ws)) {
		for _, w := range ws {
			i := t.put(w)
			if err := ts.mem.WriteAt(words([]uint64{w}), t.entry(i)); err != nil {
				return err
			}
		}
		return nil
	}
	var old []uint64
	used := len(ws)
	if t != nil {
		old, used = t.words, used+t.used
	}
	size := tableLeast
	for !holds(size, used) {
		size *= 2
	}
	at, err := ts.alloc(ctx, uint64(tableFirst+8*size))
	if err != nil {
		return err
	}
	grown := &table{at: at, words: make([]uint64, size)}
	for _, w := range append(old[:len(old):len(old)], ws...) {
		if w != 0 {
			grown.put(w)
		}
	}
	s.kinds[kind] = grown
	return ts.mem.WriteAt(words(append([]uint64{uint64(size - 1)}, grown.words...)), at)
}

// entry is the address of entry number i.
func (t *table) entry(i int) abi.Addr { return t.at + tableFirst + abi.Addr(8*i) }

// set changes where boundaries lead that were entered before, while all threads
// are stopped.
func (ts *tables) set(pairs []pair) error {
	changed := map[*table][]int{}
	for _, p := range pairs {
		s, err := ts.stretch(p.stretch())
		w := p.word()
		if err != nil || s.kinds[boundaryTable] == nil {
			panic("BUG: a boundary that was not entered")
		}
		t := s.kinds[boundaryTable]
		i := t.position(uint32(w))
		if t.words[i] == 0 {
			panic("BUG: a boundary that was not entered")
		}
		t.words[i] = w
		changed[t] = append(changed[t], i)
	}
	for _, s := range ts.stretches { // in an order that does not depend on chance
		t := s.kinds[boundaryTable]
		if err := ts.write(t, changed[t]); err != nil {
			return err
		}
	}
	return nil
}

// writeGap is how many entries are written again to save a system call: as many as
// are copied in the time that it takes.
const writeGap = 128

// write writes entries of a table, those that lie near each other at once.
func (ts *tables) write(t *table, entries []int) error {
	slices.Sort(entries)
	for len(entries) > 0 {
		n := 1
		for n < len(entries) && entries[n]-entries[n-1] <= writeGap {
			n++
		}
		first, last := entries[0], entries[n-1]
		if err := ts.mem.WriteAt(words(t.words[first:last+1]), t.entry(first)); err != nil {
			return err
		}
		entries = entries[n:]
	}
	return nil
}

// publish shows the tables to the handlers. All threads are stopped.
func (ts *tables) publish() error {
	raw, news := []uint64{uint64(len(ts.stretches))}, false
	for _, s := range ts.stretches {
		raw = append(raw, s.number)
		for _, t := range s.kinds {
			if t == nil {
				raw = append(raw, 0)
				continue
			}
			raw = append(raw, uint64(t.at))
			news = news || !t.published
			t.published = true
		}
	}
	if !news {
		return nil
	}
	return ts.mem.WriteAt(words(raw), ts.dir)
}

// adopt takes over the tables that an earlier tracer left, as far as they lie
// inside of what inside knows and make sense, and lets all boundaries lead to
// themselves.
func (ts *tables) adopt(inside func(at abi.Addr, size uint64) bool) error {
	raw := make([]byte, abi.PageSize)
	if err := ts.mem.ReadAt(raw, ts.dir); err != nil {
		return err
	}
	u64 := func(off int) uint64 { return binary.LittleEndian.Uint64(raw[off:]) }
	for i := range int(min(u64(dirCount), uint64(maxStretches))) {
		at := dirFirst + i*dirEntry
		s := &stretch{number: u64(at)}
		for k := range s.kinds {
			var err error
			if s.kinds[k], err = ts.read(inside, abi.Addr(u64(at+8+8*k))); err != nil {
				return err
			}
		}
		ts.stretches = append(ts.stretches, s)
		t := s.kinds[boundaryTable]
		if t == nil {
			continue
		}
		for i, w := range t.words {
			if w != 0 {
				t.words[i] = wordToItself(uint32(w))
			}
		}
		if err := ts.mem.WriteAt(words(t.words), t.entry(0)); err != nil {
			return err
		}
	}
	return nil
}

// read reads a table: nil if there is none that makes sense.
func (ts *tables) read(inside func(abi.Addr, uint64) bool, at abi.Addr) (*table, error) {
	if !inside(at, tableFirst) {
		return nil, nil
	}
	var head [tableFirst]byte
	if err := ts.mem.ReadAt(head[:], at); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(head[:]) + 1
	if n < tableLeast || n > tableMost || n&(n-1) != 0 || !inside(at, tableFirst+8*n) {
		return nil, nil
	}
	raw := make([]byte, 8*n)
	if err := ts.mem.ReadAt(raw, at+tableFirst); err != nil {
		return nil, err
	}
	t := &table{at: at, words: make([]uint64, n), published: true}
	for i := range t.words {
		if t.words[i] = binary.LittleEndian.Uint64(raw[8*i:]); t.words[i] != 0 {
			t.used++
		}
	}
	if !holds(len(t.words), t.used) {
		return nil, nil
	}
	return t, nil
}
