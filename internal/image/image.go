// Package image reads an ELF file into what probing needs to know of it: its segments and how they come
// to lie in memory, its functions with their names and bounds, and the places that must not be touched.
//
// The caller opens the file (through /proc/PID/root or map_files, so that it is the file that the target
// has mapped) and passes an io.ReaderAt. Nothing is cached beyond the values returned, no process is
// looked at, and instructions are bytes here.
//
// A file is as hostile as the user who runs it, so headers, symbols and unwind tables are read by code of
// our own that takes only the layouts from debug/elf: every offset is checked, every count is bounded by
// the bytes that really are there, and names are pieces of one string. (debug/elf copies each section's
// name; a crafted 10 MB file makes it allocate hundreds of gigabytes.)
//
// Three kinds of number are kept apart by type: Offset is a position in the file, VAddr an address in the
// file's own terms, abi.Addr an address in a process; a Bias leads from the second to the third.
package image

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
)

// Kind tells programs at fixed addresses from what may be loaded anywhere.
type Kind uint8

const (
	Exec Kind = iota // ET_EXEC: addresses are final
	Dyn              // ET_DYN: a shared library or a position independent program
)

// String is "EXEC" or "DYN", as readelf says it.
func (k Kind) String() string {
	if k == Exec {
		return "EXEC"
	}
	return "DYN"
}

// File is an ELF file whose headers were read and found sound. It is immutable; its methods read from the
// io.ReaderAt that it was made with and may be used by several goroutines if that may.
type File struct {
	Kind     Kind
	Entry    VAddr // where execution starts; 0 for most libraries
	Segments []Segment
	Interp   string // path of the dynamic loader, "" without one
	Dynamic  bool   // has a dynamic section
	PIE      bool   // is marked as a position independent program (DF_1_PIE)
	Go       bool   // was linked by the Go toolchain
	BuildID  []byte // of the GNU note; nil without one

	r        io.ReaderAt
	size     uint64
	sections []section
	code     []Range // the executable sections
	names    []byte  // .shstrtab
	ehFrame  VAddr   // of PT_GNU_EH_FRAME, 0 without one
	relro    Range   // of PT_GNU_RELRO

	symbolFiles []*File // see AddSymbols
}

// section is a section header as it stands in the file, unchecked.
type section = elf.Section64

// Limits. They are far above what linkers produce, and low enough that a crafted file costs no more
// memory than an honest large one.
const (
	maxSegments = 65536 / 56 // as the kernel (fs/binfmt_elf.c, load_elf_phdrs)
	maxSections = 1 << 17
	maxRead     = 512 << 20 // bytes of one table
	maxTables   = 64        // of a kind of which there may be several
)

// New reads the headers of an ELF file of the given size in bytes. A file that cannot be probed gives a
// *FormatError.
func New(r io.ReaderAt, size int64) (*File, error) {
	f := &File{r: r, size: uint64(max(size, 0))}
	header, err := f.readHeader()
	if err == nil && elf.Type(header.Type) != elf.ET_EXEC && elf.Type(header.Type) != elf.ET_DYN {
		err = &FormatError{ErrType, fmt.Sprintf("its type is %v", elf.Type(header.Type))}
	}
	if err != nil {
		return nil, err
	}
	f.Entry = VAddr(header.Entry)
	if elf.Type(header.Type) == elf.ET_DYN {
		f.Kind = Dyn
	}
	if err := f.readSections(header); err != nil {
		return nil, err
	}
	if err := f.readSegments(header); err != nil {
		return nil, err
	}
	f.Go = f.Go || f.hasSection(".gopclntab") || f.hasSection(".go.buildinfo")
	return f, nil
}

func (f *File) readHeader() (*elf.Header64, error) {
	ident, err := f.read(0, elf.EI_NIDENT)
	if err != nil || !bytes.Equal(ident[:4], []byte(elf.ELFMAG)) {
		return nil, &FormatError{ErrNotELF, "trapless probes programs and libraries, not scripts: name the interpreter's file"}
	}
	if class := elf.Class(ident[elf.EI_CLASS]); class != elf.ELFCLASS64 {
		return nil, &FormatError{Err32Bit, "trapless probes 64-bit programs only"}
	}
	if data := elf.Data(ident[elf.EI_DATA]); data != elf.ELFDATA2LSB {
		return nil, &FormatError{ErrMachine, "big-endian; trapless runs on x86-64"}
	}
	var h elf.Header64
	if err := f.decode(0, uint64(binary.Size(h)), &h); err != nil {
		return nil, err
	}
	if m := elf.Machine(h.Machine); m != elf.EM_X86_64 {
		return nil, &FormatError{ErrMachine, fmt.Sprintf("made for %v; trapless runs on x86-64", m)}
	}
	return &h, nil
}

func (f *File) readSections(h *elf.Header64) error {
	if h.Shoff == 0 {
		return nil // stripped of them: functions stay without names
	}
	if h.Shentsize != uint16(binary.Size(section{})) {
		return malformed("section headers of %d bytes", h.Shentsize)
	}
	var first section
	if err := f.decode(h.Shoff, uint64(binary.Size(first)), &first); err != nil {
		return err
	}
	count, nameIndex := uint64(h.Shnum), uint64(h.Shstrndx)
	if count == 0 { // more than fit the header (gABI, "ELF header", e_shnum)
		count = first.Size
	}
	if nameIndex == uint64(elf.SHN_XINDEX) {
		nameIndex = uint64(first.Link)
	}
	if count > maxSections {
		return malformed("%d sections", count)
	}
	f.sections = make([]section, count)
	if err := f.decode(h.Shoff, count*uint64(binary.Size(first)), f.sections); err != nil {
		return err
	}
	for i := range f.sections {
		s := &f.sections[i]
		if elf.SectionFlag(s.Flags)&elf.SHF_EXECINSTR != 0 && s.Addr+s.Size > s.Addr && len(f.code) < maxTables {
			f.code = append(f.code, Range{VAddr(s.Addr), VAddr(s.Addr + s.Size)})
		}
	}
	if nameIndex == 0 || nameIndex >= count {
		return nil
	}
	names, err := f.sectionData(&f.sections[nameIndex])
	f.names = names
	return err
}

func (f *File) readSegments(h *elf.Header64) error {
	if h.Phnum == 0 || h.Phnum > maxSegments {
		return malformed("%d program headers", h.Phnum)
	}
	headers := make([]elf.Prog64, h.Phnum)
	if h.Phentsize != uint16(binary.Size(headers[0])) {
		return malformed("program headers of %d bytes", h.Phentsize)
	}
	if err := f.decode(h.Phoff, uint64(binary.Size(headers)), headers); err != nil {
		return err
	}
	for i := range headers {
		if err := f.addSegment(&headers[i]); err != nil {
			return err
		}
	}
	if len(f.Segments) == 0 {
		return malformed("no segment to load")
	}
	return f.readNotes(headers)
}

func (f *File) addSegment(p *elf.Prog64) error {
	switch elf.ProgType(p.Type) {
	case elf.PT_LOAD:
		return f.addLoad(p)
	case elf.PT_INTERP:
		if p.Filesz > 4096 { // PATH_MAX
			return malformed("the loader's path has %d bytes", p.Filesz)
		}
		path, err := f.read(p.Off, p.Filesz)
		path, _, _ = bytes.Cut(path, []byte{0})
		f.Interp = string(path)
		return err
	case elf.PT_DYNAMIC:
		f.Dynamic = true
		return f.readDynamic(p)
	case elf.PT_GNU_EH_FRAME:
		f.ehFrame = VAddr(p.Vaddr)
	case elf.PT_GNU_RELRO:
		f.relro = Range{VAddr(p.Vaddr), VAddr(p.Vaddr + p.Memsz)}
	}
	return nil
}

// Static reports whether the program runs without a dynamic loader. It is false for a library.
func (f *File) Static() bool { return f.Interp == "" && (f.Kind == Exec || f.PIE) }

// read returns size bytes at an offset in the file. The bytes must all be there.
func (f *File) read(off, size uint64) ([]byte, error) {
	if off > f.size || size > f.size-off {
		return nil, malformed("%d bytes at offset %d lie behind the file's end at %d", size, off, f.size)
	}
	if size > maxRead {
		return nil, malformed("a table of %d bytes, more than the limit of %d", size, maxRead)
	}
	b := make([]byte, size)
	n, err := f.r.ReadAt(b, int64(off))
	if uint64(n) < size {
		return nil, fmt.Errorf("read %d bytes at offset %d: %w", size, off, err)
	}
	return b, nil
}

// decode reads a fixed-size value, or a slice of such, whose size in bytes is given.
func (f *File) decode(off, size uint64, into any) error {
	b, err := f.read(off, size)
	if err != nil {
		return err
	}
	if _, err := binary.Decode(b, binary.LittleEndian, into); err != nil {
		return malformed("%v", err)
	}
	return nil
}

// named returns the first section with a name, or nil.
func (f *File) named(name string) *section {
	for i := range f.sections {
		at := uint64(f.sections[i].Name)
		if at >= uint64(len(f.names)) {
			continue
		}
		if rest, ok := bytes.CutPrefix(f.names[at:], []byte(name)); ok && len(rest) > 0 && rest[0] == 0 {
			return &f.sections[i]
		}
	}
	return nil
}

// first returns the first section of a type, or nil.
func (f *File) first(kind elf.SectionType) *section {
	for i := range f.sections {
		if elf.SectionType(f.sections[i].Type) == kind {
			return &f.sections[i]
		}
	}
	return nil
}

func (f *File) hasSection(name string) bool { return f.named(name) != nil }

// sectionData reads a section. One without bytes in the file (SHT_NOBITS) is empty.
func (f *File) sectionData(s *section) ([]byte, error) {
	if elf.SectionType(s.Type) == elf.SHT_NOBITS {
		return nil, nil
	}
	if elf.SectionFlag(s.Flags)&elf.SHF_COMPRESSED != 0 {
		return nil, malformed("a compressed section where none is expected")
	}
	return f.read(s.Off, s.Size)
}
