package image

import (
	"cmp"
	"encoding/binary"
	"slices"
)

// Pointer encodings of .eh_frame (LSB Core, "DWARF Extensions"): a format in the low four bits, what it
// is relative to in the next three, and a bit for "the address of the pointer".
const (
	encAbsolute = 0x00
	encULEB     = 0x01
	encData2    = 0x02
	encData4    = 0x03
	encData8    = 0x04
	encSigned   = 0x08
	encPCRel    = 0x10
	encIndirect = 0x80
	encOmit     = 0xff
)

// unwindRanges reads the code ranges of the unwind table: compilers write one entry (FDE) for each function
// and for each part of one that lies elsewhere. Sorted by start, without empty ones and duplicates. An
// entry that makes no sense is passed over; the table only ever adds knowledge. So are signal frames, whose
// entries begin before the code.
func (f *File) unwindRanges() ([]Range, error) {
	return f.unwindEntries(func(t *unwindTable) bool { return !t.cie.signal })
}

// framedRanges are those of unwindRanges whose code begins with a frame on the stack: parts of functions that
// are jumped to.
func (f *File) framedRanges() ([]Range, error) {
	return f.unwindEntries(func(t *unwindTable) bool { return !t.cie.signal && t.framed() })
}

// unwindEntries are the code ranges of the entries that are wanted.
func (f *File) unwindEntries(want func(t *unwindTable) bool) ([]Range, error) {
	table, at, err := f.unwindTable()
	if err != nil || len(table) == 0 {
		return nil, err
	}
	t := unwindTable{data: table, at: at, cieAt: -1}
	ranges := make([]Range, 0, len(table)/48)
	for t.pos < len(t.data) {
		r, ok := t.next()
		if !ok || r.End <= r.Start || !want(&t) {
			continue
		}
		if s := f.executable(r.Start); s != nil && r.End <= s.inFile().End {
			ranges = append(ranges, r)
		}
	}
	slices.SortFunc(ranges, func(a, b Range) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.End, b.End))
	})
	return slices.Compact(ranges), nil
}

// unwindTable finds .eh_frame by its section, or through the header that the unwinder itself uses.
func (f *File) unwindTable() ([]byte, VAddr, error) {
	if s := f.named(".eh_frame"); s != nil {
		data, err := f.sectionData(s)
		return data, VAddr(s.Addr), err
	}
	if f.ehFrame == 0 {
		return nil, 0, nil
	}
	header, err := f.bytesAt(f.ehFrame, 8) // version, three encodings, a pointer to .eh_frame
	if err != nil || len(header) < 8 || header[1] != encPCRel|encSigned|encData4 {
		return nil, 0, err
	}
	at := f.ehFrame + 4 + VAddr(int64(int32(binary.LittleEndian.Uint32(header[4:]))))
	data, err := f.bytesAt(at, maxRead)
	return data, at, err
}

// unwindTable walks the entries of .eh_frame.
type unwindTable struct {
	data []byte
	at   VAddr // of data
	pos  int

	// The encodings of the CIE looked at last: many FDEs in a row share one.
	cieAt int
	cie   encodings

	// Of the FDE read last: where its augmentation data begin and it ends.
	augmented, end int
}

// encodings are how the FDEs of a CIE write pointers.
type encodings struct {
	addr byte // to code; encOmit if the CIE is not understood
	lsda byte // to the exception table; encOmit if there is none
	data bool // the FDEs have augmentation data

	signal bool // the code is what a signal handler returns to
}

// noEncodings are those of a CIE that is not understood.
var noEncodings = encodings{addr: encOmit, lsda: encOmit}

// next reads the entry at pos and moves on. It reports whether the entry describes code.
func (t *unwindTable) next() (Range, bool) {
	if len(t.data)-t.pos < 4 {
		t.pos = len(t.data)
		return Range{}, false
	}
	length := uint64(binary.LittleEndian.Uint32(t.data[t.pos:]))
	body := t.pos + 4
	if length == 0 { // the end, or the end of what one object file brought
		t.pos = body
		return Range{}, false
	}
	if length < 4 || length > uint64(len(t.data)-body) { // nothing after it can be trusted; no compiler writes 64-bit entries
		t.pos = len(t.data)
		return Range{}, false
	}
	end := body + int(length)
	t.pos = end
	id := int64(binary.LittleEndian.Uint32(t.data[body:]))
	if id == 0 { // a CIE
		return Range{}, false
	}
	cie := int64(body) - id
	if cie < 0 {
		return Range{}, false
	}
	return t.codeRange(body+4, end, t.encodings(int(cie)).addr)
}

// lsda is where the exception table of the FDE read last lies, 0 if it has none. It reports false if that
// is not understood.
func (t *unwindTable) lsda() (VAddr, bool) {
	if t.cie.lsda == encOmit || !t.cie.data {
		return 0, true
	}
	c := cursor{t.data[t.augmented:t.end], true}
	size := c.uleb()
	pos := t.end - len(c.rest)
	if !c.ok || size > uint64(len(c.rest)) {
		return 0, false
	}
	v, _, ok := readPointer(c.rest[:size], t.cie.lsda&0x0f)
	switch {
	case !ok || t.cie.lsda&encIndirect != 0:
		return 0, false
	case v == 0:
		return 0, true
	case t.cie.lsda&0x70 == encPCRel:
		v += uint64(t.at) + uint64(pos)
	case t.cie.lsda&0x70 != encAbsolute:
		return 0, false
	}
	return VAddr(v), true
}

// Instructions of an FDE (DWARF 5, 7.24). The two upper bits of the first byte are an opcode too.
const (
	cfaOffset           = 0x80
	cfaNop              = 0x00
	cfaRememberState    = 0x0a
	cfaDefCFA           = 0x0c
	cfaDefCFAExpression = 0x0f
	cfaDefCFASF         = 0x12
	cfaDefCFAOffsetSF   = 0x13
)

// framed reports whether the FDE read last says of its first instruction that something was pushed before it.
func (t *unwindTable) framed() bool {
	c := cursor{t.data[t.augmented:t.end], true}
	if t.cie.data {
		size := c.uleb()
		if !c.ok || size > uint64(len(c.rest)) {
			return false
		}
		c.rest = c.rest[size:]
	}
	for {
		switch op := c.byte(); {
		case !c.ok:
			return false
		case op == cfaNop, op == cfaRememberState:
		case op >= cfaDefCFA && op <= cfaDefCFAExpression, op == cfaDefCFASF, op == cfaDefCFAOffsetSF, op&0xc0 == cfaOffset:
			return true
		default: // what holds from the next instruction on
			return false
		}
	}
}

// codeRange reads the start and length of an FDE's code between two positions.
func (t *unwindTable) codeRange(pos, end int, enc byte) (Range, bool) {
	start, n, ok := readPointer(t.data[pos:end], enc)
	if !ok || enc&encIndirect != 0 {
		return Range{}, false
	}
	switch enc & 0x70 {
	case encAbsolute:
	case encPCRel:
		start += uint64(t.at) + uint64(pos)
	default:
		return Range{}, false
	}
	length, m, ok := readPointer(t.data[pos+n:end], enc&0x0f)
	if !ok || start+length < start {
		return Range{}, false
	}
	t.augmented, t.end = pos+n+m, end
	return Range{VAddr(start), VAddr(start + length)}, true
}

// encodings reads how the FDEs of a CIE write pointers.
func (t *unwindTable) encodings(at int) encodings {
	if at != t.cieAt {
		t.cieAt, t.cie = at, cieEncodings(t.data, at)
	}
	return t.cie
}

// cieEncodings parses a CIE: length, id 0, version, augmentation, alignments, return address register,
// augmentation data, where 'R' and 'L' are the encodings that are looked for.
func cieEncodings(data []byte, at int) encodings {
	if len(data)-at < 9 || binary.LittleEndian.Uint32(data[at+4:]) != 0 {
		return noEncodings
	}
	length := uint64(binary.LittleEndian.Uint32(data[at:]))
	if length < 5 || length > uint64(len(data)-at-4) {
		return noEncodings
	}
	c := cursor{data[at+9 : at+4+int(length)], true}
	version := data[at+8]
	augmentation := c.untilZero()
	if len(augmentation) == 0 || augmentation[0] != 'z' {
		if len(augmentation) == 0 {
			return encodings{addr: encAbsolute, lsda: encOmit}
		}
		return noEncodings
	}
	c.uleb() // code alignment
	c.uleb() // data alignment; its sign does not matter here
	if version == 1 {
		c.byte()
	} else {
		c.uleb()
	}
	c.uleb() // length of the augmentation data
	return c.encodings(augmentation[1:])
}

// encodings reads augmentation data.
func (c *cursor) encodings(augmentation []byte) encodings {
	e := encodings{addr: encAbsolute, lsda: encOmit, data: true}
	for _, what := range augmentation {
		switch what {
		case 'R':
			e.addr = c.byte()
		case 'L':
			e.lsda = c.byte()
		case 'P':
			enc := c.byte()
			_, n, ok := readPointer(c.rest, enc&0x0f)
			if !ok {
				return noEncodings
			}
			c.rest = c.rest[n:]
		case 'S':
			e.signal = true
		case 'B': // pointer authentication
		default:
			return noEncodings
		}
	}
	if !c.ok {
		return noEncodings
	}
	return e
}

// readPointer reads one pointer's bits, sign extended where the format is signed.
func readPointer(b []byte, enc byte) (value uint64, n int, ok bool) {
	if enc == encOmit {
		return 0, 0, false
	}
	signed := enc&encSigned != 0
	switch enc & 0x07 {
	case encULEB:
		c := cursor{b, true}
		value = c.uleb()
		n, ok = len(b)-len(c.rest), c.ok && !signed
		return value, n, ok
	case encData2:
		n = 2
	case encData4:
		n = 4
	case encAbsolute, encData8:
		n = 8
	default:
		return 0, 0, false
	}
	if len(b) < n {
		return 0, 0, false
	}
	for i := n - 1; i >= 0; i-- {
		value = value<<8 | uint64(b[i])
	}
	if shift := 64 - 8*n; signed && shift > 0 {
		value = uint64(int64(value<<shift) >> shift)
	}
	return value, n, true
}

// cursor reads bytes until there are none; then ok turns false and every read gives zero.
type cursor struct {
	rest []byte
	ok   bool
}

func (c *cursor) byte() byte {
	if len(c.rest) == 0 {
		c.ok = false
		return 0
	}
	b := c.rest[0]
	c.rest = c.rest[1:]
	return b
}

func (c *cursor) uleb() uint64 {
	var v uint64
	for shift := 0; ; shift += 7 {
		b := c.byte()
		if shift < 64 {
			v |= uint64(b&0x7f) << shift
		}
		if b&0x80 == 0 {
			return v
		}
	}
}

func (c *cursor) untilZero() []byte {
	for i, b := range c.rest {
		if b == 0 {
			text := c.rest[:i]
			c.rest = c.rest[i+1:]
			return text
		}
	}
	c.rest, c.ok = nil, false
	return nil
}
