package image

import (
	"slices"
	"sort"
	"strings"
	"sync"
)

// Bounds says how the end of a function is known.
type Bounds uint8

const (
	Stated  Bounds = iota // by its symbol
	Unwound               // by the unwind table
	Guessed               // it ends where the next function or the section's end is
	Tabled                // by Go's function table
)

// String names the source of the bounds.
func (b Bounds) String() string {
	return [...]string{"symbol", "unwind table", "guess", "Go's function table"}[b]
}

// Func is a function: a range of code that is entered at its start.
type Func struct {
	Range
	Names  []string // of all symbols at Start without versions, the best first; none if the file does not say
	Bounds Bounds

	// Entry: the function is entered by calls (or jumps in place of calls), as the ABI has it, with nothing
	// live below the stack pointer. False for the unlikely part of a function that the compiler moved
	// elsewhere (.cold) and jumps to, and for code that only the unwind table knows, which may be one.
	Entry bool
	// Altered: the compiler's own variant of a function (.isra, .constprop, .part), whose parameters may
	// not be those of the source.
	Altered bool
	// Framed: it has no name, and its unwind table entry says that there is a frame already where it begins: it
	// is a part of a function that lies elsewhere, and is jumped to.
	Framed bool
	// IFunc: the code chooses the function that the name stands for (STT_GNU_IFUNC).
	IFunc bool

	// Go: the function runs on goroutine stacks, because Go compiled or assembled it. What follows is of
	// such functions alone.
	Go bool
	// Asm: it was written in assembly.
	Asm bool
	// SPWrite: it sets the stack pointer to something else than a constant distance from where it was.
	SPWrite bool
	// Wrapper: it only calls the function of the same name, by another calling convention.
	Wrapper bool
}

// Name is the function's best name, or "" if it has none.
func (fn *Func) Name() string {
	if len(fn.Names) == 0 {
		return ""
	}
	return fn.Names[0]
}

// Functions is a file's table of functions, sorted by start. It is immutable and needs the file only for
// reading code.
type Functions struct {
	// Go is the function table of a Go file; nil for others, and with GoProblem, why it cannot be read. Then it
	// is not known which functions are Go's.
	Go        *GoTable
	GoProblem error

	file  *File
	all   []Func
	outer []int32 // for each function the nearest one before it that ends later, or -1

	prettyMu sync.Mutex
	pretty   map[string]string // names that were demangled
}

// Functions reads the file's symbols and, for what has no symbol or no size, Go's function table and the
// unwind table.
func (f *File) Functions() (*Functions, error) {
	symbols, err := f.readSymbols()
	if err != nil {
		return nil, err
	}
	ranges, err := f.unwindRanges()
	if err != nil {
		return nil, err
	}
	table, problem := f.goTable()
	named := f.namedFunctions(symbols)
	named = f.merge(named, table.mark(named))
	f.boundByUnwind(named, ranges)
	framed, err := f.framedRanges()
	if err != nil {
		return nil, err
	}
	all := f.merge(named, f.namelessFunctions(named, ranges, framed))
	f.boundByNext(all)
	return &Functions{Go: table, GoProblem: problem, file: f, all: all, outer: nest(all)}, nil
}

// namedFunctions makes one function of all symbols at an address. A symbol without a size leaves End at
// Start.
func (f *File) namedFunctions(symbols []symbol) []Func {
	names := make([]string, len(symbols))
	for i, s := range symbols {
		names[i] = s.name
	}
	var all []Func
	for i := 0; i < len(symbols); {
		fn := Func{Range: Range{symbols[i].addr, symbols[i].addr}, Altered: true}
		first := i
		var size uint64
		for ; i < len(symbols) && symbols[i].addr == fn.Start; i++ {
			size = max(size, symbols[i].size)
			cold, altered := f.form(symbols[i].name)
			fn.Entry = fn.Entry || !cold
			fn.Altered = fn.Altered && altered
			fn.IFunc = fn.IFunc || symbols[i].ifunc
		}
		fn.Names = names[first:i:i]
		limit := uint64(f.executable(fn.Start).inFile().End - fn.Start)
		fn.End += VAddr(min(size, limit))
		all = append(all, fn)
	}
	return all
}

// form reads what the compiler appended to a name. Go's names may hold any word between dots.
func (f *File) form(name string) (cold, altered bool) {
	if f.Go || !strings.Contains(name, ".") {
		return false, false
	}
	if strings.HasPrefix(name, "_ZN") { // Rust's older names have dots inside, before the last E
		name = name[strings.LastIndexByte(name, 'E')+1:]
	}
	_, suffix, _ := strings.Cut(name, ".")
	for word := range strings.SplitSeq(suffix, ".") {
		switch word {
		case "cold":
			cold = true
		case "isra", "constprop", "part":
			altered = true
		}
	}
	return cold, altered
}

// boundByUnwind gives functions without a size the end of the unwind entry that they lie in.
func (f *File) boundByUnwind(named []Func, ranges []Range) {
	for i := range named {
		fn := &named[i]
		if fn.End > fn.Start {
			continue
		}
		fn.Bounds = Guessed
		j := sort.Search(len(ranges), func(j int) bool { return ranges[j].Start > fn.Start }) - 1
		if j >= 0 && ranges[j].Contains(fn.Start) {
			fn.End, fn.Bounds = ranges[j].End, Unwound
		}
	}
}

// namelessFunctions are the unwind entries that begin outside every named function, cut at the next named
// one. The linker's stubs have entries too, but are no functions. Those that begin with a frame are among both
// lists.
func (f *File) namelessFunctions(named []Func, ranges, framed []Range) []Func {
	stubs := f.Linkage()
	var nameless []Func
	next := 0         // the first named function behind the range's start
	var covered VAddr // the end of all named functions before
	var lastStart = ^VAddr(0)
	for _, r := range ranges {
		for ; next < len(named) && named[next].Start <= r.Start; next++ {
			covered = max(covered, named[next].End)
		}
		known := next > 0 && (named[next-1].Start == r.Start || r.Start < covered)
		inStub := slices.ContainsFunc(stubs, func(s Region) bool { return s.Contains(r.Start) })
		if known || inStub || r.Start == lastStart {
			continue
		}
		if next < len(named) {
			r.End = min(r.End, named[next].Start)
		}
		lastStart = r.Start
		for len(framed) > 0 && framed[0].Start < r.Start {
			framed = framed[1:]
		}
		nameless = append(nameless, Func{Range: r, Bounds: Unwound, Entry: r.Start == f.Entry,
			Framed: len(framed) > 0 && framed[0].Start == r.Start})
	}
	return nameless
}

// merge merges two tables that are sorted by start and have no start in common.
func (f *File) merge(a, b []Func) []Func {
	all := make([]Func, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if a[0].Start < b[0].Start {
			all, a = append(all, a[0]), a[1:]
		} else {
			all, b = append(all, b[0]), b[1:]
		}
	}
	return append(append(all, a...), b...)
}

// boundByNext ends the functions whose end is still unknown at the next function, the section's end or
// the segment's.
func (f *File) boundByNext(all []Func) {
	for i := range all {
		fn := &all[i]
		if fn.End > fn.Start {
			continue
		}
		fn.End = f.codeEnd(fn.Start)
		if i+1 < len(all) {
			fn.End = min(fn.End, all[i+1].Start)
		}
	}
}

// codeEnd is the end of the executable section, or else segment, that holds v.
func (f *File) codeEnd(v VAddr) VAddr {
	end := f.executable(v).inFile().End
	for _, r := range f.code {
		if r.Contains(v) {
			return min(end, r.End)
		}
	}
	return end
}

// nest computes Functions.outer.
func nest(all []Func) []int32 {
	outer := make([]int32, len(all))
	for i := range all {
		o := int32(i) - 1
		for o >= 0 && all[o].End <= all[i].End {
			o = outer[o]
		}
		outer[i] = o
	}
	return outer
}

// All returns every function, sorted by start. The caller must not change it.
func (fs *Functions) All() []Func { return fs.all }

// At returns the function that holds the byte at v, the innermost if one lies in another.
func (fs *Functions) At(v VAddr) (Func, bool) {
	for i := fs.before(v); i >= 0; i = int(fs.outer[i]) {
		if v < fs.all[i].End {
			return fs.all[i], true
		}
	}
	return Func{}, false
}

// before is the index of the last function that starts at or before v, or -1.
func (fs *Functions) before(v VAddr) int {
	return sort.Search(len(fs.all), func(i int) bool { return fs.all[i].Start > v }) - 1
}

// Next is where the next function after v starts; the end of v's section, or segment, if none does there.
// It is v itself when v is not executable.
func (fs *Functions) Next(v VAddr) VAddr {
	if fs.file.executable(v) == nil {
		return v
	}
	end := fs.file.codeEnd(v)
	if i := fs.before(v) + 1; i < len(fs.all) {
		end = min(end, fs.all[i].Start)
	}
	return end
}

// Inner lists the functions that start inside a range, behind its first byte: other ways into its code.
func (fs *Functions) Inner(r Range) []Func {
	first := fs.before(r.Start) + 1
	last := first
	for last < len(fs.all) && fs.all[last].Start < r.End {
		last++
	}
	return fs.all[first:last]
}

// Code reads a function's bytes.
func (fs *Functions) Code(fn Func) ([]byte, error) { return fs.file.Code(fn.Range) }

// Body reads a function's bytes, and those behind it up to the next one that are nothing but filling: nops,
// int3, zeros. There are none where another function encloses this one, since code follows then.
func (fs *Functions) Body(fn Func) (code, padding []byte, err error) {
	end := fn.End
	s := fs.file.executable(fn.Start)
	if _, inside := fs.At(fn.End); !inside && s != nil && fn.End < s.inFile().End {
		// Compilers align functions to 64 bytes at most; a longer gap is something else.
		const longest = 256
		end = min(fs.Next(fn.End), fn.End+longest, s.inFile().End)
	}
	b, err := fs.file.Code(Range{fn.Start, end})
	if err != nil {
		return nil, nil, err
	}
	n := int(fn.Len())
	return b[:n:n], b[n : n+filling(b[n:])], nil
}

// filling is the length of the bytes at the start of b that compilers and linkers fill gaps with: nops of
// any length (Intel SDM volume 2, NOP, with the operand-size and CS prefixes that assemblers add), int3
// and zeros.
func filling(b []byte) int {
	n := 0
	for n < len(b) {
		size := fillSize(b[n:])
		if size == 0 {
			return n
		}
		n += size
	}
	return n
}

func fillSize(b []byte) int {
	if b[0] == 0xcc || b[0] == 0 {
		return 1
	}
	i := 0
	for i < len(b) && (b[i] == 0x66 || b[i] == 0x2e) {
		i++
	}
	switch {
	case i < len(b) && b[i] == 0x90:
		return i + 1
	case i+2 < len(b) && b[i] == 0x0f && b[i+1] == 0x1f:
		return fits(i+2+addressSize(b[i+2:]), b)
	}
	return 0
}

// addressSize is the size of a ModRM byte with what it asks for behind it.
func addressSize(b []byte) int {
	mod, rm := b[0]>>6, b[0]&7
	size := 1
	switch {
	case mod == 3:
		return size
	case rm == 4:
		size++ // SIB
	}
	switch {
	case mod == 1:
		size++
	case mod == 2, mod == 0 && rm == 5, mod == 0 && rm == 4 && len(b) > 1 && b[1]&7 == 5:
		size += 4
	}
	return size
}

func fits(size int, b []byte) int {
	if size > len(b) {
		return 0
	}
	return size
}
