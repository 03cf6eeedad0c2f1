package inject

import (
	"encoding/binary"

	"trapless/internal/abi"
	"trapless/internal/bpf/routine"
	"trapless/internal/proc"
	"trapless/internal/ptrace"
)

// glibcStack is where glibc for x86-64 keeps the address of a thread's stack, and
// behind it the size, in bytes from the thread pointer (nptl/descr.h, struct pthread:
// stackblock and stackblock_size). A first thread has 0 and the stack's end
// (nptl_init in csu/libc-tls.c).
const glibcStack = 0x690

// findMemory finds out what programs may read without asking the kernel first: the
// stack that a thread runs on, if all threads, which are stopped, tell where theirs is,
// and the data of the program itself, which is never unloaded.
func (t *Target) findMemory() error {
	threads, err := t.group.Stopped()
	if err != nil {
		return err
	}
	maps, err := proc.ReadMaps(t.PID)
	if err != nil {
		return err
	}
	t.memory = routine.Memory{Permanent: t.ownData(maps)}
	for _, th := range threads {
		if !t.hasStack(th, maps) {
			return nil
		}
	}
	if len(threads) > 0 {
		t.memory.Stack = glibcStack
	}
	return nil
}

// hasStack reports whether a thread runs on the stack that its memory tells of.
func (t *Target) hasStack(th ptrace.Stopped, maps proc.Maps) bool {
	var words [16]byte
	if err := t.mem.ReadAt(words[:], abi.Addr(th.Regs.FSBase+glibcStack)); err != nil {
		return false
	}
	block, size := binary.LittleEndian.Uint64(words[:]), binary.LittleEndian.Uint64(words[8:])
	sp, end := th.Regs.RSP, block+size
	if sp < block || sp >= end || block == 0 && end-sp > routine.MainStack {
		return false
	}
	for at := sp &^ (abi.PageSize - 1); at < end; {
		m := maps.Find(abi.Addr(at))
		if m == nil || m.Perm&proc.Read == 0 {
			return false
		}
		at = uint64(m.End)
	}
	return true
}

// maxSegments bounds how many ranges a read is compared with.
const maxSegments = 6

// ownData lists the readable segments of the program's file that hold no code, each
// with what follows it at once without a file (.bss).
func (t *Target) ownData(maps proc.Maps) []abi.Range {
	exe, err := proc.Exe(t.PID)
	if err != nil {
		return nil
	}
	var out []abi.Range
	for i := range maps {
		m := &maps[i]
		n := len(out)
		bss := !m.File() && m.Path == "" && n > 0 && out[n-1].End == m.Start
		if !bss && !(m.File() && m.Path == exe) || m.Perm&proc.Read == 0 || m.Perm&proc.Exec != 0 || m.Perm&proc.Shared != 0 {
			continue
		}
		if n > 0 && out[n-1].End == m.Start {
			out[n-1].End = m.End
			continue
		}
		out = append(out, m.Range)
	}
	return out[:min(len(out), maxSegments)]
}
