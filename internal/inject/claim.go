package inject

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"trapless/internal/abi"
	"trapless/internal/proc"
	"trapless/internal/unix"
)

// A process has one tracer at a time. Who is at work keeps the arena's memory locked,
// by a description of the open file of its own: so the lock ends with the tracer,
// whatever its end is, and is seen from any pid namespace. To look at it takes the
// right to open what another process has mapped. Without, the tracer's number and
// start time tell, in its own pid namespace.

// claim writes down who is at work, and locks the arena's memory.
func (t *Target) claim(fd int) error {
	lock, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("process %d: opening its arena: %w", t.PID, err)
	}
	t.lock = lock
	if err := unix.Lock(int(lock.Fd()), false); err != nil {
		return fmt.Errorf("process %d: locking its arena: %w", t.PID, err)
	}
	owner, err := proc.ReadStat(t.PID, t.PID)
	if err != nil {
		return err
	}
	pid := os.Getpid()
	st, err := proc.ReadStat(pid, pid)
	if err != nil {
		return err
	}
	space, err := pidSpace()
	if err != nil {
		return err
	}
	if err := t.journal.putWords(jrnOwner, owner.StartTime, space); err != nil {
		return err
	}
	return t.journal.setTracer(uint64(pid), st.StartTime)
}

// pidSpace is the pid namespace that process numbers of this tracer are of.
func pidSpace() (uint64, error) {
	st, err := os.Stat("/proc/self/ns/pid")
	if err != nil {
		return 0, err
	}
	return st.Sys().(*syscall.Stat_t).Ino, nil
}

// ownID is a process's number in its own pid namespace.
func ownID(pid int) (int, error) {
	tid, err := proc.LiveThread(pid)
	if err != nil {
		return 0, err
	}
	st, err := proc.ReadStatus(pid, tid)
	if err != nil {
		return 0, err
	}
	if n := len(st.NStgid); n > 0 {
		return st.NStgid[n-1], nil
	}
	return pid, nil
}

// ownedBy reports whether the arena was made for this process, and not for one
// that it was forked from.
func (p *previous) ownedBy(pid int) bool {
	var raw [4]byte
	if err := p.journal.mem.ReadAt(raw[:], p.base+abi.HdrTGID); err != nil {
		return true
	}
	id, err := ownID(pid)
	if err != nil {
		return true
	}
	st, err := proc.ReadStat(pid, pid)
	return err != nil || int(binary.LittleEndian.Uint32(raw[:])) == id && st.StartTime == p.header.owner
}

// mapFile names the file that a process has mapped, whatever became of its name
// (proc(5), map_files).
func mapFile(pid int, m *proc.Mapping) string {
	return proc.Path(pid, fmt.Sprintf("map_files/%x-%x", uint64(m.Start), uint64(m.End)))
}

// checkTracer fails with ErrProbed if a tracer is at work on the process, or if that
// cannot be known.
func (p *previous) checkTracer(pid int) error {
	if p.header.tracer == 0 {
		return nil
	}
	space, err := pidSpace()
	if err != nil {
		return err
	}
	here := space == p.header.space
	by := fmt.Sprintf("process %d", p.header.tracer)
	if !here {
		by += " of another pid namespace"
		if n := p.tracerHere(); n != 0 {
			by = fmt.Sprintf("process %d", n)
		}
	}
	locked, err := p.locked()
	switch {
	case err != nil && here:
		locked = p.tracerLives()
	case err != nil:
		return fmt.Errorf("process %d: %w by %s, as far as can be seen from here; it takes CAP_CHECKPOINT_RESTORE, or trapless in that namespace, to see whether that one still lives",
			pid, ErrProbed, by)
	}
	if locked {
		return fmt.Errorf("process %d: %w by %s; end that one first", pid, ErrProbed, by)
	}
	return nil
}

// locked reports whether some tracer has the arena's memory locked.
func (p *previous) locked() (bool, error) {
	f, err := os.Open(p.file)
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = unix.Lock(int(f.Fd()), true)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}

// tracerLives reports whether the tracer is at work that the journal names by a
// number of this pid namespace.
func (p *previous) tracerLives() bool {
	pid := int(p.header.tracer)
	st, err := proc.ReadStat(pid, pid)
	return err == nil && !st.Dead() && st.StartTime == p.header.start
}

// tracerHere is the number that a tracer of another pid namespace has in this one, 0
// if it is not seen from here.
func (p *previous) tracerHere() int {
	all, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	for _, e := range all {
		var pid int
		if _, err := fmt.Sscan(e.Name(), &pid); err != nil || strings.Trim(e.Name(), "0123456789") != "" {
			continue
		}
		st, err := proc.ReadStat(pid, pid)
		if err != nil || st.StartTime != p.header.start {
			continue
		}
		if id, err := ownID(pid); err == nil && id == int(p.header.tracer) {
			return pid
		}
	}
	return 0
}
