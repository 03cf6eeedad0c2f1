// Package proc reads what the kernel says about a process: its memory maps, its
// threads and their states, its limits, and whether it may be traced at all.
//
// Everything comes from /proc (proc(5)) as text and leaves as plain values. The
// package changes nothing, stops nothing and keeps no state: what it returns was
// true when it was read. A process may end, replace itself or lose its leader
// between two reads, so every function either answers for one moment or returns
// an error that wraps ErrNoProcess. It knows nothing of probes.
//
// The leader of a process may end before its other threads. /proc/PID is then
// that of a zombie, and its maps are empty. Functions that need an address space
// therefore go through /proc/PID/task/TID of a thread that lives.
package proc

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Path is the path of a file of a process, such as "maps".
func Path(pid int, name string) string { return fmt.Sprintf("/proc/%d/%s", pid, name) }

// TaskPath is the path of a file of one thread of a process.
func TaskPath(pid, tid int, name string) string {
	return fmt.Sprintf("/proc/%d/task/%d/%s", pid, tid, name)
}

// read reads a file under /proc. A process that has gone shows as ENOENT when
// the file is opened and as ESRCH when it is read.
func read(pid int, path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	return b, explain(pid, err)
}

func explain(pid int, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return refuse(pid, ErrNoProcess, "")
	}
	return fmt.Errorf("process %d: %w", pid, err)
}

// Threads lists the ids of the threads of a process in ascending order, a dead
// leader included.
func Threads(pid int) ([]int, error) {
	ids, err := numericNames(Path(pid, "task"))
	if err != nil {
		return nil, explain(pid, err)
	}
	return ids, nil
}

// Processes lists the ids of all processes that can be seen.
func Processes() ([]int, error) { return numericNames("/proc") }

func numericNames(dir string) ([]int, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	ids := make([]int, 0, len(names))
	for _, n := range names {
		if id, err := strconv.Atoi(n); err == nil {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, nil
}

// LiveThread is a thread of the process that has not ended: the leader when it
// lives, else the one with the lowest id. ErrZombie says that there is none.
func LiveThread(pid int) (int, error) {
	// A thread that was listed can end while its child, which was not, lives on.
	for range 3 {
		tids, err := Threads(pid)
		if err != nil {
			return 0, err
		}
		if i := slices.Index(tids, pid); i > 0 {
			tids = slices.Insert(slices.Delete(tids, i, i+1), 0, pid)
		}
		exiting := 0
		for _, tid := range tids {
			st, err := ReadStat(pid, tid)
			switch {
			case err != nil || st.Dead():
			case !st.Exiting():
				return tid, nil
			case exiting == 0:
				exiting = tid
			}
		}
		if exiting != 0 {
			return exiting, nil
		}
	}
	if _, err := os.Stat(Path(pid, "")); err != nil {
		return 0, refuse(pid, ErrNoProcess, "")
	}
	return 0, refuse(pid, ErrZombie, "")
}

// readLive reads a file of a thread that lives. A thread that ends meanwhile, as
// its error or an empty file tells, is replaced by another.
func readLive(pid int, name string) ([]byte, error) {
	for try := 0; ; try++ {
		tid, err := LiveThread(pid)
		if err != nil {
			return nil, err
		}
		b, err := read(pid, TaskPath(pid, tid, name))
		switch {
		case err == nil && len(b) > 0:
			return b, nil
		case err != nil && !errors.Is(err, ErrNoProcess):
			return nil, err
		case try == 4:
			return nil, refuse(pid, ErrNoProcess, "")
		}
	}
}

// Comm is the name of a process or thread, and "?" when it cannot be read.
func Comm(pid int) string {
	b, err := os.ReadFile(Path(pid, "comm"))
	if err != nil {
		return "?"
	}
	return string(bytes.TrimSpace(b))
}

// Exe is the path of the executable as the kernel names it, with " (deleted)"
// behind it when the file has gone. It need not exist in our mount namespace.
func Exe(pid int) (string, error) {
	tid, err := LiveThread(pid)
	if err != nil {
		return "", err
	}
	s, err := os.Readlink(TaskPath(pid, tid, "exe"))
	return s, explain(pid, err)
}

// Namespace identifies the namespace of a kind ("mnt", "pid", "user", ...) that
// the process is in; equal strings are the same namespace.
func Namespace(pid int, kind string) (string, error) {
	tid, err := LiveThread(pid)
	if err != nil {
		return "", err
	}
	s, err := os.Readlink(TaskPath(pid, tid, "ns/"+kind))
	return s, explain(pid, err)
}

// Auxv reads the auxiliary vector of the process (getauxval(3)): AT_ENTRY is 9.
func Auxv(pid int) (map[uint64]uint64, error) {
	b, err := readLive(pid, "auxv")
	if err != nil {
		return nil, err
	}
	aux := map[uint64]uint64{}
	for ; len(b) >= 16; b = b[16:] {
		aux[le64(b)] = le64(b[8:])
	}
	return aux, nil
}

// CurrentCall says what system call a thread sleeps in: its number, or
// ok == false when the thread runs or cannot be looked at.
func CurrentCall(pid, tid int) (nr int64, ok bool) {
	b, err := os.ReadFile(TaskPath(pid, tid, "syscall"))
	if err != nil {
		return 0, false
	}
	first, _, _ := strings.Cut(string(b), " ")
	nr, err = strconv.ParseInt(strings.TrimSpace(first), 10, 64)
	return nr, err == nil
}

// WaitChannel is the kernel function that a thread sleeps in, "" when unknown.
func WaitChannel(pid, tid int) string {
	b, _ := os.ReadFile(TaskPath(pid, tid, "wchan"))
	if s := string(bytes.TrimSpace(b)); s != "0" {
		return s
	}
	return ""
}

func le64(b []byte) uint64 {
	var v uint64
	for i := range 8 {
		v |= uint64(b[i]) << (8 * i)
	}
	return v
}
