package image

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"slices"
)

// Import is a word in which the loader leaves the address of a symbol: a slot of the global offset table.
type Import struct {
	Slot VAddr
	Name string // without a version
}

const relaSize = 24 // Elf64_Rela: offset, info, addend

// Imports reads from the relocations where the addresses of which symbols will be, sorted by slot.
func (f *File) Imports() ([]Import, error) {
	var all []Import
	tables := 0
	for i := range f.sections {
		s := &f.sections[i]
		if elf.SectionType(s.Type) != elf.SHT_RELA || elf.SectionFlag(s.Flags)&elf.SHF_ALLOC == 0 ||
			s.Link == 0 || s.Link >= uint32(len(f.sections)) {
			continue
		}
		if tables++; tables > maxTables {
			return nil, malformed("more than %d tables of relocations", maxTables)
		}
		var err error
		if all, err = f.appendImports(all, s); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b Import) int { return cmp.Compare(a.Slot, b.Slot) })
	return all, nil
}

// appendImports reads one table of relocations.
func (f *File) appendImports(all []Import, s *section) ([]Import, error) {
	symbols := &f.sections[s.Link]
	if symbols.Link >= uint32(len(f.sections)) {
		return all, nil
	}
	table, err := f.sectionData(s)
	if err != nil {
		return nil, err
	}
	symtab, err := f.sectionData(symbols)
	if err != nil {
		return nil, err
	}
	text, err := f.sectionData(&f.sections[symbols.Link])
	if err != nil {
		return nil, err
	}
	names := nameTable{text: string(text), budget: 8*len(text) + 1<<20}
	for ; len(table) >= relaSize; table = table[relaSize:] {
		switch elf.R_X86_64(binary.LittleEndian.Uint32(table[8:])) {
		case elf.R_X86_64_JMP_SLOT, elf.R_X86_64_GLOB_DAT:
		default:
			continue
		}
		at := uint64(binary.LittleEndian.Uint32(table[12:])) * symbolSize
		if at+symbolSize > uint64(len(symtab)) {
			continue
		}
		name, ok := names.at(binary.LittleEndian.Uint32(symtab[at:]))
		if !ok {
			return nil, malformed("symbol names that overlap beyond measure")
		}
		if name != "" {
			all = append(all, Import{VAddr(binary.LittleEndian.Uint64(table)), name})
		}
	}
	return all, nil
}

// Pointer is a word to which the loader adds its bias.
type Pointer struct{ At, To VAddr }

// Pointers reads all words of the file to which the loader adds its bias, sorted by where they are. A file at
// fixed addresses has none.
func (f *File) Pointers() ([]Pointer, error) {
	var all []Pointer
	err := f.scanRelocations(func(at VAddr, v uint64) { all = append(all, Pointer{at, VAddr(v)}) })
	slices.SortFunc(all, func(a, b Pointer) int { return cmp.Compare(a.At, b.At) })
	return all, err
}

// RelocationsKnown reports whether the file says by its sections what the loader changes. CodePointers may
// miss some otherwise.
func (f *File) RelocationsKnown() bool { return f.Kind == Exec || len(f.sections) > 0 }

// Stubs are where the linker puts the jumps through slots of the global offset table that stand for functions
// of other files.
func (f *File) Stubs() []Region {
	return slices.DeleteFunc(f.Linkage(), func(r Region) bool { return r.Name == ".init" || r.Name == ".fini" })
}

// Compare orders by place.
func (p Pointer) Compare(at VAddr) int { return cmp.Compare(p.At, at) }
