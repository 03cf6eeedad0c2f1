// Package debuginfo reads what compilers write down for debuggers: where the separate file with it is, types,
// and the parameters of functions. It is a lang.TypeSource.
//
// Only the layouts of DWARF are taken from debug/dwarf; what it makes of a crafted file is caught here, and is
// an error.
package debuginfo

import (
	"encoding/hex"
	"hash/crc32"
	"io"
	"os"
	"path"
	"slices"

	"trapless/internal/image"
	"trapless/internal/unix"
)

// directory is where distributions keep separate files with debug information (GDB manual, "Debugging
// Information in Separate Files").
const directory = "/usr/lib/debug"

// File is a file with symbols or debug information.
type File struct {
	Path  string
	Image *image.File
	file  *os.File
}

// Close closes the file.
func (f *File) Close() { f.file.Close() }

// Find looks for the separate file of a program or library: by its build id, or by the name and checksum that it
// gives. root is where the target's file system begins, "" for ours; name is the file's path there. dirs are
// directories of ours that are searched first, or files; a relative one is also that below the directory of the file.
// It is nil if there is none.
func Find(root, name string, of *image.File, dirs ...string) *File {
	link, sum := of.DebugLink()
	for _, d := range slices.Clone(dirs) {
		if !path.IsAbs(d) {
			dirs = append(dirs, root+path.Join(path.Dir(name), d))
		}
	}
	if id := of.BuildID; len(id) > 1 {
		same := func(f *File) bool {
			return string(f.Image.BuildID) == string(id) && (f.Image.HasDWARF() || f.Image.HasSymtab())
		}
		for _, at := range byBuildID(root, name, link, hex.EncodeToString(id), dirs) {
			if f := open(at, same); f != nil {
				return f
			}
		}
	}
	if link == "" {
		return nil
	}
	for _, d := range dirs {
		if f := open(path.Join(d, link), func(f *File) bool { return f.checksum() == sum }); f != nil {
			return f
		}
	}
	dir := path.Dir(name)
	for _, at := range []string{path.Join(dir, link), path.Join(dir, ".debug", link), path.Join(directory, dir, link)} {
		if at == name {
			continue
		}
		if f := open(root+at, func(f *File) bool { return f.checksum() == sum }); f != nil {
			return f
		}
	}
	return nil
}

// byBuildID are the paths at which a file with the same build id may lie: by the id, or in dirs by the names that
// objcopy and distributions give.
func byBuildID(root, name, link, id string, dirs []string) []string {
	var out []string
	own := path.Join(".build-id", id[:2], id[2:]+".debug")
	for _, d := range dirs {
		base := path.Base(name)
		out = append(out, d, path.Join(d, own), path.Join(d, base+".debug"), path.Join(d, base))
		if link != "" {
			out = append(out, path.Join(d, link))
		}
	}
	return append(out, root+path.Join(directory, own), path.Join(directory, own))
}

// open opens a file that is the one that is meant.
func open(name string, meant func(*File) bool) *File {
	file, err := unix.OpenNow(name)
	if err != nil {
		return nil
	}
	f := &File{Path: name, file: file}
	st, err := file.Stat()
	if err == nil && st.Mode().IsRegular() {
		f.Image, err = image.NewDebug(file, st.Size())
	}
	if err != nil || f.Image == nil || !meant(f) {
		file.Close()
		return nil
	}
	return f
}

// checksum is the one that a debug link has.
func (f *File) checksum() uint32 {
	sum := crc32.NewIEEE()
	st, err := f.file.Stat()
	if err != nil {
		return 0
	}
	if _, err := io.Copy(sum, io.NewSectionReader(f.file, 0, st.Size())); err != nil {
		return 0
	}
	return sum.Sum32()
}

// AddSymbols gives a stripped file the names that are kept elsewhere: in itself, packed, or in a separate file.
// It returns what has to be closed when the names are not read any more, nil if there is nothing. What cannot be
// read is as if it were not there.
func AddSymbols(root, name string, f *image.File) *File {
	if f.HasSymtab() {
		return nil
	}
	if mini, err := f.MiniDebug(); err == nil && mini != nil {
		f.AddSymbols(mini)
	}
	separate := Find(root, name, f)
	if separate != nil {
		f.AddSymbols(separate.Image)
	}
	return separate
}
