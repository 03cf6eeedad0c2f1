package image

import (
	"cmp"
	"slices"
)

// shared is how often an exception table may be read again on average: linkers let equal functions share one.
const shared = 8

// LandingPads are the places in functions that the unwinder enters when an exception passes through, or is
// caught: the file's unwind table names each function's exception table (LSDA; Itanium C++ ABI, "Exception
// Handling Tables"), and that its landing pads. Sorted, without duplicates. complete is false if some
// table is not understood, or is not in the file.
func (f *File) LandingPads() (pads []VAddr, complete bool, err error) {
	table, at, err := f.unwindTable()
	if err != nil {
		return nil, false, err
	}
	var except []byte
	var exceptAt VAddr
	if s := f.named(".gcc_except_table"); s != nil {
		if except, err = f.sectionData(s); err != nil {
			return nil, false, err
		}
		exceptAt = VAddr(s.Addr)
	}
	complete, budget := true, shared*len(except)
	t := unwindTable{data: table, at: at, cieAt: -1}
	for t.pos < len(t.data) {
		fn, ok := t.next()
		if !ok {
			continue
		}
		lsda, ok := t.lsda()
		if !ok {
			complete = false
			continue
		}
		if lsda == 0 {
			continue
		}
		if lsda < exceptAt || uint64(lsda-exceptAt) >= uint64(len(except)) || budget <= 0 {
			complete = false
			continue
		}
		found, size, ok := readLSDA(except[lsda-exceptAt:], lsda, fn)
		pads = append(pads, found...)
		complete = complete && ok
		budget -= size
	}
	slices.SortFunc(pads, func(a, b VAddr) int { return cmp.Compare(a, b) })
	return slices.Compact(pads), complete, nil
}

// readLSDA reads the landing pads of a function from its exception table at an address, and says how many
// bytes it has read.
func readLSDA(b []byte, at VAddr, fn Range) (pads []VAddr, size int, ok bool) {
	c := cursor{b, true}
	defer func() { size = len(b) - len(c.rest) }()
	base := uint64(fn.Start)
	if enc := c.byte(); enc != encOmit {
		here := uint64(at) + uint64(len(b)-len(c.rest))
		base = c.pointer(enc)
		switch {
		case enc&encIndirect != 0:
			return nil, 0, false
		case enc&0x70 == encPCRel:
			base += here
		}
	}
	if c.byte() != encOmit {
		c.uleb() // where the types are
	}
	enc := c.byte()
	length := c.uleb()
	if !c.ok || length > uint64(len(c.rest)) || enc&0x70 != encAbsolute {
		return nil, 0, false
	}
	end := len(c.rest) - int(length)
	for len(c.rest) > end && c.ok {
		c.pointer(enc) // where the calls begin
		c.pointer(enc) // their length
		pad := c.pointer(enc)
		c.uleb() // the action
		if c.ok && pad != 0 {
			pads = append(pads, VAddr(base+pad))
		}
	}
	return pads, 0, c.ok && len(c.rest) == end
}

// pointer reads the bits of a pointer.
func (c *cursor) pointer(enc byte) uint64 {
	v, n, ok := readPointer(c.rest, enc&0x0f)
	if !ok {
		c.rest, c.ok = nil, false
		return 0
	}
	c.rest = c.rest[n:]
	return v
}
