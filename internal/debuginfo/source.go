package debuginfo

import (
	"debug/dwarf"
	"errors"
	"fmt"
	"os"
	"strings"

	"trapless/internal/image"
	"trapless/internal/lang"
)

// Source knows the types of the files that a script's attach points name. It reads a file when something in it
// is asked for. It implements lang.TypeSource.
type Source struct {
	root    string // of the target's file system
	resolve func(*lang.AttachPoint) string
	files   map[string]*debugFile // by path; nil for one without debug information
	order   []*debugFile
	used    []*lang.AttachPoint // whose files may be asked for types
}

// New makes a source. resolve is the path of the file that an attach point names, in the file system at root, ""
// if it is none.
func New(root string, resolve func(*lang.AttachPoint) string) *Source {
	return &Source{root: root, resolve: resolve, files: map[string]*debugFile{}}
}

// debugFile is a file with debug information.
type debugFile struct {
	image     *image.File
	data      *dwarf.Data
	lists     locationLists
	layouts   map[*dwarf.StructType]*lang.Layout // that were made
	depth     int
	byName    map[string]dwarf.Offset
	functions *image.Functions
	file      *os.File
	separate  *File
}

// Close closes all files.
func (s *Source) Close() {
	for _, f := range s.order {
		f.close()
	}
}

func (f *debugFile) close() {
	f.file.Close()
	if f.separate != nil {
		f.separate.Close()
	}
}

// Use implements lang.TypeSource. The file is read when a type is asked for.
func (s *Source) Use(a *lang.AttachPoint) {
	if a.Kind == lang.Uprobe || a.Kind == lang.Uretprobe || a.Kind == lang.Usdt {
		s.used = append(s.used, a)
	}
}

// fileOf is the file of an attach point, nil without debug information.
func (s *Source) fileOf(a *lang.AttachPoint) *debugFile {
	if a.PathWildcard {
		return nil
	}
	name := s.resolve(a)
	if name == "" {
		return nil
	}
	f, known := s.files[name]
	if !known {
		f = s.open(name)
		s.files[name] = f
		if f != nil {
			s.order = append(s.order, f)
		}
	}
	return f
}

func (s *Source) open(name string) *debugFile {
	file, err := os.Open(s.root + name)
	if err != nil {
		return nil
	}
	f := &debugFile{file: file}
	if err := f.read(s.root, name); err != nil {
		f.close()
		return nil
	}
	return f
}

var errNone = errors.New("no debug information")

func (f *debugFile) read(root, name string) error {
	st, err := f.file.Stat()
	if err != nil {
		return err
	}
	if f.image, err = image.New(f.file, st.Size()); err != nil {
		return err
	}
	f.separate = Find(root, name, f.image)
	if f.separate != nil && !f.image.HasSymtab() {
		f.image.AddSymbols(f.separate.Image)
	}
	from := f.image
	if !from.HasDWARF() && f.separate != nil {
		from = f.separate.Image
	}
	if !from.HasDWARF() {
		return errNone
	}
	sections, err := from.DWARFSections()
	if err != nil {
		return err
	}
	return f.parse(sections)
}

// parse begins to read debug information.
func (f *debugFile) parse(sections map[string][]byte) (err error) {
	defer caught(&err)
	f.data, err = dwarf.New(sections["abbrev"], nil, nil, sections["info"], sections["line"], nil, sections["ranges"], sections["str"])
	if err != nil {
		return err
	}
	for _, name := range []string{"addr", "line_str", "str_offsets", "rnglists", "loclists", "types"} {
		if b := sections[name]; b != nil {
			if err := f.data.AddSection(".debug_"+name, b); err != nil {
				return err
			}
		}
	}
	f.lists = locationLists{sections["loc"], sections["loclists"], sections["addr"]}
	return nil
}

// caught makes an error of a panic of debug/dwarf.
func caught(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("the debug information makes no sense: %v", p)
	}
}

// Named implements lang.TypeSource.
func (s *Source) Named(name string) (lang.Type, bool) {
	for _, a := range s.used {
		s.fileOf(a)
	}
	s.used = nil
	for _, f := range s.order {
		if t, ok := f.named(name); ok {
			return t, true
		}
	}
	return lang.Type{}, false
}

func (f *debugFile) named(name string) (t lang.Type, ok bool) {
	var err error
	defer func() { ok = ok && err == nil }()
	defer caught(&err)
	if f.byName == nil {
		f.byName = map[string]dwarf.Offset{}
		f.index()
	}
	at, ok := f.byName[name]
	if !ok {
		return t, false
	}
	d, err := f.data.Type(at)
	if err != nil {
		return t, false
	}
	return f.convert(d), true
}

// index notes where the types with names are that are complete, of each name the first.
func (f *debugFile) index() {
	r := f.data.Reader()
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
			f.note(e)
		}
		r.SkipChildren()
	}
}

func (f *debugFile) note(e *dwarf.Entry) {
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
		if _, known := f.byName[n]; !known {
			f.byName[n] = e.Offset
		}
	}
}
