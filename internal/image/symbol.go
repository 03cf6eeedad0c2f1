package image

import (
	"cmp"
	"debug/elf"
	"encoding/binary"
	"slices"
	"strings"
)

// symbol is a defined function symbol.
type symbol struct {
	addr  VAddr
	size  uint64
	name  string // with a version if it is not the default one: "memcpy@GLIBC_2.2.5"
	ifunc bool
	bind  uint8 // rank: global before weak before local
}

const (
	symbolSize = 24 // Elf64_Sym
	maxName    = 1 << 16
)

// readSymbols reads the functions of .symtab and .dynsym, sorted by address; at one address the best name
// comes first. Each pair of name and address appears once.
func (f *File) readSymbols() ([]symbol, error) {
	var all []symbol
	for _, from := range append([]*File{f}, f.symbolFiles...) {
		for _, kind := range []elf.SectionType{elf.SHT_SYMTAB, elf.SHT_DYNSYM} {
			s := from.first(kind) // the gABI allows one of each
			if s == nil || s.Link >= uint32(len(from.sections)) || elf.SectionType(s.Type) == elf.SHT_NOBITS {
				continue
			}
			var err error
			if all, err = f.appendSymbols(all, from, s); err != nil {
				return nil, err
			}
		}
	}
	slices.SortFunc(all, compareSymbols)
	return slices.CompactFunc(all, func(a, b symbol) bool { return a.addr == b.addr && a.name == b.name }), nil
}

// appendSymbols reads a table of a file, which has names of this one's code.
func (f *File) appendSymbols(all []symbol, from *File, s *section) ([]symbol, error) {
	table, err := from.sectionData(s)
	if err != nil {
		return nil, err
	}
	text, err := from.sectionData(&from.sections[s.Link])
	if err != nil {
		return nil, err
	}
	names := nameTable{text: string(text), budget: 8*len(text) + 1<<20}
	versions, err := from.versionsOf(s, &names)
	if err != nil {
		return nil, err
	}
	all = slices.Grow(all, countFunctions(table))
	for i := 0; len(table) >= symbolSize; i, table = i+1, table[symbolSize:] {
		if !isFunction(table) {
			continue
		}
		addr := VAddr(binary.LittleEndian.Uint64(table[8:]))
		if f.executable(addr) == nil {
			continue
		}
		name, ok := names.at(binary.LittleEndian.Uint32(table))
		version := versions.hidden(i)
		names.budget -= len(version)
		if !ok || names.budget < 0 {
			return nil, malformed("symbol names that overlap beyond measure")
		}
		if name == "" {
			continue
		}
		all = append(all, symbol{
			addr: addr, size: binary.LittleEndian.Uint64(table[16:]), name: name + version,
			ifunc: elf.ST_TYPE(table[4]) == elf.STT_GNU_IFUNC, bind: bindRank(elf.ST_BIND(table[4])),
		})
	}
	return all, nil
}

func countFunctions(table []byte) int {
	n := 0
	for ; len(table) >= symbolSize; table = table[symbolSize:] {
		if isFunction(table) {
			n++
		}
	}
	return n
}

// isFunction looks at the symbol at the start of a table: a function, or the choice of one, that is
// defined in this file.
func isFunction(table []byte) bool {
	kind := elf.ST_TYPE(table[4])
	if kind != elf.STT_FUNC && kind != elf.STT_GNU_IFUNC {
		return false
	}
	return elf.SectionIndex(binary.LittleEndian.Uint16(table[6:])) != elf.SHN_UNDEF
}

func bindRank(b elf.SymBind) uint8 {
	switch b {
	case elf.STB_GLOBAL:
		return 0
	case elf.STB_WEAK:
		return 1
	}
	return 2
}

// nameTable hands out names from a string table. Linkers let names share tails, so the sum of the lengths
// may exceed the table's; the budget keeps a crafted table from taking quadratic time.
type nameTable struct {
	text   string
	budget int
}

// at returns a name. In .symtab the linker appends versions: the default one ("memcpy@@GLIBC_2.14") is left
// out. The name is empty when the offset is wild or the name absurdly long; false says that the budget is
// spent.
func (t *nameTable) at(off uint32) (string, bool) {
	if uint64(off) >= uint64(len(t.text)) {
		return "", true
	}
	rest := t.text[off:min(uint64(off)+maxName, uint64(len(t.text)))]
	end := strings.IndexByte(rest, 0)
	t.budget -= end + 1
	if end < 0 {
		t.budget -= len(rest)
		return "", t.budget >= 0
	}
	name := rest[:end]
	if at := strings.Index(name, "@@"); at > 0 {
		name = name[:at]
	}
	return name, t.budget >= 0
}

// compareSymbols orders by address and, at one address, by how well a name serves as the function's:
// global names before local ones, fewer leading underscores, then the shorter and the smaller.
func compareSymbols(a, b symbol) int {
	if a.addr != b.addr {
		return cmp.Compare(a.addr, b.addr)
	}
	if a.bind != b.bind {
		return cmp.Compare(a.bind, b.bind)
	}
	if c := cmp.Compare(underscores(a.name), underscores(b.name)); c != 0 {
		return c
	}
	if len(a.name) != len(b.name) {
		return cmp.Compare(len(a.name), len(b.name))
	}
	return cmp.Compare(a.name, b.name)
}

func underscores(name string) int { return len(name) - len(strings.TrimLeft(name, "_")) }
