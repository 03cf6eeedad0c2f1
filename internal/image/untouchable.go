package image

import (
	"debug/elf"
	"encoding/binary"
)

// Region is a part of the file's code with the name of what it is.
type Region struct {
	Name string
	Range
}

// linkage are the sections whose code is not functions: pieces that the linker concatenates, and stubs of
// a fixed size that the loader and debuggers know.
var linkage = []string{".init", ".fini", ".plt", ".plt.got", ".plt.sec"}

// Linkage lists where code lies that is part of no function and must not be patched.
func (f *File) Linkage() []Region {
	var regions []Region
	for _, name := range linkage {
		if s := f.named(name); s != nil && s.Size > 0 && s.Addr+s.Size > s.Addr {
			regions = append(regions, Region{name, Range{VAddr(s.Addr), VAddr(s.Addr + s.Size)}})
		}
	}
	return regions
}

// SignalFrames lists the code that signal handlers return to, by the unwind table's augmentation S (DWARF
// CFI, as gcc and the LSB have it). It runs with the handler's signals blocked, debuggers and unwinders know
// it by its bytes, and its entry in the table begins a byte before it, because unwinders look a return
// address up by the byte before (glibc: sysdeps/unix/sysv/linux/x86_64/libc_sigaction.c).
func (f *File) SignalFrames() ([]Range, error) {
	return f.unwindEntries(func(t *unwindTable) bool { return t.cie.signal })
}

// Critical is a restartable sequence (rseq(2)): the kernel sends a thread that it preempts inside Body to
// Abort, after comparing the four bytes before that with a signature. The instruction pointer must not
// leave and enter Body by a detour, and the signature must stay.
type Critical struct {
	Body  Range
	Abort VAddr
}

// Signature is where the four bytes before the abort handler lie.
func (c Critical) Signature() Range { return Range{c.Abort - 4, c.Abort} }

const (
	rseqSize     = 32 // struct rseq_cs of linux/rseq.h: u32 version, flags; u64 start, length, abort
	maxCriticals = 1 << 16
)

// Criticals reads the descriptors of restartable sequences, section __rseq_cs.
func (f *File) Criticals() ([]Critical, error) {
	s := f.named("__rseq_cs")
	if s == nil {
		return nil, nil
	}
	if s.Size > maxCriticals*rseqSize {
		return nil, malformed("%d bytes of restartable sequences", s.Size)
	}
	table, err := f.sectionData(s)
	if err != nil {
		return nil, err
	}
	if err := f.relocate(table, s.Addr); err != nil {
		return nil, err
	}
	var out []Critical
	for ; len(table) >= rseqSize; table = table[rseqSize:] {
		start := binary.LittleEndian.Uint64(table[8:])
		length := binary.LittleEndian.Uint64(table[16:])
		abort := binary.LittleEndian.Uint64(table[24:])
		if f.executable(VAddr(start)) == nil || start+length < start {
			continue
		}
		out = append(out, Critical{Range{VAddr(start), VAddr(start + length)}, VAddr(abort)})
	}
	return out, nil
}

// relocate does to a table at an address what the loader will do: in position independent files the
// pointers stand in the relocations, as addends, and the table may hold zeros. Relocations in the packed
// form (SHT_RELR) leave the values in the table itself.
func (f *File) relocate(table []byte, at uint64) error {
	const size = relaSize
	tables := 0
	for i := range f.sections {
		s := &f.sections[i]
		if elf.SectionType(s.Type) != elf.SHT_RELA || elf.SectionFlag(s.Flags)&elf.SHF_ALLOC == 0 {
			continue
		}
		if tables++; tables > maxTables {
			return malformed("more than %d tables of relocations", maxTables)
		}
		relocations, err := f.sectionData(s)
		if err != nil {
			return err
		}
		for ; len(relocations) >= size; relocations = relocations[size:] {
			offset := binary.LittleEndian.Uint64(relocations) - at
			kind := elf.R_X86_64(binary.LittleEndian.Uint32(relocations[8:]))
			if kind == elf.R_X86_64_RELATIVE && offset < uint64(len(table)) && uint64(len(table))-offset >= 8 {
				copy(table[offset:], relocations[16:24])
			}
		}
	}
	return nil
}
