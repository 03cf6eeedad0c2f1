package debuginfo

import (
	"debug/dwarf"
	"encoding/binary"
)

// Operations of location expressions (DWARF 5, 7.7.1).
const (
	opReg0 = 0x50
)

// entryRegister is the register that a parameter is in when the function is entered, by the debug information; not
// known where it does not say, or says that it is in memory, as without optimization, where it is only put later.
func (fn *function) entryRegister(e *dwarf.Entry) (uint64, bool) {
	var expr []byte
	switch at := e.Val(dwarf.AttrLocation).(type) {
	case []byte:
		expr = at
	case int64:
		expr = fn.lists.at(uint64(at), fn.at, fn.unit)
	case uint64: // the number of a list (DWARF 5, 7.29)
		expr = fn.lists.numbered(at, fn.at, fn.unit)
	}
	if len(expr) == 1 && expr[0] >= opReg0 && expr[0] < opReg0+32 {
		return uint64(expr[0] - opReg0), true
	}
	return 0, false
}

// locationLists are the sections with the locations that change from instruction to instruction.
type locationLists struct{ loc, loclists, addr []byte }

// reader reads a list. What is cut short reads as the list's end.
type reader struct {
	b  []byte
	ok bool
}

func (r *reader) take(n uint64) []byte {
	if !r.ok || n > uint64(len(r.b)) {
		r.ok = false
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) fixed(n uint64) uint64 {
	var word [8]byte
	copy(word[:], r.take(n))
	return binary.LittleEndian.Uint64(word[:])
}

func (r *reader) uleb() uint64 {
	var v uint64
	for shift := 0; ; shift += 7 {
		b := r.take(1)
		if b == nil {
			return 0
		}
		if shift < 64 {
			v |= uint64(b[0]&0x7f) << shift
		}
		if b[0]&0x80 == 0 {
			return v
		}
	}
}

// at is the expression that holds at an address, nil if there is none. Offsets of lists of DWARF 4 and 5 lie in
// sections of different names; a file has one or the other, as a rule.
func (l *locationLists) at(off, pc uint64, unit unitBase) []byte {
	if expr := l.inLoclists(off, pc, unit); expr != nil {
		return expr
	}
	return l.inLoc(off, pc, unit)
}

// numbered is the expression of a list that is named by its number: the offset of it, from where these lie, lies there.
func (l *locationLists) numbered(n, pc uint64, unit unitBase) []byte {
	base := uint64(unit.listsBase)
	if base == 0 || base > uint64(len(l.loclists)) || n > uint64(len(l.loclists)) {
		return nil
	}
	r := reader{l.loclists[base:], true}
	r.take(4 * n)
	off := r.fixed(4)
	if !r.ok {
		return nil
	}
	return l.inLoclists(base+off, pc, unit)
}

// inLoc reads a list of DWARF 4 (2.6.2).
func (l *locationLists) inLoc(off, pc uint64, unit unitBase) []byte {
	if off >= uint64(len(l.loc)) {
		return nil
	}
	r := reader{l.loc[off:], true}
	base := unit.low
	for r.ok {
		begin, end := r.fixed(8), r.fixed(8)
		switch {
		case begin == 0 && end == 0:
			return nil
		case begin == ^uint64(0):
			base = end
			continue
		}
		expr := r.take(r.fixed(2))
		if r.ok && base+begin <= pc && pc < base+end {
			return expr
		}
	}
	return nil
}

// Kinds of entries in a list of DWARF 5 (7.7.3), and the one of GNU for views.
const (
	lleEnd = iota
	lleBaseAddressX
	lleStartXEndX
	lleStartXLength
	lleOffsetPair
	lleDefault
	lleBaseAddress
	lleStartEnd
	lleStartLength
	lleViewPair
)

func (l *locationLists) inLoclists(off, pc uint64, unit unitBase) []byte {
	if off >= uint64(len(l.loclists)) {
		return nil
	}
	r := reader{l.loclists[off:], true}
	base := unit.low
	for r.ok {
		var begin, end uint64
		switch kind := r.fixed(1); kind {
		case lleBaseAddressX:
			base = l.indexed(r.uleb(), unit)
			continue
		case lleBaseAddress:
			base = r.fixed(8)
			continue
		case lleViewPair:
			r.uleb()
			r.uleb()
			continue
		case lleStartXEndX:
			begin, end = l.indexed(r.uleb(), unit), l.indexed(r.uleb(), unit)
		case lleStartXLength:
			begin = l.indexed(r.uleb(), unit)
			end = begin + r.uleb()
		case lleOffsetPair:
			begin, end = base+r.uleb(), base+r.uleb()
		case lleDefault:
			end = ^uint64(0)
		case lleStartEnd:
			begin, end = r.fixed(8), r.fixed(8)
		case lleStartLength:
			begin = r.fixed(8)
			end = begin + r.uleb()
		default:
			return nil
		}
		expr := r.take(r.uleb())
		if r.ok && begin <= pc && pc < end {
			return expr
		}
	}
	return nil
}

// indexed is an address of .debug_addr.
func (l *locationLists) indexed(n uint64, unit unitBase) uint64 {
	at := uint64(unit.addrBase) + 8*n
	if n > uint64(len(l.addr)) || at+8 > uint64(len(l.addr)) {
		return 0
	}
	return binary.LittleEndian.Uint64(l.addr[at:])
}
