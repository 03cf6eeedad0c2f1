package session

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"

	"trapless/internal/abi"
	"trapless/internal/arena"
	"trapless/internal/debuginfo"
	"trapless/internal/image"
	"trapless/internal/proc"
)

// symbols names addresses of a target's code. Files are opened when they are seen to be mapped, so that they
// can be read when nobody else has them any more: a library that was unloaded, a file that was replaced, a
// process that has gone. They are read when the first address in them is named.
type symbols struct {
	pid   int
	files []*codeFile
	texts []codeText // that were ever mapped, the newest last
	jits  jitSymbols
	names map[nameKey]string

	lines  bool // frames have their lines of source
	places map[nameKey][]debuginfo.Place
}

// codeFile is a file with code.
type codeFile struct {
	path  string
	root  string // of the file system that path is in
	id    fileID
	file  *os.File
	image *image.File
	funcs *image.Functions
	rows  []image.UnwindRow
	tried bool // the functions were read, or cannot be

	places      *debuginfo.Places // nil without debug information, once placesTried
	placesTried bool
}

// fileID tells a file from all others.
type fileID struct {
	inode        uint64
	major, minor uint32
}

// codeText is a mapping of a file's code.
type codeText struct {
	abi.Range
	offset uint64
	file   *codeFile
	bias   image.Bias
	gone   bool
}

type nameKey struct {
	addr                  abi.Addr
	exact, offset, module bool
}

func newSymbols(pid int) *symbols {
	return &symbols{pid: pid, jits: jitSymbols{pid: pid}, names: map[nameKey]string{}, places: map[nameKey][]debuginfo.Place{}}
}

// refresh notes what is mapped now, and reports whether that is something else than before.
func (y *symbols) refresh(maps proc.Maps) bool {
	changed := false
	live := make([]bool, len(y.texts))
	for i := range maps {
		m := &maps[i]
		if m.Perm&proc.Exec == 0 || !m.File() {
			continue
		}
		k := slices.IndexFunc(y.texts, func(t codeText) bool {
			return !t.gone && t.Range == m.Range && t.offset == m.Offset && t.file.id == idOf(m)
		})
		if k >= 0 {
			live[k] = true
			continue
		}
		if t, ok := y.open(m); ok {
			y.texts, live, changed = append(y.texts, t), append(live, true), true
		}
	}
	for i := range y.texts {
		if t := &y.texts[i]; !t.gone && !live[i] {
			t.gone, changed = true, true
		}
	}
	if changed {
		clear(y.names)
		clear(y.places)
	}
	return changed
}

func idOf(m *proc.Mapping) fileID { return fileID{m.Inode, m.Major, m.Minor} }

// open opens the file of a mapping, unless that was done. A file that is no ELF file has no names.
func (y *symbols) open(m *proc.Mapping) (codeText, bool) {
	i := slices.IndexFunc(y.files, func(f *codeFile) bool { return f.id == idOf(m) })
	if i < 0 {
		f := &codeFile{path: m.Path, root: proc.Path(y.pid, "root"), id: idOf(m)}
		if err := f.open(y.pid, m); err != nil && f.file != nil {
			f.file.Close()
			f.file = nil
		}
		i, y.files = len(y.files), append(y.files, f)
	}
	f := y.files[i]
	t := codeText{Range: m.Range, offset: m.Offset, file: f}
	if f.image == nil {
		return t, true
	}
	var err error
	t.bias, err = f.image.BiasOf(m.Start, image.Offset(m.Offset), true)
	return t, err == nil
}

func (f *codeFile) open(pid int, m *proc.Mapping) (err error) {
	if f.file, err = proc.OpenMapped(pid, m); err != nil {
		return err
	}
	st, err := f.file.Stat()
	if err != nil {
		return err
	}
	f.image, err = image.New(f.file, st.Size())
	return err
}

// Close closes the files.
func (y *symbols) Close() {
	for _, f := range y.files {
		if f.places != nil {
			f.places.Close()
		}
		if f.file != nil {
			f.file.Close()
		}
	}
}

// unwindRows makes the table of unwind rules of all that is mapped.
func (y *symbols) unwindRows(log func(string, ...any)) []arena.UnwindRow {
	var out []arena.UnwindRow
	texts := slices.Clone(y.texts)
	slices.SortFunc(texts, func(a, b codeText) int { return int(int64(a.Start - b.Start)) })
	for _, t := range texts {
		f := t.file
		if t.gone || f.image == nil {
			continue
		}
		if f.rows == nil {
			var err error
			if f.rows, err = f.image.UnwindRows(); err != nil {
				log("%s: stacks are unwound by frame pointers there: %v", f.path, err)
			}
			if f.rows == nil {
				f.rows = []image.UnwindRow{}
			}
		}
		out = appendText(out, &t, f.rows)
	}
	return out
}

// appendText appends the rows of one mapping, and one for where it ends.
func appendText(out []arena.UnwindRow, t *codeText, rows []image.UnwindRow) []arena.UnwindRow {
	first, _ := slices.BinarySearchFunc(rows, t.bias.VAddr(t.Start), func(r image.UnwindRow, v image.VAddr) int {
		if r.Start < v {
			return -1
		}
		return 1
	})
	if first > 0 {
		out = append(out, arena.UnwindRow{Start: t.Start, Rule: rows[first-1].Rule})
	}
	for _, r := range rows[first:] {
		at := t.bias.Addr(r.Start)
		if !t.Contains(at) {
			break
		}
		out = append(out, arena.UnwindRow{Start: at, Rule: r.Rule})
	}
	return append(out, arena.UnwindRow{Start: t.End})
}

// name is the symbol at an address, as bpftrace prints it: name, name+offset, or name+offset (module). Of a
// return address (not exact) the call before it decides. An address that nobody knows is a number.
func (y *symbols) name(k nameKey) string {
	if name, ok := y.names[k]; ok {
		return name
	}
	name := y.look(k)
	y.names[k] = name
	return name
}

func (y *symbols) look(k nameKey) string {
	at := k.addr
	if !k.exact {
		at--
	}
	module := "[unknown]"
	name := ""
	var start abi.Addr
	if t := y.textAt(at); t != nil {
		module = t.file.path
		if fn, ok := t.file.functionAt(t.bias.VAddr(at)); ok {
			name, start = t.file.funcs.Pretty(fn.Name()), t.bias.Addr(fn.Start)
		}
	} else if n, first, ok := y.jits.find(at); ok {
		name, start, module = n, first, path.Base(y.jits.file)
	}
	switch {
	case name == "":
		name = fmt.Sprintf("0x%x", uint64(k.addr))
	case k.offset:
		name += "+" + strconv.FormatUint(uint64(k.addr-start), 10)
	}
	if k.module {
		name += " (" + module + ")"
	}
	return name
}

// textAt is the mapping that an address is in, or was in last.
func (y *symbols) textAt(at abi.Addr) *codeText {
	var last *codeText
	for i := range y.texts {
		if t := &y.texts[i]; t.Contains(at) && (last == nil || last.gone || !t.gone) {
			last = t
		}
	}
	return last
}

// functionAt is the function with a name that holds an address of the file.
func (f *codeFile) functionAt(v image.VAddr) (image.Func, bool) {
	if !f.tried && f.image != nil {
		f.tried = true
		if separate := debuginfo.AddSymbols(f.root, f.path, f.image); separate != nil {
			defer separate.Close()
		}
		f.funcs, _ = f.image.Functions() // without, addresses stay numbers
	}
	if f.funcs == nil {
		return image.Func{}, false
	}
	fn, ok := f.funcs.At(v)
	return fn, ok && fn.Name() != ""
}
