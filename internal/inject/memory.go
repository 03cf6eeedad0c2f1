package inject

import (
	"encoding/binary"
	"slices"

	"trapless/internal/abi"
	"trapless/internal/bpf/routine"
	"trapless/internal/image"
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
	own, err := t.ownData(maps)
	if err != nil {
		return err
	}
	t.memory = routine.Memory{Permanent: own}
	if t.threadID == 0 {
		return nil // it is not glibc that makes the threads, and where it has its notes they may have nothing at all
	}
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
	return readable(maps, abi.Range{Start: abi.Addr(sp), End: abi.Addr(end)})
}

// maxSegments bounds how many ranges a read is compared with.
const maxSegments = 6

// ownData lists the data segments of the program's file: what its headers say, for
// memory that it has mapped behind them may go away again.
func (t *Target) ownData(maps proc.Maps) ([]abi.Range, error) {
	exe, err := proc.Exe(t.PID)
	if err != nil {
		return nil, err
	}
	text := slices.IndexFunc(maps, func(m proc.Mapping) bool { return m.File() && m.Path == exe && m.Perm&proc.Exec != 0 })
	if text < 0 {
		return nil, nil // it has moved to other pages
	}
	m := &maps[text]
	file, err := proc.OpenMapped(t.PID, m)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return nil, err
	}
	img, err := image.New(file, st.Size())
	if err != nil {
		return nil, nil // as a probe in it will say
	}
	bias, err := img.BiasOf(m.Start, image.Offset(m.Offset), true)
	if err != nil {
		return nil, nil
	}
	var out []abi.Range
	for i := range img.Segments {
		s := &img.Segments[i]
		r := bias.Range(image.Range{Start: s.Addr, End: s.Addr + image.VAddr(s.MemSize)})
		if !s.Exec && len(out) < maxSegments && readable(maps, r) {
			out = append(out, r)
		}
	}
	return out, nil
}

// readable reports whether all of a range is private and can be read.
func readable(maps proc.Maps, r abi.Range) bool {
	for at := r.Start; at < r.End; {
		m := maps.Find(at)
		if m == nil || m.Perm&proc.Read == 0 || m.Perm&proc.Shared != 0 {
			return false
		}
		at = m.End
	}
	return true
}
