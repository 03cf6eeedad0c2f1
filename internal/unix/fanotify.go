package unix

import (
	"encoding/binary"
	"os"

	"golang.org/x/sys/unix"
)

// ExecWatch is a fanotify group (fanotify(7)) that tells of programs that are executed. If it holds them,
// they wait in the middle of execve until they are let go; when it is closed, or we end, the kernel lets all
// of them go.
type ExecWatch struct {
	f    *os.File
	hold bool
}

// WatchExec makes one. It needs CAP_SYS_ADMIN.
func WatchExec(hold bool) (*ExecWatch, error) {
	class := uint(unix.FAN_CLASS_NOTIF)
	if hold {
		class = unix.FAN_CLASS_CONTENT
	}
	fd, err := unix.FanotifyInit(class|unix.FAN_CLOEXEC|unix.FAN_NONBLOCK, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_LARGEFILE)
	if err != nil {
		return nil, err
	}
	return &ExecWatch{os.NewFile(uintptr(fd), "fanotify"), hold}, nil
}

// Add watches executions of a file.
func (w *ExecWatch) Add(path string) error {
	mask := uint64(unix.FAN_OPEN_EXEC)
	if w.hold {
		mask = unix.FAN_OPEN_EXEC_PERM
	}
	return unix.FanotifyMark(int(w.f.Fd()), unix.FAN_MARK_ADD, mask, unix.AT_FDCWD, path)
}

// Close lets everybody go. It ends a Next that waits.
func (w *ExecWatch) Close() error { return w.f.Close() }

// Waiting is a process that executes a file, and waits if it is held.
type Waiting struct {
	PID int // as we see it; 0 if we do not
	fd  int32
	w   *ExecWatch
}

// fanotifyHeader is the size of struct fanotify_event_metadata (include/uapi/linux/fanotify.h).
const fanotifyHeader = 24

// Next waits for the next processes.
func (w *ExecWatch) Next() ([]Waiting, error) {
	buf := make([]byte, 64*fanotifyHeader)
	n, err := w.f.Read(buf)
	if err != nil {
		return nil, err
	}
	var all []Waiting
	for b := buf[:n]; len(b) >= fanotifyHeader; {
		size := int(binary.LittleEndian.Uint32(b))
		if size < fanotifyHeader || size > len(b) {
			break
		}
		if fd := int32(binary.LittleEndian.Uint32(b[16:])); fd >= 0 {
			all = append(all, Waiting{PID: int(binary.LittleEndian.Uint32(b[20:])), fd: fd, w: w})
		}
		b = b[size:]
	}
	return all, nil
}

// Go lets the process go. It is called once.
func (p Waiting) Go() error {
	if !p.w.hold {
		return unix.Close(int(p.fd))
	}
	var answer [8]byte
	binary.LittleEndian.PutUint32(answer[:], uint32(p.fd))
	binary.LittleEndian.PutUint32(answer[4:], unix.FAN_ALLOW)
	_, err := p.w.f.Write(answer[:])
	_ = unix.Close(int(p.fd)) // a descriptor for reading
	return err
}
