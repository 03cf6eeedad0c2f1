package image

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"slices"
	"strings"
)

// Marker is one place of a USDT probe: an instruction that does nothing, which the program's author has
// left for tracers (https://sourceware.org/systemtap/wiki/UserSpaceProbeImplementation). A probe may have
// several, in several functions, each with the arguments elsewhere.
type Marker struct {
	Provider, Name string
	At             VAddr
	Semaphore      VAddr // a 16-bit number of the tracers that are interested; 0 without one
	Args           []MarkerArg
}

const (
	markerSection = ".note.stapsdt"
	markerBase    = ".stapsdt.base"
	markerOwner   = "stapsdt"
	markerKind    = 3
	maxMarkers    = 1 << 18
)

// Markers reads the USDT probes of the file, sorted by provider, name and address. Entries that make no
// sense are passed over. It is an error if the section's bytes are not those of notes.
func (f *File) Markers() ([]Marker, error) {
	var all []Marker
	tables := 0
	for i := range f.sections {
		s := &f.sections[i]
		if elf.SectionType(s.Type) != elf.SHT_NOTE || f.sectionName(s) != markerSection {
			continue
		}
		if tables++; tables > maxTables {
			return nil, malformed("more than %d sections %s", maxTables, markerSection)
		}
		b, err := f.sectionData(s)
		if err != nil {
			return nil, err
		}
		if all, err = f.appendMarkers(all, b); err != nil {
			return nil, err
		}
	}
	if err := f.resolveMarkers(all); err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b Marker) int {
		return cmp.Or(cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.Name, b.Name), cmp.Compare(a.At, b.At))
	})
	return all, nil
}

func (f *File) appendMarkers(all []Marker, b []byte) ([]Marker, error) {
	whole := len(b)
	for len(b) > 0 {
		if len(b) < 12 {
			return nil, malformed("%s ends in the middle of a note, at %d of %d bytes", markerSection, whole-len(b), whole)
		}
		nameSize := uint64(binary.LittleEndian.Uint32(b))
		descSize := uint64(binary.LittleEndian.Uint32(b[4:]))
		kind := binary.LittleEndian.Uint32(b[8:])
		descAt := roundUp(12+nameSize, 4)
		if descAt+descSize > uint64(len(b)) {
			return nil, malformed("%s: a note of %d bytes at %d of %d", markerSection, descSize, whole-len(b), whole)
		}
		name, desc := string(bytes.TrimRight(b[12:12+nameSize], "\x00")), b[descAt:descAt+descSize]
		if name == markerOwner && kind == markerKind {
			if len(all) == maxMarkers {
				return nil, malformed("more than %d USDT probes", maxMarkers)
			}
			if m, ok := f.marker(desc); ok {
				all = append(all, m)
			}
		}
		b = b[min(roundUp(descAt+descSize, 4), uint64(len(b))):]
	}
	return all, nil
}

// marker reads the description of a note: three addresses, and three texts that end with zeros. The
// addresses are those of when it was linked; what has moved the file since (prelink) has moved the base too.
func (f *File) marker(desc []byte) (Marker, bool) {
	if len(desc) < 24 {
		return Marker{}, false
	}
	at := binary.LittleEndian.Uint64(desc)
	base := binary.LittleEndian.Uint64(desc[8:])
	semaphore := binary.LittleEndian.Uint64(desc[16:])
	if s := f.named(markerBase); s != nil && base != 0 {
		at += s.Addr - base
		if semaphore != 0 {
			semaphore += s.Addr - base
		}
	}
	c := cursor{desc[24:], true}
	provider, name := string(c.untilZero()), string(c.untilZero())
	args := string(c.untilZero())
	if !c.ok || name == "" || f.executable(VAddr(at)) == nil {
		return Marker{}, false
	}
	m := Marker{Provider: provider, Name: name, At: VAddr(at), Semaphore: VAddr(semaphore)}
	for arg := range strings.FieldsSeq(args) {
		m.Args = append(m.Args, parseMarkerArg(arg))
	}
	return m, true
}

// sectionName is a section's name, "" if it has none.
func (f *File) sectionName(s *section) string {
	if uint64(s.Name) >= uint64(len(f.names)) {
		return ""
	}
	name, _, _ := bytes.Cut(f.names[s.Name:], []byte{0})
	return string(name)
}

// resolveMarkers finds the addresses of the symbols that arguments name.
func (f *File) resolveMarkers(all []Marker) error {
	wanted := map[string][]*MarkerArg{}
	for i := range all {
		for k := range all[i].Args {
			if a := &all[i].Args[k]; a.Problem == "" && a.Symbol != "" {
				wanted[a.Symbol] = append(wanted[a.Symbol], a)
			}
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	found, err := f.symbolValues(wanted)
	if err != nil {
		return err
	}
	for name, args := range wanted {
		values := found[name]
		for _, a := range args {
			switch len(values) {
			case 0:
				a.Problem = "the symbol " + name + " is not in the file's table (it is stripped)"
			case 1:
				a.Disp += int64(values[0])
			default:
				a.Problem = "there are several symbols " + name
			}
		}
	}
	return nil
}

// symbolValues finds the different values of the symbols with names of a set, whatever they stand for.
func (f *File) symbolValues(names map[string][]*MarkerArg) (map[string][]uint64, error) {
	found := map[string][]uint64{}
	for _, kind := range []elf.SectionType{elf.SHT_SYMTAB, elf.SHT_DYNSYM} {
		s := f.first(kind)
		if s == nil || s.Link >= uint32(len(f.sections)) {
			continue
		}
		table, err := f.sectionData(s)
		if err != nil {
			return nil, err
		}
		text, err := f.sectionData(&f.sections[s.Link])
		if err != nil {
			return nil, err
		}
		strs := nameTable{text: string(text), budget: 8*len(text) + 1<<20}
		for ; len(table) >= symbolSize; table = table[symbolSize:] {
			if elf.SectionIndex(binary.LittleEndian.Uint16(table[6:])) == elf.SHN_UNDEF {
				continue
			}
			name, ok := strs.at(binary.LittleEndian.Uint32(table))
			if !ok {
				return nil, malformed("symbol names that overlap beyond measure")
			}
			value := binary.LittleEndian.Uint64(table[8:])
			if names[name] != nil && !slices.Contains(found[name], value) {
				found[name] = append(found[name], value)
			}
		}
	}
	return found, nil
}
