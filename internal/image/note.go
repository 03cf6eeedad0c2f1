package image

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
)

// maxNotes is far more than compilers and linkers write.
const maxNotes = 1 << 20

// readNotes looks for the GNU build id and for Go's notes in the note segments and, since Go's linker has
// the segment leave out the build id, in the note sections.
func (f *File) readNotes(segments []elf.Prog64) error {
	for i := range segments {
		if p := &segments[i]; elf.ProgType(p.Type) == elf.PT_NOTE {
			if err := f.readNoteTable(p.Off, p.Filesz, p.Align); err != nil {
				return err
			}
		}
	}
	tables := 0
	for i := range f.sections {
		if s := &f.sections[i]; f.BuildID == nil && elf.SectionType(s.Type) == elf.SHT_NOTE && tables < maxTables {
			tables++
			if err := f.readNoteTable(s.Off, s.Size, s.Addralign); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *File) readNoteTable(off, size, align uint64) error {
	if size > maxNotes {
		return nil
	}
	b, err := f.read(off, size)
	if err != nil {
		return err
	}
	if align != 8 { // only .note.gnu.property
		align = 4
	}
	for len(b) >= 12 {
		nameSize := uint64(binary.LittleEndian.Uint32(b))
		descSize := uint64(binary.LittleEndian.Uint32(b[4:]))
		kind := binary.LittleEndian.Uint32(b[8:])
		descAt := roundUp(12+nameSize, align)
		end := roundUp(descAt+descSize, align)
		if descAt+descSize > uint64(len(b)) {
			return nil // a note cut short: notes are no reason to refuse a file
		}
		name, desc := bytes.TrimRight(b[12:12+nameSize], "\x00"), b[descAt:descAt+descSize]
		switch {
		case string(name) == "GNU" && kind == 3: // NT_GNU_BUILD_ID
			f.BuildID = bytes.Clone(desc)
		case string(name) == "Go":
			f.Go = true
		}
		b = b[min(end, uint64(len(b))):]
	}
	return nil
}

func roundUp(n, align uint64) uint64 { return (n + align - 1) &^ (align - 1) }

// readDynamic looks for the flag that tells a position independent program from a library.
func (f *File) readDynamic(p *elf.Prog64) error {
	if p.Filesz > maxNotes {
		return malformed("a dynamic section of %d bytes", p.Filesz)
	}
	b, err := f.read(p.Off, p.Filesz)
	if err != nil {
		return err
	}
	for ; len(b) >= 16; b = b[16:] {
		switch elf.DynTag(binary.LittleEndian.Uint64(b)) {
		case elf.DT_NULL:
			return nil
		case elf.DT_FLAGS_1:
			f.PIE = elf.DynFlag1(binary.LittleEndian.Uint64(b[8:]))&elf.DF_1_PIE != 0
		}
	}
	return nil
}
