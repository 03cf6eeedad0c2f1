package inject

import (
	"encoding/binary"
	"fmt"
	"slices"

	"trapless/internal/abi"
	jit "trapless/internal/jit/x86"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
)

// glibcThreadID is where glibc for x86-64 keeps the number of a thread, in bytes
// from its thread pointer (nptl/descr.h, struct pthread: tid). gdb's libthread_db
// and sanitizers know it as well.
const glibcThreadID = 0x2d0

// findThreadID finds out whether all threads, which are stopped, have their number
// where glibc keeps it. Then threads to come have it too, for the same library makes
// them, and programs need not ask the kernel who they run in.
func (t *Target) findThreadID() error {
	threads, err := t.group.Stopped()
	for _, th := range threads {
		if !t.hasThreadID(th) {
			return err
		}
	}
	if len(threads) > 0 {
		t.threadID = glibcThreadID
	}
	return err
}

// hasThreadID reports whether a thread has its number, as it knows it, in its memory.
func (t *Target) hasThreadID(th ptrace.Stopped) bool {
	st, err := proc.ReadStatus(t.PID, th.TID)
	if err != nil || len(st.NSpid) == 0 || th.Regs.FSBase == 0 {
		return false
	}
	var word [4]byte
	err = t.mem.ReadAt(word[:], abi.Addr(th.Regs.FSBase+glibcThreadID))
	return err == nil && int(binary.LittleEndian.Uint32(word[:])) == st.NSpid[len(st.NSpid)-1]
}

// noteThreadID notes whether a program asks for the thread's number.
func (t *Target) noteThreadID(reqs []Request) {
	for _, req := range reqs {
		for _, progs := range req.Programs {
			t.tellsThread = t.tellsThread || slices.ContainsFunc(progs, jit.TellsThread)
		}
	}
}

// checkThreadIDs requires that the threads that have come since are like the others.
func (t *Target) checkThreadIDs(threads []ptrace.Stopped) error {
	if t.threadID == 0 || !t.tellsThread {
		return nil
	}
	for _, th := range threads {
		if !t.hasThreadID(th) {
			return fmt.Errorf("process %d: thread-id: thread %d was not made by the C library, as the others were; try again", t.PID, th.TID)
		}
	}
	return nil
}
