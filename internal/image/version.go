package image

import (
	"debug/elf"
	"encoding/binary"
)

// versions tells which symbols of a .dynsym are there for programs that were linked long ago: what a name
// means today is its default version, the others are named in full.
type versions struct {
	index []byte            // .gnu.version: one u16 for each symbol
	names map[uint16]string // by version index, with "@" before
}

const (
	versionHidden = 0x8000 // VERSYM_HIDDEN
	maxVersions   = 0x7fff
)

// versionsOf reads the versions that belong to a symbol table, if it has any.
func (f *File) versionsOf(symbols *section, names *nameTable) (*versions, error) {
	v := &versions{names: map[uint16]string{}}
	index, definitions := f.first(elf.SHT_GNU_VERSYM), f.first(elf.SHT_GNU_VERDEF)
	if elf.SectionType(symbols.Type) != elf.SHT_DYNSYM || index == nil || definitions == nil {
		return v, nil
	}
	var err error
	if v.index, err = f.sectionData(index); err != nil {
		return nil, err
	}
	return v, f.readVersionNames(definitions, names, v.names)
}

// readVersionNames walks the definitions (gABI, Elf64_Verdef): version, flags, index, count of names, hash,
// offset of the names, offset of the next definition. The first name of each is its own.
func (f *File) readVersionNames(s *section, names *nameTable, into map[uint16]string) error {
	data, err := f.sectionData(s)
	if err != nil {
		return err
	}
	const definition, auxiliary = 20, 8
	for at, n := uint64(0), 0; at+definition <= uint64(len(data)) && n < maxVersions; n++ {
		d := data[at:]
		aux := at + uint64(binary.LittleEndian.Uint32(d[12:]))
		if aux+auxiliary <= uint64(len(data)) {
			name, ok := names.at(binary.LittleEndian.Uint32(data[aux:]))
			if !ok {
				return malformed("version names that overlap beyond measure")
			}
			into[binary.LittleEndian.Uint16(d[4:])] = "@" + name
		}
		next := uint64(binary.LittleEndian.Uint32(d[16:]))
		if next == 0 {
			break
		}
		at += next
	}
	return nil
}

// hidden returns what to append to the name of symbol number i: "" for the default version.
func (v *versions) hidden(i int) string {
	if 2*i+2 > len(v.index) {
		return ""
	}
	version := binary.LittleEndian.Uint16(v.index[2*i:])
	if version&versionHidden == 0 {
		return ""
	}
	return v.names[version&^versionHidden]
}
