package debuginfo

import (
	"debug/dwarf"
	"strings"

	"trapless/internal/lang"
)

// part is debug information that has one set of sections: that of a file, or of a unit whose information was split
// off.
type part struct {
	data    *dwarf.Data
	info    []byte
	lists   locationLists
	layouts map[*dwarf.StructType]*lang.Layout // that were made
	depth   int
	byName  map[string]dwarf.Offset
	unit    unitBase // of a part that was split off: of its only unit
}

// newPart begins to read debug information.
func newPart(sections map[string][]byte) (p *part, err error) {
	defer caught(&err)
	p = &part{info: sections["info"], lists: locationLists{sections["loc"], sections["loclists"], sections["addr"]}}
	p.data, err = dwarf.New(sections["abbrev"], nil, nil, sections["info"], sections["line"], nil, sections["ranges"], sections["str"])
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"addr", "line_str", "str_offsets", "rnglists", "loclists", "types"} {
		if b := sections[name]; b != nil {
			if err := p.data.AddSection(".debug_"+name, b); err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

func (p *part) named(name string) (t lang.Type, ok bool) {
	var err error
	defer func() { ok = ok && err == nil }()
	defer caught(&err)
	if p.byName == nil {
		p.byName = map[string]dwarf.Offset{}
		p.index()
	}
	at, ok := p.byName[name]
	if !ok {
		return t, false
	}
	d, err := p.data.Type(at)
	if err != nil {
		return t, false
	}
	return p.convert(d), true
}

// index notes where the types with names are that are complete, of each name the first.
func (p *part) index() {
	r := p.data.Reader()
	for last := dwarf.Offset(0); ; {
		e, err := r.Next()
		if e == nil || err != nil || e.Tag != 0 && e.Offset < last {
			return
		}
		if e.Tag == 0 { // the end of some children
			continue
		}
		last = e.Offset + 1 // a crafted file may lead back
		switch e.Tag {
		case dwarf.TagCompileUnit, dwarf.TagNamespace:
			continue // what is inside
		case dwarf.TagStructType, dwarf.TagClassType, dwarf.TagUnionType, dwarf.TagEnumerationType, dwarf.TagTypedef, dwarf.TagBaseType:
			p.note(e)
		}
		r.SkipChildren()
	}
}

func (p *part) note(e *dwarf.Entry) {
	name, _ := e.Val(dwarf.AttrName).(string)
	if declared, _ := e.Val(dwarf.AttrDeclaration).(bool); name == "" || declared {
		return
	}
	tag := map[dwarf.Tag]string{dwarf.TagStructType: "struct ", dwarf.TagClassType: "struct ", dwarf.TagUnionType: "union ",
		dwarf.TagEnumerationType: "enum "}[e.Tag]
	names := []string{tag + name}
	if tag != "" && !strings.Contains(name, "<") {
		names = append(names, name) // C++ needs no tag
	}
	for _, n := range names {
		if _, known := p.byName[n]; !known {
			p.byName[n] = e.Offset
		}
	}
}
