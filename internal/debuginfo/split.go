package debuginfo

import (
	"debug/dwarf"
	"encoding/binary"
	"path"
	"strings"

	"trapless/internal/image"
	"trapless/internal/unix"
)

// Split debug information (DWARF 5, 7.3.2): the unit in the program only says where the line table and the addresses
// are, and names an object file (.dwo) that has the rest. Many such files may be packed into one (.dwp).

// Attributes of the unit that stands for one that was split off.
const (
	attrDwoName    = dwarf.Attr(0x76)   // DW_AT_dwo_name
	attrGNUDwoName = dwarf.Attr(0x2130) // DW_AT_GNU_dwo_name, before DWARF 5
)

// split is the part that a unit stands for, nil if it is whole or the part cannot be found.
func (f *debugFile) split(unit *dwarf.Entry) *part {
	name, _ := unit.Val(attrDwoName).(string)
	if old, ok := unit.Val(attrGNUDwoName).(string); ok {
		name = old
	}
	if name == "" {
		return nil
	}
	if p, known := f.splits[unit.Offset]; known {
		return p
	}
	if f.splits == nil {
		f.splits = map[dwarf.Offset]*part{}
	}
	p := f.openSplit(unit, name)
	f.splits[unit.Offset] = p
	return p
}

// allSplits are the parts that all units stand for.
func (f *debugFile) allSplits() (all []*part) {
	var err error
	defer caught(&err) // what comes after a unit that makes no sense is not there
	r := f.main.data.Reader()
	for last := dwarf.Offset(0); ; {
		unit, err := r.Next()
		if err != nil || unit == nil || unit.Offset < last {
			return all
		}
		last = unit.Offset + 1 // a crafted file may lead back
		if p := f.split(unit); p != nil {
			all = append(all, p)
		}
		r.SkipChildren()
	}
}

// openSplit reads the part from the file's pack, or else from a file of its own.
func (f *debugFile) openSplit(unit *dwarf.Entry, name string) *part {
	id, ok := f.unitID(unit)
	if !ok {
		return nil
	}
	if f.pack == nil {
		f.pack = &pack{}
		if sections := splitSections(f.path + ".dwp"); sections != nil {
			f.pack.read(sections)
		}
	}
	sections := f.pack.unit(id)
	dir, _ := unit.Val(dwarf.AttrCompDir).(string)
	for _, at := range []string{path.Join(dir, name), path.Join(path.Dir(f.path), name), path.Join(path.Dir(f.path), path.Base(name))} {
		if sections == nil {
			sections = splitSections(at)
		}
	}
	if sections == nil {
		return nil
	}
	base := baseOf(unit)
	addr := f.main.lists.addr
	sections["addr"] = addr[min(uint64(base.addrBase), uint64(len(addr))):]
	if b := sections["str_offsets"]; len(b) >= stringsHeader {
		sections["str_offsets"] = b[stringsHeader:]
	}
	p, err := newPart(sections)
	if err != nil || !p.hasUnit(id) {
		return nil
	}
	p.unit = unitBase{low: base.low, listsBase: listsHeader}
	return p
}

// Sizes of what lies before the offsets of strings and of lists (DWARF 5, 7.26 and 7.29), in units of 32-bit DWARF.
const (
	stringsHeader = 8
	listsHeader   = 12
	unitHeader    = 20 // with the number of a unit that is split
	unitIDAt      = 12
)

// unitID is the number of a unit that stands for another one. It ends the unit's header.
func (f *debugFile) unitID(unit *dwarf.Entry) (uint64, bool) {
	info := f.main.info
	if at := uint64(unit.Offset); at >= unitHeader && at <= uint64(len(info)) && binary.LittleEndian.Uint32(info[at-unitHeader:]) < 0xfffffff0 {
		return binary.LittleEndian.Uint64(info[at-unitHeader+unitIDAt:]), true
	}
	return 0, false
}

// hasUnit reports whether the part begins with the unit of a number.
func (p *part) hasUnit(id uint64) bool {
	return len(p.info) >= unitHeader && binary.LittleEndian.Uint64(p.info[unitIDAt:]) == id
}

// splitSections are the sections for debug information of an object file with that of units that were split off, by
// their names without the end; nil if there is none.
func splitSections(name string) map[string][]byte {
	file, err := unix.OpenNow(name)
	if err != nil {
		return nil
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return nil
	}
	img, err := image.NewDebug(file, st.Size())
	if err != nil {
		return nil
	}
	all, err := img.DWARFSections()
	if err != nil {
		return nil
	}
	out := map[string][]byte{}
	for name, b := range all {
		if of, ok := strings.CutSuffix(name, ".dwo"); ok {
			name = of
		}
		out[name] = b
	}
	return out
}

// pack is a file with the information of many units (DWARF 5, 7.3.5).
type pack struct {
	sections map[string][]byte
	columns  []uint32          // the kinds of sections
	rows     map[uint64]uint32 // of the units' numbers, from 1 on
	offsets  []byte            // of the rows' contributions, and their sizes
	sizes    []byte
}

// kinds are the sections that an index of units is about (DWARF 5, 7.3.5.3).
var kinds = map[uint32]string{1: "info", 3: "abbrev", 4: "line", 5: "loclists", 6: "str_offsets", 7: "macro", 8: "rnglists"}

// read reads the index of units. One that makes no sense has no units.
func (k *pack) read(sections map[string][]byte) {
	k.sections = sections
	r := reader{sections["cu_index"], true}
	if r.fixed(4); !r.ok { // the version and padding
		return
	}
	columns, units, slots := r.fixed(4), r.fixed(4), r.fixed(4)
	if left := uint64(len(r.b)); !r.ok || columns > uint64(len(kinds)) || units > left || slots > left {
		return
	}
	ids, rows := reader{r.take(8 * slots), true}, reader{r.take(4 * slots), true}
	k.rows = map[uint64]uint32{}
	for range slots {
		if id, row := ids.fixed(8), rows.fixed(4); row > 0 && row <= units {
			k.rows[id] = uint32(row)
		}
	}
	for range columns {
		k.columns = append(k.columns, uint32(r.fixed(4)))
	}
	k.offsets, k.sizes = r.take(4*columns*units), r.take(4*columns*units)
	if !r.ok {
		k.rows = nil
	}
}

// unit are the sections of one unit, nil if it is not here.
func (k *pack) unit(id uint64) map[string][]byte {
	row, ok := k.rows[id]
	if !ok {
		return nil
	}
	out := map[string][]byte{"str": k.sections["str"]}
	for i, kind := range k.columns {
		at := 4 * ((int(row)-1)*len(k.columns) + i)
		b := k.sections[kinds[kind]]
		from := uint64(binary.LittleEndian.Uint32(k.offsets[at:]))
		to := from + uint64(binary.LittleEndian.Uint32(k.sizes[at:]))
		if kinds[kind] == "" || to > uint64(len(b)) {
			continue
		}
		out[kinds[kind]] = b[from:to]
	}
	return out
}
