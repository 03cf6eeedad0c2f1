package image

import (
	"debug/elf"
	"encoding/binary"
)

// Address finds a symbol of any kind, a variable for instance, and its size, 0 if that is not told.
func (f *File) Address(name string) (at VAddr, size uint64, ok bool) {
	for _, from := range append([]*File{f}, f.symbolFiles...) {
		for _, kind := range []elf.SectionType{elf.SHT_SYMTAB, elf.SHT_DYNSYM} {
			s := from.first(kind)
			if s == nil || s.Link >= uint32(len(from.sections)) || elf.SectionType(s.Type) == elf.SHT_NOBITS {
				continue
			}
			table, err := from.sectionData(s)
			if err != nil {
				continue
			}
			text, err := from.sectionData(&from.sections[s.Link])
			if err != nil {
				continue
			}
			names := nameTable{text: string(text), budget: 8*len(text) + 1<<20}
			if at, size, ok = addressIn(table, &names, name); ok {
				return at, size, true
			}
		}
	}
	return 0, 0, false
}

// addressIn finds a symbol in a table.
func addressIn(table []byte, names *nameTable, name string) (at VAddr, size uint64, ok bool) {
	for ; len(table) >= symbolSize; table = table[symbolSize:] {
		kind := elf.ST_TYPE(table[4])
		if elf.SectionIndex(binary.LittleEndian.Uint16(table[6:])) == elf.SHN_UNDEF || kind == elf.STT_TLS || kind == elf.STT_SECTION || kind == elf.STT_FILE {
			continue
		}
		found, ok := names.at(binary.LittleEndian.Uint32(table))
		if !ok {
			return 0, 0, false
		}
		if found == name {
			return VAddr(binary.LittleEndian.Uint64(table[8:])), binary.LittleEndian.Uint64(table[16:]), true
		}
	}
	return 0, 0, false
}
