package image

import (
	"bytes"
	"compress/zlib"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"github.com/ulikunitz/xz"
)

// NewDebug reads a file that has the symbols and the debug information of another one, which was stripped of
// them, or an object file. It is not loaded, so it has no segments that could be checked.
func NewDebug(r io.ReaderAt, size int64) (*File, error) {
	f := &File{r: r, size: uint64(max(size, 0))}
	header, err := f.readHeader()
	if err != nil {
		return nil, err
	}
	if err := f.readSections(header); err != nil {
		return nil, err
	}
	return f, f.readNotes(nil)
}

// DebugLink is the name of the file with the debug information, without a directory, and the checksum of its
// content (GDB manual, "Debugging Information in Separate Files"). The name is empty if there is none.
func (f *File) DebugLink() (name string, crc uint32) {
	s := f.named(".gnu_debuglink")
	if s == nil || s.Size > maxName {
		return "", 0
	}
	b, err := f.sectionData(s)
	if err != nil || len(b) < 5 {
		return "", 0
	}
	text, _, found := bytes.Cut(b, []byte{0})
	if !found || bytes.ContainsRune(text, '/') {
		return "", 0
	}
	return string(text), binary.LittleEndian.Uint32(b[len(b)-4:])
}

// HasSymtab reports whether the file has a symbol table beside the exported names.
func (f *File) HasSymtab() bool { return f.first(elf.SHT_SYMTAB) != nil }

// HasDWARF reports whether the file has debug information.
func (f *File) HasDWARF() bool { return f.hasSection(".debug_info") || f.hasSection(".zdebug_info") }

// AddSymbols lets Functions take the names of another file, too: one with debug information. Addresses are the
// same in both. It is called before Functions.
func (f *File) AddSymbols(debug *File) { f.symbolFiles = append(f.symbolFiles, debug) }

// maxMini bounds an unpacked section .gnu_debugdata, in bytes.
const maxMini = 64 << 20

// MiniDebug unpacks .gnu_debugdata: an ELF file with symbols, packed by xz (GDB manual, "MiniDebugInfo"). It is
// nil without an error if there is none.
func (f *File) MiniDebug() (*File, error) {
	s := f.named(".gnu_debugdata")
	if s == nil {
		return nil, nil
	}
	packed, err := f.sectionData(s)
	if err != nil {
		return nil, err
	}
	r, err := xz.ReaderConfig{DictCap: maxMini}.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, malformed(".gnu_debugdata: %v", err)
	}
	b, err := io.ReadAll(io.LimitReader(r, maxMini+1))
	if err != nil || len(b) > maxMini {
		return nil, malformed(".gnu_debugdata: %d bytes were unpacked, then: %v", len(b), err)
	}
	mini, err := NewDebug(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return nil, fmt.Errorf(".gnu_debugdata: %w", err)
	}
	return mini, nil
}

// DWARFSections are the sections with debug information, by their names without the point and "debug_",
// unpacked.
func (f *File) DWARFSections() (map[string][]byte, error) {
	out := map[string][]byte{}
	var total uint64
	for i := range f.sections {
		s := &f.sections[i]
		name, ok := strings.CutPrefix(f.sectionName(s), ".debug_")
		if !ok || out[name] != nil || elf.SectionType(s.Type) == elf.SHT_NOBITS {
			continue
		}
		b, err := f.read(s.Off, s.Size)
		if err == nil && elf.SectionFlag(s.Flags)&elf.SHF_COMPRESSED != 0 {
			b, err = unpackSection(b)
		}
		if err != nil {
			return nil, fmt.Errorf(".debug_%s: %w", name, err)
		}
		if total += uint64(len(b)); total > 4*maxRead {
			return nil, malformed("%d bytes of debug information", total)
		}
		out[name] = b
	}
	return out, nil
}

// unpackSection unpacks a section (gABI, "Section Compression").
func unpackSection(b []byte) ([]byte, error) {
	const headSize = 24 // Elf64_Chdr
	if len(b) < headSize {
		return nil, malformed("a compressed section of %d bytes", len(b))
	}
	kind, size := elf.CompressionType(binary.LittleEndian.Uint32(b)), binary.LittleEndian.Uint64(b[8:])
	if kind != elf.COMPRESS_ZLIB {
		return nil, fmt.Errorf("it is compressed by %v, which is not supported", kind)
	}
	const bestRatio = 1032 // of deflate
	if size > maxRead || size > uint64(len(b))*bestRatio {
		return nil, malformed("%d bytes that are said to be unpacked of %d", size, len(b))
	}
	r, err := zlib.NewReader(bytes.NewReader(b[headSize:]))
	if err != nil {
		return nil, malformed("%v", err)
	}
	out := make([]byte, size)
	if _, err := io.ReadFull(r, out); err != nil {
		return nil, malformed("%v", err)
	}
	return out, nil
}
