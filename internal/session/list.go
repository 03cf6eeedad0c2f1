package session

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

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

// List writes the probes that fit a pattern, TYPE:FILE:FUNCTION, in which '*' stands
// for any characters. With a process, files are those that it has mapped, by their
// paths there.
func List(w io.Writer, pattern string, pid int) error {
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
		if err := listFunctions(w, kind.name, parts[1:], pid); err != nil {
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

// listFunctions lists the functions of files. parts are file and function.
func listFunctions(w io.Writer, kind string, parts []string, pid int) error {
	find := functionsOf(parts)
	if kind == "usdt" {
		find = markersOf(parts)
	}
	files, err := listedFiles(parts[0], pid)
	if err != nil {
		return err
	}
	for _, f := range files {
		names, err := namesOf(f.open, find)
		if err != nil {
			if len(files) == 1 {
				return fmt.Errorf("%s: %w", f.name, err)
			}
			continue
		}
		for _, name := range names {
			fmt.Fprintf(w, "%s:%s:%s\n", kind, f.name, name)
		}
	}
	return nil
}

// listedFile is a file by the name that is printed and the one by which it is read.
type listedFile struct{ name, open string }

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
			out = append(out, listedFile{name, name})
		}
		return out, nil
	}
	maps, err := proc.ReadMaps(pid)
	if err != nil {
		return nil, err
	}
	for i := range maps {
		m := &maps[i]
		open := proc.Path(pid, "root") + m.Path
		if m.Perm&proc.Exec == 0 || !m.File() || slices.ContainsFunc(out, func(f listedFile) bool { return f.name == m.Path }) {
			continue
		}
		if fits(pattern, m.Path) || fits(pattern, filepath.Base(m.Path)) || sameAs(pattern, open) {
			out = append(out, listedFile{m.Path, open})
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

// namesOf lists what there is to probe in a file.
func namesOf(path string, find func(*image.File) ([]string, error)) ([]string, error) {
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
	names, err := find(img)
	slices.Sort(names)
	return slices.Compact(names), err
}

// functionsOf finds functions. parts are the file and, or not, the function.
func functionsOf(parts []string) func(*image.File) ([]string, error) {
	return func(img *image.File) ([]string, error) {
		funcs, err := img.Functions()
		if err != nil {
			return nil, err
		}
		fn := "*"
		if len(parts) > 1 {
			fn = parts[len(parts)-1]
		}
		var names []string
		for _, m := range funcs.Match(fn) {
			if name := m.Name(); name != "" {
				names = append(names, name)
			}
		}
		return names, nil
	}
}

// markersOf finds USDT probes. parts are the file and, or not, the provider and the name.
func markersOf(parts []string) func(*image.File) ([]string, error) {
	provider, name := "*", "*"
	switch len(parts) {
	case 1:
	case 2:
		name = parts[1]
	default:
		provider, name = parts[1], parts[2]
	}
	return func(img *image.File) ([]string, error) {
		all, err := img.Markers()
		var names []string
		for _, m := range all {
			if (provider == "" || fits(provider, m.Provider)) && fits(name, m.Name) {
				names = append(names, m.Provider+":"+m.Name)
			}
		}
		return names, err
	}
}
