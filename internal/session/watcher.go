package session

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"trapless/internal/image"
	"trapless/internal/lang"
	"trapless/internal/proc"
	"trapless/internal/unix"
)

// watcher finds the processes that a session without a process of its own probes: those
// that have one of the script's files mapped. A program that starts is noticed at once
// (fanotify(7)); if the session may hold programs, it waits in the middle of execve until
// it is probed, so nothing of it is missed. A library that a process loads is noticed a
// moment later.
type watcher struct {
	files    []os.FileInfo
	paths    []string // of the files
	attached int      // probes, as bpftrace counts them
	hold     bool
	exec     *unix.ExecWatch
	starting map[int]time.Time // processes that were seen in execve: how long they are looked at
	arrivals chan arrival
	next     time.Time   // of the next scan
	seen     map[int]int // how often a process was looked at
}

// arrival is a process that waits. let lets it go, the first time.
type arrival struct {
	pid int
	let func()
}

// newWatcher resolves the files of a script's probes. Files and functions that do not
// exist are errors.
func newWatcher(c *Config) (*watcher, error) {
	w := &watcher{hold: c.Hold, starting: map[int]time.Time{}, arrivals: make(chan arrival), seen: map[int]int{os.Getpid(): looks, os.Getppid(): looks}}
	var missing error
	for i := range c.Script.Probes {
		p := &c.Script.Probes[i]
		if !needsProcess(*p) {
			continue
		}
		for k := range p.Attach {
			err := w.resolve(&p.Attach[k])
			switch {
			case err == nil:
				continue
			case c.Script.Missing == lang.MissingWarn:
				c.Warn("%v", err)
			case c.Script.Missing != lang.MissingIgnore:
				return nil, err
			}
			missing = cmp.Or(missing, err)
		}
	}
	if len(w.files) == 0 && missing != nil {
		return nil, missing
	}
	return w, nil
}

func (w *watcher) resolve(a *lang.AttachPoint) error {
	names, err := filesOf(a)
	if err != nil {
		return err
	}
	found := 0
	var last error
	for _, name := range names {
		n, err := countProbes(name, a)
		if err != nil {
			last = fmt.Errorf("%s: %s: %w", a.Text, name, err)
			continue
		}
		st, err := os.Stat(name)
		if err != nil {
			return err
		}
		found += n
		w.files = append(w.files, st)
		w.paths = append(w.paths, name)
	}
	if found == 0 {
		if last == nil {
			last = fmt.Errorf("%s: no file of that name", a.Text)
		}
		return last
	}
	w.attached += found
	return nil
}

// filesOf are the files that an attach point names here.
func filesOf(a *lang.AttachPoint) ([]string, error) {
	switch {
	case a.Path == "" || strings.Trim(a.Path, "*") == "":
		return nil, fmt.Errorf("%s: name a file, or a process by -p: no process is meant, and not every file of every process", a.Text)
	case a.PathWildcard:
		return filepath.Glob(a.Path)
	case strings.Contains(a.Path, "/"):
		return []string{a.Path}, nil
	}
	if name, err := exec.LookPath(a.Path); err == nil {
		return []string{name}, nil
	}
	name, err := LibraryFile("", a.Path)
	return []string{name}, err
}

// libraryDirs are where libraries are found by their short names (ld.so(8)).
var libraryDirs = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib"}

// LibraryFile finds a library by its short name, in the directories of a process's root.
func LibraryFile(root, short string) (string, error) {
	for _, dir := range libraryDirs {
		dir = root + dir
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if name := filepath.Join(dir, e.Name()); (e.Name() == short || lang.IsLibrary(e.Name(), short)) && isELF(name) {
				return name, nil
			}
		}
	}
	return "", fmt.Errorf("%s: neither a program in PATH nor a library in %s", short, strings.Join(libraryDirs, ", "))
}

// isELF reports whether a file is a program or a library; a linker's script is none.
func isELF(name string) bool {
	f, err := unix.OpenNow(name)
	if err != nil {
		return false
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return false
	}
	_, err = image.New(f, st.Size())
	return err == nil
}

// countProbes counts what an attach point names in a file.
func countProbes(name string, a *lang.AttachPoint) (int, error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, errors.Unwrap(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	mod := &module{path: name}
	if mod.image, err = image.New(f, st.Size()); err != nil {
		return 0, err
	}
	if mod.funcs, err = mod.image.Functions(); err != nil {
		return 0, err
	}
	sites, err := mod.sites(a)
	if err != nil {
		return 0, err
	}
	names := map[string]bool{}
	for _, s := range sites {
		names[s.name] = true
		if s.marker != nil {
			delete(names, s.name)
			names[s.marker.Provider+":"+s.marker.Name] = true
		}
	}
	return len(names), nil
}

// start watches executions from now on, where that is permitted.
func (w *watcher) start(log func(string, ...any)) {
	exec, err := unix.WatchExec(w.hold)
	if err != nil {
		log("programs that start from now on are found a moment late: fanotify: %v", err)
		return
	}
	w.exec = exec
	for _, name := range w.paths {
		if err := exec.Add(name); err != nil {
			log("programs that start from now on are found a moment late: fanotify: %s: %v", name, err)
		}
	}
	go w.wait()
}

// holdTime is how long a program is held in execve while nobody has time for it.
const holdTime = time.Second

// wait passes those who wait on.
func (w *watcher) wait() {
	for {
		all, err := w.exec.Next()
		if err != nil {
			return
		}
		var come []arrival
		for _, p := range all {
			var once sync.Once
			come = append(come, arrival{p.PID, func() { once.Do(func() { _ = p.Go() }) }})
		}
		w.pass(come)
	}
}

// pass passes those on who have come. When nobody has taken one for a while, all that are left are let go at once:
// each would wait for those before it.
func (w *watcher) pass(come []arrival) {
	until := time.Now().Add(holdTime)
	for _, a := range come {
		unknown := a.pid == 0 || a.pid == os.Getpid()
		if !w.hold || unknown {
			a.let()
		}
		if unknown {
			continue
		}
		select {
		case w.arrivals <- a:
			until = time.Now().Add(holdTime)
		case <-time.After(time.Until(until)):
			a.let()
		}
	}
}

// Close ends the watch.
func (w *watcher) Close() error {
	if w.exec == nil {
		return nil
	}
	return w.exec.Close()
}

// looks is how often a new process is looked at: it maps its libraries one by one.
const looks = 4

// scan finds processes that have one of the files mapped and were not looked at before.
func (w *watcher) scan() []int {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var found []int
	alive := map[int]int{os.Getpid(): looks, os.Getppid(): looks}
	for _, d := range names {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		n := w.seen[pid]
		if n < looks {
			n++
			if w.maps(pid) {
				found, n = append(found, pid), looks
			}
		}
		alive[pid] = n
	}
	w.seen = alive
	return found
}

// startTime is how long a process is looked at that was seen in execve.
const startTime = 100 * time.Millisecond

// started finds those of the starting processes that run one of the files by now.
func (w *watcher) started(now time.Time) []int {
	var found []int
	for pid, until := range w.starting {
		switch {
		case w.maps(pid):
			found = append(found, pid)
			w.seen[pid] = looks
			delete(w.starting, pid)
		case now.After(until):
			delete(w.starting, pid)
		}
	}
	return found
}

// maps reports whether a process has one of the files mapped as code.
func (w *watcher) maps(pid int) bool {
	maps, err := proc.ReadMaps(pid)
	if err != nil {
		return false
	}
	found := false
	for i := range maps {
		m := &maps[i]
		if m.Perm&proc.Exec == 0 || !m.File() || found {
			continue
		}
		found = slices.ContainsFunc(w.files, func(st os.FileInfo) bool {
			if st.Sys().(*syscall.Stat_t).Ino != m.Inode {
				return false
			}
			other, err := os.Stat(proc.Path(pid, "root") + m.Path)
			return err == nil && os.SameFile(st, other)
		})
	}
	return found
}
