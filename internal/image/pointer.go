package image

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"slices"
)

// shtRELR is the type of a section of packed relative relocations (gABI, "Relative Relocation Table").
const shtRELR = elf.SectionType(19)

const pointerSize = 8

// CodePointers are the addresses of code that the file's data may hold, such as those of computed gotos:
// what the loader relocates, and, in a file with fixed addresses, every word of data that looks so. Sorted,
// without duplicates.
func (f *File) CodePointers() ([]VAddr, error) {
	var all []VAddr
	code := f.CodeRange()
	add := func(v uint64) {
		if code.Contains(VAddr(v)) && f.executable(VAddr(v)) != nil {
			all = append(all, VAddr(v))
		}
	}
	var err error
	if f.Kind == Exec {
		err = f.scanData(add)
	} else {
		err = f.scanRelocations(func(_ VAddr, v uint64) { add(v) })
	}
	slices.SortFunc(all, func(a, b VAddr) int { return cmp.Compare(a, b) })
	return slices.Compact(all), err
}

// CodeRange is from the first executable byte to the last. It is empty if there is none.
func (f *File) CodeRange() Range {
	r := Range{^VAddr(0), 0}
	for i := range f.Segments {
		if s := &f.Segments[i]; s.Exec {
			r.Start, r.End = min(r.Start, s.inFile().Start), max(r.End, s.inFile().End)
		}
	}
	if r.End == 0 {
		return Range{}
	}
	return r
}

// scanData passes on every aligned word of the segments that are not code.
func (f *File) scanData(add func(v uint64)) error {
	for i := range f.Segments {
		s := &f.Segments[i]
		if s.Exec {
			continue
		}
		for at := -uint64(s.Addr) % pointerSize; at < s.FileSize; at += piece {
			b, err := f.read(uint64(s.Off)+at, min(piece, s.FileSize-at))
			if err != nil {
				return err
			}
			for ; len(b) >= pointerSize; b = b[pointerSize:] {
				add(binary.LittleEndian.Uint64(b))
			}
		}
	}
	return nil
}

// piece is how much data is read at a time; a multiple of pointerSize.
const piece = 1 << 20

// scanRelocations passes on the words that the loader will add its bias to, and where they are.
func (f *File) scanRelocations(add func(at VAddr, v uint64)) error {
	tables := 0
	for i := range f.sections {
		s := &f.sections[i]
		kind := elf.SectionType(s.Type)
		if kind != elf.SHT_RELA && kind != shtRELR || elf.SectionFlag(s.Flags)&elf.SHF_ALLOC == 0 {
			continue
		}
		if tables++; tables > maxTables {
			return malformed("more than %d tables of relocations", maxTables)
		}
		b, err := f.sectionData(s)
		if err != nil {
			return err
		}
		if kind == elf.SHT_RELA {
			relative(b, add)
		} else if err := f.packed(b, add); err != nil {
			return err
		}
	}
	return nil
}

// relative passes on the addends of relative relocations.
func relative(b []byte, add func(at VAddr, v uint64)) {
	const size = relaSize
	for ; len(b) >= size; b = b[size:] {
		if elf.R_X86_64(binary.LittleEndian.Uint32(b[8:])) == elf.R_X86_64_RELATIVE {
			add(VAddr(binary.LittleEndian.Uint64(b)), binary.LittleEndian.Uint64(b[16:]))
		}
	}
}

// packed passes on the words that packed relocations name: an even number is the address of a word, an odd
// one a bit map of the 63 words that follow.
func (f *File) packed(b []byte, add func(at VAddr, v uint64)) error {
	data := map[*Segment][]byte{}
	word := func(at uint64) error {
		for i := range f.Segments {
			s := &f.Segments[i]
			if r := s.inFile(); !r.Contains(VAddr(at)) || uint64(r.End)-at < pointerSize {
				continue
			}
			if data[s] == nil {
				var err error
				if data[s], err = f.read(uint64(s.Off), s.FileSize); err != nil {
					return err
				}
			}
			add(VAddr(at), binary.LittleEndian.Uint64(data[s][at-uint64(s.Addr):]))
			return nil
		}
		return nil
	}
	var next uint64
	for ; len(b) >= pointerSize; b = b[pointerSize:] {
		v := binary.LittleEndian.Uint64(b)
		if v&1 == 0 {
			if err := word(v); err != nil {
				return err
			}
			next = v + pointerSize
			continue
		}
		for i := range uint64(63) {
			if v>>(i+1)&1 == 0 {
				continue
			}
			if err := word(next + i*pointerSize); err != nil {
				return err
			}
		}
		next += 63 * pointerSize
	}
	return nil
}
