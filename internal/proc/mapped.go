package proc

import (
	"fmt"
	"os"
	"syscall"

	"trapless/internal/unix"
)

// OpenMapped opens the file behind a mapping: the very file that is mapped,
// even when its name is gone or belongs to another file by now. That needs
// CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE (proc(5), map_files); without them the
// name is opened in the target's mount namespace, and refused if it is another
// file now.
func OpenMapped(pid int, m *Mapping) (*os.File, error) {
	if !m.File() {
		return nil, fmt.Errorf("process %d: no file is mapped at %v", pid, m.Start)
	}
	tid, err := LiveThread(pid)
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("map_files/%x-%x", uint64(m.Start), uint64(m.End))
	if f, err := os.Open(Path(pid, name)); err == nil {
		return f, nil
	}
	f, err := unix.OpenNow(TaskPath(pid, tid, "root"+m.Path))
	if err != nil {
		return nil, fmt.Errorf("process %d maps %s: %w", pid, m.Path, err)
	}
	st, err := f.Stat()
	if err == nil && st.Sys().(*syscall.Stat_t).Ino != m.Inode {
		err = fmt.Errorf("process %d maps another %s than there is now; CAP_CHECKPOINT_RESTORE is needed to read the one that it maps", pid, m.Path)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
