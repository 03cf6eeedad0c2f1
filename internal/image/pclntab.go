package image

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The Go linker writes a table of all functions, with their names, which the running program itself needs
// for tracebacks, so that stripped files have it too. Its form is that of Go's runtime/symtab.go (pcHeader,
// functab, _func), the same from Go 1.18 on but for one field of _func.

// GoTable is what a file's function table says beyond the functions that Functions lists.
type GoTable struct {
	pctab []byte
	funcs []goFunc // sorted by start

	wrapper uint8 // the id of generated functions: in each version of Go the last one
}

// goFunc is an entry of the table.
type goFunc struct {
	Range
	name string
	pcsp uint32 // offset in pctab of how deep the stack is
	id   uint8  // runtime's abi.FuncID
	flag uint8  // runtime's abi.FuncFlag
}

// ErrNoGoTable wraps every reason why the function table of a Go file cannot be read.
var ErrNoGoTable = errors.New("no function table")

// Layout of the table.
const (
	goMagic118 = 0xfffffff0 // Go 1.18 and 1.19
	goMagic120 = 0xfffffff1 // Go 1.20 and later

	goHeaderSize  = 8 + 8*8 // magic, minLC and ptrSize, then eight words
	goFunctabSize = 8       // two u32: where the function starts, where its _func is
	goFuncSize    = 44      // of _func in Go 1.20 and later; 40 before, without startLine
	goMaxSteps    = 1 << 16 // of one function's stack depth

	goFlagSPWrite = 1 << 1
	goFlagAsm     = 1 << 2
)

// goHeader is the start of the table.
type goHeader struct {
	Magic                                    uint32
	Pad1, Pad2, MinLC, PtrSize               uint8
	NFunc, NFiles, TextStart                 uint64
	Names, Units, Files, Values, FunctionTab uint64 // offsets from the header
}

// goTable reads the function table. It is nil for a file that was not made by Go. What it says of the code
// is checked to lie in the file's executable part.
func (f *File) goTable() (*GoTable, error) {
	if !f.Go {
		return nil, nil
	}
	b, at, err := f.findGoTable()
	if err != nil {
		return nil, err
	}
	var h goHeader
	if len(b) < goHeaderSize {
		return nil, fmt.Errorf("%w: it has %d bytes", ErrNoGoTable, len(b))
	}
	if _, err := binary.Decode(b[:goHeaderSize], binary.LittleEndian, &h); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoGoTable, err)
	}
	if h.Magic != goMagic118 && h.Magic != goMagic120 {
		return nil, fmt.Errorf("%w: its form %#x is that of Go before 1.18, or of one to come", ErrNoGoTable, h.Magic)
	}
	size := uint64(len(b))
	for _, off := range []uint64{h.Names, h.Values, h.FunctionTab} {
		if off > size {
			return nil, fmt.Errorf("%w: a part at offset %d of %d bytes", ErrNoGoTable, off, size)
		}
	}
	entries := b[h.FunctionTab:]
	if h.MinLC != 1 || h.PtrSize != 8 || h.NFunc == 0 || h.NFunc > uint64(len(entries))/goFunctabSize {
		return nil, fmt.Errorf("%w: %d functions in %d bytes", ErrNoGoTable, h.NFunc, len(entries))
	}
	r := goReader{f: f, header: &h, entries: entries, names: nameTable{text: string(b[h.Names:])},
		table: &GoTable{pctab: b[h.Values:]}}
	r.names.budget = 8*len(r.names.text) + 1<<20
	first, last := r.entry(0), r.entry(int(h.NFunc))
	if r.text, err = f.goText(at, VAddr(h.TextStart), first, last); err != nil {
		return nil, err
	}
	if err := r.read(); err != nil {
		return nil, err
	}
	return r.table, nil
}

// findGoTable finds the table by its section, or else by how it begins.
func (f *File) findGoTable() ([]byte, VAddr, error) {
	for _, name := range []string{".gopclntab", ".data.rel.ro.gopclntab"} {
		if s := f.named(name); s != nil {
			b, err := f.sectionData(s)
			return b, VAddr(s.Addr), err
		}
	}
	for i := range f.Segments {
		s := &f.Segments[i]
		b, err := f.read(uint64(s.Off), s.FileSize)
		if err != nil {
			return nil, 0, err
		}
		for _, magic := range []byte{goMagic120 & 0xff, goMagic118 & 0xff} {
			begin := []byte{magic, 0xff, 0xff, 0xff, 0, 0, 1, 8}
			if n := bytes.Index(b, begin); n >= 0 {
				return b[n:], s.Addr + VAddr(n), nil
			}
		}
	}
	return nil, 0, fmt.Errorf("%w: it was made by Go, perhaps before 1.18, or is packed", ErrNoGoTable)
}

// Words of runtime's moduledata that say where the code is.
const (
	goModuleMinPC = 20
	goModuleText  = 22
	goModuleWords = 24
)

// goText is the address that the table's offsets count from. The program's own description of the module,
// whose first word points to the table, has it. (The header did, up to Go 1.25.)
func (f *File) goText(table, stated VAddr, first, last uint32) (VAddr, error) {
	pointers, err := f.pointersTo(table)
	if err != nil {
		return 0, err
	}
	for _, at := range pointers {
		b, err := f.bytesAt(at, 8*goModuleWords)
		if err != nil || len(b) < 8*goModuleWords {
			continue
		}
		b = bytes.Clone(b)
		if f.Kind == Dyn {
			if err := f.relocate(b, uint64(at)); err != nil {
				return 0, err
			}
		}
		word := func(i int) VAddr { return VAddr(binary.LittleEndian.Uint64(b[8*i:])) }
		text := word(goModuleText)
		if word(goModuleMinPC) == text+VAddr(first) && word(goModuleMinPC+1) == text+VAddr(last) && f.executable(text) != nil {
			return text, nil
		}
	}
	if stated != 0 && f.executable(stated) != nil && f.executable(stated+VAddr(last)-1) != nil {
		return stated, nil
	}
	return 0, fmt.Errorf("%w: where its code begins is not to be found", ErrNoGoTable)
}

// pointersTo lists the aligned words of writable data that will hold an address, a few at most.
func (f *File) pointersTo(v VAddr) ([]VAddr, error) {
	const most = 16
	var found []VAddr
	add := func(at VAddr, value uint64) {
		if value == uint64(v) && len(found) < most {
			found = append(found, at)
		}
	}
	if f.Kind == Dyn {
		if err := f.scanRelocations(add); err != nil || len(found) > 0 {
			return found, err
		}
	}
	for i := range f.Segments {
		s := &f.Segments[i]
		if !s.Write || s.FileSize == 0 {
			continue
		}
		b, err := f.read(uint64(s.Off), s.FileSize)
		if err != nil {
			return nil, err
		}
		skip := min(-uint64(s.Addr)%pointerSize, uint64(len(b)))
		for at := s.Addr + VAddr(skip); uint64(s.inFile().End-at) >= pointerSize; at += pointerSize {
			add(at, binary.LittleEndian.Uint64(b[at-s.Addr:]))
		}
	}
	return found, nil
}

// goReader reads the functions of a table.
type goReader struct {
	f       *File
	header  *goHeader
	entries []byte
	names   nameTable
	text    VAddr
	table   *GoTable
}

// entry is where function number i starts, counted from the text's start; the table's last entry is the
// end of the last function.
func (r *goReader) entry(i int) uint32 {
	if at := i * goFunctabSize; len(r.entries)-at >= 4 {
		return binary.LittleEndian.Uint32(r.entries[at:])
	}
	return 0
}

func (r *goReader) read() error {
	for i := range int(r.header.NFunc) {
		start, end := r.text+VAddr(r.entry(i)), r.text+VAddr(r.entry(i+1))
		s := r.f.executable(start)
		if s == nil || end <= start || end > s.inFile().End {
			continue // a marker, or nonsense
		}
		off := uint64(binary.LittleEndian.Uint32(r.entries[i*goFunctabSize+4:]))
		fn, ok, err := r.function(Range{start, end}, off)
		if err != nil {
			return err
		}
		if n := len(r.table.funcs); ok && (n == 0 || r.table.funcs[n-1].End <= start) {
			r.table.funcs = append(r.table.funcs, fn)
			r.table.wrapper = max(r.table.wrapper, fn.id)
		}
	}
	if len(r.table.funcs) == 0 {
		return fmt.Errorf("%w: not one of its %d functions lies in the file's code", ErrNoGoTable, r.header.NFunc)
	}
	return nil
}

// function reads the _func at an offset. It reports false for what is no Go function: C code that Go's
// linker linked has no stack depth.
func (r *goReader) function(bounds Range, off uint64) (goFunc, bool, error) {
	id := uint64(goFuncSize - 4)
	if r.header.Magic == goMagic118 {
		id -= 4
	}
	if off > uint64(len(r.entries)) || uint64(len(r.entries))-off < id+4 {
		return goFunc{}, false, nil
	}
	b := r.entries[off:]
	name, ok := r.names.at(binary.LittleEndian.Uint32(b[4:]))
	if !ok {
		return goFunc{}, false, malformed("function names that overlap beyond measure")
	}
	fn := goFunc{Range: bounds, name: name, pcsp: binary.LittleEndian.Uint32(b[16:]), id: b[id], flag: b[id+1]}
	if fn.pcsp == 0 || uint64(fn.pcsp) >= uint64(len(r.table.pctab)) || name == "" {
		return goFunc{}, false, nil
	}
	// The depth is told for the whole function and not for the filling behind it.
	end := fn.Start
	r.table.depths(&fn, func(to VAddr, _ int32) bool { end = to; return true })
	if end > fn.Start {
		fn.End = min(end, fn.End)
	}
	return fn, true, nil
}

// depths calls f for each stretch of a function with where it ends and by how much the stack pointer is
// lower there than at the entry, until f returns false.
func (t *GoTable) depths(fn *goFunc, f func(end VAddr, depth int32) bool) {
	b, pc, depth := t.pctab[fn.pcsp:], fn.Start, int32(-1)
	for step := range goMaxSteps {
		change, n := binary.Uvarint(b)
		if n <= 0 || change == 0 && step > 0 {
			return
		}
		b = b[n:]
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(fn.End-pc) {
			return
		}
		b = b[n:]
		depth += int32(uint32(change)>>1) ^ -int32(uint32(change)&1)
		pc += VAddr(size)
		if !f(pc, depth) {
			return
		}
	}
}

// at is the entry that starts at v, or nil.
func (t *GoTable) at(v VAddr) *goFunc {
	i, ok := slices.BinarySearchFunc(t.funcs, v, func(fn goFunc, v VAddr) int {
		switch {
		case fn.Start < v:
			return -1
		case fn.Start > v:
			return 1
		}
		return 0
	})
	if !ok {
		return nil
	}
	return &t.funcs[i]
}

// Depths calls f for each stretch of the function that starts at start: it ends at end, and the stack
// pointer is depth bytes lower there than at the entry. In functions that set the stack pointer to
// something else (Func.SPWrite) that says nothing. It ends when f returns false.
func (t *GoTable) Depths(start VAddr, f func(end VAddr, depth int32) bool) {
	if fn := t.at(start); fn != nil {
		t.depths(fn, f)
	}
}

// mark notes at functions that have symbols what the table says of them, and returns the functions that
// have none.
func (t *GoTable) mark(named []Func) (others []Func) {
	if t == nil {
		return nil
	}
	bySymbol := make(map[VAddr]*Func, len(named))
	for i := range named {
		bySymbol[named[i].Start] = &named[i]
	}
	stands := t.stands()
	for i := range t.funcs {
		g := &t.funcs[i]
		fn := bySymbol[g.Start]
		if fn == nil {
			others = append(others, Func{Range: g.Range, Bounds: Tabled, Entry: true})
			fn = &others[len(others)-1]
		}
		if fn.End == fn.Start {
			fn.End, fn.Bounds = g.End, Tabled
		}
		fn.Names = withGoName(fn.Names, g.name)
		fn.Go, fn.Asm, fn.SPWrite = true, g.flag&goFlagAsm != 0, g.flag&goFlagSPWrite != 0
		fn.Wrapper = g.id == t.wrapper && stands[g.name]
	}
	return others
}

// withGoName adds the table's name of a function to those of its symbols. Those may be longer, by the calling
// convention (.abi0), or be the linker's own marks (runtime.text).
func withGoName(names []string, name string) []string {
	first := len(names) == 0 || !strings.HasPrefix(names[0], name)
	switch {
	case first:
		names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == name })
		return slices.Insert(names, 0, name)
	case slices.Contains(names, name):
		return names
	}
	return append(slices.Clip(names), name)
}

// stands has the names of functions that are not generated.
func (t *GoTable) stands() map[string]bool {
	names := make(map[string]bool, len(t.funcs))
	for i := range t.funcs {
		if t.funcs[i].id != t.wrapper {
			names[t.funcs[i].name] = true
		}
	}
	return names
}
