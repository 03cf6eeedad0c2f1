package ptrace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"trapless/internal/abi"
	"trapless/internal/proc"
	"trapless/internal/unix"
)

// Mem is the memory of a target: one descriptor of /proc/PID/mem for the whole
// session. It keeps standing for the address space in which it was opened, even
// when the process replaces itself by execve or when its id is used again.
// Reading and writing work whether or not the group is attached.
type Mem struct {
	g *Group
	f *os.File
}

// Alive reports whether the address space still exists.
func (m *Mem) Alive() bool {
	var b [1]byte
	_, err := m.f.ReadAt(b[:], 0)
	return !errors.Is(err, io.EOF)
}

// atRandom is the entry of the auxiliary vector that says where 16 random bytes are,
// which are others for each execve (getauxval(3), AT_RANDOM).
const atRandom = 25

// Same reports whether the process still has the memory that the group stands for. It
// may have called execve while another process keeps the memory that they shared. The
// group need not be attached.
func (g *Group) Same() (bool, error) {
	if !g.mem.Alive() {
		return false, nil
	}
	return g.mem.isOf(g.PID)
}

// isOf reports whether the memory is that which a process has now.
func (m *Mem) isOf(pid int) (bool, error) {
	aux, err := proc.Auxv(pid)
	if err != nil {
		return false, err
	}
	now, err := openMemory(pid, os.O_RDONLY)
	if err != nil {
		return false, err
	}
	defer now.Close()
	var ours, its [16]byte
	at := int64(aux[atRandom])
	_, err = m.f.ReadAt(ours[:], at)
	_, nowErr := now.ReadAt(its[:], at)
	return ours == its && (err == nil) == (nowErr == nil), nil
}

// ReadAt fills p from the target's memory. It fails with ErrGone after the
// address space has ended, and with EIO where nothing is mapped.
func (m *Mem) ReadAt(p []byte, at abi.Addr) error {
	if err := m.read(p, at); err != nil {
		return m.explain("reading", len(p), at, err)
	}
	return nil
}

func (m *Mem) read(p []byte, at abi.Addr) error {
	_, err := m.f.ReadAt(p, int64(at))
	return err
}

// WriteAt writes data. For text use WriteText.
func (m *Mem) WriteAt(p []byte, at abi.Addr) error {
	if _, err := m.f.WriteAt(p, int64(at)); err != nil {
		return m.explain("writing", len(p), at, err)
	}
	Step()
	return nil
}

// WriteText writes into pages that the target itself may not write. At least
// one thread of the group has to be stopped; none may be about to execute what
// is written. The write is not atomic.
//
// Where the kernel forbids it through /proc/PID/mem (proc_mem.force_override=
// in Documentation/admin-guide/kernel-parameters.txt), PTRACE_POKEDATA does it.
func (m *Mem) WriteText(p []byte, at abi.Addr) error {
	// Any thread of ours may do it that way, and going over to the tracer's takes
	// ten times as long, while the target waits.
	if _, err := m.f.WriteAt(p, int64(at)); err == nil {
		Step()
		return nil
	}
	return m.g.t.do(func() error { return m.writeText(p, at) })
}

func (m *Mem) writeText(p []byte, at abi.Addr) error {
	if len(p) == 0 {
		return nil
	}
	_, err := m.f.WriteAt(p, int64(at))
	Step()
	if err == nil {
		return nil
	}
	if errors.Is(err, syscall.EIO) || errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM) {
		if th := m.g.anyStopped(); th != nil {
			err = m.poke(th, p, at)
		}
	}
	if err != nil {
		return m.explain("writing", len(p), at, err)
	}
	return nil
}

// poke writes whole words, keeping the bytes around p.
func (m *Mem) poke(th *Thread, p []byte, at abi.Addr) error {
	first := at &^ 7
	buf := make([]byte, (uint64(at-first)+uint64(len(p))+7)&^7)
	if err := m.read(buf, first); err != nil {
		return err
	}
	copy(buf[at-first:], p)
	for i := 0; i < len(buf); i += 8 {
		if err := unix.PtracePoke(th.TID, uint64(first)+uint64(i), binary.LittleEndian.Uint64(buf[i:])); err != nil {
			return err
		}
	}
	return nil
}

func (g *Group) anyStopped() *Thread {
	for _, th := range g.threads {
		if th.state == stateStopped {
			return th
		}
	}
	return nil
}

func (m *Mem) explain(what string, n int, at abi.Addr, err error) error {
	if errors.Is(err, io.EOF) || !m.Alive() {
		return refuse(m.g.PID, ReasonGone, "%s memory at %v: the address space has ended", what, at)
	}
	var pe *os.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return fmt.Errorf("process %d: %s %d bytes at %v: %w", m.g.PID, what, n, at, err)
}
