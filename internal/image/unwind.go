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
// entry that makes no sense is passed over; the table only ever adds knowledge.
func (f *File) unwindRanges() ([]Range, error) {
	table, at, err := f.unwindTable()
	if err != nil || len(table) == 0 {
		return nil, err
	}
	t := unwindTable{data: table, at: at, cieAt: -1}
	ranges := make([]Range, 0, len(table)/48)
	for t.pos < len(t.data) {
		r, ok := t.next()
		if !ok || r.End <= r.Start {
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

	// The encoding of the CIE looked at last: many FDEs in a row share one.
	cieAt  int
	cieEnc byte
}

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
	enc := t.encoding(int(cie))
	return t.codeRange(body+4, end, enc)
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
	length, _, ok := readPointer(t.data[pos+n:end], enc&0x0f)
	if !ok || start+length < start {
		return Range{}, false
	}
	return Range{VAddr(start), VAddr(start + length)}, true
}

// encoding reads how the FDEs of a CIE write their addresses; encOmit if the CIE is not understood.
func (t *unwindTable) encoding(at int) byte {
	if at != t.cieAt {
		t.cieAt, t.cieEnc = at, cieEncoding(t.data, at)
	}
	return t.cieEnc
}

// cieEncoding parses a CIE: length, id 0, version, augmentation, alignments, return address register,
// augmentation data, where 'R' is the encoding that is looked for.
func cieEncoding(data []byte, at int) byte {
	if len(data)-at < 9 || binary.LittleEndian.Uint32(data[at+4:]) != 0 {
		return encOmit
	}
	length := uint64(binary.LittleEndian.Uint32(data[at:]))
	if length < 5 || length > uint64(len(data)-at-4) {
		return encOmit
	}
	c := cursor{data[at+9 : at+4+int(length)], true}
	version := data[at+8]
	augmentation := c.untilZero()
	if len(augmentation) == 0 || augmentation[0] != 'z' {
		if len(augmentation) == 0 {
			return encAbsolute
		}
		return encOmit
	}
	c.uleb() // code alignment
	c.uleb() // data alignment; its sign does not matter here
	if version == 1 {
		c.byte()
	} else {
		c.uleb()
	}
	c.uleb() // length of the augmentation data
	return c.encodingOf(augmentation[1:])
}

// encodingOf reads augmentation data as far as 'R'.
func (c *cursor) encodingOf(augmentation []byte) byte {
	for _, what := range augmentation {
		switch what {
		case 'R':
			if enc := c.byte(); c.ok {
				return enc
			}
			return encOmit
		case 'L':
			c.byte()
		case 'P':
			enc := c.byte()
			_, n, ok := readPointer(c.rest, enc&0x0f)
			if !ok {
				return encOmit
			}
			c.rest = c.rest[n:]
		case 'S', 'B': // a signal frame; pointer authentication
		default:
			return encOmit
		}
	}
	return encAbsolute
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
