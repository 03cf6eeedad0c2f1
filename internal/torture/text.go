package torture

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"trapless/internal/proc"
)

// textChanges compares the text of a process with its files and describes the first
// difference, "" if there is none. Mappings that go meanwhile are left out.
func textChanges(pid int) (string, error) {
	maps, err := proc.ReadMaps(pid)
	if err != nil {
		return "", err
	}
	mem, err := os.Open(proc.Path(pid, "mem"))
	if err != nil {
		return "", err
	}
	defer mem.Close()
	for i := range maps {
		m := &maps[i]
		if m.Perm&proc.Exec == 0 || !m.File() {
			continue
		}
		diff, err := compareText(pid, mem, m)
		if err != nil {
			continue
		}
		if diff != "" && stillMapped(pid, m) {
			return diff, nil
		}
	}
	return "", nil
}

func compareText(pid int, mem *os.File, m *proc.Mapping) (string, error) {
	f, err := proc.OpenMapped(pid, m)
	if err != nil {
		return "", err
	}
	defer f.Close()
	got, want := make([]byte, m.Len()), make([]byte, m.Len())
	n, err := f.ReadAt(want, int64(m.Offset))
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	if _, err := mem.ReadAt(got[:n], int64(m.Start)); err != nil {
		return "", err
	}
	for i := range n {
		if got[i] != want[i] {
			end := min(i+16, n)
			return fmt.Sprintf("%s+%#x has % x, the file % x", m.Path[strings.LastIndexByte(m.Path, '/')+1:], m.Offset+uint64(i), got[i:end], want[i:end]), nil
		}
	}
	return "", nil
}

// stillMapped reports whether a mapping is there, after what was read of it.
func stillMapped(pid int, m *proc.Mapping) bool {
	maps, err := proc.ReadMaps(pid)
	if err != nil {
		return false
	}
	now := maps.Find(m.Start)
	return now != nil && now.Start == m.Start && now.SameFile(m)
}
