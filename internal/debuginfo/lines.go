package debuginfo

import (
	"cmp"
	"debug/dwarf"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"trapless/internal/image"
	"trapless/internal/lang"
)

// Lines implements lang.TypeSource: the addresses of the code of a line, where a debugger would put a breakpoint, one
// in each function that has code of it.
func (s *Source) Lines(a *lang.AttachPoint) ([]uint64, error) {
	f := s.fileOf(a)
	if f == nil {
		return nil, errors.New("the file has no debug information, which knows the lines of source (compile with -g, or give --debuginfo DIRECTORY)")
	}
	fs, err := f.functionTable()
	if err != nil {
		return nil, err
	}
	found, err := f.lines(a.Source)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("there is no code of a file %s", a.Source)
	}
	return firstOfFunctions(fs, found, a)
}

// statement is where the code of a statement begins.
type statement struct {
	addr      uint64
	line, col int
}

// lines are the statements of a source file, which is named by the end of its path.
func (f *debugFile) lines(file string) (all []statement, err error) {
	defer caught(&err)
	r := f.main.data.Reader()
	for last := dwarf.Offset(0); ; {
		unit, err := r.Next()
		if err != nil || unit == nil || unit.Offset < last {
			return all, err
		}
		last = unit.Offset + 1 // a crafted file may lead back
		lines, err := f.main.data.LineReader(unit)
		if err == nil && lines != nil && slices.ContainsFunc(lines.Files(), func(l *dwarf.LineFile) bool { return l != nil && endsWith(l.Name, file) }) {
			all = append(all, statementsOf(lines, file)...)
		}
		r.SkipChildren()
	}
}

// endsWith reports whether a path ends with whole names of another one.
func endsWith(name, end string) bool {
	name, end = path.Clean(name), path.Clean(end)
	return name == end || strings.HasSuffix(name, "/"+strings.TrimPrefix(end, "/")) && !path.IsAbs(end)
}

// statementsOf are the statements of a file in a unit's table, up to where that makes no sense.
func statementsOf(lines *dwarf.LineReader, file string) (all []statement) {
	var e dwarf.LineEntry
	for {
		err := lines.Next(&e)
		if errors.Is(err, io.EOF) || err != nil {
			return all
		}
		if e.IsStmt && !e.EndSequence && e.File != nil && e.Line > 0 && endsWith(e.File.Name, file) {
			all = append(all, statement{e.Address, e.Line, e.Column})
		}
	}
}

// firstOfFunctions are the first addresses of a line, and a column if one is asked for, in each function.
func firstOfFunctions(fs *image.Functions, all []statement, a *lang.AttachPoint) ([]uint64, error) {
	first := map[image.VAddr]uint64{}
	var columns []int
	nearest := 0
	for _, s := range all {
		if s.line != a.Line {
			if nearest == 0 || abs(s.line-a.Line) < abs(nearest-a.Line) {
				nearest = s.line
			}
			continue
		}
		fn, ok := fs.At(image.VAddr(s.addr))
		if !ok {
			continue
		}
		if a.Column != 0 && s.col != a.Column {
			columns = append(columns, s.col)
			continue
		}
		if old, ok := first[fn.Start]; !ok || s.addr < old {
			first[fn.Start] = s.addr
		}
	}
	switch {
	case len(first) > 0:
	case len(columns) > 0:
		slices.Sort(columns)
		return nil, fmt.Errorf("no statement of %s:%d begins in column %d; there are %v", a.Source, a.Line, a.Column, slices.Compact(columns))
	default:
		return nil, fmt.Errorf("there is no code of %s:%d; the nearest is of line %d", a.Source, a.Line, nearest)
	}
	var out []uint64
	for _, at := range first {
		out = append(out, at)
	}
	slices.SortFunc(out, cmp.Compare[uint64])
	return out, nil
}

func abs(n int) int { return max(n, -n) }
