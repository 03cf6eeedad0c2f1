package image

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"runtime"
	"testing"
)

// crafted is a file of about a megabyte whose section headers all claim the same tables.
func crafted(sections int, header func(i int) section, tables ...[]byte) []byte {
	b := smallELF()
	for _, t := range tables {
		b = append(b, t...)
	}
	binary.LittleEndian.PutUint64(b[40:], uint64(len(b))) // e_shoff
	binary.LittleEndian.PutUint16(b[60:], uint16(sections))
	var headers bytes.Buffer
	for i := range sections {
		if err := binary.Write(&headers, binary.LittleEndian, header(i)); err != nil {
			panic("BUG: " + err.Error())
		}
	}
	return append(b, headers.Bytes()...)
}

// Files that claim far more than they hold must cost no more than honest ones of their size.
func TestCraftedFilesCostNoMoreThanTheirSize(t *testing.T) {
	const symbols, names = 10000, 200000
	symbol := elf.Sym64{Info: byte(elf.STT_FUNC), Shndx: 1, Value: 0x78, Size: 1}
	var table bytes.Buffer
	for i := range symbols {
		symbol.Name = uint32(i)
		if err := binary.Write(&table, binary.LittleEndian, symbol); err != nil {
			t.Fatal(err)
		}
	}
	tableAt := uint64(len(smallELF()))
	namesAt := tableAt + uint64(table.Len())
	long := bytes.Repeat([]byte{'a'}, names)
	long[names-1] = 0
	manyTables := func(i int) section {
		if i == 1 {
			return section{Type: uint32(elf.SHT_STRTAB), Off: namesAt, Size: names}
		}
		return section{Type: uint32(elf.SHT_SYMTAB), Off: tableAt, Size: uint64(table.Len()), Link: 1}
	}
	manyNotes := func(int) section { return section{Type: uint32(elf.SHT_NOTE), Off: 0, Size: tableAt} }
	manyRelocations := func(i int) section {
		return section{Type: uint32(elf.SHT_RELA), Flags: uint64(elf.SHF_ALLOC), Off: tableAt, Size: uint64(table.Len())}
	}
	for name, b := range map[string][]byte{
		"symbol tables with overlapping names": crafted(5000, manyTables, table.Bytes(), long),
		"notes":                                crafted(5000, manyNotes, table.Bytes()),
		"relocations":                          crafted(5000, manyRelocations, table.Bytes()),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f, err := New(bytes.NewReader(b), int64(len(b)))
		if err == nil {
			f.relocate(make([]byte, rseqSize), 0)
			_, err = f.Functions()
		}
		runtime.ReadMemStats(&after)
		if cost := after.TotalAlloc - before.TotalAlloc; cost > 40*uint64(len(b)) {
			t.Errorf("%s: %d bytes of file cost %d bytes of memory (%v)", name, len(b), cost, err)
		}
		if err != nil && !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
