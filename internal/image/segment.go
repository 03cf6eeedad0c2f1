package image

import (
	"debug/elf"
	"fmt"

	"trapless/internal/abi"
)

// Offset is a position in the file, in bytes.
type Offset uint64

// VAddr is an address as the file states it, before the loader moves it.
type VAddr uint64

// String prints the address as 0x-prefixed hexadecimal.
func (v VAddr) String() string { return fmt.Sprintf("0x%x", uint64(v)) }

func (v VAddr) pageDown() VAddr { return v &^ (abi.PageSize - 1) }

// Range is the half-open interval [Start, End) of the file's own addresses.
type Range struct{ Start, End VAddr }

// Len is the number of bytes in the range.
func (r Range) Len() uint64 { return uint64(r.End - r.Start) }

// Contains reports whether v lies in the range.
func (r Range) Contains(v VAddr) bool { return r.Start <= v && v < r.End }

// String prints the range as [start, end).
func (r Range) String() string { return fmt.Sprintf("[%v, %v)", r.Start, r.End) }

// Bias is what the loader added to every address of the file, modulo 2^64. It is 0 for Exec files.
type Bias uint64

// Addr is where v lies in the process.
func (b Bias) Addr(v VAddr) abi.Addr { return abi.Addr(uint64(v) + uint64(b)) }

// VAddr is what a is in the file's terms.
func (b Bias) VAddr(a abi.Addr) VAddr { return VAddr(uint64(a) - uint64(b)) }

// Range is where r lies in the process.
func (b Bias) Range(r Range) abi.Range { return abi.Range{Start: b.Addr(r.Start), End: b.Addr(r.End)} }

// Segment is a part of the file that is loaded (PT_LOAD).
type Segment struct {
	Off      Offset
	Addr     VAddr
	FileSize uint64 // bytes in the file
	MemSize  uint64 // bytes in memory, at least FileSize; the rest is zero
	Exec     bool
	Write    bool
}

// inFile is the part of the segment that comes from the file.
func (s *Segment) inFile() Range { return Range{s.Addr, s.Addr + VAddr(s.FileSize)} }

func (f *File) addLoad(p *elf.Prog64) error {
	s := Segment{
		Off: Offset(p.Off), Addr: VAddr(p.Vaddr), FileSize: p.Filesz, MemSize: p.Memsz,
		Exec:  elf.ProgFlag(p.Flags)&elf.PF_X != 0,
		Write: elf.ProgFlag(p.Flags)&elf.PF_W != 0,
	}
	switch {
	case p.Filesz > p.Memsz:
		return malformed("a segment has %d bytes in the file and %d in memory", p.Filesz, p.Memsz)
	case p.Off > f.size || p.Filesz > f.size-p.Off:
		return malformed("a segment ends behind the file's end")
	case p.Vaddr+p.Memsz < p.Vaddr:
		return malformed("a segment wraps around the end of memory")
	case p.Vaddr%abi.PageSize != p.Off%abi.PageSize:
		return malformed("a segment's address %#x and offset %#x cannot be mapped together", p.Vaddr, p.Off)
	}
	f.Segments = append(f.Segments, s)
	// Segments share pages of the file at their edges, not whole files: what reads all of them stays
	// bounded by the file's size.
	var total uint64
	for i := range f.Segments {
		total += f.Segments[i].FileSize
	}
	if total > 4*f.size {
		return malformed("segments hold %d bytes of a file of %d", total, f.size)
	}
	return nil
}

// BiasOf computes the bias from one mapping of the file: where it starts in the process, its offset in
// the file and whether it is executable, as in /proc/PID/maps. One page of the file may be mapped by two
// segments; then the one that is executable as the mapping is decides.
func (f *File) BiasOf(start abi.Addr, off Offset, exec bool) (Bias, error) {
	if start%abi.PageSize != 0 || off%abi.PageSize != 0 {
		return 0, fmt.Errorf("a mapping at %v of offset %#x is not of whole pages", start, uint64(off))
	}
	found := false
	var bias Bias
	for i := range f.Segments {
		s := &f.Segments[i]
		first := s.Off &^ (abi.PageSize - 1)
		if off < first || off >= s.Off+Offset(s.FileSize) {
			continue
		}
		b := Bias(uint64(start) - uint64(s.Addr.pageDown()) - uint64(off-first))
		if !found || s.Exec == exec {
			bias, found = b, true
		}
		if s.Exec == exec {
			break
		}
	}
	switch {
	case !found:
		return 0, fmt.Errorf("no segment of the file holds the mapped offset %#x", uint64(off))
	case f.Kind == Exec && bias != 0:
		return 0, fmt.Errorf("the mapping of offset %#x lies at %v, not where the file says", uint64(off), start)
	}
	return bias, nil
}

// OffsetOf is where the byte at v comes from; false if it is not of the file.
func (f *File) OffsetOf(v VAddr) (Offset, bool) {
	for i := range f.Segments {
		if s := &f.Segments[i]; s.inFile().Contains(v) {
			return s.Off + Offset(v-s.Addr), true
		}
	}
	return 0, false
}

// VAddrOf is the address that a byte of the file is loaded at, in an executable segment if there are
// several; false if it is not loaded.
func (f *File) VAddrOf(off Offset) (VAddr, bool) {
	var found bool
	var v VAddr
	for i := range f.Segments {
		s := &f.Segments[i]
		if off < s.Off || uint64(off-s.Off) >= s.FileSize {
			continue
		}
		if !found || s.Exec {
			v, found = s.Addr+VAddr(off-s.Off), true
		}
		if s.Exec {
			break
		}
	}
	return v, found
}

// executable returns the executable segment that holds the byte at v, or nil.
func (f *File) executable(v VAddr) *Segment {
	for i := range f.Segments {
		if s := &f.Segments[i]; s.Exec && s.inFile().Contains(v) {
			return s
		}
	}
	return nil
}

// Code reads the bytes of a range, which must lie in one executable segment.
func (f *File) Code(r Range) ([]byte, error) {
	s := f.executable(r.Start)
	if s == nil || r.End < r.Start || r.End > s.inFile().End {
		return nil, fmt.Errorf("%v is not in the file's executable part", r)
	}
	return f.read(uint64(s.Off)+uint64(r.Start-s.Addr), r.Len())
}

// Bytes reads a range, which must lie in one segment and in the file.
func (f *File) Bytes(r Range) ([]byte, error) {
	for i := range f.Segments {
		if s := &f.Segments[i]; s.inFile().Contains(r.Start) && r.Start <= r.End && r.End <= s.inFile().End {
			return f.read(uint64(s.Off)+uint64(r.Start-s.Addr), r.Len())
		}
	}
	return nil, fmt.Errorf("%v is not in the file", r)
}

// Constant is the part of the file around v that nobody changes once it is loaded: of a segment that is not
// writable, or of what the loader makes so when it has relocated it (PT_GNU_RELRO). It is empty if v does not
// lie in such a part.
func (f *File) Constant(v VAddr) Range {
	for i := range f.Segments {
		s := &f.Segments[i]
		r := s.inFile()
		if s.Write {
			r.Start, r.End = max(r.Start, f.relro.Start), min(r.End, f.relro.End)
		}
		if r.Contains(v) {
			return r
		}
	}
	return Range{v, v}
}

// bytesAt reads up to size bytes at v, fewer at the end of a segment, none where nothing is loaded.
func (f *File) bytesAt(v VAddr, size uint64) ([]byte, error) {
	for i := range f.Segments {
		if s := &f.Segments[i]; s.inFile().Contains(v) {
			return f.read(uint64(s.Off)+uint64(v-s.Addr), min(size, uint64(s.inFile().End-v)))
		}
	}
	return nil, nil
}

// Slack is the memory between the end of each executable segment and the end of its last page, as far as
// no other segment is mapped over it. It is executable and belongs to nobody; what it holds are the bytes
// that follow in the file, or zeros.
func (f *File) Slack() []Range {
	var slack []Range
	for i := range f.Segments {
		s := &f.Segments[i]
		end := s.Addr + VAddr(s.MemSize)
		r := Range{end, (end + abi.PageSize - 1).pageDown()}
		if s.Exec && s.FileSize == s.MemSize && r.End > r.Start && !f.mapped(r, s) {
			slack = append(slack, r)
		}
	}
	return slack
}

// mapped reports whether a segment other than one has a page in r.
func (f *File) mapped(r Range, except *Segment) bool {
	for i := range f.Segments {
		s := &f.Segments[i]
		if s != except && s.MemSize > 0 && s.Addr.pageDown() < r.End && s.Addr+VAddr(s.MemSize) > r.Start.pageDown() {
			return true
		}
	}
	return false
}
