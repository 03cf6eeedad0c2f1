package trapless

import (
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"trapless/internal/debuginfo"
	"trapless/internal/lang"
	"trapless/internal/proc"
	"trapless/internal/session"
)

// types are those of the target: of a process, or of a program that will be started.
func (o *CompileOptions) types() *debuginfo.Source {
	if o.PID > 0 {
		return debuginfo.New(proc.Path(o.PID, "root"), func(a *lang.AttachPoint) string { return fileOfProcess(o.PID, a) }, o.DebugDirs...)
	}
	return debuginfo.New("", func(a *lang.AttachPoint) string { return fileOfProgram(o.Program, a) }, o.DebugDirs...)
}

// fileOfProcess is the path, in the process's file system, of the file that an attach point names.
func fileOfProcess(pid int, a *lang.AttachPoint) string {
	switch {
	case a.Path == "":
		exe, _ := proc.Exe(pid) // without one there are no types
		return strings.TrimSuffix(exe, " (deleted)")
	case strings.Contains(a.Path, "/"):
		return absolute(a.Path)
	}
	maps, err := proc.ReadMaps(pid)
	if err != nil {
		return ""
	}
	for i := range maps {
		if m := &maps[i]; m.File() && m.Perm&proc.Exec != 0 && lang.IsLibrary(path.Base(m.Path), a.Path) {
			return m.Path
		}
	}
	return ""
}

// fileOfProgram is the path of the file that an attach point names, before the program runs.
func fileOfProgram(program string, a *lang.AttachPoint) string {
	switch {
	case a.Path == "":
		found, err := exec.LookPath(program)
		if err != nil {
			return ""
		}
		return absolute(found)
	case strings.Contains(a.Path, "/"):
		return absolute(a.Path)
	}
	name, _ := session.LibraryFile("", a.Path) // without one there are no types
	return name
}

func absolute(name string) string {
	abs, err := filepath.Abs(name)
	if err != nil {
		return ""
	}
	return abs
}
