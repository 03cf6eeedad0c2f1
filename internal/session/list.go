package session

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"trapless/internal/debuginfo"
	"trapless/internal/image"
	"trapless/internal/proc"
)

// listed are the probe types that are listed, with those that have nothing to look up.
var listed = []struct {
	name  string
	units []string
}{
	{"uprobe", nil}, {"uretprobe", nil}, {"usdt", nil},
	{"interval", []string{"hz:", "us:", "ms:", "s:"}},
	{"begin", []string{""}}, {"end", []string{""}},
}

// ListOptions say what List lists.
type ListOptions struct {
	PID        int      // of the process whose files are meant; 0 for any file
	Parameters bool     // list the parameters of functions, too, and what a uretprobe's returns
	DebugDirs  []string // where separate debug information is looked for, too
}

// lister lists probes.
type lister struct {
	ListOptions
	w    io.Writer
	kind string
}

// List writes the probes that fit a pattern, TYPE:FILE:FUNCTION, in which '*' stands
// for any characters. With a process, files are those that it has mapped, by their
// paths there.
func List(w io.Writer, pattern string, o ListOptions) error {
	parts := splitPattern(pattern)
	if len(parts) == 1 {
		parts = []string{"*", parts[0]}
	}
	for _, kind := range listed {
		if !fits(parts[0], kind.name) {
			continue
		}
		for _, unit := range kind.units {
			if parts[1] == "*" || len(parts) == 2 && fits(parts[1]+"*", unit) || unit == "" || parts[1]+":" == unit {
				fmt.Fprintln(w, strings.TrimSuffix(kind.name+":"+unit, "::"))
			}
		}
		if kind.units != nil {
			continue
		}
		l := lister{o, w, kind.name}
		if err := l.files(parts[1:]); err != nil {
			return err
		}
	}
	return nil
}

// splitPattern splits at the colons that are not doubled.
func splitPattern(p string) []string {
	const double = "\x00"
	parts := strings.Split(strings.ReplaceAll(p, "::", double), ":")
	for i := range parts {
		parts[i] = strings.ReplaceAll(parts[i], double, "::")
	}
	return parts
}

// fits compares with a pattern whose only special character is '*'.
func fits(pattern, s string) bool {
	first, rest, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == s
	}
	if !strings.HasPrefix(s, first) {
		return false
	}
	for s = s[len(first):]; ; s = s[1:] {
		if fits(rest, s) {
			return true
		}
		if s == "" {
			return false
		}
	}
}

// files lists what files have. parts are file and function.
func (l *lister) files(parts []string) error {
	find := functionsOf(parts)
	if l.kind == "usdt" {
		find = markersOf(parts)
	}
	files, err := listedFiles(parts[0], l.PID)
	if err != nil {
		return err
	}
	for _, f := range files {
		found, err := foundIn(f.root+f.open, find)
		if err != nil {
			if len(files) == 1 {
				return fmt.Errorf("%s: %w", f.name, err)
			}
			continue
		}
		l.file(&f, found)
	}
	return nil
}

// file lists what there is in one file.
func (l *lister) file(f *listedFile, all []found) {
	var known *debuginfo.Signatures
	if l.Parameters && l.kind != "usdt" {
		if s, err := debuginfo.OpenSignatures(f.root, f.open, l.DebugDirs...); err == nil { // else nothing is known
			known = s
			defer s.Close()
		}
	}
	for _, it := range all {
		fmt.Fprintf(l.w, "%s:%s:%s\n", l.kind, f.name, it.name)
		if known == nil {
			continue
		}
		params, result, ok := known.Of(it.at)
		if l.kind == "uretprobe" && ok && result != "void" {
			params = []string{result + " retval"}
		} else if l.kind == "uretprobe" {
			params = nil
		}
		for _, p := range params {
			fmt.Fprintf(l.w, "    %s\n", p)
		}
	}
}

// listedFile is a file by the name that is printed and the one by which it is read, in the file system at root.
type listedFile struct{ name, root, open string }

func listedFiles(pattern string, pid int) ([]listedFile, error) {
	var out []listedFile
	if pid == 0 {
		if pattern == "*" {
			return nil, nil
		}
		names, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if strings.HasPrefix(pattern, "./") {
				name = "./" + strings.TrimPrefix(name, "./")
			}
			out = append(out, listedFile{name, "", name})
		}
		return out, nil
	}
	maps, err := proc.ReadMaps(pid)
	if err != nil {
		return nil, err
	}
	for i := range maps {
		m := &maps[i]
		root := proc.Path(pid, "root")
		if m.Perm&proc.Exec == 0 || !m.File() || slices.ContainsFunc(out, func(f listedFile) bool { return f.name == m.Path }) {
			continue
		}
		if fits(pattern, m.Path) || fits(pattern, filepath.Base(m.Path)) || sameAs(pattern, root+m.Path) {
			out = append(out, listedFile{m.Path, root, m.Path})
		}
	}
	return out, nil
}

func sameAs(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// found is something to probe: its name, and where it is.
type found struct {
	name string
	at   image.VAddr
}

// foundIn lists what there is to probe in a file.
func foundIn(path string, find func(*image.File) ([]found, error)) ([]found, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	img, err := image.New(f, st.Size())
	if err != nil {
		return nil, err
	}
	all, err := find(img)
	slices.SortFunc(all, func(a, b found) int { return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.at, b.at)) })
	return slices.CompactFunc(all, func(a, b found) bool { return a.name == b.name }), err
}

// functionsOf finds functions. parts are the file and, or not, the function.
func functionsOf(parts []string) func(*image.File) ([]found, error) {
	return func(img *image.File) ([]found, error) {
		funcs, err := img.Functions()
		if err != nil {
			return nil, err
		}
		fn := "*"
		if len(parts) > 1 {
			fn = parts[len(parts)-1]
		}
		var all []found
		for _, m := range funcs.Match(fn) {
			if name := m.Name(); name != "" {
				all = append(all, found{name, m.Start})
			}
		}
		return all, nil
	}
}

// markersOf finds USDT probes. parts are the file and, or not, the provider and the name.
func markersOf(parts []string) func(*image.File) ([]found, error) {
	provider, name := "*", "*"
	switch len(parts) {
	case 1:
	case 2:
		name = parts[1]
	default:
		provider, name = parts[1], parts[2]
	}
	return func(img *image.File) ([]found, error) {
		markers, err := img.Markers()
		var all []found
		for _, m := range markers {
			if (provider == "" || fits(provider, m.Provider)) && fits(name, m.Name) {
				all = append(all, found{m.Provider + ":" + m.Name, m.At})
			}
		}
		return all, err
	}
}
