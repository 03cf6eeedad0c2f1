package testkit

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Mapping is one line of /proc/PID/maps. Start and End are addresses in that process.
type Mapping struct {
	Start, End uint64
	Perms      string // "r-xp"
	Offset     uint64 // in the file
	Inode      uint64
	Path       string // as the kernel prints it, with " (deleted)"; empty for anonymous memory
}

// String is the mapping as one line.
func (m Mapping) String() string {
	return fmt.Sprintf("%x-%x %s %x %d %s", m.Start, m.End, m.Perms, m.Offset, m.Inode, m.Path)
}

// Footprint is what a process holds that a tracer could leave behind.
type Footprint struct {
	Mappings []Mapping
	FDs      []string // "3 -> /dev/null", by number
	Threads  int
	Actions  map[string]string // signal masks and actions of /proc/PID/status: SigBlk, SigIgn, SigCgt
}

// TakeFootprint reads the footprint of a process. A process that changes meanwhile gives a mixed one:
// take it while the process waits.
func TakeFootprint(t testing.TB, pid int) Footprint {
	t.Helper()
	fds, err := readFDs(pid)
	if err != nil {
		t.Fatal(err)
	}
	actions, err := readActions(pid)
	if err != nil {
		t.Fatal(err)
	}
	threads, err := os.ReadDir(procPath(pid, "task"))
	if err != nil {
		t.Fatal(err)
	}
	return Footprint{Mappings: Mappings(t, pid), FDs: fds, Threads: len(threads), Actions: actions}
}

// Diff lists what differs between two footprints: "+ " before what is new, "- " before what is gone.
// Growth of the heap and of stacks is no difference.
func (before Footprint) Diff(after Footprint) []string {
	diff := diffLines(mappingLines(before.Mappings), mappingLines(after.Mappings))
	diff = append(diff, diffLines(before.FDs, after.FDs)...)
	if before.Threads != after.Threads {
		diff = append(diff, fmt.Sprintf("- %d threads", before.Threads), fmt.Sprintf("+ %d threads", after.Threads))
	}
	return append(diff, diffLines(actionLines(before.Actions), actionLines(after.Actions))...)
}

// Mappings reads /proc/PID/maps.
func Mappings(t testing.TB, pid int) []Mapping {
	t.Helper()
	maps, err := readMaps(pid)
	if err != nil {
		t.Fatal(err)
	}
	return maps
}

func procPath(pid int, name string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), name)
}

// memoryPath is the path of a file about a process's memory. When the leader has ended before its
// other threads, only theirs say anything.
func memoryPath(pid int, file string) string {
	tasks, _ := os.ReadDir(procPath(pid, "task"))
	names := []string{strconv.Itoa(pid)} // the leader first: others come and go
	for _, task := range tasks {
		names = append(names, task.Name())
	}
	for _, name := range names {
		dir := filepath.Join("task", name)
		stat, err := os.ReadFile(procPath(pid, filepath.Join(dir, "stat")))
		if err == nil && !bytes.Contains(stat, []byte(") Z ")) {
			return procPath(pid, filepath.Join(dir, file))
		}
	}
	return procPath(pid, file)
}

func readMaps(pid int) ([]Mapping, error) {
	text, err := os.ReadFile(memoryPath(pid, "maps"))
	if err != nil {
		return nil, err
	}
	var maps []Mapping
	for line := range strings.Lines(string(text)) {
		m, err := parseMapping(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return nil, fmt.Errorf("/proc/%d/maps: %q: %w", pid, line, err)
		}
		maps = append(maps, m)
	}
	return maps, nil
}

// parseMapping parses a line such as
//
//	7f01-7f02 r-xp 00001000 fe:00 123    /usr/lib/x86_64-linux-gnu/libc.so.6
func parseMapping(line string) (Mapping, error) {
	var m Mapping
	var device string
	_, err := fmt.Sscanf(line, "%x-%x %s %x %s %d", &m.Start, &m.End, &m.Perms, &m.Offset, &device, &m.Inode)
	fields := strings.SplitN(line, " ", 6)
	if len(fields) == 6 {
		m.Path = strings.TrimLeft(fields[5], " ")
	}
	return m, err
}

func mappingLines(maps []Mapping) []string {
	var lines []string
	for _, m := range maps {
		switch {
		case m.Path == "[heap]":
			m.End = 0
		case m.Path == "[stack]":
			m.Start = 0
		}
		lines = append(lines, m.String())
	}
	return lines
}

func readFDs(pid int) ([]string, error) {
	dir := procPath(pid, "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var fds []string
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // closed since
		}
		fds = append(fds, e.Name()+" -> "+to)
	}
	return fds, nil
}

func readActions(pid int) (map[string]string, error) {
	text, err := os.ReadFile(procPath(pid, "status"))
	if err != nil {
		return nil, err
	}
	actions := map[string]string{}
	scan := bufio.NewScanner(bytes.NewReader(text))
	for scan.Scan() {
		name, value, _ := strings.Cut(scan.Text(), ":")
		if name == "SigBlk" || name == "SigIgn" || name == "SigCgt" {
			actions[name] = strings.TrimSpace(value)
		}
	}
	return actions, scan.Err()
}

func actionLines(actions map[string]string) []string {
	var lines []string
	for name, mask := range actions {
		lines = append(lines, name+" "+mask)
	}
	slices.Sort(lines)
	return lines
}

func diffLines(before, after []string) []string {
	var diff []string
	for _, line := range before {
		if !slices.Contains(after, line) {
			diff = append(diff, "- "+line)
		}
	}
	for _, line := range after {
		if !slices.Contains(before, line) {
			diff = append(diff, "+ "+line)
		}
	}
	return diff
}

// TextChanges compares the executable file mappings of a live process with their files, byte for byte,
// and describes each run of bytes that differs: "libc.so.6+0x1234: 5 bytes 0f1f440000, file has ...". An
// untouched process has none. Reading through map_files needs CAP_CHECKPOINT_RESTORE or root; without
// it the path is opened, which may meanwhile be another file.
func TextChanges(t testing.TB, pid int) []string {
	t.Helper()
	mem, err := os.Open(memoryPath(pid, "mem"))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	var changes []string
	for _, m := range Mappings(t, pid) {
		if m.Inode == 0 || !strings.Contains(m.Perms, "x") {
			continue
		}
		c, err := compareMapping(pid, mem, m)
		if err != nil {
			t.Fatalf("compare %v: %v", m, err)
		}
		changes = append(changes, c...)
	}
	return changes
}

func compareMapping(pid int, mem io.ReaderAt, m Mapping) ([]string, error) {
	file, err := os.Open(procPath(pid, fmt.Sprintf("map_files/%x-%x", m.Start, m.End)))
	if err != nil {
		if file, err = os.Open(memoryPath(pid, filepath.Join("root", m.Path))); err != nil {
			return nil, err
		}
	}
	defer file.Close()
	size := m.End - m.Start
	want := make([]byte, size)
	// Behind the end of the file a mapping's last page reads zero.
	if _, err := file.ReadAt(want, int64(m.Offset)); err != nil && err != io.EOF {
		return nil, err
	}
	got := make([]byte, size)
	if _, err := mem.ReadAt(got, int64(m.Start)); err != nil {
		return nil, err
	}
	return differences(m, got, want), nil
}

func differences(m Mapping, got, want []byte) []string {
	var out []string
	for i := 0; i < len(got); i++ {
		if got[i] == want[i] {
			continue
		}
		end := i
		for end < len(got) && got[end] != want[end] {
			end++
		}
		out = append(out, fmt.Sprintf("%s+0x%x: %d bytes %x, file has %x",
			filepath.Base(m.Path), m.Offset+uint64(i), end-i, got[i:end], want[i:end]))
		i = end
	}
	return out
}
