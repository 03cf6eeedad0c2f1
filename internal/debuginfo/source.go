package debuginfo

import (
	"debug/dwarf"
	"errors"
	"fmt"
	"os"

	"trapless/internal/image"
	"trapless/internal/lang"
	"trapless/internal/unix"
)

// Source knows the types of the files that a script's attach points name. It reads a file when something in it
// is asked for. It implements lang.TypeSource.
type Source struct {
	root    string   // of the target's file system
	dirs    []string // where separate files are looked for, too
	resolve func(*lang.AttachPoint) string
	files   map[string]*debugFile // by path; nil for one without debug information
	order   []*debugFile
	used    []*lang.AttachPoint // whose files may be asked for types
}

// New makes a source. resolve is the path of the file that an attach point names, in the file system at root, ""
// if it is none. dirs are directories of ours, or files, in which separate debug information is looked for, too.
func New(root string, resolve func(*lang.AttachPoint) string, dirs ...string) *Source {
	return &Source{root: root, dirs: dirs, resolve: resolve, files: map[string]*debugFile{}}
}

// debugFile is a file with debug information.
type debugFile struct {
	path      string // where it was opened
	image     *image.File
	from      *image.File // that has the debug information: itself, or a separate one
	main      *part
	splits    map[dwarf.Offset]*part // by the units that stand for them; nil where there is none
	pack      *pack                  // of the splits; nil if there is none
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
	if f.file != nil {
		f.file.Close()
	}
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
	f, _ := s.tryOpen(name) // without one there are no types
	return f
}

func (s *Source) tryOpen(name string) (*debugFile, error) {
	file, err := unix.OpenNow(s.root + name)
	if err != nil {
		return nil, err
	}
	f := &debugFile{file: file, path: s.root + name}
	if err := f.read(s.root, name, s.dirs); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

var errNone = errors.New("no debug information")

func (f *debugFile) read(root, name string, dirs []string) error {
	st, err := f.file.Stat()
	if err != nil {
		return err
	}
	if f.image, err = image.New(f.file, st.Size()); err != nil {
		return err
	}
	return f.find(root, name, dirs)
}

// find finds the debug information and begins to read it.
func (f *debugFile) find(root, name string, dirs []string) error {
	f.separate = Find(root, name, f.image, dirs...)
	if f.separate != nil && !f.image.HasSymtab() {
		f.image.AddSymbols(f.separate.Image)
	}
	f.from = f.image
	if !f.from.HasDWARF() && f.separate != nil {
		f.from, f.path = f.separate.Image, f.separate.Path
	}
	if !f.from.HasDWARF() {
		return errNone
	}
	sections, err := f.from.DWARFSections()
	if err != nil {
		return err
	}
	f.main, err = newPart(sections)
	return err
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
		if t, ok := f.main.named(name); ok {
			return t, true
		}
		for _, p := range f.allSplits() {
			if t, ok := p.named(name); ok {
				return t, true
			}
		}
	}
	return lang.Type{}, false
}
