package session

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"trapless/internal/abi"
	"trapless/internal/debuginfo"
	"trapless/internal/elfplan"
	"trapless/internal/image"
	"trapless/internal/inject"
	"trapless/internal/lang"
	"trapless/internal/proc"
	"trapless/internal/unix"
)

// module is a file whose text a target has mapped.
type module struct {
	path  string
	file  *os.File
	image *image.File
	funcs *image.Functions
	bias  image.Bias
	elf   *elfplan.Module // of the three
	usdt  *[]image.Marker // nil as long as nobody has asked

	stat   os.FileInfo        // as it was read
	start  abi.Addr           // of the text's mapping
	text   inject.Text        // that mapping
	cached bool               // the file belongs to a cache
	gone   bool               // it is not mapped at the moment
	before map[abi.Addr]*unit // by where the next function starts: the one before it
}

// modules finds and reads the modules of a target, each once.
type modules struct {
	pid    int
	maps   proc.Maps
	images *imageCache          // nil unless the files are read for several processes
	loaded map[abi.Addr]*module // by the start of the text mapping
	gone   []*module            // that were loaded once
	known  map[mapped]bool      // mappings that were there when it was looked last
}

// readModules reads which files a process has mapped. images may be nil.
func readModules(pid int, images *imageCache) (*modules, error) {
	maps, err := proc.ReadMaps(pid)
	if err != nil {
		return nil, err
	}
	ms := &modules{pid: pid, maps: maps, images: images, loaded: map[abi.Addr]*module{}}
	ms.noteTexts()
	return ms, nil
}

func (ms *modules) Close() {
	for _, m := range ms.loaded {
		_ = m.close()
	}
	for _, m := range ms.gone {
		_ = m.close()
	}
}

// close closes the file.
func (mod *module) close() error {
	if mod.cached {
		return nil
	}
	return mod.file.Close()
}

// texts are the first executable mappings of each mapped file.
func (ms *modules) texts() []*proc.Mapping {
	var out []*proc.Mapping
	for i := range ms.maps {
		m := &ms.maps[i]
		if m.Perm&proc.Exec == 0 || !m.File() {
			continue
		}
		if !slices.ContainsFunc(out, m.SameFile) {
			out = append(out, m)
		}
	}
	return out
}

// find returns the modules that an attach point names: one, or several for a
// path with a wildcard.
func (ms *modules) find(a *lang.AttachPoint) ([]*module, error) {
	match, err := ms.matcher(a)
	if err != nil {
		return nil, err
	}
	var out []*module
	for _, m := range ms.texts() {
		if !match(m) {
			continue
		}
		mod, err := ms.load(m)
		if err != nil {
			if a.PathWildcard {
				continue
			}
			return nil, err
		}
		out = append(out, mod)
		if !a.PathWildcard {
			return out, nil
		}
	}
	if out == nil {
		return nil, ms.notMapped(a)
	}
	return out, nil
}

// matcher says which mappings an attach point's path means.
func (ms *modules) matcher(a *lang.AttachPoint) (func(*proc.Mapping) bool, error) {
	switch {
	case a.Path == "":
		exe, err := proc.Exe(ms.pid)
		if err != nil {
			return nil, err
		}
		exe = strings.TrimSuffix(exe, " (deleted)")
		return func(m *proc.Mapping) bool { return m.Path == exe }, nil
	case a.PathWildcard:
		if abs, err := filepath.Abs(a.Path); err == nil && strings.Contains(a.Path, "/") && !strings.HasPrefix(a.Path, "*") {
			here := *a
			here.Path = abs
			a = &here
		}
		return func(m *proc.Mapping) bool { return a.MatchPath(m.Path) || a.MatchPath(path.Base(m.Path)) }, nil
	case !strings.Contains(a.Path, "/"):
		return func(m *proc.Mapping) bool { return lang.IsLibrary(path.Base(m.Path), a.Path) }, nil
	}
	abs, err := filepath.Abs(a.Path)
	if err != nil {
		return nil, err
	}
	same := ms.sameFile(abs)
	return func(m *proc.Mapping) bool { return m.Path == abs || same(m) }, nil
}

// sameFile compares with the file that a path leads to in the target's root,
// through symbolic links.
func (ms *modules) sameFile(abs string) func(*proc.Mapping) bool {
	st, err := os.Stat(proc.Path(ms.pid, "root") + abs)
	if err != nil {
		return func(*proc.Mapping) bool { return false }
	}
	ino := st.Sys().(*syscall.Stat_t).Ino
	return func(m *proc.Mapping) bool {
		if m.Inode != ino {
			return false
		}
		other, err := os.Stat(proc.Path(ms.pid, "root") + m.Path)
		return err == nil && os.SameFile(st, other)
	}
}

// notMapped explains why no module was found, by what is wrong with the path
// itself if something is.
func (ms *modules) notMapped(a *lang.AttachPoint) error {
	if strings.Contains(a.Path, "/") && !a.PathWildcard {
		if err := checkFile(ms.pid, a.Path); err != nil {
			return fmt.Errorf("%s: %w", a.Text, err)
		}
	}
	var names []string
	for _, m := range ms.texts() {
		names = append(names, path.Base(m.Path))
	}
	const most = 12
	if len(names) > most {
		names = append(names[:most], "...")
	}
	return fmt.Errorf("%s: process %d has %w %q; it has %s", a.Text, ms.pid, errNotMapped, a.Path, strings.Join(names, ", "))
}

// errNotMapped: the target may map the file later.
var errNotMapped = errors.New("not mapped")

// mayCome reports whether an attach point names a file that is not mapped but can
// be loaded at any time: a library that there is.
func (ms *modules) mayCome(a *lang.AttachPoint) bool {
	root := proc.Path(ms.pid, "root")
	if !strings.Contains(a.Path, "/") {
		name, err := LibraryFile(root, a.Path)
		return err == nil && isLoadable(name)
	}
	abs, err := filepath.Abs(a.Path)
	if err != nil {
		return false
	}
	files := []string{root + abs}
	if a.PathWildcard {
		files, _ = filepath.Glob(root + abs) // a pattern that is none matches nothing
	}
	return slices.ContainsFunc(files, isLoadable)
}

// isLoadable reports whether a file is a shared library.
func isLoadable(name string) bool {
	f, err := unix.OpenNow(name)
	if err != nil {
		return false
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return false
	}
	img, err := image.New(f, st.Size())
	return err == nil && img.Kind != image.Exec && img.Interp == ""
}

func checkFile(pid int, name string) error {
	abs, err := filepath.Abs(name)
	if err != nil {
		return err
	}
	f, err := unix.OpenNow(proc.Path(pid, "root") + abs)
	if err != nil {
		return fmt.Errorf("%s: %w", abs, errors.Unwrap(err))
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if st.IsDir() {
		return fmt.Errorf("%s is a directory", abs)
	}
	if _, err := image.New(f, st.Size()); err != nil {
		return fmt.Errorf("%s is %w", abs, err)
	}
	return nil
}

// load reads a module through the file that the target has mapped.
func (ms *modules) load(m *proc.Mapping) (*module, error) {
	if mod := ms.loaded[m.Start]; mod != nil {
		return mod, nil
	}
	f, err := proc.OpenMapped(ms.pid, m)
	if err != nil {
		return nil, err
	}
	mod := &module{path: m.Path, file: f}
	if err := mod.read(ms.pid, m, ms.images); err != nil {
		_ = mod.close() // it was open for reading
		return nil, fmt.Errorf("%s: %w", m.Path, err)
	}
	ms.loaded[m.Start] = mod
	return mod, nil
}

func (mod *module) read(pid int, m *proc.Mapping, images *imageCache) error {
	st, err := mod.file.Stat()
	if err != nil {
		return err
	}
	if images.load(mod, m, st) {
		return mod.mappedAt(m)
	}
	mod.stat = st
	if mod.image, err = image.New(mod.file, st.Size()); err != nil {
		return err
	}
	separate := debuginfo.AddSymbols(proc.Path(pid, "root"), mod.path, mod.image)
	if separate != nil {
		defer separate.Close()
	}
	if mod.funcs, err = mod.image.Functions(); err != nil {
		return err
	}
	if mod.funcs.GoProblem != nil {
		return fmt.Errorf("a Go program of which it is not known what runs on goroutine stacks: %w", mod.funcs.GoProblem)
	}
	images.keep(mod, m)
	return mod.mappedAt(m)
}

// mappedAt notes where the module is now.
func (mod *module) mappedAt(m *proc.Mapping) (err error) {
	if mod.bias, err = mod.image.BiasOf(m.Start, image.Offset(m.Offset), true); err != nil {
		return err
	}
	mod.start, mod.text, mod.gone, mod.before = m.Start, inject.TextOf(m), false, map[abi.Addr]*unit{}
	mod.elf = &elfplan.Module{Image: mod.image, Funcs: mod.funcs, Bias: mod.bias}
	return nil
}
