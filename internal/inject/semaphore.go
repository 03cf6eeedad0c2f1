package inject

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"trapless/internal/abi"
	"trapless/internal/proc"
)

// The semaphore of a USDT probe is a 16-bit number in the target's data: how many tracers are interested.
// While it is 0 the program does not prepare the probe's arguments, or does not come to the probe at all.
// The program only ever reads it. A session raises each one once, however many probes share it.

// SetSemaphores raises the semaphores that are wanted and were not raised yet, and lowers the others that
// were. Only a tracer changes them, and a process has one at a time that is attached; the write is of two
// bytes in one page. So no instruction has to be run in the target.
func (t *Target) SetSemaphores(want []abi.Addr) error {
	if len(want)+len(t.semaphores) == 0 {
		return nil
	}
	var errs []error
	for at, i := range t.semaphores {
		if !slices.Contains(want, at) {
			errs = append(errs, t.lower(at, i))
		}
	}
	var fresh []abi.Addr
	for _, at := range want {
		if _, raised := t.semaphores[at]; !raised {
			fresh = append(fresh, at)
		}
	}
	if len(fresh) == 0 {
		return errors.Join(errs...)
	}
	maps, err := proc.ReadMaps(t.PID)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, at := range fresh {
		if err := t.raise(maps, at); err != nil {
			errs = append(errs, fmt.Errorf("process %d: the semaphore of a USDT probe at %s: %w", t.PID, at, err))
		}
	}
	return errors.Join(errs...)
}

// ForgetSemaphores is for semaphores whose memory is not mapped any more: nothing is written there.
func (t *Target) ForgetSemaphores(gone []abi.Addr) error {
	var errs []error
	for _, at := range gone {
		if i, raised := t.semaphores[at]; raised {
			delete(t.semaphores, at)
			errs = append(errs, t.journal.setState(i, stateUndone))
		}
	}
	return errors.Join(errs...)
}

// raise writes into the journal what it does, before it does it and again after.
func (t *Target) raise(maps proc.Maps, at abi.Addr) error {
	cur, err := readSemaphore(t.mem, maps, at)
	if err != nil {
		return err
	}
	if cur == math.MaxUint16 {
		return errors.New("it has its greatest value; the program, or another tracer, uses it for something else")
	}
	i, err := t.record(entry{kind: entrySemaphore, state: statePending, a: uint64(at), b: uint64(cur)})
	if err != nil {
		return err
	}
	if err := writeSemaphore(t.mem, at, cur+1); err != nil {
		return errors.Join(err, t.journal.setState(i, stateUndone))
	}
	if t.semaphores == nil {
		t.semaphores = map[abi.Addr]int{}
	}
	t.semaphores[at] = i
	return t.journal.setDone(i)
}

// lower takes back what entry i of the journal says.
func (t *Target) lower(at abi.Addr, i int) error {
	delete(t.semaphores, at)
	maps, err := proc.ReadMaps(t.PID)
	if err != nil {
		return err
	}
	_, err = lowerSemaphore(t.mem, maps, &t.journal.entries[i], true)
	return errors.Join(err, t.journal.setState(i, stateUndone))
}

// lowerSemaphore lowers what an entry says was raised, unless there is nothing to lower. An entry of a
// parent's is believed only if the number is what the parent made of it. It reports whether it wrote.
func lowerSemaphore(mem memory, maps proc.Maps, e *entry, owned bool) (bool, error) {
	at := abi.Addr(e.a)
	cur, err := readSemaphore(mem, maps, at)
	if err != nil {
		return false, nil // the library was unloaded, or the journal overwritten
	}
	certain := owned && e.c == semaphoreDone
	if cur == 0 || !certain && cur != uint16(e.b)+1 {
		return false, nil
	}
	return true, writeSemaphore(mem, at, cur-1)
}

// semaphoreDone in entry.c says that the semaphore has been raised for certain.
const semaphoreDone = 1

// setDone notes that the deed of entry i was done for certain.
func (j *journal) setDone(i int) error {
	j.entries[i].c = semaphoreDone
	return j.mem.WriteAt(words([]uint64{semaphoreDone}), j.at(i)+entryCAt)
}

// readSemaphore reads a number that lies where the process itself may write, and nobody else sees it.
func readSemaphore(mem memory, maps proc.Maps, at abi.Addr) (uint16, error) {
	m := maps.Find(at)
	if m == nil || !m.Contains(at+1) || m.Perm&proc.Write == 0 || m.Perm&proc.Shared != 0 {
		return 0, errors.New("it does not lie in private memory that the process may write")
	}
	var raw [2]byte
	err := mem.ReadAt(raw[:], at)
	return binary.LittleEndian.Uint16(raw[:]), err
}

func writeSemaphore(mem memory, at abi.Addr, n uint16) error {
	return mem.WriteAt(binary.LittleEndian.AppendUint16(nil, n), at)
}

// undoSemaphores lowers those that the journal says are raised.
func (p *previous) undoSemaphores(t *Target, owned bool) error {
	maps, err := proc.ReadMaps(t.PID)
	if err != nil {
		return err
	}
	for i := range p.journal.entries {
		e := &p.journal.entries[i]
		if e.kind != entrySemaphore || owned && e.state != statePending {
			continue
		}
		if _, err := lowerSemaphore(t.mem, maps, e, owned); err != nil {
			return err
		}
		if owned {
			if err := p.journal.setState(i, stateUndone); err != nil {
				return err
			}
		}
	}
	return nil
}
