package proc

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// cgroupMounts are where the version 2 hierarchy of control groups is mounted: alone, or
// beside those of version 1.
var cgroupMounts = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}

// CgroupRoot is where the version 2 hierarchy of control groups is mounted, empty if it
// is in none of the usual places.
func CgroupRoot() string {
	for _, dir := range cgroupMounts {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.controllers")); err == nil {
			return dir
		}
	}
	return ""
}

// CgroupID is the number of a control group, which is that of its directory's inode, and
// false if there is no such directory.
func CgroupID(dir string) (uint64, bool) {
	var st syscall.Stat_t
	if syscall.Stat(dir, &st) != nil || st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
		return 0, false
	}
	return st.Ino, true
}

// Cgroup is the number of the control group that a process is in, of the version 2
// hierarchy; 0 if there is none that can be seen.
func Cgroup(pid int) uint64 {
	text, err := os.ReadFile(Path(pid, "cgroup"))
	root := CgroupRoot()
	if err != nil || root == "" {
		return 0
	}
	for line := range bytes.Lines(text) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "0::"); ok {
			id, _ := CgroupID(filepath.Join(root, name))
			return id
		}
	}
	return 0
}

// Parent is the process that started a process, 0 if that cannot be seen.
func Parent(pid int) int {
	stat, err := os.ReadFile(Path(pid, "stat"))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	n, _ := strconv.Atoi(fields[1])
	return n
}
