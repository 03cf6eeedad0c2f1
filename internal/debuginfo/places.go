package debuginfo

import (
	"cmp"
	"debug/dwarf"
	"slices"

	"trapless/internal/image"
)

// Places knows which line of source the code at an address was made of, and which inlined functions it is in.
type Places struct {
	file  *debugFile
	units []unitRange // by address
}

// Place is a line of source. Inlined is the function that it is in, if that was put into another one.
type Place struct {
	Inlined string
	File    string
	Line    int
}

// unitRange is code of a unit.
type unitRange struct {
	low, high uint64
	unit      dwarf.Offset
}

// NewPlaces reads the debug information of an open file, whose path in the file system at root is name. dirs: see
// Find. It is nil if there is none.
func NewPlaces(root, name string, of *image.File, dirs ...string) (p *Places) {
	f := &debugFile{image: of, path: root + name}
	if err := f.find(root, name, dirs); err != nil {
		f.close()
		return nil
	}
	p = &Places{file: f}
	p.index()
	return p
}

// Close closes the files that were opened for it.
func (p *Places) Close() { p.file.close() }

// index notes where the code of each unit is.
func (p *Places) index() {
	var err error
	defer caught(&err) // what comes after a unit that makes no sense is not there
	r := p.file.main.data.Reader()
	for last := dwarf.Offset(0); ; {
		unit, err := r.Next()
		if err != nil || unit == nil || unit.Offset < last {
			break
		}
		last = unit.Offset + 1 // a crafted file may lead back
		ranges, err := p.file.main.data.Ranges(unit)
		for _, x := range ranges {
			if err == nil && x[0] < x[1] {
				p.units = append(p.units, unitRange{x[0], x[1], unit.Offset})
			}
		}
		r.SkipChildren()
	}
	slices.SortFunc(p.units, func(a, b unitRange) int { return cmp.Compare(a.low, b.low) })
}

// At are the lines of the code at an address, that of the innermost inlined function first, that of the function itself
// last; none if they are not known.
func (p *Places) At(at image.VAddr) (places []Place) {
	var err error
	defer caught(&err)
	pc := uint64(at)
	i, _ := slices.BinarySearchFunc(p.units, pc, func(u unitRange, pc uint64) int {
		if u.low <= pc {
			return -1
		}
		return 1
	})
	if i == 0 || p.units[i-1].high <= pc {
		return nil
	}
	r := p.file.main.data.Reader()
	r.Seek(p.units[i-1].unit)
	unit, err := r.Next()
	if err != nil || unit == nil {
		return nil
	}
	lines, err := p.file.main.data.LineReader(unit)
	if err != nil || lines == nil {
		return nil
	}
	var e dwarf.LineEntry
	if err := lines.SeekPC(pc, &e); err != nil || e.File == nil || e.Line == 0 {
		return nil
	}
	now := Place{File: e.File.Name, Line: e.Line}
	files := lines.Files()
	for _, c := range p.file.calls(unit, pc) {
		now.Inlined = c.name
		places = append(places, now)
		now = Place{Line: c.line}
		if c.file < int64(len(files)) && c.file >= 0 && files[c.file] != nil {
			now.File = files[c.file].Name
		}
	}
	return append(places, now)
}

// inlinedCall is where a function was put in.
type inlinedCall struct {
	name string
	file int64
	line int
}

// calls are the inlined functions that hold an address of a unit, the innermost first.
func (f *debugFile) calls(unit *dwarf.Entry, pc uint64) (found []inlinedCall) {
	p, r := f.main, f.main.data.Reader()
	r.Seek(unit.Offset)
	if split := f.split(unit); split != nil {
		p, r = split, split.data.Reader()
	}
	unit, err := r.Next()
	if err != nil || unit == nil {
		return nil
	}
	last := unit.Offset
	for {
		e, err := r.Next()
		if err != nil || e == nil || e.Tag == dwarf.TagCompileUnit || e.Tag != 0 && e.Offset <= last {
			return found
		}
		last = max(last, e.Offset) // a crafted file may lead back
		switch e.Tag {
		case 0, dwarf.TagNamespace, dwarf.TagStructType, dwarf.TagClassType, dwarf.TagLexDwarfBlock:
			continue // what is inside
		case dwarf.TagSubprogram:
			if p.covers(e, pc) {
				continue
			}
		case dwarf.TagInlinedSubroutine:
			if p.covers(e, pc) {
				found = slices.Insert(found, 0, p.call(e))
				continue
			}
		}
		r.SkipChildren()
	}
}

func (p *part) covers(e *dwarf.Entry, pc uint64) bool {
	ranges, err := p.data.Ranges(e)
	return err == nil && slices.ContainsFunc(ranges, func(x [2]uint64) bool { return x[0] <= pc && pc < x[1] })
}

func (p *part) call(e *dwarf.Entry) inlinedCall {
	name, _ := p.attribute(e, dwarf.AttrName).(string)
	file, _ := e.Val(dwarf.AttrCallFile).(int64)
	line, _ := e.Val(dwarf.AttrCallLine).(int64)
	return inlinedCall{named(name), file, int(line)}
}
