package object

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
)

// ReadFile reads an object file. Package ebpf refuses maps with weak symbols, which
// libbpf's header for USDT has; linked in one object they mean the same as others.
func ReadFile(path string) (*ebpf.CollectionSpec, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if err := strengthen(b); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return spec, nil
}

// Where a symbol's type and binding is in a symbol table of 64 bits, and how many
// bytes a symbol has (ELF specification, figure 4-16 and elf.h's Elf64_Sym).
const (
	symbolInfo = 4
	symbolSize = 24
)

// strengthen makes weak symbols of data that are defined in an object file global, in
// place.
func strengthen(b []byte) error {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return fmt.Errorf("it is no ELF file: %w", err)
	}
	table := f.SectionByType(elf.SHT_SYMTAB)
	if f.Class != elf.ELFCLASS64 || table == nil {
		return nil // package ebpf has its own word for it
	}
	if table.Offset > uint64(len(b)) || table.Size > uint64(len(b))-table.Offset {
		return fmt.Errorf("the symbol table lies outside of the file")
	}
	for s := b[table.Offset : table.Offset+table.Size]; len(s) >= symbolSize; s = s[symbolSize:] {
		info := s[symbolInfo]
		defined := binary.LittleEndian.Uint16(s[symbolInfo+2:]) != uint16(elf.SHN_UNDEF)
		if elf.ST_BIND(info) == elf.STB_WEAK && elf.ST_TYPE(info) == elf.STT_OBJECT && defined {
			s[symbolInfo] = elf.ST_INFO(elf.STB_GLOBAL, elf.ST_TYPE(info))
		}
	}
	return nil
}
